"""From a privacy budget to the noise of a run, before anything touches the data.

What each algorithm spends in a step, on one Poisson sample of rate q = batch_size / examples:

- dpsgd, frozen, fest: one Gaussian release of multiplier sigma.
- adafest, adafest_plus: the noisy contribution map (sigma1) and the noisy gradient (sigma2) share the sample:
  one Gaussian release of sigma = (sigma1^-2 + sigma2^-2)^(-1/2), combined before sampling amplifies it.
  (Composing two separately sampled Gaussians instead reports a fraction of what is spent.)
- exponential: m row draws at epsilon0 and a Gaussian of sigma2. `noise_ratio` r means what it means for
  adafest, sigma1 / sigma2: m draws at a small epsilon0 cost what a Gaussian of multiplier 1 / (sqrt(m)
  epsilon0) costs, so epsilon0 = 1 / (r sigma2 sqrt(m)) and one calibration finds both.

A row selection before training (fest, adafest_plus) is composed first; the rest of the budget sets sigma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfest import accounting
from dpfest.accounting import Event, ExponentialSelectionEvent, GaussianEvent
from dpfest.errors import UserError
from dpfest.topk import selection_events


@dataclass(frozen=True)
class Budget:
    """What a run may spend and the noise that this buys.

    Attributes:
      algorithm: its name.
      target_epsilon, delta: the target; target_epsilon is None without privacy.
      fidelity: rigorous or paper.
      examples, batch_size, steps: N, expected B, T.
      selection, step: what selection spends, and what one step spends; None where nothing.
      fixed_noise_seed: whether privacy.noise_seed is set.
    """

    algorithm: str
    target_epsilon: float | None
    delta: float
    fidelity: str
    examples: int
    batch_size: int
    steps: int
    selection: Event | None
    step: GaussianEvent | ExponentialSelectionEvent | None
    fixed_noise_seed: bool

    @property
    def events(self) -> list[Event]:
        """All that the run is to spend."""
        return _events(self.selection, self.step, self.steps)

    @property
    def epsilon(self) -> float | None:
        """What the whole plan costs as the fidelity counts it, at most the target; None without privacy."""
        spent = accounting.claimed_epsilon if self.fidelity == "paper" else accounting.epsilon
        return spent(self.events, self.delta) if self.step else None

    @property
    def sampling_probability(self) -> float:
        """q = B / N."""
        return self.batch_size / self.examples

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch: the fewest steps between two visits to an example of a shuffled set."""
        return self.examples // self.batch_size

    @property
    def noise_multiplier(self) -> float | None:
        """sigma of one step: of the combined release, and sigma2 for exponential selection."""
        return self.step.noise_multiplier if self.step else None

    @property
    def map_noise_multiplier(self) -> float | None:
        """sigma1, of the contribution map, or None."""
        return getattr(self.step, "map_noise_multiplier", None)

    @property
    def gradient_noise_multiplier(self) -> float | None:
        """sigma2."""
        return getattr(self.step, "gradient_noise_multiplier", self.noise_multiplier)

    @property
    def epsilon_per_row(self) -> float | None:
        """Of one draw of exponential selection, or None."""
        return getattr(self.step, "epsilon_per_row", None)

    @property
    def noise(self) -> dict[str, Any]:
        """Keyword arguments of :class:`dpfest.engine.PrivateEngine`; without privacy there is no noise, and the
        divisor is each batch's own size."""
        return {
            "gradient_noise_multiplier": self.gradient_noise_multiplier or 0.0,
            "map_noise_multiplier": self.map_noise_multiplier,
            "epsilon_per_row": self.epsilon_per_row,
            "expected_batch_size": float(self.batch_size) if self.step else None,
        }


def training_steps(examples: int, batch_size: int, epochs: float, steps: int | None = None) -> int:
    """T: `steps` where it is given, else ceil(epochs * examples / batch_size)."""
    return steps if steps is not None else math.ceil(epochs * examples / batch_size)


def plan(
    algorithm: Any,
    privacy: Any,
    *,
    examples: int,
    batch_size: int,
    steps: int,
    features: int | Sequence[int],
    cache: Path | None = None,
) -> Budget:
    """The noise that makes a run meet its target.

    Formal guarantee: under fidelity `rigorous`, a run that spends no more than `Budget.events`, each on what
    its algorithm releases (see the module), is (privacy.epsilon, delta)-DP for one training example more or
    less.

    Args:
      algorithm: settings of an algorithm of `dpfest.rules`.
      privacy: `epsilon`, `delta` (None for 1 / examples), `fidelity` (rigorous or paper), `noise_seed`.
      examples: N, the training examples.
      batch_size: B, expected under Poisson sampling.
      steps: T.
      features: vocabulary sizes of the features that a selection covers; their number alone where only that
        is known (one-shot Gumbel is then counted as if no vocabulary capped it).
      cache: folder for calibrations.

    Raises:
      UserError: the batch exceeds the data, or no noise meets the target.
    """
    if not 0 < batch_size <= examples:
        raise UserError(
            f"train.batch_size={batch_size} must lie between 1 and the {examples} training examples."
        )
    drawn = getattr(algorithm, "rows_per_step", 0)
    if isinstance(features, Sequence) and drawn > sum(features):
        raise UserError(f"algorithm.rows_per_step={drawn} is more than the {sum(features)} rows of all tables.")
    delta = 1 / examples if privacy.delta is None else privacy.delta
    selection = step = None
    if algorithm.name != "nonprivate":
        config = getattr(algorithm, "selection", None)
        if config:
            sizes = features if isinstance(features, Sequence) else [config.rows] * features
            selection = next(iter(selection_events(config, sizes)), None)
            if isinstance(selection, GaussianEvent) and selection.noise_multiplier < 0.1:
                # Its privacy loss would fill the memory before it is found to exceed any target.
                raise UserError(
                    f"algorithm.selection.noise_multiplier={config.noise_multiplier} protects no one: take 0.1 or more."
                )
        target, fixed = privacy.epsilon, selection
        claim = getattr(selection, "claimed_epsilon", None)
        if privacy.fidelity == "paper" and claim is not None:
            target, fixed = privacy.epsilon - claim, None
            if target <= 0:
                raise UserError(
                    f"algorithm.selection.epsilon={claim:g} leaves nothing of "
                    f"privacy.epsilon={privacy.epsilon:g} to train with: lower the one or raise the other."
                )
        q = batch_size / examples
        sigma = accounting.calibrate(
            lambda sigma: _events(fixed, _step(algorithm, sigma, q), steps), target, delta, cache=cache
        )
        step = _step(algorithm, sigma, q)
    return Budget(
        algorithm=algorithm.name,
        target_epsilon=privacy.epsilon if step else None,
        delta=delta,
        fidelity=privacy.fidelity,
        examples=examples,
        batch_size=batch_size,
        steps=steps,
        selection=selection,
        step=step,
        fixed_noise_seed=privacy.noise_seed is not None,
    )


def _step(algorithm: Any, sigma: float, q: float) -> GaussianEvent | ExponentialSelectionEvent:
    if algorithm.name == "exponential":
        return ExponentialSelectionEvent(
            what="training step",
            rows_per_step=algorithm.rows_per_step,
            epsilon_per_row=1 / (algorithm.noise_ratio * sigma * math.sqrt(algorithm.rows_per_step)),
            noise_multiplier=sigma,
            sampling_probability=q,
        )
    ratio = getattr(algorithm, "noise_ratio", None)
    map_sigma, gradient_sigma = accounting.split_noise(sigma, ratio) if ratio is not None else (None, sigma)
    return GaussianEvent(
        what="training step",
        noise_multiplier=sigma,
        sampling_probability=q,
        map_noise_multiplier=map_sigma,
        gradient_noise_multiplier=gradient_sigma,
    )


def _events(selection: Event | None, step: Event | None, steps: int) -> list[Event]:
    return [*([selection] if selection else []), *([replace(step, count=steps)] if step else [])]
