"""From a privacy budget to the noise of a run, before anything touches the data.

What each algorithm spends in a step, on one Poisson sample of rate q = batch_size / examples:

- dpsgd, frozen, fest: one Gaussian release of multiplier sigma.
- adafest, adafest_plus: the noisy contribution map (sigma1) and the noisy gradient (sigma2) share the sample: one
  Gaussian release of sigma = (sigma1^-2 + sigma2^-2)^(-1/2), combined before sampling amplifies it. (Composing two
  separately sampled Gaussians instead reports a fraction of what is spent.)
- exponential: m row draws at epsilon0 and a Gaussian of sigma2. `noise_ratio` r means what it means for adafest,
  sigma1 / sigma2: m draws at a small epsilon0 cost what a Gaussian of multiplier 1 / (sqrt(m) epsilon0) costs, so
  epsilon0 = 1 / (r sigma2 sqrt(m)) and one calibration finds both.

A row selection before training (fest, adafest_plus) is composed first; the rest of the budget sets sigma.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.errors import UserError
from dpfest.privacy import FIDELITIES, PrivacyConfig
from dpfest.topk import selection_events


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend and the noise that this buys."""

    algorithm: str
    target_epsilon: float | None  # None without privacy
    delta: float
    fidelity: str
    fixed_noise_seed: bool
    examples: int  # N
    batch_size: int  # B, expected under Poisson sampling
    steps: int  # T
    selection: Event | None = None
    step: Event | None = None  # one of them

    @property
    def events(self) -> list[Event]:
        """All that the run is to spend."""
        step = self.step and replace(self.step, count=self.steps)
        return [event for event in (self.selection, step) if event]

    @property
    def epsilon(self) -> float | None:
        """What the whole plan costs as the fidelity counts it, at most the target; None without privacy."""
        return self.cost(self.events, self.delta) if self.step else None

    @property
    def cost(self) -> Callable[..., float]:
        """How events are counted: `accounting.claimed_epsilon` under `paper`, else `accounting.epsilon`."""
        return accounting.claimed_epsilon if self.fidelity == "paper" else accounting.epsilon

    @property
    def sampling(self) -> str:
        """`poisson` or `shuffled`, by the fidelity."""
        return FIDELITIES[self.fidelity]

    @property
    def sampling_probability(self) -> float:
        """q = B / N."""
        return self.batch_size / self.examples

    @property
    def consistent(self) -> bool:
        """Whether its step is still one of its own sampling (`dataclasses.replace` can part them; `paper` does)."""
        return not self.step or self.fidelity == "paper" or self.step.sampling_probability == self.sampling_probability

    @property
    def noise_multiplier(self) -> float | None:
        """sigma of one step: of the combined release, and sigma2 for exponential selection."""
        return self.step.noise_multiplier if self.step else None

    @property
    def map_noise_multiplier(self) -> float | None:
        """sigma1, of the contribution map, or None."""
        return self.step.map_noise_multiplier if self.step else None

    @property
    def gradient_noise_multiplier(self) -> float | None:
        """sigma2."""
        return self.step.gradient_noise_multiplier if self.step else None

    @property
    def epsilon_per_row(self) -> float | None:
        """Of one draw of exponential selection, or None."""
        return self.step.epsilon_per_draw if self.step else None

    @property
    def noise(self) -> dict[str, Any]:
        """Keyword arguments of `dpfest.engine.PrivateEngine`; without privacy no noise, and batches' own sizes."""
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
    privacy: PrivacyConfig,
    *,
    examples: int,
    batch_size: int,
    steps: int,
    features: int | Sequence[int],
    calibrate: Callable[..., float] = accounting.calibrate,
    selects: bool = True,
) -> Budget:
    """The noise that makes a run meet its target.

    Formal guarantee: under fidelity `rigorous`, a run that spends no more than `Budget.events`, each on what its
    algorithm releases (see the module), is (privacy.epsilon, delta)-DP for one training example more or less.

    Args:
      algorithm: settings of an algorithm of `dpfest.rules`.
      examples, batch_size, steps: N, B (expected, under Poisson sampling), T.
      features: vocabulary sizes of the features that a selection covers; their number alone where only that is known
        (one-shot Gumbel is then counted as if no vocabulary capped it).
      calibrate: `accounting.calibrate`, or what remembers its answers: `Ledger` verifies them.
      selects: whether the algorithm's row selection, where it has one, looks at these examples.

    Raises:
      UserError: the batch exceeds the data, or no noise meets the target.
    """
    if not 0 < batch_size <= examples:
        raise UserError(f"train.batch_size={batch_size} must lie between 1 and the {examples} training examples.")
    drawn = getattr(algorithm, "rows_per_step", 0)
    if isinstance(features, Sequence) and drawn > sum(features):
        raise UserError(f"algorithm.rows_per_step={drawn} is more than the {sum(features)} rows of all tables.")
    budget = Budget(
        algorithm=algorithm.name,
        target_epsilon=privacy.epsilon if algorithm.private else None,
        delta=1 / examples if privacy.delta is None else privacy.delta,
        fidelity=privacy.fidelity,
        fixed_noise_seed=privacy.noise_seed is not None,
        examples=examples,
        batch_size=batch_size,
        steps=steps,
    )
    if not algorithm.private:
        return budget
    if selects and getattr(algorithm, "selection", None):
        sizes = features if isinstance(features, Sequence) else [algorithm.selection.rows] * features
        budget = replace(budget, selection=next(iter(selection_events(algorithm.selection, sizes)), None))
    target, fixed = privacy.epsilon, budget.selection
    if privacy.fidelity == "paper" and fixed and fixed.claimed_epsilon:
        if (target := target - fixed.claimed_epsilon) < accounting.LEAST_EPSILON:
            raise UserError(
                f"algorithm.selection.epsilon={fixed.claimed_epsilon:g} leaves nothing of privacy.epsilon="
                f"{privacy.epsilon:g} to train with: lower the one or raise the other."
            )
        fixed = None  # added, not composed

    def with_step(sigma: float) -> Budget:
        step = Event(
            kind="gaussian",
            what="training step",
            noise_multiplier=sigma,
            gradient_noise_multiplier=sigma,
            sampling_probability=budget.sampling_probability,
            steps_per_epoch=examples // batch_size if privacy.fidelity == "paper" else None,
        )
        ratio = getattr(algorithm, "noise_ratio", None)
        if drawn:
            cost = 1 / (algorithm.noise_ratio * sigma * math.sqrt(drawn))
            step = replace(step, kind="exponential_selection", draws=drawn, epsilon_per_draw=cost)
        elif ratio is not None:
            of_map, of_gradient = accounting.split_noise(sigma, ratio)
            step = replace(step, map_noise_multiplier=of_map, gradient_noise_multiplier=of_gradient)
        return replace(budget, step=step)

    sigma = calibrate(lambda sigma: replace(with_step(sigma), selection=fixed).events, target, budget.delta)
    return with_step(sigma)
