"""A classifier that leaves room, under a clipping norm, for the encoder below it.

The head that pretrained classifiers come with reads the encoder's first output as it is.  Where that is long (51 in
an encoder of 384 dimensions at hand), the head's gradient is as long, for every example: 13 against 0.2 of LoRA and 0.3
of the word embedding.  What is clipped to one norm is then the head's alone, and the noise on the rest drowns it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnitHead(nn.Module):
    """The first token's output, normalised to length one, and one linear layer.

    Args:
        width: of the encoder's output.
        classes: how many logits it gives.
        gain: length of a class's initial weights. The encoder's gradient grows with it, the head's own does not.
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
    """In the place of a pooler: the first token's output as it is."""

    def forward(self, features: Tensor) -> Tensor:
        """``[b, width]`` of ``[b, length, width]``."""
        return torch.select(features, 1, 0)
