"""What `dpfest bench` measures, and how it says so."""

from __future__ import annotations

import dataclasses
import gzip
import json
import warnings
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from scipy import stats

from dpfest.errors import UserError
from pipelines.bench import (
    accounting,
    correlated,
    device,
    embedding,
    pctr,
    peers,
    preprocess,
    ranks,
    small,
    step,
    table,
    text,
    training,
)
from pipelines.bench.case import CPU, Case, measured, sizes_up_to
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.pandas_way import convert
from pipelines.bench.records import Record, records, write
from pipelines.bench.sections import bench, run
from pipelines.bench.training import ALGORITHM, ORDINARY
from pipelines.bench.worker import Worker, WorkerError, available_bytes
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.rows import RECORD
from tests import accountant

ABSENT = "absent: {} is not installed (pip install -e '.[peers]')"


def config(tmp_path: Path, *overrides: str) -> Config:
    paths = (f"paths.{name}={tmp_path / name}" for name in ("data", "runs", "report"))
    return typed(Composer().compose(["profile=smoke", "bench.seconds=0.01", *paths, *overrides]))


def by_name(found: list[Record]) -> dict[str, Record]:
    return {record.competitor: record for record in found}


def test_competitors_take_turns_and_each_turn_begins_with_another() -> None:
    order: list[tuple[int, str]] = []

    def competitor(name: str) -> Turn:
        def turn(turn: int) -> float:
            order.append((turn, name))
            return 1.0

        return turn

    times = take_turns({name: competitor(name) for name in "abc"}, "a", repeats=3, seconds=60, warm_up=1)
    assert order == list(zip([0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, "abc" + "bca" + "cab" + "abc", strict=True))
    assert all(list(taken) == [1, 2, 3] for taken in times.values())  # the turn of warm-up does not count


def test_who_has_used_up_the_time_leaves_after_three_turns_and_the_reference_stays() -> None:
    times = take_turns({"a": lambda turn: 1.0, "b": lambda turn: 1.0}, "a", repeats=9, seconds=0.0)
    assert {name: len(taken) for name, taken in times.items()} == {"a": 3, "b": 3}
    patient = take_turns({"a": lambda turn: 1.0, "b": lambda turn: 1.0}, "a", repeats=9, seconds=1e9)
    assert {name: len(taken) for name, taken in patient.items()} == {"a": 9, "b": 9}


def test_ratios_are_medians_of_ratios_within_a_turn() -> None:
    # A machine that slows down tenfold: the ratio of the medians would be 10, or a tenth.
    times = {"a": {2: 1.0, 3: 1.0, 4: 10.0}, "b": {2: 2.0, 3: 2.2, 4: 21.0}, "c": {2: 4.0}}
    found = by_name(records(times, "a", section="step", case="x", notes={"d": "absent"}))
    assert found["b"].ratio == pytest.approx(2.1) and found["a"].ratio == 1.0
    assert found["c"].ratio == 4.0 and found["c"].repeats == 1
    assert (found["b"].median_seconds, found["b"].min_seconds, found["b"].max_seconds) == (2.2, 2.0, 21.0)
    assert found["d"].median_seconds is None and found["d"].ratio is None and found["d"].note == "absent"


def test_a_turn_of_short_steps_holds_many_and_numbers_them_on() -> None:
    numbers: list[int] = []
    turn = steps(numbers.append, CPU)
    for number in range(3):
        turn(number)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 50


def test_records_survive_json(tmp_path: Path) -> None:
    found = records({"a": {0: 0.5}}, "a", notes={"b": "absent"}, section="step", case="x", table_rows=3)
    path = write(tmp_path, "step", found, CPU)
    read = json.loads(path.read_text())
    assert path == tmp_path / "bench" / "step.json"
    assert [Record(**record) for record in read["records"]] == found
    assert {"processor", "cores", "threads", "torch", "device", "memory_bytes"} <= read["machine"].keys()


def test_a_wrong_section_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean embedding"):
        bench("embeding", config(tmp_path))
    with pytest.raises(
        UserError, match="there is embedding, correlated, step, small, text, peers, device, ranks, preprocess, table,"
    ):
        bench("xyz", config(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_cut_to_what_may_and_can_be_held() -> None:
    assert sizes_up_to(1000, (100, 200, 1000)) == (100, 200, 1000)
    assert sizes_up_to(678, (100, 200, 1000)) == (100, 200, 670)
    assert sizes_up_to(50, (100, 200, 1000)) == (50,)


def test_the_threshold_lets_half_an_untouched_row_survive() -> None:
    for rows in (100_000, 100_000_000):
        assert rows * stats.norm.sf(training.threshold(rows, 0.3) / 0.3) == pytest.approx(0.5)


@pytest.mark.usefixtures("short_turns")
def test_every_embedding_competitor_is_timed_against_adafest(tmp_path: Path) -> None:
    settings = config(tmp_path, "bench.largest_rows=200000", "bench.dense_coordinates=6400000")
    found = run("embedding", settings, repeats=1)
    first, second = (by_name([r for r in found if r.table_rows == rows]) for rows in (100_000, 200_000))
    assert list(first) == ["dpsgd", "dpsgd lazy", "fest", "adafest", "adafest_plus", "pytorch sparse", "pytorch dense"]
    assert {record.reference for record in found} == {"adafest"} and first["adafest"].ratio == 1.0
    assert first["dpsgd"].ratio is not None and first["dpsgd"].ratio > 1
    # Dense noise is as large as the table; a sparse step's memory is a small part of it.
    dense, sparse = first["dpsgd"].working_bytes, second["adafest"].working_bytes
    assert dense is not None and sparse is not None and sparse < dense
    for name in embedding.DENSE:
        assert second[name].median_seconds is None and "bench.dense_coordinates" in (second[name].note or "")
    assert second[embedding.SMALLEST].ratio is not None


@pytest.mark.usefixtures("short_turns")
def test_correlated_noise_is_timed_against_independent_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlated, "COORDINATES", (6_400, 12_800, 10**10))
    found = run("correlated", config(tmp_path), repeats=1)
    assert [record.case for record in found[::5]] == [
        f"{part}, {size} coordinates" for size in ("6,400", "12,800") for part in ("step", "noise")
    ]
    assert [record.competitor for record in found[:5]] == [
        "dpsgd", "dpsgd, 2 bands", "dpsgd, 4 bands", "dpsgd, 8 bands", "dpsgd, 16 bands",
    ]  # fmt: skip
    assert all(record.ratio is not None and record.reference == "dpsgd" for record in found)


def test_adafest_updates_every_touched_row_and_hardly_another() -> None:
    weight = embedding.table(50_000, CPU)
    embedding.competitor("adafest", weight)(5)
    ids = torch.randint(50_000, (64, embedding.BATCH), generator=torch.Generator().manual_seed(0))[0].unique()
    moved = torch.nonzero((weight != 0.01).any(1)).squeeze(1)
    assert set(ids.tolist()) <= set(moved.tolist()) and len(moved) < len(ids) + 10


@pytest.mark.parametrize("rules", [("adafest",), pytest.param(ranks.ALGORITHMS, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_ranks_time_one_rank_against_one_process_and_count_what_would_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: Sequence[str]
) -> None:
    """Slow but for one rule: steps of the whole model, twice each."""
    monkeypatch.setattr(ranks, "ALGORITHMS", rules)
    found = run("ranks", config(tmp_path), repeats=1)
    pairs, growth = found[:-1], found[-1]
    assert [record.competitor for record in pairs] == [ranks.ONE_PROCESS, ranks.ONE_RANK] * len(rules)
    assert [record.case.split(",")[0] for record in pairs[::2]] == list(rules)
    assert all(record.ratio for record in pairs) and growth.table_rows == 2000 and growth.peak_bytes

    column = ranks._OneColumn(100_000, 64, config(tmp_path))
    ids = torch.stack([torch.randint(n, (8, 64), generator=g) for g in [torch.Generator().manual_seed(0)]
                       for n in pctr.vocabularies(100_000)], 2)[0]  # fmt: skip
    distinct = sum(len(column.unique()) for column in ids.T)
    # A row's number, map, survival and value, at most its sum as well; and 27 dense sums, in whole blocks.
    assert 21 * distinct <= column.sent <= 29 * distinct + 8 * 2**16 + 100


def test_what_else_is_measured_of_a_competitor_is_of_what_all_share(tmp_path: Path) -> None:
    case = Case(
        name="case",
        reference="a",
        competitors=dict.fromkeys("ab", lambda shared: lambda number: 1.0),
        shared=lambda: 7,
        values={"b": lambda shared: {"shared": shared}, "c": lambda shared: {}},
    )
    assert [record.values for record in measured(case, "step", config(tmp_path), 1)] == [None, {"shared": 7}]


@pytest.mark.usefixtures("short_turns")
def test_the_device_is_timed_and_what_steps_take_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "STEPS", (ORDINARY, "adafest"))
    found = run("device", config(tmp_path, "device=cpu"), repeats=1)
    assert [record.competitor for record in found] == [
        device.COPY, device.PRODUCT, device.LAUNCH, device.TORCH, device.NOISE, device.MAP, ORDINARY, "adafest",
    ]  # fmt: skip
    assert all(record.ratio and record.table_rows in (None, 2000) and record.values is None for record in found)


def test_a_steps_operations_and_waits_on_a_gpu_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's profiler and its warnings name them, on a machine without one."""
    event = namedtuple("event", ["name", "device_type", "device_time_total", "is_user_annotation"], defaults=[False])
    on = {"cpu": device.DeviceType.CPU, "gpu": device.DeviceType.CUDA}
    modes: list[str] = []

    class Profile:
        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *error: object) -> None: ...

        def events(self) -> list[Any]:
            kernels = [event("sort", on["gpu"], 5.0), event("add", on["gpu"], 1.0), event("add", on["gpu"], 2.0)]
            span = event("Optimizer.step#SGD.step", on["gpu"], 4.0, True)
            return [event("aten::sort", on["cpu"], 9.0), span, *kernels] * device.PROFILED

    monkeypatch.setattr(device, "profile", lambda activities: Profile())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    taken: list[int] = []

    def step(number: int) -> None:
        taken.append(number)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = device.profiled(step)
    assert found == {
        "operations": 3, "waits": 1, "device_seconds": pytest.approx(8e-6),
        "longest": {"sort": pytest.approx(5e-6), "add": pytest.approx(3e-6)},
    }  # fmt: skip
    assert modes == ["warn", "default"] and taken == list(range(1 + device.WARM_UP + device.PROFILED))


@pytest.mark.parametrize("rules", [("adafest",), pytest.param(ALGORITHM, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_every_rule_and_every_floor_takes_the_pctr_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: Sequence[str]
) -> None:
    """Slow but for one rule: measures the memory of each in a process of its own."""
    floors = (ORDINARY, pctr.FUSED, pctr.PRODUCTS, pctr.EVALUATION)
    assert (*floors, *ALGORITHM) == step.COMPETITORS
    monkeypatch.setattr(step, "COMPETITORS", (*floors, *rules))
    found = by_name(run("step", config(tmp_path), repeats=1))
    assert set(found) == {*floors, *rules}
    assert {record.reference for record in found.values()} == {ORDINARY}
    assert all(record.median_seconds and record.peak_bytes for record in found.values())
    assert {record.table_rows for record in found.values()} == {2000}


@pytest.mark.usefixtures("short_turns")
def test_every_rule_takes_the_step_of_both_small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "ROWS", 500)
    found = run("small", config(tmp_path, "train.batch_size=64"), repeats=1)
    assert [record.case for record in found if record.ratio == 1] == ["DLRM, 4,000 rows", "two towers, 4,500 rows"]
    assert {record.competitor for record in found} == {ORDINARY, *ALGORITHM}
    assert len(found) == 2 * (1 + len(ALGORITHM)) and all(record.median_seconds for record in found)


def test_tables_are_shared_by_turns_and_networks_are_not() -> None:
    weights = pctr.tables(2000, CPU)
    settings = typed(Composer().compose(["profile=smoke"])).model
    before = [weight.clone() for weight in weights]
    first, second = (pctr.model_on(weights, settings) for _ in range(2))
    assert first.tables[0].weight.data_ptr() == second.tables[0].weight.data_ptr() == weights[0].data_ptr()
    assert first.network[0].weight.data_ptr() != second.network[0].weight.data_ptr()
    pctr.competitor(ORDINARY, 64, settings, weights)(5)
    assert any(not torch.equal(old, new) for old, new in zip(before, weights, strict=True))


@pytest.mark.usefixtures("short_turns")
def test_an_absent_peer_is_said_to_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.bench.case.find_spec", lambda name: None)
    found = by_name(run("peers", config(tmp_path), repeats=1))
    for name in (peers.GHOST, peers.HOOKS):
        assert found[name].note == ABSENT.format("opacus") and found[name].median_seconds is None
    assert found["adafest"].ratio == 1.0 and found["dpsgd"].ratio is not None


def test_opacus_takes_the_same_step(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    settings = config(tmp_path)
    for name in (peers.GHOST, peers.HOOKS):
        assert peers.opacus_step(name, 16, settings.model, pctr.tables(500, CPU))(5) > 0


def hungry() -> Turn:
    def turn(number: int) -> float:
        return float(torch.ones(10**10 * (1 + number)).sum())

    return turn


def test_what_does_not_fit_fails_alone_and_says_what_it_asked_for() -> None:
    with Worker(hungry, memory=1 << 30) as worker, pytest.raises(WorkerError, match="40000000000 bytes"):
        worker(0)


def modest() -> Turn:
    return lambda number: 1.0


@pytest.mark.usefixtures("short_turns")
def test_a_competitor_that_fails_within_its_limit_takes_no_turns_and_its_note_says_why(tmp_path: Path) -> None:
    case = Case(
        name="x",
        reference="modest",
        competitors={"modest": modest, "hungry": hungry},
        apart=True,
        limit=(1 << 30) / available_bytes(),
        asked_for={"hungry": "much"},
    )
    found = by_name(measured(case, "peers", config(tmp_path), repeats=1))
    failed, note = found["hungry"], found["hungry"].note or ""
    assert note.startswith("failed within 1.0 GiB: RuntimeError") and note.endswith("; much")
    assert failed.median_seconds is None and found["modest"].ratio == 1.0 and found["modest"].peak_bytes
    with pytest.raises(WorkerError, match="40000000000 bytes"):
        measured(dataclasses.replace(case, reference="hungry"), "peers", config(tmp_path), repeats=1)


@pytest.mark.parametrize("installed", [True, False])
def test_preprocessing_is_timed_on_plain_and_packed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        pytest.importorskip("pandas")
    else:
        monkeypatch.setattr("pipelines.bench.case.find_spec", lambda name: None)
    settings = config(tmp_path, "bench.preprocess_rows=[300]")
    found = run("preprocess", settings, repeats=1)
    plain, packed = (by_name([r for r in found if r.case.endswith(end)]) for end in ("plain", ".gz"))
    assert list(plain) == list(packed) == [preprocess.REFERENCE, preprocess.OURS, preprocess.PANDAS]
    for record in found:
        assert record.rows == 300 and record.reference == preprocess.REFERENCE
        assert (record.note == ABSENT.format("pandas")) == (record.median_seconds is None)
    assert (plain["pandas"].note is None) == installed
    folder = tmp_path / "data" / "bench" / "300-rows"
    assert sorted(path.name for path in folder.iterdir()) == ["day_0.txt", "day_0.txt.gz"]
    assert gzip.decompress((folder / "day_0.txt.gz").read_bytes()) == (folder / "day_0.txt").read_bytes()
    made = (folder / "day_0.txt").stat().st_mtime_ns
    preprocess.files(tmp_path / "data", 300)
    assert (folder / "day_0.txt").stat().st_mtime_ns == made  # kept


def test_a_table_of_ones_own_is_timed_against_a_scan_of_the_same_columns(tmp_path: Path) -> None:
    found = run("table", config(tmp_path, "bench.preprocess_rows=[3000]"), repeats=1)
    assert list(by_name(found)) == [table.REFERENCE, table.READ, table.WHOLE]
    path = table.file(tmp_path / "data", 3000)
    frame = pl.read_parquet(path)
    assert set(frame.columns) == {"label", "user", "page", "advert", "site", "hour", "price", "age", "score"}
    assert frame.height == 3000 and frame["user"].dtype == frame["page"].dtype == pl.String
    for record in found:
        assert (record.rows, record.bytes, record.reference) == (3000, path.stat().st_size, table.REFERENCE)
        assert record.repeats == 1 and record.ratio is not None
    assert list((tmp_path / "data" / "bench").iterdir()) == [path]


def test_the_pandas_way_writes_every_row(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    plain, packed = preprocess.files(tmp_path, 400)
    sizes: list[Any] = []
    for source in (plain, packed):
        (out := tmp_path / source.name).mkdir()
        convert(source, out)
        sizes.append(sum(path.stat().st_size for path in out.iterdir()))
    assert sizes == [400 * RECORD.itemsize] * 2


@pytest.mark.parametrize("examples", [10_000, pytest.param(accounting.EXAMPLES, marks=pytest.mark.slow)])
def test_cold_and_remembered_calibrations_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Slow at the size of Criteo, where a calibration takes much longer than to read one."""
    monkeypatch.setattr(accounting, "EXAMPLES", examples)
    monkeypatch.setattr(accounting, "ALGORITHM_NAMES", ("dpsgd",))
    monkeypatch.setattr(accounting, "calibration", accountant.forgetful)  # others' epsilons would make cold warm
    (cold, cached) = run("accounting", config(tmp_path), repeats=1)
    assert (cold.competitor, cached.competitor, cached.reference) == ("cold", "cached", "cold")
    assert cached.ratio is not None and cached.ratio < 1
    assert not (tmp_path / "runs").exists()


def test_settings_out_of_range_are_refused() -> None:
    for key in ("seconds=0", "largest_rows=1", "dense_coordinates=-1", "preprocess_rows=[]"):
        with pytest.raises(UserError, match=f"bench.{key.partition('=')[0]}"):
            typed(Composer().compose([f"bench.{key}"]))


def test_the_shipped_limits_are_the_papers() -> None:
    shipped = typed(Composer().compose(["profile=paper", "data.path=x"])).bench
    assert shipped.dense_coordinates == 10_000_000 * embedding.DIMENSION
    assert dataclasses.asdict(shipped)["largest_rows"] == embedding.SIZES[-1]


@pytest.mark.parametrize("rules", [("adafest",), pytest.param(ALGORITHM, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_text_times_every_rule_on_an_encoder_in_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: Sequence[str]
) -> None:
    """Slow but for one rule: an encoder of each in a process of its own."""
    assert (ORDINARY, *ALGORITHM) == text.COMPETITORS
    monkeypatch.setattr(text, "COMPETITORS", (ORDINARY, *rules))
    settings = config(tmp_path, "data=text_synthetic", "train.batch_size=8", "train.micro_batch_size=4")
    path, found = bench("text", settings, repeats=1)
    assert path.name == "text.json"
    assert {record.competitor for record in found} == {ORDINARY, *rules}
    assert {record.case for record in found} == {"text_synthetic, 500 rows, 8 texts in micro-batches of 4"}
    assert all(record.median_seconds and record.working_bytes for record in found)
    with pytest.raises(
        UserError, match="bench text needs texts, which model=pctr cannot read: use data=text_synthetic"
    ):
        bench("text", config(tmp_path))
