"""Run cards: the release of many runs without their weights in one file, one line per run.

A file of cards is JSON lines, ``.jsonl`` or ``.jsonl.xz`` (a thirtieth of the size). Its first line, the header, lists
the versions and commands that made the runs. Every other line is a run: its released settings, ledger and summary under
the names of those files, and a checksum of the three. Lines are sorted by content, so the same runs give the same file.
Of a stream, a card leaves out the utility in each period: more bytes than all else together, for no report.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.config.settings import Config
from pipelines.runs.identity import settings_of, weights_digest, with_effect
from pipelines.runs.release import CONFIG, LEDGER, SUMMARY, Release, config_text, released_settings
from pipelines.system.files import json_text, locked, write_atomically
from pipelines.system.plain import Beyond, control_character_in, json_value, lines

SCHEMA = 1
SUFFIXES = (".jsonl", ".jsonl.xz")

_PARTS = ("config", "ledger", "summary")
_XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0}]  # texts have no alignment


@dataclass(frozen=True, order=True)
class Maker:
    """The origin of runs: the version of dpfest, its git commit (None if unknown), and the command."""

    dpfest: str
    commit: str | None
    command: str


@dataclass(frozen=True)
class Card:
    """The release of one run without its weights.

    Attributes:
        config: the released settings.
        ledger, summary: content of the files of that name.
        maker: origin of the run.
        line: line number in its file, from 1.
    """

    config: Mapping[str, Any]
    ledger: Mapping[str, Any]
    summary: Mapping[str, Any]
    maker: Maker
    line: int = 0

    def text(self, name: str) -> str:
        """Return a released file (``config.yaml``, ``ledger.json`` or ``summary.json``), byte for byte but for what
        the card of a stream leaves out."""
        return {
            CONFIG: lambda: config_text(self.config),
            LEDGER: lambda: json_text(self.ledger),
            SUMMARY: lambda: json_text(self.summary),
        }[name]()

    @property
    def key(self) -> str:
        """Identity of the run: data, algorithm and all released settings that can change the result.

        Null is the same as no setting (:func:`without_nulls`).
        """
        names = self.summary["dataset"], self.summary["algorithm"]
        return _key(*names, self.config, self.summary.get("weights"))


@dataclass(frozen=True)
class Damaged:
    """A line of a file of cards that cannot be used, and the reason; `line` counts from 1."""

    line: int
    reason: str


def key_of(config: Config) -> str:
    """Return the :attr:`Card.key` of the run that a configuration describes, made or not."""
    settings = released_settings(settings_of(config))
    return _key(config.data.name, config.algorithm.name, settings, weights_digest(config.model.identity()))


def _key(dataset: str, algorithm: str, released: Mapping[str, Any], weights: str | None) -> str:
    settings = {name: value for name, value in with_effect(released).items() if name not in ("device", "profile")}
    return json.dumps([dataset, algorithm, without_nulls(settings), weights], sort_keys=True)


def card(release: Release, maker: Maker) -> Card:
    """Return the card of a checked release."""
    return Card(release.config, release.ledger, without_periods(release.summary), maker)


def without_periods(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a summary without the utilities in each period of a stream, whose days and sizes stay."""
    if not summary.get("periods"):
        return summary
    kept = [{name: of for name, of in one.items() if not isinstance(of, Mapping)} for one in summary["periods"]]
    return {**summary, "periods": kept}


def card_files(folder: Path) -> list[Path]:
    """Return the files of cards in a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.jsonl*") if path.name.endswith(SUFFIXES) and path.is_file())


def keys_in(folder: Path) -> set[str]:
    """Return the :attr:`Card.key` of every card in a folder, or in a file.

    Raises:
        UserError: there is no file of cards, or a damaged one.
    """
    files = card_files(folder) if folder.is_dir() else [folder] * folder.is_file()
    if not files:
        raise UserError(
            f"There are no run cards at {folder}: name a file of them ({', '.join(SUFFIXES)}) or its folder."
        )
    return {one.key for path in files for one in _undamaged(path)}


def _undamaged(path: Path) -> list[Card]:
    try:
        cards, damaged = read_cards(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if damaged:
        raise UserError(f"{path}, line {damaged[0].line}, {damaged[0].reason}: restore the file or remove it.")
    return cards


def write_cards(path: Path, cards: Sequence[Card]) -> tuple[int, int]:
    """Add cards to a file, which need not exist; a card replaces an earlier one of the same run (:attr:`Card.key`).

    Returns:
        The number of cards in the file, and the number of cards replaced.

    Raises:
        UserError: the name does not end in one of :data:`SUFFIXES`, or the existing file is damaged.
    """
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"{path} cannot hold run cards: its name must end in .jsonl or .jsonl.xz.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):  # other processes may add cards
        there = _undamaged(path) if path.exists() else []
        merged = {one.key: one for one in (*there, *cards)}
        text = _text([merged[key] for key in sorted(merged)]).encode()
        content = lzma.compress(text, filters=_XZ) if path.name.endswith(".xz") else text
        write_atomically(path, lambda partial: partial.write_bytes(content))
    return len(merged), len(there) + len(cards) - len(merged)


def _text(cards: Sequence[Card]) -> str:
    makers = sorted({one.maker for one in cards}, key=lambda maker: (maker.command, maker.dpfest, maker.commit or ""))
    lines: list[dict[str, Any]] = [{"cards": SCHEMA, "made": [asdict(maker) for maker in makers]}]
    for one in cards:
        parts = {name: getattr(one, name) for name in _PARTS}
        lines.append({"made": makers.index(one.maker), "sha256": _checksum(parts), **parts})
    return "".join(_compact(line) + "\n" for line in lines)


def without_nulls(value: Any) -> Any:
    """Return settings without those that are null: earlier versions lack settings that are null by default."""
    if not isinstance(value, Mapping):
        return value
    return {name: without_nulls(item) for name, item in value.items() if item is not None}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _checksum(parts: Mapping[str, Any]) -> str:
    return _hash(_compact([parts[name] for name in _PARTS]).encode())


def _unchanged(stated: Any, parts: Mapping[str, Any], line: bytes) -> bool:
    """Whether a card's parts are those of its checksum: of the line, if it is as :func:`write_cards` writes it, which
    takes a tenth of the time, or of the parts written again."""
    written = line.rstrip().removesuffix(b"}").partition(b',"config":')[2]
    for name in (b',"ledger":', b',"summary":'):
        written = written.replace(name, b",", 1)
    return stated == _hash(b"[" + written + b"]") or stated == _checksum(parts)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def read_cards(path: Path) -> tuple[list[Card], list[Damaged]]:
    """Return the cards of a file, and the lines that cannot be used; without a header no line can.

    Raises:
        OSError: the file cannot be opened.
    """
    cards, damaged, makers = [], [], None
    for number, line in _lines(path):
        try:
            if isinstance(line, Exception):
                raise ValueError(f"cannot be read, nor can the lines after it ({line})")
            value = json_value(line, _refuse_constant)
            if makers is None:
                makers = _makers(value)
            else:
                if where := control_character_in(line, value):
                    raise ValueError(f"has a control character at {where}")
                cards.append(_card(value, line, makers, number))
        except ValueError as error:
            own = isinstance(error, json.JSONDecodeError | UnicodeDecodeError | Beyond)
            damaged.append(Damaged(number, f"is not JSON ({error})" if own else str(error)))
            if makers is None:
                break
    return cards, damaged


def _lines(path: Path) -> Iterator[tuple[int, bytes | Exception]]:
    """Yield number and content of each line; instead of the first unreadable line, the error."""
    number = 0
    with lzma.open(path) if path.name.endswith(".xz") else path.open("rb") as file:
        try:
            for number, line in enumerate(lines(file), 1):
                yield number, line
        except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
            yield number + 1, error
    if number == 0:
        yield 1, b"null"


def _refuse_constant(word: str) -> float:
    raise ValueError(f"contains {word}, which is not a number")


def _makers(value: Any) -> list[Maker]:
    if not isinstance(value, dict) or "cards" not in value:
        raise ValueError("is not a header of run cards")
    if value["cards"] != SCHEMA:
        raise ValueError(f"has schema {value['cards']}, and this version reads {SCHEMA}")
    try:
        return [Maker(str(m["dpfest"]), m["commit"], str(m["command"])) for m in value["made"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"is a damaged header ({error!r})") from error


def _card(value: Any, text: bytes, makers: Sequence[Maker], line: int) -> Card:
    if not isinstance(value, dict) or not all(isinstance(value.get(name), dict) for name in _PARTS):
        raise ValueError(f"is not a card: it lacks one of {', '.join(_PARTS)}")
    if not _unchanged(value.get("sha256"), value, text):
        raise ValueError("is damaged: its checksum does not match")
    made = value.get("made")
    if type(made) is not int or made not in range(len(makers)):  # 0.0 is in the range, too, but no index
        raise ValueError("refers to an origin that the header does not list")
    if not value["summary"].keys() >= {"dataset", "algorithm"}:
        raise ValueError("is not a card: its summary lacks the dataset or the algorithm")
    return Card(value["config"], value["ledger"], value["summary"], makers[made], line)
