"""fig2: one step of AdaFEST on a synthetic feature of 20 buckets, computed live."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.algorithms import algorithm
from reports.entry import Content, Inputs
from reports.style import WIDTH, Drawing
from reports.tables import Column, Table

BUCKETS = 20
EXAMPLES = 400
OTHER_FEATURES = 8
CONTRIBUTION_CLIPPING_NORM = 1.0
MAP_NOISE_MULTIPLIER = 4.0
THRESHOLD = 10.0
GREY = "#BBBBBB"


@dataclass(frozen=True)
class Step:
    """The 20 buckets after each stage of the step; `survives` is the mask."""

    counts: np.ndarray
    clipped: np.ndarray
    noisy: np.ndarray
    survives: np.ndarray


def pipeline() -> Step:
    """Compute counts, clipped contributions V without and with noise, and V >= τ, from a fixed generator.

    Each example touches one bucket of this feature and up to eight rows of other features, so its contribution here is
    min(1, C1 / ‖v‖₂), where ‖v‖₂ is the square root of the number of rows that it touches.
    """
    generator = np.random.default_rng(3)
    popularity = 1 / np.arange(1, BUCKETS + 1) ** 1.1
    buckets = generator.choice(generator.permutation(BUCKETS), size=EXAMPLES, p=popularity / popularity.sum())
    touched = 1 + generator.integers(0, OTHER_FEATURES + 1, size=EXAMPLES)
    weight = np.minimum(1, CONTRIBUTION_CLIPPING_NORM / np.sqrt(touched))
    counts = np.bincount(buckets, minlength=BUCKETS)
    clipped = np.bincount(buckets, weights=weight, minlength=BUCKETS)
    noise = CONTRIBUTION_CLIPPING_NORM * MAP_NOISE_MULTIPLIER * generator.standard_normal(BUCKETS)
    noisy = clipped + noise
    return Step(counts, clipped, noisy, noisy >= THRESHOLD)


def content(inputs: Inputs) -> Content:
    step = pipeline()
    figure = Drawing(WIDTH, 2.1)
    panels = figure.subplots(1, 4, sharex=True)
    places = np.arange(1, BUCKETS + 1)
    plain, kept = algorithm("fest").colour, algorithm("adafest").colour
    stages = [
        ("1. examples a bucket", step.counts, plain),
        ("2. clipped (C₁)", step.clipped, plain),
        ("3. + noise (σ₁C₁)", step.noisy, plain),
        ("4. kept: ≥ τ", np.where(step.survives, step.noisy, 0.0), kept),
    ]
    for axes, (title, heights, colour) in zip(panels, stages, strict=True):
        axes.bar(places, heights, color=colour, width=0.8)
        axes.set_title(title, loc="left", fontsize=8.5)
        axes.set_xlabel("bucket")
        axes.set_xticks([1, 5, 10, 15, 20])
        axes.grid(False, axis="x")
        axes.tick_params(axis="y", pad=1)
    low, high = min(step.noisy.min(), 0) - 2, max(step.noisy.max(), step.clipped.max()) * 1.08
    for axes in panels[1:]:
        axes.set_ylim(low, high)
        axes.axhline(0, color="black", linewidth=0.6)
    for axes in panels[2:]:
        axes.axhline(THRESHOLD, color="black", linestyle=(0, (4, 2)), linewidth=0.9)
        axes.annotate(
            "τ",
            (1.01, THRESHOLD),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
    dropped = np.where(step.survives, 0.0, step.noisy)
    panels[3].bar(places, dropped, color="none", edgecolor=GREY, linewidth=0.6, width=0.8)
    caption = (
        f"One step of DP-AdaFEST on a synthetic feature of {BUCKETS} buckets and {EXAMPLES} examples: the number of "
        "examples per bucket; contributions scaled so that all contributions of an example, including those to "
        f"{OTHER_FEATURES} other features, have norm at most C₁ = {CONTRIBUTION_CLIPPING_NORM:g}; Gaussian noise of "
        f"multiplier σ₁ = {MAP_NOISE_MULTIPLIER:g}; and the buckets at or above τ = {THRESHOLD:g}, the only ones that "
        "receive a (noisy) gradient. Synthetic by design; no run is needed."
    )
    table = Table(
        [
            Column("bucket", "bucket"),
            Column("examples", "examples"),
            Column("clipped_contribution", "clipped contribution", lambda value: f"{value:.2f}"),
            Column("noisy_contribution", "noisy contribution", lambda value: f"{value:.2f}"),
            Column("survives", "survives", lambda value: "yes" if value else "no"),
        ],
        [
            (i + 1, int(step.counts[i]), float(step.clipped[i]), float(step.noisy[i]), bool(step.survives[i]))
            for i in range(BUCKETS)
        ],
    )
    return Content(caption, figure, table)
