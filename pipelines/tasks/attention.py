"""Parts of models that read values in their order: causal self-attention, and waves that tell positions apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pipelines.tasks.click_model import mlp


class CausalAttention(nn.Module):
    """Blocks of self-attention and a layer of each position, both normalised first and added to what they read.

    Args:
        dim: of the states, a multiple of ``heads``.
        heads: of self-attention.
        blocks: one after the other.
    """

    def __init__(self, dim: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * blocks))
        self.inputs = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(blocks))
        self.outputs = nn.ModuleList(nn.Linear(dim, dim) for _ in range(blocks))
        self.layers = nn.ModuleList(mlp(dim, dim, dim) for _ in range(blocks))

    def forward(self, state: Tensor, real: Tensor) -> Tensor:
        """Return states ``[b, length, dim]`` after all blocks.

        Args:
            state: states ``[b, length, dim]``.
            real: ``[b, length]``, False at places behind the end of a list. A place looks at itself and at real ones
                before it.
        """
        place = torch.arange(state.shape[1], device=state.device)
        itself = torch.eye(len(place), dtype=torch.bool, device=state.device)
        seen = ((real[:, None] & (place <= place[:, None])) | itself)[:, None]
        for number, layer in enumerate(self.layers):
            read = self.inputs[number](self.norms[2 * number](state))
            query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in read.chunk(3, 2))
            found = scaled_dot_product_attention(query, key, value, attn_mask=seen)
            state = state + self.outputs[number](found.transpose(1, 2).flatten(2))
            state = state + layer(self.norms[2 * number + 1](state))
        return state


def waves(length: int, dim: int) -> Tensor:
    """Return sines and cosines (Vaswani et al., 2017) that tell positions apart, ``[length, dim]``."""
    rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :dim]
