"""Open vocabularies: which of 2^64 possible values get a row of an embedding table, by noised counts before training.

A value that occurs has a row if its noised count among training examples reaches a threshold that a value of one
example alone passes with next to no probability (Korolova, Kenthapadi, Mishra and Ntoulas 2009; with Gaussian noise:
Gopi, Gulhane, Kulkarni, Shen, Shokouhi and Yekhanin 2020, "Differentially private set union"). So neither a list of
values nor the size of a table is needed, and tables are as large as what is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpfest.accounting.accountant import Event
from dpfest.errors import positive_number, whole_number
from dpfest.noise.gaussian import gaussian, gaussian_grid
from dpfest.noise.keystream import Keystream

OF_COUNTS, OF_ONE_EXAMPLE = "vocabulary", "values of one example"
"""What events are of: the noised counts, and the chance that an example's own value passes the threshold."""


@dataclass(frozen=True)
class OpenVocabulary:
    """The noised counts of all features' values together, and the threshold from which a value has a row.

    Formal guarantee (statement 2.9 of docs/PRIVACY.md): the release of :meth:`known`, of all features once, is
    dominated by the composition of :attr:`events` under add-or-remove-one adjacency, within 2^-99 in total variation
    per value that occurs.

    Attributes:
        noise_multiplier: noise over the joint l2-sensitivity of the counts.
        delta: probability, at most, with which a value of a single example is released.
        values_per_example: distinct values that an example has at most, of all features together.

    Raises:
        ValueError: a value out of range, by name.
    """

    noise_multiplier: float
    delta: float
    values_per_example: int

    def __post_init__(self) -> None:
        whole_number("values_per_example", self.values_per_example)
        for name in ("noise_multiplier", "delta"):
            positive_number(name, getattr(self, name))
        rules = {
            "noise_multiplier": (0.1 <= self.noise_multiplier <= 1e6, "from 0.1, below which it hides none, to 1e6"),
            "delta": (1e-30 <= self.delta <= 0.1, "from 1e-30 to 0.1"),
        }
        for name, (right, rule) in rules.items():
            if not right:
                raise ValueError(f"{name}={getattr(self, name)} must be {rule}")
        if gaussian_grid(self.deviation) > 1:  # counts would have to be rounded, at a cost in privacy
            raise ValueError(f"noise_multiplier={self.noise_multiplier} makes noise that no count outweighs")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a count."""
        return self.noise_multiplier * math.sqrt(self.values_per_example)

    @property
    def threshold(self) -> float:
        """The noised count from which a value has a row: about 1 + 6.7 deviations at Criteo-Kaggle's size.

        A count of 1 reaches it with probability ``delta / values_per_example`` at most.
        """
        tail = -float(ndtri(self.delta / self.values_per_example)) * (1 + 1e-9)
        return 1 + tail * self.deviation + gaussian_grid(self.deviation)

    @property
    def events(self) -> list[Event]:
        """What the release costs: noised counts, and the chance that a value of one example alone passes."""
        return [
            Event(kind="gaussian", what=OF_COUNTS, noise_multiplier=self.noise_multiplier),
            Event(kind="failure", what=OF_ONE_EXAMPLE, probability=self.delta),
        ]

    def known(self, counts: NDArray[np.integer], stream: Keystream) -> NDArray[np.bool_]:
        """Return which values of a feature have rows.

        Args:
            counts: number of training examples that have each value, at least 1, of all values that occur, in an order
                that depends on no count, ``[n]``.
            stream: source of the noise, for this feature alone; the guarantee holds while its key is secret.

        Raises:
            ValueError: a count below 1: a value that does not occur has no noise.
        """
        if len(counts) and counts.min() < 1:
            raise ValueError("a value that does not occur cannot be known")
        return np.asarray(counts + gaussian(stream, len(counts), self.deviation) >= self.threshold)
