"""Section `corrections`: the privacy cost of correcting each error of the paper, by accounting alone.

One epoch at `privacy.epsilon` and δ = 1/N on the examples of Criteo Kaggle (or `budget.examples`), in batches of
`train.batch_size`. For each correction: the noise of the paper's method (σ₂, on the gradient), the ε that it claims,
the ε that can be proven for it, and the noise of the corrected method. Nothing is trained or timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scipy import special

from dpfest import accounting
from dpfest.algorithm import Algorithm
from dpfest.algorithms import DPSGD, FEST
from dpfest.privacy_plan import PrivacyPlan, plan
from dpfest.topk import SelectionConfig
from dpfest.unproven import epsilon_at_own_rates, without_amplification
from pipelines.bench.accounting import EXAMPLES
from pipelines.bench.records import Record
from pipelines.budget import remembered_calibration
from pipelines.config.settings import Config
from pipelines.data.clicks.criteo import PUBLISHED_SIZES
from pipelines.system.progress import progress

SELECTED = (10_000, 100_000, 300_000)
"""Rows that DP-FEST selects; the paper goes from 100 to 300,000."""

RATIOS = (1.0, 5.0)
PERIODS = 18
THRESHOLD = 20.0


@dataclass(frozen=True, kw_only=True)
class Correction:
    """One correction at one setting; values that it does not concern are None.

    Attributes:
        paper_noise, noise: σ₂ of the paper's method and of the corrected one.
        claimed, proven: ε of the paper's method.
    """

    what: str
    algorithm: str
    setting: str
    paper_noise: float | None = None
    claimed: float | None = None
    proven: float | None = None
    noise: float | None = None
    note: str | None = None


def bench(config: Config, repeats: int) -> list[Record]:
    """Return a record per correction; nothing is timed or repeated."""
    records = []
    with progress("corrections") as report:
        for number, each in enumerate(corrections(config), 1):
            report(number, 3 + len(SELECTED) + len(RATIOS), each.what)
            values = {name: value for name, value in asdict(each).items() if name not in ("what", "algorithm", "note")}
            values |= {"examples": config.budget.examples or EXAMPLES, "epsilon": config.privacy.epsilon}
            records.append(
                Record(
                    section="corrections", case=each.what, competitor=each.algorithm, reference="the paper",
                    batch_size=config.train.batch_size, values=values, note=each.note,
                )
            )  # fmt: skip
    return records


def corrections(config: Config) -> Iterator[Correction]:
    """Return all corrections."""
    work = _Work(config)
    base = work.plan(DPSGD(), "rigorous")
    sigma = base.noise_multiplier or 0.0
    shuffled = work.plan(DPSGD(), "paper")
    yield Correction(
        what="batches are Poisson samples, not shuffled ones counted as such",
        algorithm="dpsgd",
        setting=f"{base.steps:,} steps",
        paper_noise=sigma,
        claimed=shuffled.epsilon,
        proven=accounting.epsilon(without_amplification(shuffled.events), base.delta),
        noise=sigma,
        note="proven: no amplification by sampling; an example takes part twice where the last step begins an epoch",
    )
    for rows in SELECTED:
        paper = work.plan(FEST(selection=SelectionConfig(mechanism="gumbel", rows=rows)), "paper")
        rigorous = work.plan(FEST(selection=SelectionConfig(rows=rows)), "rigorous")
        yield Correction(
            what="rows are selected by one Gaussian histogram, not by one-shot Gumbel noise counted as one draw",
            algorithm="fest",
            setting=f"k = {rows:,}",
            paper_noise=paper.noise_multiplier,
            claimed=paper.epsilon,
            proven=accounting.epsilon(paper.events, paper.delta),
            noise=rigorous.noise_multiplier,
            note="proven: its steps counted as Poisson samples",
        )
    for ratio in RATIOS:
        _, gradient = accounting.split_noise(sigma, ratio)
        # The printed exponent read as it stands: (sigma_1^-2 + sigma_2^-2)^-2 = sigma.
        _, misprinted = accounting.split_noise(sigma**0.25, ratio)
        yield Correction(
            what="map and gradient combine with exponent −1/2, not with the appendix's −2",
            algorithm="adafest",
            setting=f"σ₁/σ₂ = {ratio:g}",
            paper_noise=misprinted,
            claimed=base.epsilon,
            proven=accounting.epsilon(
                [replace(step, noise_multiplier=sigma**0.25) for step in base.events], base.delta
            ),
            noise=gradient,
        )
    yield _untouched(ratio * gradient, ratio)
    yield work.stream(DPSGD())


def _untouched(map_noise: float, ratio: float) -> Correction:
    """Compare the printed survival probability of an untouched row, Ψ(τ / (σ₁²C₁²)), with Ψ(τ / (σ₁C₁)), at C₁ = 1."""
    rows = sum(PUBLISHED_SIZES)
    printed, right = (rows * float(special.ndtr(-THRESHOLD / scale)) for scale in (map_noise**2, map_noise))
    return Correction(
        what="an untouched row survives with probability Ψ(τ/(σ₁C₁)), not Ψ(τ/(σ₁²C₁²))",
        algorithm="adafest",
        setting=f"σ₁/σ₂ = {ratio:g}, τ = {THRESHOLD:g}, C₁ = 1",
        note=f"of {rows:,} untouched rows {printed:,.0f} would survive a step; {right:,.2g} do",
    )


@dataclass(frozen=True)
class _Work:
    """N, B and T of the epoch to which all corrections refer."""

    config: Config

    @property
    def examples(self) -> int:
        return self.config.budget.examples or EXAMPLES

    def plan(self, algorithm: Algorithm, fidelity: str, days: Sequence[int] | None = None) -> PrivacyPlan:
        """Plan one epoch, or one of a stream of these days with one day per period."""
        return plan(
            algorithm,
            epsilon=self.config.privacy.epsilon,
            delta=self.config.privacy.delta,
            examples=days or self.examples,
            batch_size=self.config.train.batch_size,
            epochs=1.0,
            features=PUBLISHED_SIZES,
            fidelity=fidelity,
            calibrate=remembered_calibration(Path(self.config.paths.runs)),
        )

    def stream(self, algorithm: Algorithm) -> Correction:
        """Split the examples into days of equal length, one per period."""
        days = [self.examples // PERIODS] * PERIODS
        paper, rigorous = (self.plan(algorithm, fidelity, days) for fidelity in ("paper", "rigorous"))
        return Correction(
            what="a period of a stream is sampled at its own rate, not at the whole stream's",
            algorithm=algorithm.name,
            setting=f"{PERIODS} periods",
            paper_noise=paper.noise_multiplier,
            claimed=paper.epsilon,
            proven=epsilon_at_own_rates(paper),
            noise=rigorous.periods[0].noise_multiplier,
            note="the paper states no accounting of streams; proven: steps counted as samples of their periods",
        )
