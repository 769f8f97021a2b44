"""fig1a: an embedding's look-up, its gradient, and the gradient with DP-SGD's noise, computed live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reports.entry import Content, Inputs
from reports.style import WIDTH, Drawing
from reports.tables import Column, Table

BUCKETS, DIMENSION = 12, 4
IDS = (2, 7, 2)
"""The buckets of a batch of three examples, two of which share one."""

NOISE = 0.35


def lookup() -> dict[str, np.ndarray]:
    """Return one-hot inputs ``[3, 12]``, the table, the looked-up rows ``[3, 4]``, and the table's gradient ``[12, 4]``
    without and with noise, from a fixed generator."""
    generator = np.random.default_rng(1)
    inputs = np.eye(BUCKETS)[list(IDS)]
    table = generator.standard_normal((BUCKETS, DIMENSION))
    arriving = generator.standard_normal((len(IDS), DIMENSION))
    gradient = inputs.T @ arriving
    return {
        "inputs": inputs,
        "table": table,
        "output": inputs @ table,
        "gradient": gradient,
        "noised": gradient + NOISE * generator.standard_normal(gradient.shape),
    }


def content(inputs: Inputs) -> Content:
    arrays = lookup()
    figure = Drawing(WIDTH, 2.7)
    panels = figure.subplots(1, 5, width_ratios=[len(IDS), *[DIMENSION] * 4])
    shown = [
        ("inputs x", arrays["inputs"].T, "example"),
        ("table W", arrays["table"], "coordinate"),
        ("z = Wᵀx", arrays["output"], "coordinate"),
        ("gradient of W", arrays["gradient"], "coordinate"),
        ("with DP-SGD's noise", arrays["noised"], "coordinate"),
    ]
    for axes, (title, values, along) in zip(panels, shown, strict=True):
        # Zero is white: coloured cells are those that a step updates.
        limit = float(np.abs(values).max())
        axes.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit, aspect="equal")
        axes.set_title(title, fontsize=8)
        axes.set_xlabel(along, fontsize=8)
        axes.set_xticks(range(values.shape[1]), [str(place + 1) for place in range(values.shape[1])], fontsize=7)
        axes.set_yticks(range(values.shape[0]), [str(place + 1) for place in range(values.shape[0])], fontsize=7)
        axes.set_ylabel("example" if title.startswith("z") else "bucket", fontsize=8)
        axes.grid(False)
        axes.tick_params(length=0)
    touched = sorted(set(IDS))
    caption = (
        f"An embedding of {BUCKETS} buckets and dimension {DIMENSION}, looked up for three examples with buckets "
        f"{', '.join(str(bucket + 1) for bucket in IDS)}. White is zero. A one-hot input picks one row of the table, "
        f"so the gradient of this batch has {len(touched)} non-zero rows, however large the table is; DP-SGD's noise "
        "makes all rows non-zero. Synthetic by design; no run is needed."
    )
    rows: list[Sequence[Any]] = [
        (bucket + 1, IDS.count(bucket), bucket in touched, bool(arrays["noised"][bucket].all()))
        for bucket in range(BUCKETS)
    ]
    yes = lambda value: "yes" if value else "no"  # noqa: E731
    table = Table(
        [
            Column("bucket", "bucket"),
            Column("examples", "examples"),
            Column("gradient", "non-zero gradient", yes),
            Column("noised", "non-zero with DP-SGD's noise", yes),
        ],
        rows,
    )
    return Content(caption, figure, table)
