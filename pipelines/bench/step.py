"""Section `step`: the whole training step of the pCTR model, by every algorithm, against its ordinary step."""

from __future__ import annotations

import torch

from pipelines.bench import algorithms, pctr
from pipelines.bench.embedding import table_sizes
from pipelines.bench.measure import take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import peak_of
from pipelines.config.settings import Config
from pipelines.system.progress import progress
from pipelines.tasks.task import device_of

COMPETITORS = (pctr.ORDINARY, pctr.FUSED, pctr.PRODUCTS, pctr.EVALUATION, *algorithms.COMPETITORS)


def sizes(config: Config) -> tuple[int, ...]:
    """Return total numbers of rows, published and scaled, up to `bench.largest_rows`."""
    return table_sizes(tuple(scale * pctr.PUBLISHED_ROWS for scale in pctr.SCALES), config.bench.largest_rows)


def case(rows: int) -> str:
    """Return the name of a size."""
    return f"pCTR, {rows:,} rows"


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor at every size, dense noise up to `bench.dense_coordinates`."""
    device, results = device_of(config.device), []
    with progress("step") as report:
        for number, rows in enumerate(sizes(config)):
            report(number, len(sizes(config)), f"{rows:,} rows")
            results += _at(rows, config, repeats, device)
    return results


def _at(rows: int, config: Config, repeats: int, device: torch.device) -> list[Record]:
    names, notes, batch_size = list(COMPETITORS), {}, config.train.batch_size
    if rows * pctr.COORDINATES_PER_ROW > config.bench.dense_coordinates:
        names.remove("dpsgd")
        notes["dpsgd"] = "not timed: its dense noise is larger than bench.dense_coordinates"
    weights = pctr.tables(rows, device)
    turns = {name: pctr.competitor(name, weights, batch_size, config.model) for name in names}
    times = take_turns(turns, pctr.ORDINARY, repeats=repeats, seconds=config.bench.seconds)
    del weights, turns  # the processes below have tables of their own
    peaks = {
        name: peak_of(pctr.alone, name, rows, batch_size, config.model, str(device), device=device) for name in names
    }
    return records(
        times,
        pctr.ORDINARY,
        peaks=peaks,
        notes=notes,
        section="step",
        case=case(rows),
        table_rows=rows,
        batch_size=batch_size,
    )
