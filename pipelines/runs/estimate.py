"""How many steps a run takes, estimated from its configuration before its data are made."""

from __future__ import annotations

import math

from pipelines.config.settings import Config


def steps(config: Config) -> int | None:
    """Steps of a run, to a step a period; None for data of which nothing is known beforehand."""
    if config.train.steps is not None:
        periods = math.ceil(config.stream.train_days / config.stream.period) if config.data.is_stream else 1
        return periods * config.train.steps
    examples = config.data.expected_examples(config.stream.train_days)
    return None if examples is None else math.ceil(config.train.epochs * examples / config.train.batch_size)
