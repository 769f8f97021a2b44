"""What a run may spend, and how that is counted."""

from __future__ import annotations

from dataclasses import dataclass

FIDELITIES = {"rigorous": "poisson", "paper": "shuffled"}
"""How batches are sampled under each fidelity."""


@dataclass
class PrivacyConfig:
    """The target of a run.

    Attributes:
      fidelity: `rigorous` (true Poisson batches, every release composed) or `paper` (fixed-size shuffled batches
        accounted as if they were Poisson, a selection's claimed epsilon added).
      epsilon, delta: the target; delta is None for 1 / examples.
      noise_seed: None for a key drawn from the operating system; fixed only to reproduce results on public data.
    """

    fidelity: str = "rigorous"
    epsilon: float = 1.0
    delta: float | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if self.fidelity not in FIDELITIES:
            raise ValueError(f"privacy.fidelity={self.fidelity} must be one of {', '.join(FIDELITIES)}.")
        if not self.epsilon > 0:
            raise ValueError(f"privacy.epsilon={self.epsilon} must be above 0.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"privacy.delta={self.delta} must lie between 0 and 1, or be null for 1 / examples.")
