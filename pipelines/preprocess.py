"""The preprocess stage: write the dataset or stream of a configuration unless it exists."""

from __future__ import annotations

import sys
from pathlib import Path

from dpfest.errors import UserError
from dpfest.planning.ledger import EXAMPLE
from pipelines.config.calls import Call, cluster_jobs, records_folder
from pipelines.config.settings import Config
from pipelines.data.days import (
    DaysToMake,
    await_days,
    days_in_words,
    days_to_make,
    make_days,
    remove_damaged_days,
)
from pipelines.data.identity import data_hash
from pipelines.data.stream import Stream
from pipelines.data.units import write_identifiers
from pipelines.system.records import Record


def preprocess(config: Config) -> Path:
    """Write the dataset or stream of ``config.data`` unless it exists, and the units of ``config.privacy``; print a
    summary.

    Returns:
        Its folder, for :meth:`Stream.open`, or for :meth:`~pipelines.data.dataset.Dataset.open` if it is no stream of
        several days.

    Raises:
        UserError: A setting is invalid, or the source is missing or malformed. Nothing is kept then except completed
            days of a stream.
    """
    folder = dataset_folder(config)
    if config.preprocess.verify:
        remove_damaged_days(folder)
    to_make = days_to_make(folder, config.data)
    _make(to_make, config, config.preprocess.jobs)
    made = finished(to_make)
    if config.privacy.unit != EXAMPLE:
        stream = Stream.open(made)
        write_identifiers(config.data, stream, config.stream.train_days if stream.is_stream else 1, config.privacy.unit)
    return made


def write_day(config: Config, folder: str, day: int, made_from: str) -> None:
    """Write one day of a dataset or stream, as a job of a cluster: it reads the source of no other day.

    Args:
        config: its configuration.
        folder: of the dataset or stream.
        day: its number.
        made_from: its content hash, which the sources of all days were read for.
    """
    make_days(DaysToMake(Path(folder), config.data, {day: made_from}), at_once=1)


def dataset_folder(config: Config) -> Path:
    """Return the folder of the configuration's dataset or stream, whether or not it exists."""
    config.data.check()
    return Path(config.paths.data) / f"{config.data.name}-{data_hash(config.data)}"


def finished(to_make: DaysToMake) -> Path:
    """Check a dataset or stream after its missing days were written, and print its size."""
    stream, new = Stream.open(to_make.folder), len(to_make.hashes)
    days = len(stream.days)
    how = "made" if new == days else f"{new} of {days} days made" if new else "there already"
    if stream.is_stream:
        rows = f"{sum(stream.rows_of_day):,} rows in {days_in_words(days)}"
    else:
        rows = ", ".join(f"{rows:,} {part}" for part, rows in stream.days[0].rows.items()) + " rows"
    rejected, excluded = (
        sum(day.description[kind]["total"] for day in stream.days) for kind in ("rejected_rows", "excluded_rows")
    )
    _say(f"{stream.folder} ({how}): {rows}; {rejected:,} malformed and {excluded:,} unlabelled ones left out.")
    for line in _cut(stream) if new else ():
        _say(line)
    if new and to_make.data.provenance is not None:
        _say(str(to_make.data.provenance))
    for warning in to_make.data.warnings(stream.days[0]):
        _say(f"warning: {warning}")
    return stream.folder


def _cut(stream: Stream) -> list[str]:
    """Say of each bag how many rows' lists were longer than it."""
    lines, rows = [], sum(stream.rows_of_day)
    for features in zip(*(day.description["categorical_features"] for day in stream.days), strict=True):
        name, most, cut = features[0]["name"], features[0].get("most"), sum(one.get("cut_rows", 0) for one in features)
        if cut:
            lines.append(
                f"{name}: {cut:,} of {rows:,} rows hold more than {most} distinct rows of its table; the first {most} "
                f"are kept (data.categorical.{name}.most)."
            )
    return lines


def _make(to_make: DaysToMake, config: Config, at_once: int) -> None:
    if not to_make.hashes:
        return
    if to_make.data.is_stream:
        _say(to_make.summary(at_once))
    if config.sweep.engine == "local":
        make_days(to_make, at_once)
    else:
        _make_on_cluster(to_make, config)


def _make_on_cluster(to_make: DaysToMake, config: Config) -> None:
    """Have each missing day written by a job of its own."""

    def call(day: int) -> Call:
        place = to_make.place(day)
        name = f"{to_make.folder.name}-{place.name}" if to_make.data.is_stream else place.name
        arguments = {"folder": str(to_make.folder), "day": day, "made_from": to_make.hashes[day]}
        return Call(f"{__name__}:{write_day.__name__}", config, records_folder(config) / f"{name}.json", arguments)

    if to_make.data.is_stream:
        await_days(to_make, lambda days: cluster_jobs(config.sweep, days, call))
        return
    with cluster_jobs(config.sweep, to_make.hashes, call) as jobs:
        for day, ended in jobs:
            record = Record.read(records_folder(config) / f"{to_make.place(day).name}.json")
            if not to_make.place(day).exists():
                lost = f"{to_make.place(day)} could not be made: its job {ended.failure or 'was stopped'}."
                raise UserError(record.reason if record and record.reason else lost)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
