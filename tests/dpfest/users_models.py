"""Models as people bring them: one layer or idiom each, around a table of items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH, DIM = 5, 8
Mix = Callable[[Any, Tensor], Tensor]


class Items(nn.Module):
    """Looks items up, mixes them by a part, and scores them; the part is a module, and how it is called."""

    def __init__(self, part: nn.Module, call: Mix = lambda part, x: part(x)) -> None:
        super().__init__()
        self.item, self.part, self.call, self.score = nn.Embedding(30, DIM), part, call, nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.call(self.part, torch.tanh(self.item(ids)))
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.score(hidden.tanh()).mean((1, 2))


class Custom(nn.Module):
    """Parameters and layers of its own, and a forward pass that is given."""

    def __init__(self, forward: Mix, **parts: Any) -> None:
        super().__init__()
        self.how = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


class StepByStep(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


class Scaled(nn.Embedding):
    """A table that does more than look up, as BART's."""

    def forward(self, ids: Tensor) -> Tensor:
        return 3 * super().forward(ids)


def attend(part: nn.Module, x: Tensor, **options: Any) -> Tensor:
    return part(x, x, x, **options)[0]


def causal(dtype: torch.dtype = torch.float64) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=dtype)


def sequence_first(part: nn.Module, x: Tensor) -> Tensor:
    found = part(x.transpose(0, 1))
    return (found[0] if isinstance(found, tuple) else found).transpose(0, 1)


def packed(part: nn.Module, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), LENGTH)
    found, _ = part(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    return nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0]


def relative(part: Any, x: Tensor) -> Tensor:
    """T5's: a bias of each pair of positions and head, looked up once."""
    places = torch.arange(LENGTH)
    bias = part.table((places[None] - places[:, None]).abs()).permute(2, 0, 1).unsqueeze(0)
    return ((x @ x.transpose(1, 2)).unsqueeze(1) + bias).softmax(-1).mean(1) @ x


def filled(part: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = part.first
    return x


def cross(part: Any, x: Tensor) -> Tensor:
    for weight in part.weights:
        x = torch.tanh(x @ weight) + x
    return x * part.scale.exp()


PLACES = torch.arange(LENGTH)


def vector() -> Tensor:
    return torch.randn(DIM)


def matrix() -> Tensor:
    return torch.randn(DIM, DIM)


def parts() -> dict[str, nn.Module]:
    """Parts whose gradients are taken at once for all examples."""
    attention = dict(embed_dim=DIM, num_heads=2)
    block = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.1, batch_first=True)
    lstm = nn.LSTM(DIM, 12, batch_first=True, proj_size=DIM)
    return {
        "attention": Items(nn.MultiheadAttention(**attention, batch_first=True), attend),
        "attention, dropout": Items(nn.MultiheadAttention(**attention, batch_first=True, dropout=0.3), attend),
        "attention, dropout, fused": Items(
            nn.MultiheadAttention(**attention, batch_first=True, dropout=0.3),
            lambda part, x: attend(part, x, need_weights=False),
        ),
        "attention, sequence first": Items(
            nn.MultiheadAttention(**attention, dropout=0.2),
            lambda part, x: attend(part, x.transpose(0, 1)).transpose(0, 1),
        ),
        "attention, masks": Items(
            nn.MultiheadAttention(**attention, batch_first=True),
            lambda part, x: attend(
                part, x, attn_mask=causal() < 0, key_padding_mask=(PLACES >= 4).expand(len(x), LENGTH)
            ),
        ),
        "attention, other keys": Items(
            nn.MultiheadAttention(**attention, batch_first=True, kdim=4, vdim=3, add_bias_kv=True),
            lambda part, x: part(x, x[..., :4], x[..., :3]),
        ),
        "encoder": Items(
            nn.TransformerEncoder(block, 2), lambda part, x: part(x, mask=causal(x.dtype), is_causal=True)
        ),
        "gru": Items(nn.GRU(DIM, DIM, batch_first=True)),
        "gru, two layers": Items(nn.GRU(DIM, 4, 2, batch_first=True, bidirectional=True, dropout=0.3)),
        "gru, sequence first": Items(nn.GRU(DIM, DIM, 2, dropout=0.3), sequence_first),
        "gru, twice": Items(nn.GRU(DIM, DIM, batch_first=True), lambda part, x: part(part(x)[0])),
        "gru, state": Items(
            nn.GRU(DIM, DIM, batch_first=True), lambda part, x: (out := part(x))[0] + out[1][0].unsqueeze(1)
        ),
        "lstm": Items(nn.LSTM(DIM, DIM, 2, batch_first=True, dropout=0.2)),
        "lstm, projected": Items(lstm),
        "rnn": Items(nn.RNN(DIM, DIM, batch_first=True)),
        "gru cell": Items(StepByStep(nn.GRUCell(DIM, DIM))),
        "lstm cell": Items(StepByStep(nn.LSTMCell(DIM, DIM))),
        "bilinear": Items(nn.Bilinear(DIM, DIM, DIM), lambda part, x: part(x, x.flip(1))),
        "weight norm": Items(torch.nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM))),
        "rms norm of one's own": Items(
            Custom(lambda p, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * p.gain + p.bias,
                   gain=vector(), bias=vector())
        ),
        "outputs of one another": Items(
            Custom(lambda p, x: (h := x @ p.w, h.sum(-1, keepdim=True)), w=matrix()),
            lambda part, x: (out := part(x))[0] * out[1],
        ),
        "positions": Items(Custom(lambda p, x: x + p.table(PLACES), table=nn.Embedding(LENGTH, DIM))),
        "positions, [1, L]": Items(Custom(lambda p, x: x + p.table(PLACES[None]), table=nn.Embedding(LENGTH, DIM))),
        "positions, unsqueezed": Items(
            Custom(lambda p, x: F.dropout(0.5 * p.table(PLACES)[None] * torch.ones(DIM) + x, 0.3),
                   table=nn.Embedding(LENGTH, DIM))
        ),
        "positions, mixed": Items(
            Custom(lambda p, x: x * p.mix(F.dropout(p.norm(p.table(PLACES)), 0.2)), table=nn.Embedding(LENGTH, DIM),
                   norm=nn.LayerNorm(DIM), mix=nn.Linear(DIM, DIM))
        ),
        "relative positions": Items(Custom(relative, table=nn.Embedding(LENGTH, 2))),
        "bias": Items(Custom(lambda p, x: p.mix(x) + p.bias, mix=nn.Linear(DIM, DIM), bias=vector())),
        "first token": Items(
            Custom(lambda p, x: torch.cat([p.first.expand(len(x), -1, -1), x], 1), first=torch.randn(1, 1, DIM),
                   mix=nn.Linear(1, 1))
        ),
        "first token, repeated": Items(
            Custom(lambda p, x: torch.cat([p.first.repeat(len(x), 1, 1), x], 1), first=torch.randn(1, 1, DIM),
                   mix=nn.Linear(1, 1))
        ),
        "cross network": Items(
            Custom(cross, weights=nn.ParameterList([matrix(), matrix()]), scale=torch.tensor(0.7))
        ),
        "functions": Items(
            Custom(lambda p, x: torch.einsum("bld,de->ble", x, p.w) + F.linear(p.mix(x), p.mix.weight, p.bias),
                   w=matrix(), bias=vector(), mix=nn.Linear(DIM, DIM))
        ),
        "gathered": Items(
            Custom(lambda p, x: x + p.w[(x.detach()[..., 0] > 0).long()], w=matrix(), mix=nn.Linear(1, 1))
        ),
        "penalty": Items(
            Custom(lambda p, x: p.mix(x) + p.mix.weight.square().sum(), mix=nn.Linear(DIM, DIM))
        ),
        "dropout around a bias": Items(
            Custom(lambda p, x: F.dropout(p.mix(x) + F.dropout(x, 0.2) * p.bias, 0.3), mix=nn.Linear(DIM, DIM),
                   bias=vector())
        ),
        "table of a subclass": Items(Custom(lambda p, x: x + p.table(PLACES.expand(len(x), -1)),
                                            table=Scaled(LENGTH, DIM, padding_idx=2))),
    }  # fmt: skip


def slow_parts() -> dict[str, nn.Module]:
    """Parts that take one backward pass for each example."""
    return {
        "encoder, sequence first": Items(nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0), sequence_first),
        "packed": Items(nn.GRU(DIM, DIM, batch_first=True), packed),
        "attention, a mask for each head": Items(
            nn.MultiheadAttention(DIM, 2, batch_first=True),
            lambda part, x: attend(part, x, attn_mask=(causal() < 0).repeat(len(x) * 2, 1, 1)),
        ),
        "flattened": Items(
            Custom(lambda p, x: p.mix(x.reshape(-1, DIM)).view(x.shape), mix=nn.Linear(DIM, DIM))
        ),
        "assigned": Items(Custom(filled, first=vector(), mix=nn.Linear(1, 1))),
    }  # fmt: skip
