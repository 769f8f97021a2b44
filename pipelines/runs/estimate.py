"""How many steps a run takes, told from its configuration before its data are made."""

from __future__ import annotations

import math

from pipelines.config.settings import Config

TRAINING_EXAMPLES = {
    "nycflights": 261_978,
    "sst2": 67_349,
    "qnli": 104_743,
    "qqp": 363_846,
    "xnli": 392_702,
}
"""Of data whose training split is what it is."""

ROWS = {"criteo_kaggle": 45_840_617}
"""Of data that we split."""

ROWS_PER_DAY = {"nycflights_stream": 327_346 / 24, "criteo_1tb": 4_373_472_329 / 24}


def steps(config: Config) -> int | None:
    """Steps of a run, to a step a period; None for data of which nothing is known beforehand."""
    if config.train.steps is not None:
        periods = math.ceil(config.stream.train_days / config.stream.period) if config.data.is_stream else 1
        return periods * config.train.steps
    examples = _examples(config)
    return None if examples is None else math.ceil(config.train.epochs * examples / config.train.batch_size)


def _examples(config: Config) -> float | None:
    data = config.data
    if data.is_stream:
        per_day = getattr(data, "rows_per_day", None) or ROWS_PER_DAY.get(data.name)
        return None if per_day is None else per_day * (1 - data.split.held_out) * config.stream.train_days
    if data.name in TRAINING_EXAMPLES:
        return TRAINING_EXAMPLES[data.name]
    rows = ROWS.get(data.name) or getattr(data, "rows", None)
    split = getattr(data, "split", None)
    return None if rows is None else rows * (split.train if split is not None else 1)
