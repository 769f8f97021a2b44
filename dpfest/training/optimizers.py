"""An optimiser that knows the noise of the gradients it is given.

Any optimiser is post-processing of released gradients, and costs no privacy. One that subtracts what the noise adds
needs a constant besides: the noise's standard deviation, which the plan, and no example, determines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dpfest.errors import UserError


class AdamBC(torch.optim.Optimizer):
    """Adam whose second moment is that of the gradient without its noise.

    DP-AdamBC (Tang, Shpilevskiy and Lécuyer, 2024, arXiv 2312.14334): a noised gradient's square is too large by the
    variance of the noise, Phi = (sigma C / B)^2, on average. Where the gradient is smaller than its noise, Adam
    therefore divides every coordinate by nearly the same number: it is DP-SGD with momentum. Here Phi is subtracted
    from each square before it is averaged, which also holds where Phi changes between the periods of a stream:

        update = lr * m / (1 - beta_1^t) / sqrt(max(v / (1 - beta_2^t), floor * Phi, epsilon^2)),

    m and v being exponential moving averages of g and of g^2 - Phi.

    :class:`dpfest.PrivateTraining` sets Phi (``noise_deviation`` of each parameter group, its root) from its plan.

    Formal guarantee: post-processing. The update is a function of the gradients that it is given and of public
    constants.

    Args:
        params: dense parameters, as in ``torch.optim``.
        lr: step size.
        betas: decay rates of the two averages.
        eps: least divisor.
        floor: least divisor squared, in units of Phi. Over noise alone v deviates from 0 by about sqrt(2/t) Phi, later
            by sqrt(1 - beta_2) Phi: below that, coordinates without a gradient take the longest steps.

    Raises:
        ValueError: a setting is out of range.
    """

    dense_only = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 0.1,
    ) -> None:
        for name, value, most in (("lr", lr, math.inf), ("eps", eps, 1.0), ("floor", floor, math.inf)):
            if not 0 < value < most:
                raise ValueError(f"{name}={value} must be above 0" + f" and below {most:g}" * math.isfinite(most))
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be two numbers from 0 to 1, without 1")
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "floor": floor, "noise_deviation": 0.0}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients; a parameter without one is unchanged."""
        for group in self.param_groups:
            first, second = group["betas"]
            noise = group["noise_deviation"] ** 2
            least = max(group["floor"] * noise, group["eps"] ** 2)
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                state["mean"].lerp_(gradient, 1 - first)
                state["square"].lerp_(gradient.square() - noise, 1 - second)
                square = state["square"] / (1 - second ** state["step"])
                rate = group["lr"] / (1 - first ** state["step"])
                parameter.addcdiv_(state["mean"], square.clamp_min_(least).sqrt_(), value=-rate)


def tell_noise(
    optimizers: Iterable[torch.optim.Optimizer], deviation: float, correlated: Iterable[Tensor] = ()
) -> None:
    """Tell optimisers that ask for it the standard deviation of the noise on a coordinate of their gradients.

    Args:
        optimizers: all.
        deviation: of independent noise.
        correlated: parameters whose noise is correlated over steps, and another.

    Raises:
        UserError: one of these is in an optimiser that asks.
    """
    others = set(map(id, correlated))
    groups: list[dict[str, Any]] = [group for optimizer in optimizers for group in optimizer.param_groups]
    for group in groups:
        if "noise_deviation" in group:
            if others & set(map(id, group["params"])):
                raise UserError(
                    "AdamBC subtracts the variance of independent noise, and with bands that of tables is correlated "
                    "over steps: give tables SGD or Adagrad, or leave bands out."
                )
            group["noise_deviation"] = deviation
