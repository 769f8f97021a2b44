"""What a run may spend, and how that is counted."""

from __future__ import annotations

from dataclasses import dataclass

FIDELITIES = {"rigorous": "poisson", "paper": "shuffled"}
"""How batches are sampled under each fidelity."""


@dataclass
class PrivacyConfig:
    """The target of a run.

    `fidelity` is `rigorous` (true Poisson batches, every release composed) or `paper` (shuffled batches of a fixed size
    accounted as if they were Poisson, a selection's claimed epsilon added); `delta` None is 1 / examples; `noise_seed`
    None is a key drawn from the operating system, and fixed only to reproduce results on public data.
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
