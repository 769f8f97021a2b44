"""Holes that an outside attack found, each with the attack that found it."""

from __future__ import annotations

import functools
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import dpfest
from dpfest import DPSGD, AdaFEST, NoiseKey, UserError, make_private, validate
from dpfest.training.loop import PrivateTraining

EXAMPLES, STEPS = 300, 12
BUDGET: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-4, "batch_size": 40, "noise_seed": 1}


class Scores(nn.Module):
    """A table and a dense head, which starts at zero if asked."""

    def __init__(self, zero_head: bool = False, act: Any = F.relu) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.head = nn.Embedding(40, 6), nn.Linear(6, 1)
        self.act, self.options = act, {"scale": 1.0}
        if zero_head:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def pooled(self, ids: Tensor) -> Tensor:
        return self.table(ids).mean(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.act(self.pooled(ids))).squeeze(1) * self.options["scale"]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 40, (EXAMPLES, 3), generator=generator)
    return TensorDataset(ids, (ids[:, 0] < 15).float())


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="none")


def training(
    algorithm: Any = None, model: Any = None, loss_fn: Any = losses, dataset: Any = None, **settings: Any
) -> PrivateTraining:
    model = model or Scores()
    chosen = {**BUDGET, "steps": STEPS, **settings}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return make_private(model, optimizer, dataset or data(), loss_fn, algorithm=algorithm or DPSGD(), **chosen)


def take(run: PrivateTraining, steps: int) -> None:
    for _, batch in zip(range(steps), run, strict=False):
        run.step(batch)


# The check of mixing


@pytest.mark.parametrize("norm", ["mean", "max"])
def test_a_common_factor_is_found_though_every_example_is_clipped(norm: str) -> None:
    """While clipping binds for all it hides the factor; weights learn, norms fall below it, and the factor shows."""
    torch.manual_seed(0)
    model = nn.Linear(128, 1)
    inputs, labels = torch.randn(64, 128), torch.rand(64).round()

    def scaled(model: nn.Module, batch: Any) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1], reduction="none")
        return loss / getattr(loss.detach(), norm)()

    with pytest.raises(UserError, match="examples of a batch mix"):
        validate(model, scaled, (inputs, labels))


def test_mixing_that_begins_at_the_second_step_is_found_there() -> None:
    """A head that starts at zero gives every example the same loss, so that hard-example mining keeps them all."""

    def hardest(model: nn.Module, batch: Any) -> Tensor:
        loss = losses(model, batch)
        return loss * (loss >= loss.detach().median() * 0.999)

    run = training(model=Scores(zero_head=True), loss_fn=hardest)
    with pytest.raises(UserError, match="examples of a batch mix"):
        take(run, 2)
    assert run.steps_done <= 1


# The gradient


def test_a_gradient_that_is_not_the_losss_is_refused() -> None:
    hooked = Scores()
    hooked.head.register_forward_hook(lambda layer, args, output: 3 * output)
    with pytest.raises(UserError, match=r"not the loss's.*forward hook"):
        validate(hooked, losses, data()[:64])

    def penalised(model: nn.Module, batch: Any) -> Tensor:
        vectors = batch[0].requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(model(vectors)).sum(), vectors, create_graph=True)
        return slope.square().sum(1)

    smooth = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with pytest.raises(UserError, match="second derivative"):
        validate(smooth, penalised, (torch.randn(32, 4),))
    with pytest.raises(UserError, match="no trainable parameter"):
        validate(Scores(), lambda model, batch: losses(model, batch).detach(), data()[:64])


@pytest.mark.parametrize("broken", ["all", "some"])
def test_gradients_that_overflow_are_no_hook_and_hide_none(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms past float32, the autograd gradient within it: such examples count as zero, and no step fails."""

    def steep(model: nn.Module, batch: Any) -> Tensor:
        return losses(model, batch) * torch.where((batch[1] > 0) | torch.tensor(broken == "all"), 1e25, 1.0)

    validate(Scores(), steep, data()[:64])
    run = training(model=Scores(), loss_fn=steep, algorithm=DPSGD(clipping_norm=1.0))
    take(run, 9)
    assert run.steps_done == 9 and bool(run.model.table.weight.isfinite().all())
    if broken == "some":
        hooked = Scores()
        hooked.head.register_forward_hook(lambda layer, args, output: 3 * output)
        # Of the two examples whose gradients are compared, a drawn key may leave both out, in both steps.
        monkeypatch.setattr("dpfest.training.trial.NoiseKey.fresh", lambda: NoiseKey.from_seed(1))
        with pytest.raises(UserError, match=r"not the loss's.*forward hook"):
            validate(hooked, steep, data()[:64])


@pytest.mark.parametrize("micro_batch_size", [None, 16])
def test_examples_that_overflow_do_not_make_rounding_look_like_mixing(micro_batch_size: int | None) -> None:
    """Every clipping norm's sum leaves out the same examples, so that rounding is told from mixing at each."""

    def rounded(model: nn.Module, batch: Any) -> Tensor:
        scores, coarse = model(batch[0]), 1e3 * len(batch[1])
        scores = (scores + coarse) - coarse  # to units of float32 that depend on the size of the part
        each = F.binary_cross_entropy_with_logits(scores, batch[1], reduction="none")
        return each * torch.where(batch[0][:, 0] < 8, 1e25, 1.0)

    for seed in range(4):
        torch.manual_seed(seed)
        settings = {"noise_seed": seed, "micro_batch_size": micro_batch_size}
        take(training(loss_fn=rounded, algorithm=DPSGD(clipping_norm=0.05 * 4**seed), **settings), 2)


def test_a_stale_gradient_of_a_frozen_parameter_reaches_no_weight() -> None:
    model = Scores()
    losses(model, data()[:1]).sum().backward()
    model.table.requires_grad_(False)
    before = model.table.weight.clone()
    take(training(model=model), 2)
    assert torch.equal(model.table.weight, before)


def test_frozen_batch_statistics_are_accepted_in_eval_mode_and_half_precision_in_convolutions() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).requires_grad_(False)
            self.slope, self.head = nn.PReLU(), nn.Linear(4, 1)

        def forward(self, image: Tensor) -> Tensor:
            return self.head(self.slope(self.norm(self.body(image))).mean((2, 3))).squeeze(1)

    def autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch[0]).float().square()

    model = Images()
    with pytest.raises(UserError, match=r"norm.*eval"):
        validate(model, autocast, (torch.randn(32, 1, 5, 5),))
    model.norm.eval()
    validate(model, autocast, (torch.randn(32, 1, 5, 5),))


# What a saved state is bound to

CRITERION: Any = nn.BCEWithLogitsLoss(reduction="none")
OPTIONS = {"alpha": 1.0}


def by_global_options(model: nn.Module, batch: Any) -> Tensor:
    return OPTIONS["alpha"] * losses(model, batch)


def by_global_criterion(model: nn.Module, batch: Any) -> Tensor:
    return CRITERION(model(batch[0]), batch[1])


class Weighted:
    def __init__(self, alpha: float) -> None:
        self.options = {"alpha": alpha}

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return self.scaled(losses(model, batch))

    def scaled(self, loss: Tensor) -> Tensor:
        return self.options["alpha"] * loss


def with_criterion(weight: float) -> Any:
    criterion = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(weight))
    return lambda model, batch: criterion(model(batch[0]), batch[1])


def with_namespace(alpha: float) -> Any:
    options = SimpleNamespace(alpha=alpha)
    return lambda model, batch: options.alpha * losses(model, batch)


class Pooling(Enum):
    MEAN = 1
    SUM = 2


def with_option(option: Any) -> Any:
    return lambda model, batch: losses(model, batch) * (1 if option else 2)


def cut(examples: Any, length: int) -> Any:
    return torch.stack([ids[:length] for ids, _ in examples]), torch.stack([label for _, label in examples])


class Cut(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length, self._rows = length, data()

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        ids, label = self._rows[index]
        return ids[: self.length], label


class OtherPooling(Scores):
    def pooled(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(1)


OtherPooling.__qualname__ = "Scores"


def scaled_model(scale: float) -> Scores:
    model = Scores()
    model.options["scale"] = scale
    return model


PAIRS: dict[str, tuple[Any, Any]] = {
    "a criterion's weight": ({"loss_fn": with_criterion(1.0)}, {"loss_fn": with_criterion(5.0)}),
    "a namespace": ({"loss_fn": with_namespace(1.0)}, {"loss_fn": with_namespace(5.0)}),
    "an object's options": ({"loss_fn": Weighted(1.0)}, {"loss_fn": Weighted(5.0)}),
    "a path": ({"loss_fn": with_option(Path("a"))}, {"loss_fn": with_option(Path("b"))}),
    "a member of an enumeration": ({"loss_fn": with_option(Pooling.MEAN)}, {"loss_fn": with_option(Pooling.SUM)}),
    "collate's argument": (
        {"collate_fn": functools.partial(cut, length=3)},
        {"collate_fn": functools.partial(cut, length=1)},
    ),
    "the data set's setting": ({"dataset": Cut(3)}, {"dataset": Cut(2)}),
    "an activation": ({"model": lambda: Scores(act=F.relu)}, {"model": lambda: Scores(act=torch.tanh)}),
    "a helper method": ({"model": Scores}, {"model": OtherPooling}),
    "a model's options": ({"model": lambda: scaled_model(1.0)}, {"model": lambda: scaled_model(2.0)}),
}


def made(settings: dict[str, Any]) -> PrivateTraining:
    return training(**{name: value() if name == "model" else value for name, value in settings.items()})


@pytest.mark.parametrize("name", PAIRS)
def test_a_state_goes_on_under_the_same_code_and_settings_alone(name: str) -> None:
    same, other = PAIRS[name]
    state = made(same).state_dict()
    made(same).load_state_dict(state)
    with pytest.raises(UserError, match=r"saved under another (loss_fn|reader|model)"):
        made(other).load_state_dict(state)


def test_globals_of_a_loss_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for loss_fn, change in (
        (by_global_options, lambda: monkeypatch.setitem(OPTIONS, "alpha", 2.0)),
        (by_global_criterion, lambda: monkeypatch.setitem(globals(), "CRITERION", nn.MSELoss(reduction="none"))),
    ):
        state = training(loss_fn=loss_fn).state_dict()
        change()
        with pytest.raises(UserError, match="another loss_fn"):
            training(loss_fn=loss_fn).load_state_dict(state)


# Branches


def test_two_equal_forks_draw_other_noise_under_a_seed() -> None:
    run = training()
    take(run, 2)
    keys = []
    for state in (run.fork(2), run.fork(2)):
        branch = training()
        branch.load_state_dict(state, steps=2)
        keys.append(branch.engine.key.secret)
    assert len({run.engine.key.secret, *keys}) == 3


def test_a_branch_of_a_saved_state_counts_what_was_taken_since() -> None:
    run = training(noise_seed=None)
    take(run, 2)
    state = run.state_dict()
    take(run, 5)
    with pytest.raises(UserError, match="taken="):
        training(noise_seed=None).load_state_dict(state, steps=3)
    with pytest.raises(UserError, match=f"between 1 and the {STEPS - 7}"):
        training(noise_seed=None).load_state_dict(state, steps=STEPS - 2, taken=7)
    branch = training(noise_seed=None)
    branch.load_state_dict(state, steps=STEPS - 7, taken=7)
    take(branch, STEPS)
    assert branch.steps_left == 0 and branch.epsilon() <= 3.0


def test_forks_and_rollbacks_within_the_loop() -> None:
    run = training(num_workers=1)
    state, seen = None, 0
    for batch in run:
        run.step(batch)
        seen += 1
        if seen == 3:
            state = run.state_dict()
        if seen == 6:
            run.load_state_dict(state)
        if seen == 8:
            run.fork(STEPS - 9)
    assert seen == 9 and run.steps_left == 0


# Lazy noise, data sets


def test_lazy_noise_is_drawn_under_code_that_was_compiled_before() -> None:
    model = Scores()
    with torch.no_grad():
        model.table.weight.zero_()
    compiled = torch.compile(model, backend="eager")
    ids = torch.arange(40).unsqueeze(1)
    compiled(ids)
    run = training(DPSGD(noise="lazy"), model=model)
    take(run, 1)
    compiled(ids)
    assert not bool((model.table.weight == 0).any())


def test_a_data_set_that_keeps_its_draws_makes_them_by_example() -> None:
    class Masked(Dataset[Any]):
        def __init__(self) -> None:
            self._rows, self._kept = data(), {}

        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, index: int) -> Any:
            if index not in self._kept:
                self._kept[index] = torch.rand(3) < 0.5
            ids, label = self._rows[index]
            return ids * self._kept[index], label

    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(training(AdaFEST(threshold=2), dataset=Masked()))
        take(runs[-1], 3)
    first, second = (torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs)
    assert torch.equal(first, second)
    reader = dpfest.DatasetReader(Masked())
    generator = torch.get_rng_state()
    whole = reader(torch.arange(10).numpy(), b"seed")[0].data[0]
    fewer = dpfest.DatasetReader(Masked())(torch.arange(5, 10).numpy(), b"seed")[0].data[0]
    assert torch.equal(whole[5:], fewer) and torch.equal(generator, torch.get_rng_state())
