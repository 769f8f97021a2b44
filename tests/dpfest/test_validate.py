"""What private training refuses, by values where names do not show it, and what it accepts: everyday sound models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dpfest
from dpfest import UserError, validate

EXAMPLES = 64
Losses = Callable[[nn.Module, Any], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits.reshape(len(labels)), labels, reduction="none")


def numbers() -> tuple[Tensor, Tensor]:
    """Inputs ``[64, 8]``, one of them an outlier, and labels."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(EXAMPLES, 8, generator=generator)
    inputs[0] = 30.0
    return inputs, (torch.rand(EXAMPLES, generator=generator) < 0.3).float()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


class Items(nn.Module):
    """Two tables and the score of a user and an item."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user, self.item = nn.Embedding(50, 8), nn.Embedding(50, 8)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.user(user) * self.item(item)).sum(-1)


def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randint(0, 50, (2, EXAMPLES), generator=generator))


def centred(model: nn.Module, batch: Any, *, detach: bool) -> Tensor:
    hidden = model[0](batch[0])
    mean = hidden.mean(0)
    return cross_entropy(model[2](F.relu(hidden - (mean.detach() if detach else mean))), batch[1])


def rescaled(model: nn.Module, batch: Any) -> Tensor:
    hidden = model[0](batch[0])
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: 0.1 * gradient / (gradient.abs().max() + 1e-20))
    return cross_entropy(model[2](F.relu(hidden)), batch[1])


class NormalisedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (0.01 / (gradient.norm() + 1e-20))


def class_weighted(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    weight = len(labels) / torch.bincount(labels.long(), minlength=2).clamp(min=1)
    return 0.002 * cross_entropy(model(inputs), labels) * weight[labels.long()]


def sorted_and_undone(model: nn.Module, batch: Any, whole: bool) -> Tensor:
    """Sorts the examples for the first layer alone, or for the whole model and its losses."""
    order = batch[0][:, 0].argsort()
    hidden = F.relu(model[0](batch[0][order]))
    if whole:
        return cross_entropy(model[2](hidden), batch[1][order])[order.argsort()]
    return cross_entropy(model[2](hidden[order.argsort()]), batch[1])


def negatives(model: nn.Module, batch: Any, shuffled: Callable[[Tensor], Tensor]) -> Tensor:
    user, item = batch
    return F.softplus(model(user, shuffled(item)) - model(user, item))


MIXED_NUMBERS: dict[str, Losses] = {
    "inputs standardised on the batch": lambda m, b: cross_entropy(m((b[0] - b[0].mean(0)) / b[0].std(0)), b[1]),
    "batch norm, functional": lambda m, b: cross_entropy(m(F.batch_norm(b[0], None, None, training=True)), b[1]),
    "hidden centred by a detached mean": lambda m, b: centred(m, b, detach=True),
    "hidden centred": lambda m, b: centred(m, b, detach=False),
    "loss over its detached maximum": lambda m, b: 0.1 * (loss := cross_entropy(m(b[0]), b[1])) / loss.max().detach(),
    "softmax over the batch as a weight": lambda m, b: (
        (loss := cross_entropy(m(b[0]), b[1])) * torch.softmax(-loss.detach(), 0)
    ),
    "gradient over its maximum": rescaled,
    "backward normalises the batch": lambda m, b: cross_entropy(
        m[2](F.relu(NormalisedBackward.apply(m[0](b[0])))), b[1]
    ),
    "class frequencies of the batch": class_weighted,
    "loss over len(batch)": lambda m, b: cross_entropy(m(b[0]), b[1]) / len(b[1]),
    "mixing under a condition that holds": lambda m, b: (
        centred(m, b, detach=True) if (b[0] > 0).any() else cross_entropy(m(b[0]), b[1])
    ),
    "softmax across the batch": lambda m, b: -torch.log_softmax(m(b[0]).squeeze(1), 0),
}


@pytest.mark.parametrize("name", MIXED_NUMBERS)
def test_examples_that_mix_in_values_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"mix|depends on what|looks up other rows"):
        validate(network(), MIXED_NUMBERS[name], numbers())


def test_a_sort_that_is_undone_is_refused_unless_all_layers_see_one_order() -> None:
    validate(network(), lambda model, batch: sorted_and_undone(model, batch, True), numbers())
    for scale in (1.0, 1e-4):  # where clipping binds, and where it would only bind later
        with pytest.raises(UserError, match="mix"):
            validate(network(), lambda model, batch, s=scale: s * sorted_and_undone(model, batch, False), numbers())


@pytest.mark.parametrize("shuffled", [lambda item: item.roll(1), lambda item: item.flip(0)], ids=["roll", "flip"])
def test_in_batch_negatives_are_refused(shuffled: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=r"mix|looks up other rows"):
        validate(Items(), lambda model, batch: negatives(model, batch, shuffled), pairs())


class Pooled(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.score, self.masked = nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 1), masked

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        count = (ids != 0).sum(1, keepdim=True).clamp(min=1) if self.masked else ids.shape[1]
        return self.score(words.sum(1) / count)


def texts() -> list[tuple[Tensor, Tensor]]:
    """Ragged texts; one is much longer than the others."""
    generator = torch.Generator().manual_seed(3)
    lengths = [40, *(2 + number % 5 for number in range(EXAMPLES - 1))]
    return [
        (torch.randint(1, 50, (length,), generator=generator), torch.rand((), generator=generator).round())
        for length in lengths
    ]


def padded(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    ids, labels = zip(*examples, strict=True)
    return nn.utils.rnn.pad_sequence(list(ids), batch_first=True), torch.stack(labels)


def test_a_mean_over_what_was_padded_to_the_longest_is_refused_and_a_masked_one_is_not() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    validate(Pooled(masked=True), losses, texts(), collate_fn=padded)
    with pytest.raises(UserError, match="padding that changes the result"):
        validate(Pooled(masked=False), losses, texts(), collate_fn=padded)


def test_padding_is_seen_where_several_texts_share_the_greatest_length() -> None:
    """Texts are cut to one length, so that two even halves are as wide as the batch.  All of the parts (of 32, 16, 8,
    4, 2 and 2 examples) hold one of the 8 long texts in fewer than 1 of 50 draws, and two draws are looked at."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    some = [(torch.arange(1, 21 if number % 8 == 0 else 4), torch.tensor(number % 2.0)) for number in range(EXAMPLES)]
    validate(Pooled(masked=True), losses, some, collate_fn=padded)
    with pytest.raises(UserError, match="padding that changes the result"):
        validate(Pooled(masked=False), losses, some, collate_fn=padded)


def test_a_frozen_attention_across_examples_is_refused() -> None:
    torch.manual_seed(0)
    mixing = nn.MultiheadAttention(8, 2).requires_grad_(False)  # its first dimension is the sequence: here, examples
    model = nn.ModuleList([mixing, nn.Linear(8, 1)])

    def losses(model: nn.Module, batch: Any) -> Tensor:
        rows = batch[0][:, None]
        return cross_entropy(model[1](5 * model[0](rows, rows, rows)[0][:, 0]), batch[1])

    with pytest.raises(UserError, match="mix"):
        validate(model, losses, numbers())


def test_a_users_hook_that_centres_a_table_is_refused() -> None:
    model = Items()
    model.user.weight.data[0] = 20.0
    model.user.register_forward_hook(lambda layer, inputs, output: output - output.mean(0))
    with pytest.raises(UserError, match="mix"):
        validate(model, lambda model, batch: F.softplus(model(*batch)), pairs())


KEPT = [
    "buffer",
    "buffer.data",
    "buffer.detach()",
    "buffer.numpy()",
    "frozen",
    "frozen.data",
    "weight",
    "weight.data",
    "attribute",
]


class Keeper(nn.Module):
    """Keeps the mean of its batch, in one of many ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(8, 1), how
        self.register_buffer("buffer", torch.zeros(8))
        self.frozen = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.attribute = torch.zeros(8)

    def forward(self, inputs: Tensor) -> Tensor:
        mean = inputs.detach().mean(0)
        match self.how:
            case "buffer":
                self.buffer.mul_(0.9).add_(mean)
            case "buffer.data":
                self.buffer.data.add_(mean)
            case "buffer.detach()":
                self.buffer.detach().add_(mean)
            case "buffer.numpy()":
                self.buffer.numpy()[:] = mean.numpy()
            case "frozen":
                with torch.no_grad():
                    self.frozen.copy_(mean)
            case "frozen.data":
                self.frozen.data = mean
            case "weight":
                with torch.no_grad():
                    self.layer.weight.copy_(mean[None])
            case "weight.data":
                self.layer.weight.data.copy_(mean[None])
            case "attribute":
                self.attribute = mean
        return self.layer(inputs)


@pytest.mark.parametrize("how", KEPT)
def test_a_forward_pass_that_keeps_its_batch_is_refused_by_name(how: str) -> None:
    with pytest.raises(UserError, match=rf"forward pass changes (layer\.)?{how.partition('.')[0]}"):
        validate(Keeper(how), lambda model, batch: cross_entropy(model(batch[0]), batch[1]), numbers())


def test_one_row_of_a_table_written_past_autograd_is_noticed() -> None:
    class Writes(Items):
        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            self.user.weight.data[49] += user.sum()
            return super().forward(user.clamp(max=40), item)

    with pytest.raises(UserError, match=r"forward pass changes user\.weight"):
        validate(Writes(), lambda model, batch: F.softplus(model(*batch)), pairs())


class Dlrm(nn.Module):
    """Bottom and top network, bags, interactions by dot products (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bottom = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(3))
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(bag(ids[:, k]) for k, bag in enumerate(self.bags))], dim=1)
        products = features @ features.transpose(1, 2)
        rows, columns = torch.triu_indices(4, 4, offset=1)
        return self.top(torch.cat([bottom, products[:, rows, columns]], dim=1))


def test_a_dlrm_with_dropout_is_accepted() -> None:
    inputs, labels = numbers()
    ids = torch.randint(0, 100, (EXAMPLES, 3, 4), generator=torch.Generator().manual_seed(4))
    validate(Dlrm(), lambda m, b: cross_entropy(m(b[0], b[1]), b[2]), (inputs, ids, labels))


def sampled_softmax(model: nn.Module, batch: Any) -> Tensor:
    user, item = batch
    others = torch.randint(0, 50, (len(user), 5))  # drawn by example
    scores = (model.user(user)[:, None] * model.item(torch.cat([item[:, None], others], 1))).sum(-1)
    return F.cross_entropy(scores, torch.zeros(len(user), dtype=torch.int64), reduction="none")


def test_a_two_tower_model_with_negatives_of_its_own_is_accepted() -> None:
    validate(Items(), sampled_softmax, pairs())


def test_negatives_from_numpy_are_refused() -> None:
    import numpy as np

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return negatives(model, batch, lambda item: torch.from_numpy(np.random.randint(0, 50, len(item))))

    with pytest.raises(UserError, match="numpy's or Python's random numbers"):
        validate(Items(), losses, pairs())


def test_draws_that_are_shared_by_a_batch_of_unknown_size_are_refused() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        return negatives(model, batch, lambda item: torch.randperm(len(item)) % 50)

    with pytest.raises(UserError, match="randperm"):
        validate(Items(), losses, pairs())


def plain(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def test_everyday_forms_are_accepted() -> None:
    batch = numbers()
    validate(network(), plain, batch)
    validate(network().eval(), plain, batch)
    validate(nn.Sequential(network(), nn.Dropout(0.0)), plain, batch)
    validate(
        network(),
        lambda m, b: cross_entropy(m[2](checkpoint(lambda x: F.relu(m[0](x)), b[0], use_reentrant=False)), b[1]),
        batch,
    )
    compiled = torch.compile(network(), backend="eager")
    validate(compiled, plain, batch)
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 1.0}]
    validate(model, plain, batch, torch.optim.SGD(groups))
    dense, tables = dpfest.parameter_groups(model)
    validate(model, plain, batch, [torch.optim.Adam(dense)])
    assert len(dense) == 4 and tables == []


def test_layers_called_without_gradients_are_refused_by_name() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            hidden = model[0](batch[0])
        return cross_entropy(model[2](F.relu(hidden)), batch[1])

    with pytest.raises(UserError, match="layer 0 is called without gradients"):
        validate(network(), losses, numbers())
    with pytest.raises(UserError, match="use_reentrant"):
        validate(
            network(),
            lambda m, b: cross_entropy(m[2](checkpoint(m[0], b[0].requires_grad_(), use_reentrant=True)), b[1]),
            numbers(),
        )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_fused_attention_is_accepted_with_and_without_dropout(dropout: float) -> None:
    """PyTorch marks the fused operation as random whether it draws or not."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        heads = model[0](batch[0]).view(-1, 2, 4, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout)
        return cross_entropy(model[2](mixed.reshape(-1, 16)), batch[1])

    validate(network(), losses, numbers())


def test_dropout_within_a_checkpoint_is_refused_by_name() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(
            checkpoint(lambda x: model[2](F.dropout(model[0](x), 0.3)), batch[0], use_reentrant=False), batch[1]
        )

    with pytest.raises(UserError, match="recomputes"):
        validate(network(), losses, numbers())


def test_a_gradient_scaler_is_refused_by_name() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(UserError, match="GradScaler"):
        validate(network(), lambda m, b: scaler.scale(plain(m, b)), numbers())


def test_what_is_no_model_batch_or_loss_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"must be a torch\.nn\.Module, not the class Items"):
        validate(Items, plain, numbers())
    with pytest.raises(UserError, match="two examples or more"):
        validate(network(), plain, tuple(part[:1] for part in numbers()))
    with pytest.raises(UserError, match="loss_fn must be a function"):
        validate(network(), 3, numbers())
    with pytest.raises(UserError, match="is in two optimisers"):
        model = network()
        validate(model, plain, numbers(), [torch.optim.SGD(model.parameters()), torch.optim.SGD(model[0].parameters())])
    with pytest.raises(UserError, match=r"0\.weight is in an optimiser twice"), pytest.warns(match="duplicate"):
        model = network()
        validate(model, plain, numbers(), torch.optim.SGD([*model.parameters(), model[0].weight]))


def random_model(generator: torch.Generator) -> tuple[nn.Module, Losses, Any]:
    """A sound model of random depth, widths, tables, pooling and dropout, and a batch of random size."""

    def among(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    examples, tables, width = among(2, 80), among(0, 4), among(1, 40)
    torch.manual_seed(among(0, 2**31))
    dims = [among(1, 9) for _ in range(tables)]
    bags: list[nn.Module] = [
        nn.EmbeddingBag(30, dim, mode=("sum", "mean")[among(0, 2)]) if among(0, 2) else nn.Embedding(30, dim)
        for dim in dims
    ]
    layers: list[nn.Module] = [nn.Linear(5 + sum(dims), width)]
    for _ in range(among(0, 4)):
        activation = (nn.ReLU, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.PReLU)[among(0, 5)]()
        layers += [nn.LayerNorm(width)] * among(0, 2) + [activation] + [nn.Dropout(0.3)] * among(0, 2)
        layers += [nn.Linear(width, width)]
    model = nn.ModuleDict({"bags": nn.ModuleList(bags), "rest": nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 1))})
    inputs = torch.randn(examples, 5, generator=generator) * 10 ** float(torch.randn((), generator=generator))
    ids = torch.randint(0, 30, (examples, 4, 3), generator=generator)
    labels = (torch.rand(examples, generator=generator) < 0.5).float()

    def losses(model: nn.Module, batch: Any) -> Tensor:
        inputs, ids, labels = batch
        found = [
            bag(ids[:, k]) if isinstance(bag, nn.EmbeddingBag) else bag(ids[:, k]).mean(1)
            for k, bag in enumerate(model["bags"])
        ]
        return cross_entropy(model["rest"](torch.cat([inputs, *found], 1)), labels)

    return model, losses, (inputs, ids, labels)


@pytest.mark.parametrize(
    ("part", "models"), [(0, 15), *(pytest.param(part, 100, marks=pytest.mark.slow) for part in range(1, 11))]
)
def test_no_false_alarm_over_random_sound_models(part: int, models: int) -> None:
    """Slow: a thousand of them; by default the first fifteen."""
    generator = torch.Generator().manual_seed(part)
    for _ in range(models):
        validate(*random_model(generator))
