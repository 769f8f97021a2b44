"""Section `step`: the whole training step of the pCTR model, by every algorithm, against its ordinary step."""

from __future__ import annotations

from pipelines.bench import pctr
from pipelines.bench.case import Case
from pipelines.bench.training import ALGORITHM, ORDINARY
from pipelines.config.settings import Config

COMPETITORS = (ORDINARY, pctr.FUSED, pctr.PRODUCTS, pctr.EVALUATION, *ALGORITHM)


def cases(config: Config) -> list[Case]:
    """Return a case for each size, dense noise up to `bench.dense_coordinates`."""
    most, makers = config.bench.dense_coordinates, dict.fromkeys(COMPETITORS, pctr.competitor)
    why = {"dpsgd": "not timed: its dense noise is larger than bench.dense_coordinates"}
    return [
        pctr.case(
            rows,
            config,
            makers,
            reference=ORDINARY,
            memory=COMPETITORS,
            left_out=why if rows * pctr.COORDINATES_PER_ROW > most else {},
        )
        for rows in pctr.sizes(config)
    ]
