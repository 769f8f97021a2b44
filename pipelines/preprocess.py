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
    Start,
    days_in_words,
    days_to_make,
    here,
    in_processes,
    make_dataset,
    make_days,
    remove_damaged_days,
)
from pipelines.data.identity import data_hash, day_hashes, hash_of_days
from pipelines.data.stream import Stream
from pipelines.data.units import write_identifiers
from pipelines.system.engines import Jobs
from pipelines.system.records import Record


def preprocess(config: Config) -> Path:
    """Do as :func:`prepared` and return the folder, for :meth:`Stream.open`, or for
    :meth:`~pipelines.data.dataset.Dataset.open` if it is no stream of several days.
    """
    return prepared(config).folder


def prepared(config: Config) -> Stream:
    """Write the dataset or stream of ``config.data`` unless it exists, and the units of ``config.privacy``; print a
    summary.

    Raises:
        UserError: A setting is invalid, or the source is missing or malformed. Nothing is kept then except completed
            days of a stream.
    """
    config.data.check()
    hashes = day_hashes(config.data)
    folder = _folder(config, hash_of_days(config.data, hashes))
    if config.preprocess.verify:
        remove_damaged_days(folder)
    to_make = days_to_make(folder, config.data, hashes)
    if to_make.hashes:
        _make(to_make, config)
    stream = Stream.open(folder)
    _tell(stream, to_make)
    if config.privacy.unit != EXAMPLE:
        write_identifiers(config.data, stream, config.stream.train_days if stream.is_stream else 1, config.privacy.unit)
    return stream


def write_day(config: Config, folder: str, day: int, made_from: str) -> None:
    """Write one day of a dataset or stream, as a job of a cluster: it reads the source of no other day.

    Args:
        config: its configuration.
        folder: of the dataset or stream.
        day: its number.
        made_from: its content hash, which the sources of all days were read for.
    """
    to_make = DaysToMake(Path(folder), config.data, {day: made_from})
    if config.data.is_stream:
        make_days(to_make, here)
    else:
        make_dataset(to_make)


def dataset_folder(config: Config) -> Path:
    """Return the folder of the configuration's dataset or stream, whether or not it exists."""
    config.data.check()
    return _folder(config, data_hash(config.data))


def _folder(config: Config, digits: str) -> Path:
    return Path(config.paths.data) / f"{config.data.name}-{digits}"


def _tell(stream: Stream, made: DaysToMake) -> None:
    """Print the size of a dataset or stream after its missing days were written, and warnings."""
    new, days = len(made.hashes), len(stream.days)
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
    if new and made.data.provenance is not None:
        _say(str(made.data.provenance))
    for warning in made.data.warnings(stream.days[0]):
        _say(f"warning: {warning}")


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


def _make(to_make: DaysToMake, config: Config) -> None:
    at_once, local = config.preprocess.jobs, config.sweep.engine == "local"
    if to_make.data.is_stream:
        _say(to_make.summary(at_once))
        start: Start = here if at_once == 1 else in_processes(at_once)
        make_days(to_make, start if local else lambda missing, told: _jobs(missing, config))
    elif local:
        make_dataset(to_make)
    else:
        with _jobs(to_make, config) as jobs:
            for day, ended in jobs:
                record = Record.read(_record(to_make, day, config))
                if not to_make.place(day).exists():
                    lost = f"{to_make.place(day)} could not be made: its job {ended.failure or 'was stopped'}."
                    raise UserError(record.reason if record and record.reason else lost)


def _jobs(to_make: DaysToMake, config: Config) -> Jobs[int]:
    """Have a cluster write the days, each by a job of its own."""

    def call(day: int) -> Call:
        arguments = {"folder": str(to_make.folder), "day": day, "made_from": to_make.hashes[day]}
        return Call(f"{__name__}:{write_day.__name__}", config, _record(to_make, day, config), arguments)

    return cluster_jobs(config.sweep, to_make.hashes, call)


def _record(to_make: DaysToMake, day: int, config: Config) -> Path:
    """Return the file in which a job records how it ended."""
    place = to_make.place(day)
    name = f"{to_make.folder.name}-{place.name}" if to_make.data.is_stream else place.name
    return records_folder(config) / f"{name}.json"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
