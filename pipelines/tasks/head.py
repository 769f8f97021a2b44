"""A classification head whose gradient leaves room for the encoder's under one clipping norm.

The head of pretrained classifiers reads the encoder's first output unnormalised.  If that has a large norm (51 in one
encoder of 384 dimensions), so has the head's gradient, in every example: 13 against 0.2 for LoRA and 0.3 for the word
embedding.  Clipped to one norm, the gradient is then almost entirely the head's, and noise drowns the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnitHead(nn.Module):
    """The first token's output, normalised to length one, and one linear layer.

    Args:
        width: dimension of the encoder's output.
        classes: number of logits.
        gain: norm of a class's initial weights; scales the encoder's gradient and not the head's own.
    """

    def __init__(self, width: int, classes: int, gain: float) -> None:
        super().__init__()
        self.out_proj = nn.Linear(width, classes)
        nn.init.normal_(self.out_proj.weight, std=gain * width**-0.5)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[b, classes]`` of features ``[b, length, width]``, or ``[b, width]`` of the first token alone."""
        first = features if features.dim() == 2 else features[:, 0]
        width = first.shape[-1]
        return self.out_proj(nn.functional.layer_norm(first, (width,)) * width**-0.5)


class FirstToken(nn.Module):
    """Replaces a pooler: returns the first token's output unchanged."""

    def forward(self, features: Tensor) -> Tensor:
        """``[b, width]`` of ``[b, length, width]``."""
        return torch.select(features, 1, 0)
