"""Files of run cards: the same runs give the same bytes, a run stands once, a damaged line is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.cards import Card, Maker, card, card_files, key_of, keys_in, read_cards, write_cards
from pipelines.runs.grid import plan
from pipelines.runs.identity import run_hash
from pipelines.runs.release import Release

DOCS = Path(__file__).parents[3] / "docs"
MAKER = Maker("0.1.0", "51c0a5d", "dpfest sweep experiment=comparison")


def one(seed: int = 0, value: float = 0.7, maker: Maker = MAKER, **settings: Any) -> Card:
    train = {"batch_size": 8, "log_every": 20, "save_model": False} | settings.pop("train", {})
    config = {
        "data": {"name": "journey"},
        "privacy": {"fidelity": "rigorous"},
        "train": train,
        "seed": seed,
        "device": "cpu",
        "profile": "demo",
    } | settings
    summary = {"schema": 2, "dataset": "journey", "algorithm": "adafest", "seed": seed, "utility": {"value": value}}
    return Card(config, {"epsilon": 0.99, "statements": ["ε holds."]}, summary, maker)


def values(path: Path) -> list[float]:
    cards, damaged = read_cards(path)
    assert damaged == []
    return [card.summary["utility"]["value"] for card in cards]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.xz"])
def test_what_is_written_is_read_and_the_order_of_writing_does_not_matter(tmp_path: Path, suffix: str) -> None:
    other = Maker("0.2.0", None, "make reproduce")
    cards = [one(seed, value=0.7 + seed / 100, maker=MAKER if seed else other) for seed in range(4)]
    at_once, piecewise = tmp_path / f"one{suffix}", tmp_path / "folder" / f"two{suffix}"
    assert write_cards(at_once, cards) == (4, 0)
    for each in reversed(cards):
        write_cards(piecewise, [each])
    assert at_once.read_bytes() == piecewise.read_bytes()
    assert values(at_once) == [0.7, 0.71, 0.72, 0.73]
    again, _ = read_cards(at_once)
    assert [(c.config, c.ledger, c.summary, c.maker) for c in again] == [
        (c.config, c.ledger, c.summary, c.maker) for c in cards
    ]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [at_once.name, piecewise.name]
    assert card_files(tmp_path) == [at_once]


@pytest.mark.parametrize(
    ("again", "replaces"),
    [
        (one(0, 0.9), True),
        (one(0, 0.9, device="cuda", profile="paper", train={"log_every": 1}), True),  # none of them changes a run
        # As settings added later are by default.
        (one(0, 0.9, privacy={"fidelity": "rigorous", "sampling": None}, train={"steps": None}), True),
        (one(0, 0.9, privacy={"fidelity": "rigorous", "sampling": "balls_in_bins"}), False),
        (one(1, 0.9), False),
        (one(0, 0.9, train={"batch_size": 16}), False),
        (one(0, 0.9, data={"name": "journey", "split": 1}), False),
    ],
)
def test_a_run_made_anew_replaces_its_card_and_another_stands_beside_it(
    tmp_path: Path, again: Card, replaces: bool
) -> None:
    path = tmp_path / "cards.jsonl"
    write_cards(path, [one(0, 0.7)])
    assert write_cards(path, [again]) == ((1, 1) if replaces else (2, 0))
    assert sorted(values(path)) == ([0.9] if replaces else [0.7, 0.9])


@pytest.mark.parametrize(
    ("overrides", "others", "same"),
    [
        (["algorithm=dpsgd", "algorithm.noise=lazy"], ["train.evaluate_every=5"], False),
        (["algorithm=dpsgd"], ["train.evaluate_every=5"], True),
        ([], ["privacy.sampling=poisson"], True),
        (["privacy=paper"], ["privacy.sampling=shuffled"], True),
        (["data=names_stream", "algorithm=fest"], ["algorithm.selection.source=streaming"], True),
        (["data=names_stream", "algorithm=fest"], ["algorithm.selection.source=all_days"], False),
    ],
)
def test_two_runs_have_one_card_exactly_if_they_have_one_folder(
    overrides: list[str], others: list[str], same: bool
) -> None:
    runs = [typed(Composer().compose(asked)) for asked in (overrides, [*overrides, *others])]
    assert len({run_hash(run) for run in runs}) == len({key_of(run) for run in runs}) == (1 if same else 2)


DOCUMENTED = [
    (["experiment=reference", "seed=0,4"], "reference"),
    (["experiment=streaming", "seed=0,4"], "reference"),
    (["experiment=map"], "reference"),
    (["experiment=map_fine"], "reference"),
    (["experiment=units", "privacy.epsilon=1,3,8", "seed=0,1,2"], "reference"),
    (["experiment=search"], "search"),
]
SMALL = (["experiment=units", "privacy.epsilon=1", "seed=0", "algorithm=adafest"], "reference/units.jsonl.xz")


@pytest.mark.parametrize(
    ("grid", "folder"), [SMALL, *(pytest.param(*grid, marks=pytest.mark.documents) for grid in DOCUMENTED)]
)
def test_every_run_of_the_documented_grids_has_its_card(grid: list[str], folder: str) -> None:
    """Whole grids among the documents: to compose thousands of runs takes minutes."""
    there = keys_in(DOCS / folder)
    missing = [run for run in plan(Composer(), grid).runs if key_of(run.config) not in there]
    assert not missing, f"{len(missing)}, such as {missing[0].overrides}"


def test_cards_that_two_write_at_once_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: write_cards(tmp_path / "all.jsonl", [one(seed)]), range(8)))
    assert len(values(tmp_path / "all.jsonl")) == 8


def test_a_card_of_a_stream_leaves_out_the_utilities_of_its_periods_alone() -> None:
    sizes = {"period": 1, "days": [0, 1], "examples": 50}
    whole = {"dataset": "names_stream", "utility": {"value": 0.7}, "periods": [sizes | {"validation": {"auc": 0.6}}]}
    release = Release(Path("run"), (), {"seed": 0}, whole, {"epsilon": 1.0}, "0a1b2c3d4e5f")
    made = card(release, MAKER)
    assert made.summary == {"dataset": "names_stream", "utility": {"value": 0.7}, "periods": [sizes]}
    assert (made.config, made.ledger) == (release.config, release.ledger)
    plain = replace(release, summary=whole | {"periods": None})
    assert card(plain, MAKER).summary == plain.summary


def test_makers_without_a_card_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "cards.jsonl"
    write_cards(path, [one(0)])
    write_cards(path, [one(0, maker=Maker("0.3.0", None, "again"))])
    assert json.loads(path.read_text().splitlines()[0])["made"] == [
        {"dpfest": "0.3.0", "commit": None, "command": "again"}
    ]


def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"end in \.jsonl or \.jsonl\.xz"):
        write_cards(tmp_path / "cards.json", [one()])
    assert list(tmp_path.iterdir()) == []


def changed(place: int, change: Callable[[str], str]) -> Callable[[list[str]], None]:
    def harm(lines: list[str]) -> None:
        lines[place] = change(lines[place])

    return harm


@pytest.mark.parametrize(
    ("harm", "line", "reason", "left"),
    [
        (changed(2, lambda text: text.replace("0.71", "0.75")), 3, "its checksum does not match", [0.7, 0.72]),
        (changed(2, lambda text: text[:90]), 3, "is not JSON", [0.7, 0.72]),
        (changed(2, lambda text: "[]"), 3, "is not a card", [0.7, 0.72]),
        (
            changed(2, lambda text: text.replace('"made":0', '"made":1')),
            3,
            "origin that the header does not list",
            [0.7, 0.72],
        ),
        (
            changed(2, lambda text: text.replace('"made":0', '"made":0.0')),
            3,
            "origin that the header does not list",
            [0.7, 0.72],
        ),
        (changed(2, lambda text: text.replace("0.71", "NaN")), 3, "contains NaN", [0.7, 0.72]),
        (changed(2, lambda text: "[" * 100_000), 3, "is not JSON", [0.7, 0.72]),
        (changed(0, lambda text: text.replace('"cards":1', '"cards":9')), 1, "schema 9, and this version reads 1", []),
        (changed(0, lambda text: '{"cards":1,"made":[{}]}'), 1, "damaged header", []),
        (lambda lines: lines.pop(0), 1, "not a header of run cards", []),
        (list.clear, 1, "not a header of run cards", []),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_read(
    tmp_path: Path, harm: Callable[[list[str]], None], line: int, reason: str, left: list[float]
) -> None:
    path = tmp_path / "cards.jsonl"
    write_cards(path, [one(seed, 0.7 + seed / 100) for seed in range(3)])
    lines = path.read_text().splitlines()
    harm(lines)
    path.write_text("".join(text + "\n" for text in lines))
    cards, damaged = read_cards(path)
    assert [card.summary["utility"]["value"] for card in cards] == left
    assert [bad.line for bad in damaged] == [line] and reason in damaged[0].reason
    before = path.read_bytes()
    with pytest.raises(UserError, match=f"line {line}, "):
        write_cards(path, [one(9)])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("harm", "line", "left"),
    [
        (lambda b: b[:-9], 5, 3),  # all lines are whole, and the end of the file is missing
        (lambda b: b[:40] + b"\0\0\0\0" + b[44:], 1, 0),
        (lambda b: b"plain", 1, 0),
    ],
)
def test_a_compressed_file_that_was_cut_short_is_named(
    tmp_path: Path, harm: Callable[[bytes], bytes], line: int, left: int
) -> None:
    path = tmp_path / "cards.jsonl.xz"
    write_cards(path, [one(seed) for seed in range(3)])
    path.write_bytes(harm(path.read_bytes()))
    cards, damaged = read_cards(path)
    assert [bad.line for bad in damaged] == [line] and "cannot be read" in damaged[0].reason
    assert len(cards) == left
