"""bias_variance: the paper's inequality of section 3.4, with h, D and γ measured in training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize

from reports.bench import ONCE, frozen
from reports.entry import Content, Inputs
from reports.tables import Column, Table
from reports.wording import flag, number


@dataclass(frozen=True)
class Inequality:
    """sqrt(L² (1 + γ)² + h σ²) + γ L sqrt(T) < sqrt(L² + D σ'²), in units of C₂.

    Attributes:
        bound: L; clipping guarantees 1.
        coordinates, parameters: h, D.
        noise, dense_noise: standard deviation of one coordinate's noise, of DP-AdaFEST (σ) and of DP-SGD (σ').
        steps: T.
    """

    bound: float
    coordinates: float
    parameters: float
    noise: float
    dense_noise: float
    steps: int

    def left(self, truncated: float) -> float:
        """DP-AdaFEST's side, at γ = `truncated`."""
        spread = math.hypot(self.bound * (1 + truncated), math.sqrt(self.coordinates) * self.noise)
        return spread + truncated * self.bound * math.sqrt(self.steps)

    @property
    def right(self) -> float:
        """DP-SGD's side."""
        return math.hypot(self.bound, math.sqrt(self.parameters) * self.dense_noise)

    @property
    def most_truncated(self) -> float | None:
        """Largest γ, up to 1, for which the inequality holds; None if it holds for none."""
        if self.left(0.0) >= self.right:
            return None
        if self.left(1.0) < self.right:
            return 1.0
        return float(optimize.brentq(lambda truncated: self.left(truncated) - self.right, 0.0, 1.0, xtol=1e-15))


def content(inputs: Inputs) -> Content:
    needed = {"truncated", "coordinates", "parameters", "gradient_norm", "steps", "epsilon"}
    section = frozen("bias", needed)
    first = section.records[0]
    caption = (
        "When is a gradient that is truncated and noised in h coordinates better than one noised in all D? According "
        "to the paper, when √(L²(1 + γ)² + hσ²) + γL√T < √(L² + Dσ²). Measured on "
        f"{first['case']} of DP-AdaFEST at ε = {number(first['values']['epsilon'])}, σ₁/σ₂ = "
        f"{number(first['values']['noise_ratio'])}, C₂ = {number(first['values']['clipping_norm'])}: γ is the norm of "
        "the part of the mean clipped gradient that the mask removes, relative to that gradient's norm; σ is each "
        "algorithm's own. Sides are in units of C₂, for L = C₂, which clipping guarantees, and for L = the measured "
        "norm of the mean clipped gradient. 'γ up to': the largest γ for which the inequality holds. It is derived for "
        "convex losses: here it explains, but guarantees nothing."
    )
    side, share = "{:.3f}".format, "{:.4f}".format
    table = Table(
        [
            Column("threshold", "τ", number),
            Column("truncated", "γ", share),
            Column("coordinates", "h", "{:,.0f}".format),
            Column("parameters", "D", "{:,}".format),
            *(
                column
                for name, symbol in (("clipped", "L = C₂"), ("measured", "L measured"))
                for column in (
                    Column(f"{name}_bound", f"{symbol}: L", share),
                    Column(f"{name}_left", "left side", side),
                    Column(f"{name}_right", "right side", side),
                    Column(f"{name}_holds", "holds", flag),
                    Column(f"{name}_most", "γ up to", share),
                )
            ),
        ]
    )
    for record in section.records:
        values, cells = record["values"], []
        for bound in (1.0, values["gradient_norm"] / values["clipping_norm"]):
            sides = Inequality(
                bound,
                values["coordinates"],
                values["parameters"],
                values["noise_multiplier"] / record["batch_size"],
                values["dpsgd_noise_multiplier"] / record["batch_size"],
                values["steps"],
            )
            left = sides.left(values["truncated"])
            cells += [bound, left, sides.right, left < sides.right, sides.most_truncated]
        measured = [values[name] for name in ("threshold", "truncated", "coordinates", "parameters")]
        table.rows.append((*measured, *cells))
    return Content(caption + ONCE, table=table)
