"""make_private: the loop that people write, and a guarantee that saves, rollbacks, forks and copies do not break."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dpfest
from dpfest import DPSGD, AdaFEST, BudgetExceeded, UserError, make_private
from dpfest.training.loop import PrivateTraining

EXAMPLES, STEPS = 400, 8


class Shop(nn.Module):
    """Bags, single look-ups, a dense network with dropout."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.basket, self.shop = nn.EmbeddingBag(50, 4, mode="mean"), nn.Embedding(7, 2)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, basket: Tensor, shop: Tensor) -> Tensor:
        return self.head(torch.cat([self.basket(basket), self.shop(shop)], dim=1)).squeeze(1)


def data(examples: int = EXAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    basket = torch.randint(0, 50, (examples, 3), generator=generator)
    shop = torch.randint(0, 7, (examples,), generator=generator)
    return TensorDataset(basket, shop, (shop < 3).float())


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2], reduction="none")


def negated(model: nn.Module, batch: Any) -> Tensor:
    return -losses(model, batch)


def training(
    algorithm: Any = None, *, model: nn.Module | None = None, loss_fn: Any = losses, lr: float = 0.5, **settings: Any
) -> PrivateTraining:
    model = model or Shop()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    given = {"epsilon": 1.0, "delta": 1e-4, "batch_size": 40, "steps": STEPS, "noise_seed": 1} | settings
    return make_private(model, optimizer, data(), loss_fn, algorithm=algorithm or DPSGD(), **given)


def noised(algorithm: Any, selected: Any = None, sigma: float = 2.0) -> PrivateTraining:
    """The same under noise chosen by hand, where a calibration would take long and is not what is tested."""
    model, budget = Shop(), {"epsilon": 4.0, "delta": 1e-4, "batch_size": 40, "steps": STEPS, "fixed_noise_seed": True}
    plan = dpfest.plan(algorithm, examples=EXAMPLES, features=[50, 7], calibrate=lambda *question: sigma, **budget)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return make_private(model, optimizer, data(), losses, plan=plan, selected=selected, noise_seed=1)


def take(run: PrivateTraining, steps: int) -> None:
    for _, batch in zip(range(steps), run, strict=False):
        run.step(batch)


def weights(run: PrivateTraining) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])


def test_the_loop_ends_with_the_plan_and_says_what_was_spent() -> None:
    run, spent = training(AdaFEST(threshold=2)), []
    for batch in run:
        made = run.step(batch)
        assert made.private.examples == len(batch)
        spent.append(run.epsilon())
    assert len(spent) == STEPS and spent == sorted(spent) and 0.97 < spent[-1] <= 1.0
    with pytest.raises(BudgetExceeded, match="past the target"):
        run.step(run.read(run.request(STEPS)))
    assert issubclass(BudgetExceeded, RuntimeError) and issubclass(UserError, ValueError)


def test_a_forks_state_is_a_branchs_alone() -> None:
    """Loaded as a checkpoint it would take the steps that the branch was given."""
    run = training()
    take(run, 1)
    state = run.fork(4)
    with pytest.raises(UserError, match=r"fork\(4\) made this state, for a branch: load it with steps=4"):
        training().load_state_dict(state)
    branch = training()
    branch.load_state_dict(state, steps=4)
    assert (run.steps_left, branch.steps_left) == (STEPS - 5, 4)


def test_a_step_that_failed_is_paid_for_once_whatever_follows() -> None:
    """A rollback, or a fork of all that is left, after an exception in the loss."""
    fails = [False]

    def failing(model: nn.Module, batch: Any) -> Tensor:
        if fails[0]:
            raise RuntimeError("of the user")
        return losses(model, batch)

    for then in ("rollback", "fork"):
        run = training(loss_fn=failing)
        take(run, 2)
        state = run.state_dict()
        take(run, 1)
        fails[0] = True
        with pytest.raises(RuntimeError, match="of the user"):
            take(run, 1)
        fails[0] = False
        if then == "rollback":
            run.load_state_dict(state)
            take(run, STEPS)
            assert run.steps_left == 0 and [event.count for event in run.ledger.events] == [STEPS]
        else:
            run.fork(run.steps_left)
            assert run.steps_left == 0 and [event.count for event in run.ledger.events] == [STEPS]


def test_workers_read_the_same_batches() -> None:
    plain, workers = training(), training(num_workers=2)
    take(plain, 3)
    take(workers, 3)
    assert torch.equal(weights(plain), weights(workers))


def test_a_tensor_data_set_is_read_by_columns_as_its_examples_are() -> None:
    """Unless somebody has another reading of it."""
    drawn = torch.Generator().manual_seed(0)
    columns = torch.randint(0, 9, (40, 3), generator=drawn), torch.randn(40, generator=drawn), torch.ones(40) > 0

    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return tuple(2 * one for one in super().__getitem__(index))

    at, data = np.array([3, 5, 39]), TensorDataset(*columns)
    for size in (None, 2):
        ours = dpfest.DatasetReader(data, micro_batch_size=size)(at, b"seed")
        theirs = dpfest.DatasetReader(list(data), micro_batch_size=size)(at, b"seed")
        for mine, its in zip(ours, theirs, strict=True):
            assert type(mine.data) is type(its.data) and mine.examples.tolist() == its.examples.tolist()
            assert all(
                torch.equal(*both) and both[0].dtype == both[1].dtype for both in zip(mine.data, its.data, strict=True)
            )
    (doubled,) = dpfest.DatasetReader(Doubled(*columns[:2]))(at, b"seed")
    assert torch.equal(doubled.data[0], 2 * columns[0][at])
    (first,) = dpfest.DatasetReader(data, collate_fn=lambda examples: examples[0][1])(at, b"seed")
    assert torch.equal(first.data, columns[1][3])


def test_dropout_follows_the_key_and_the_example_alone() -> None:
    """Not torch's seed; and an example keeps its mask when another one leaves the batch or the padding grows."""
    first, second = training(), training()
    torch.manual_seed(11)
    take(first, 2)
    torch.manual_seed(12)
    take(second, 2)
    assert torch.equal(weights(first), weights(second))

    seen = []

    def watched(model: nn.Module, batch: Any) -> Tensor:
        mask = F.dropout(torch.ones(len(batch[0]), 3, 4), 0.5)
        noise = torch.randn(len(batch[0]), 2)
        seen.append((batch[1].clone(), mask, noise))
        return losses(model, batch)

    run = training(loss_fn=watched)
    run.step(run.read(run.request(0)))  # the first batch: whole and in halves
    (_, masks, noises), *halves = seen
    known = {tuple(noise.tolist()): mask for noise, mask in zip(noises, masks, strict=True)}
    assert len(known) == len(noises), "every example draws for itself"
    for _, masks, noises in halves:
        for noise, mask in zip(noises, masks, strict=True):
            assert torch.equal(known[tuple(noise.tolist())], mask)


def test_dropout_masks_have_their_rate() -> None:
    """Binomial of 20,000 draws at 0.3: off by 4 deviations once in 16,000 seeds."""
    from dpfest.gradients.draws import ExampleDraws

    with ExampleDraws(dpfest.NoiseKey.from_seed(0), 0, np.arange(200)):
        kept = (F.dropout(torch.ones(200, 100), 0.3) > 0).float().mean()
        integers = torch.randint(0, 10, (200, 100))
    assert abs(float(kept) - 0.7) < 4 * (0.21 / 20_000) ** 0.5
    assert torch.bincount(integers.flatten(), minlength=10).sub(2000).abs().max() < 4.5 * (20_000 * 0.09) ** 0.5


def saved(run: PrivateTraining) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("algorithm", [AdaFEST(threshold=2), DPSGD(noise="lazy")], ids=["adafest", "lazy"])
def test_a_saved_state_goes_on_to_the_same_bits_dropout_included(algorithm: Any) -> None:
    whole, half = training(algorithm), training(algorithm)
    take(whole, STEPS)
    take(half, 3)
    resumed = training(algorithm)
    torch.manual_seed(99)
    resumed.load_state_dict(saved(half))
    take(resumed, STEPS)
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.epsilon() == whole.epsilon()


DIFFERENT: dict[str, dict[str, Any]] = {
    "loss_fn": {"loss_fn": negated},
    "reader": {"micro_batch_size": 7},
    "plan": {"epsilon": 3.0},
    "model": {"model": Shop(dropout=0.3)},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_state_goes_on_only_with_what_it_is_bound_to(name: str) -> None:
    run = training()
    take(run, 2)
    with pytest.raises(UserError, match=f"saved under another .*{name}"):
        training(**DIFFERENT[name]).load_state_dict(saved(run))


def test_a_changed_loss_of_the_same_name_and_other_optimisers_or_threads_are_told_apart() -> None:
    def make(scale: float) -> Any:
        return lambda model, batch: scale * losses(model, batch)

    run = training(loss_fn=make(1.0))
    state = saved(run)
    training(loss_fn=make(1.0)).load_state_dict(state)
    with pytest.raises(UserError, match="another loss_fn"):
        training(loss_fn=make(2.0)).load_state_dict(state)
    model = Shop()
    momentum = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), data(), make(1.0), algorithm=DPSGD(),
        epsilon=1.0, delta=1e-4, batch_size=40, steps=STEPS, noise_seed=1,
    )  # fmt: skip
    with pytest.raises(UserError, match="another optimizers"):
        momentum.load_state_dict(state)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with pytest.raises(UserError, match=rf"threads \({threads}, now {threads + 1}\)"):
            training(loss_fn=make(1.0)).load_state_dict(state)
    finally:
        torch.set_num_threads(threads)


def test_a_rollback_takes_weights_back_and_no_step() -> None:
    """Early stopping: five steps, back to two, and on with another learning rate. No noise serves twice."""
    run = training()
    take(run, 2)
    state, spent = saved(run), run.epsilon()
    take(run, 3)
    before = run.epsilon()
    run.load_state_dict(state)
    assert run.steps_done == 5 and run.epsilon() == before > spent
    run.optimizers[0].param_groups[0]["lr"] = 0.1
    take(run, STEPS)
    assert run.steps_done == STEPS and run.steps_left == 0 and run.epsilon() <= 4.0


def test_a_state_that_the_ledger_cannot_pay_for_changes_nothing() -> None:
    """Else training would go on with the state's weights, or under its key, where the exception is caught."""
    run = training(noise_seed=None)
    take(run, STEPS // 2 + 1)
    other = training(noise_seed=None)
    other.ledger, before, key = run.ledger, weights(other), other.engine.key.secret
    with pytest.raises(BudgetExceeded):
        other.load_state_dict(run.state_dict())
    assert torch.equal(weights(other), before) and (other.steps_done, other.engine.key.secret) == (0, key)


def test_two_selections_of_one_seed_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their difference would be without any, were it only scaled."""
    drawn: list[list[int]] = []

    def record(histograms: Any, selection: Any, stream: Any, **settings: Any) -> Any:
        drawn.append(stream.at(0, 2).tolist())
        return dpfest.select_rows(histograms, selection, stream, **settings)

    monkeypatch.setattr("dpfest.training.histogram.select_rows", record)
    for multiplier in (5.0, 5.0, 6.0):
        rule = dpfest.FEST(selection=dpfest.SelectionConfig(rows=8, noise_multiplier=multiplier))
        dpfest.select(Shop(), data(), losses, rule, rows_per_example=3, noise_seed=2)
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_branch_has_a_key_of_its_own_and_both_stay_within_the_plan() -> None:
    run = training(noise_seed=None)
    take(run, 2)
    state = run.fork(3)
    assert run.steps_left == STEPS - 5
    branch = training(noise_seed=None, lr=0.1, loss_fn=negated)
    branch.load_state_dict(state, steps=3)
    assert branch.steps_left == 3 and branch.engine.key.secret != run.engine.key.secret
    take(run, STEPS)
    take(branch, STEPS)
    assert run.epsilon() == branch.epsilon() <= 4.0, "each ledger counts what the other may spend"
    for done in (run, branch):
        with pytest.raises(BudgetExceeded):
            done.step(done.read(done.request(done.steps_done)))
    with pytest.raises(UserError, match=r"between 1 and the 0"):
        run.fork(1)


def test_lazy_noise_does_not_leave_through_state_dict_evaluation_or_a_copy() -> None:
    """Without noise, rows that no batch touched keep their bits; every row must have moved once weights are read."""
    for read in (lambda run: run.model.state_dict(), lambda run: run.model.eval()(*data()[:2][:2])):
        run = training(DPSGD(noise="lazy"))
        start = run.model.basket.weight.detach().clone()
        take(run, 1)
        table = run.model.basket.weight
        assert bool((table == start).all(1).any()), "some rows are still to be noised"
        with pytest.raises(UserError, match="lack noise"):
            copy.deepcopy(run.model)
        read(run)
        assert not bool((table == start).any())
        copy.deepcopy(run.model)
        with pytest.raises(UserError, match="cannot be pickled"):
            torch.save(run.model, io.BytesIO())


def test_lazy_noise_refuses_all_but_plain_sgd() -> None:
    class Scaled(torch.optim.SGD):
        pass

    def made(optimizers: Any) -> None:
        model = Shop()
        make_private(
            model,
            optimizers(model),
            data(),
            losses,
            algorithm=DPSGD(noise="lazy"),
            epsilon=4.0,
            delta=1e-4,
            batch_size=40,
            steps=2,
        )

    def hooked(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer.register_step_pre_hook(lambda *given: None)
        return optimizer

    for optimizers in (
        lambda model: Scaled(model.parameters(), lr=0.5),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1),
        hooked,
    ):
        with pytest.raises(UserError, match="plain SGD"):
            made(optimizers)
    with pytest.raises(UserError, match="in two optimisers"):
        made(lambda model: [torch.optim.SGD(model.parameters(), lr=1.0), torch.optim.SGD([model.shop.weight], lr=1e-6)])


def test_lazy_noise_refuses_a_forward_pass_that_reads_a_table_outside_of_a_look_up() -> None:
    class Normalised(Shop):
        def forward(self, basket: Tensor, shop: Tensor) -> Tensor:
            return super().forward(basket, shop) / self.shop.weight.detach().norm()

    run = training(DPSGD(noise="lazy"), model=Normalised())
    with pytest.raises(UserError, match=r"reads the table shop outside of a look-up"):
        take(run, 1)
    take(training(DPSGD(), model=Normalised()), 1)


def test_mixing_is_refused_in_training_before_anything_is_released() -> None:
    def centred(model: nn.Module, batch: Any) -> Tensor:
        loss = losses(model, batch)
        return loss * (1 + loss.detach().mean())

    run = training(loss_fn=centred, algorithm=DPSGD(clipping_norm=100.0))
    before = weights(run)
    with pytest.raises(UserError, match="mix"):
        take(run, 1)
    assert torch.equal(weights(run), before) and run.steps_done == 0


def test_mixing_that_begins_later_is_found_by_the_checks_that_follow() -> None:
    """One step in 512 is checked, drawn from the key: under this one the first after the beginning is the 18th.

    Steps 1 and 8 are checked as well; mixing begins after them.
    """
    calls = [0]

    def later(model: nn.Module, batch: Any) -> Tensor:
        calls[0] += 1
        loss = losses(model, batch)
        return loss * (1 + loss.detach().mean()) if calls[0] > 30 else loss

    run = training(loss_fn=later, algorithm=DPSGD(clipping_norm=100.0), batch_size=10, steps=20, noise_seed=31, lr=1e-4)
    with pytest.raises(UserError, match="mix"):
        take(run, 20)
    assert run.steps_done == 17


def test_draws_of_the_data_set_follow_the_key_and_those_of_collate_are_refused() -> None:
    class Draws(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            _, shop, label = super().__getitem__(index)
            return torch.from_numpy(np.random.randint(0, 50, 3)), shop, label

    def run_of(**settings: Any) -> PrivateTraining:
        model = Shop()
        return make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            Draws(*data().tensors),
            losses,
            algorithm=DPSGD(),
            epsilon=4.0,
            delta=1e-4,
            batch_size=40,
            steps=4,
            noise_seed=1,
            **settings,
        )

    first, second = run_of(), run_of()
    take(first, 4)
    np.random.seed(123)
    take(second, 4)
    assert torch.equal(weights(first), weights(second))

    def collate(examples: Any) -> Any:
        torch.rand(1)
        return torch.utils.data.default_collate(examples)

    with pytest.raises(UserError, match="collate_fn draws random numbers"):
        take(run_of(collate_fn=collate), 1)


def test_weights_that_are_changed_between_steps_are_warned_of() -> None:
    run = training()
    take(run, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take(run, 1)
    with torch.no_grad():
        run.model.shop.weight.mul_(0.5)
    with pytest.warns(UserWarning, match=r"shop\.weight changed between steps"):
        take(run, 1)


def test_a_threshold_that_no_row_passes_is_warned_of_and_threshold_for_gives_another() -> None:
    with pytest.warns(UserWarning, match="No embedding row survived 10 steps in a row"):
        take(training(AdaFEST(threshold=1e6), steps=11), 11)
    run = training(AdaFEST())
    assert 0 < dpfest.threshold_for(run.plan, rows=57, false_rows=1.0) < 100


MISUSE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a loader": (DataLoader(data()), {}, "map-style"),
    "an iterable data set": (
        type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})(),
        {},
        "map-style",
    ),
    "a class": (data(), {"algorithm": AdaFEST}, "an algorithm with its settings"),
    "a name": (data(), {"algorithm": "adafest"}, "an algorithm with its settings"),
    "no length": (data(), {"steps": None}, "steps"),
    "two lengths": (data(), {"epochs": 1}, "steps"),
    "a batch beyond the data": (data(), {"batch_size": 500}, "batch_size=500"),
    "no budget": (data(), {"epsilon": 0.0}, "epsilon"),
    "rows that none asked for": (data(), {"selected": np.arange(3)}, "leave selected out"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_answered_in_words(name: str) -> None:
    dataset, settings, words = MISUSE[name]
    model = Shop()
    given = {"algorithm": DPSGD(), "epsilon": 1.0, "batch_size": 40, "steps": 2} | settings
    with pytest.raises(ValueError, match=words):
        make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), dataset, losses, **given)


def test_a_bare_batch_is_no_step() -> None:
    run = training()
    with pytest.raises(UserError, match="takes a batch that iteration yields"):
        run.step(data()[:3])
    batch = run.read(run.request(3))
    with pytest.raises(UserError, match="The batch belongs to step 3, but step 0 is next"):
        run.step(batch)
    assert run.epsilon() == 0


def test_select_counts_an_example_no_more_often_than_it_says() -> None:
    class Twice(nn.Module):
        """Looks up in one table twice, so that plain counting gives a histogram of 2 N."""

        def __init__(self) -> None:
            super().__init__()
            self.item, self.score = nn.Embedding(50, 4), nn.Linear(4, 1)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.score(self.item(first) + self.item(second)).squeeze(1)

    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 10, (EXAMPLES,), generator=generator)
    items = TensorDataset(first, first + 10, torch.ones(EXAMPLES))
    algorithm = dpfest.FEST(selection=dpfest.SelectionConfig(rows=20, noise_multiplier=2.0))
    chosen = dpfest.select(Twice(), items, losses, algorithm, rows_per_example=2)
    assert chosen.rows.tolist() == list(range(20))
    with pytest.raises(UserError, match=r"counts 800 rows, more than 400 examples"):
        dpfest.select_rows(
            [np.full(50, 2 * EXAMPLES // 50)], algorithm.selection, dpfest.NoiseKey.fresh().stream("selection"),
            examples=EXAMPLES, rows_per_example=1,
        )  # fmt: skip
    model = Twice()
    run = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), items, losses, algorithm=algorithm, epsilon=4.0,
        batch_size=EXAMPLES, steps=2, selected=chosen,
    )  # fmt: skip  # unsampled, which is quickly accounted
    start = model.item.weight.detach().clone()
    take(run, 2)
    assert torch.equal((model.item.weight != start).any(1).nonzero().squeeze(1), torch.arange(20))


@pytest.mark.parametrize("algorithm", [DPSGD(), AdaFEST(threshold=1.0)], ids=["dpsgd", "adafest"])
def test_micro_batches_change_nothing_but_rounding(algorithm: Any) -> None:
    whole, parts = training(algorithm, loss_fn=losses), training(algorithm, micro_batch_size=4)
    for run in (whole, parts):
        for batch in run:
            run.step(batch)
    assert max(len(part.examples) for part in run.read(run.request(0)).microbatches) == 4
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-5)


def test_batches_are_the_poisson_sample_of_the_key_and_empty_ones_are_not_collated() -> None:
    collated: list[int] = []

    def collate(examples: Any) -> Any:
        collated.append(len(examples))
        return torch.utils.data.default_collate(examples)

    run, sizes = training(batch_size=1, epsilon=2.0, collate_fn=collate), []
    for batch in run:
        chosen = run.indices(run.steps_done)
        assert len(batch) == len(chosen)
        for part in batch.microbatches:
            assert torch.equal(part.data[0], data()[torch.from_numpy(part.examples)][0])
        sizes.append(len(chosen))
        run.step(batch)
    assert 0 in sizes and max(sizes) > 1, "fixed seed: a batch of one is sometimes none and sometimes several"
    assert 0 not in collated


@pytest.mark.parametrize("kind", [dpfest.FEST, pytest.param(dpfest.AdaFESTPlus, marks=pytest.mark.slow)])
def test_rows_chosen_beforehand_are_the_only_ones_that_move(kind: Any) -> None:
    threshold = {"threshold": 0.5} if kind is dpfest.AdaFESTPlus else {}
    algorithm = kind(selection=dpfest.SelectionConfig(rows=8, noise_multiplier=5.0), **threshold)
    chosen = dpfest.select(Shop(), data(), losses, algorithm, rows_per_example=3, noise_seed=2)
    run = noised(algorithm, chosen)
    before = run.model.basket.weight.detach().clone()
    take(run, STEPS)
    moved = torch.nonzero((run.model.basket.weight.detach() != before).any(1)).flatten().tolist()
    assert moved and set(moved) <= {row for row in chosen.rows.tolist() if row < 50}
    assert run.ledger.events[0].what == "row selection" and run.epsilon() <= 4.0
    with pytest.raises(UserError, match="give selected"):
        noised(algorithm)
    cheap = kind(selection=dpfest.SelectionConfig(rows=8, noise_multiplier=0.5), **threshold)
    with pytest.raises(UserError, match="at another cost"):
        noised(algorithm, dpfest.select(Shop(), data(), losses, cheap, rows_per_example=3))
    for bounds in (0, [3, 0], [3]):
        with pytest.raises(UserError, match="must be 1 or more, for each of 2 tables or for all"):
            dpfest.select(Shop(), data(), losses, cheap, rows_per_example=bounds)
    assert len(dpfest.select(Shop(), data(), losses, cheap, rows_per_example=[3, 1]).rows) == 8
    for rows in ([3, 1], [3, 57]):
        with pytest.raises(UserError, match="sorted, distinct"):
            noised(algorithm, np.array(rows))


def test_frozen_parameters_cost_nothing_and_do_not_move() -> None:
    model = Shop()
    model.basket.weight.requires_grad_(False)
    model.head[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    run = make_private(model, optimizer, data(), losses, algorithm=DPSGD(), epsilon=4.0, batch_size=40, steps=3)
    assert run.engine.layout.names == ("shop",) and "head.0.weight" not in run.engine.recorder.dense_parameters
    before = model.basket.weight.detach().clone()
    take(run, 3)
    assert torch.equal(model.basket.weight, before)


def test_a_saved_state_is_a_copy_and_of_its_own_model() -> None:
    run = training()
    take(run, 1)
    state, after_one = run.state_dict(), weights(run)
    take(run, 1)
    assert not torch.equal(weights(run), after_one)
    resumed = training()
    resumed.load_state_dict(state)
    assert torch.equal(weights(resumed), after_one)
    take(resumed, 1)
    assert torch.equal(weights(resumed), weights(run)), "the same step taken again is the same release"
    with pytest.raises(UserError, match=r"not a state from PrivateTraining"):
        training().load_state_dict({})
    fresh = training(noise_seed=None)
    take(fresh, 1)
    with pytest.raises(UserError, match="steps of its own"):
        fresh.load_state_dict(training(noise_seed=None).state_dict())


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "message"),
    [
        (
            AdaFEST(),
            lambda m: torch.optim.Adam(m.parameters()),
            "Adam cannot take the sparse gradient of basket.weight",
        ),
        (AdaFEST(), lambda m: torch.optim.SGD(m.parameters(), weight_decay=0.1), "SGD with weight_decay cannot take"),
        (DPSGD(), lambda m: torch.optim.SparseAdam([m.basket.weight]), "SparseAdam cannot take the dense gradient"),
        (DPSGD(), lambda m: torch.optim.SGD(m.head.parameters()), "No optimiser steps basket.weight, shop.weight"),
        (DPSGD(), lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS evaluates the loss several times"),
        (DPSGD(), lambda m: m.parameters, "must be a torch.optim.Optimizer"),
    ],
)
def test_optimisers_that_cannot_step_are_refused_before_anything_is_spent(
    algorithm: Any, optimizer: Any, message: str
) -> None:
    model = Shop()
    with pytest.raises(UserError, match=message):
        make_private(model, optimizer(model), data(), losses, algorithm=algorithm, epsilon=4.0, batch_size=40, steps=2)


def test_under_lazy_noise_weights_go_back_only_to_a_state_that_lacks_none() -> None:
    """Gradients whose noise was pending would be released a second time, under other noise."""
    run = training(DPSGD(noise="lazy"))
    take(run, 2)
    unsettled = saved(run)
    take(run, 1)
    with pytest.raises(UserError, match="with noise pending"):
        run.load_state_dict(unsettled)
    with pytest.raises(UserError, match="with noise pending"):
        training(DPSGD(noise="lazy")).load_state_dict(unsettled, steps=2)
    run.flush()
    settled = saved(run)
    take(run, 1)
    run.load_state_dict(settled)
    assert run.steps_done == 4
    branch = training(DPSGD(noise="lazy"))
    branch.load_state_dict(run.fork(2), steps=2)
    take(branch, 2)
    assert branch.steps_left == 0


def test_a_loss_of_another_model_is_not_excused_by_the_check_in_float64() -> None:
    model = Shop()

    def centred(_: nn.Module, batch: Any) -> Tensor:
        loss = losses(model, batch)
        return loss * (1 + loss.detach().mean())

    with pytest.raises(UserError, match="mix"):
        take(training(DPSGD(clipping_norm=100.0), model=model, loss_fn=centred), 1)


def test_a_step_that_fails_after_its_gradient_does_not_lend_its_noise_to_another() -> None:
    run = training(AdaFEST(threshold=2))
    handle = run.optimizers[0].register_step_post_hook(lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        take(run, 1)
    handle.remove()
    assert run.steps_done == 1 and run.epsilon() > 0
    take(run, 1)
    assert run.steps_done == 2


def test_only_the_batch_that_was_drawn_is_stepped_and_a_due_check_cannot_be_left_out() -> None:
    run = training()
    batch = run.read(run.request(0))
    part = batch.microbatches[0]
    fewer = dpfest.MicroBatch(part.examples[:5], tuple(tensor[:5] for tensor in part.data))
    with pytest.raises(UserError, match="does not hold the examples drawn"):
        run.step(dpfest.Batch(0, [fewer], batch.parts))
    with pytest.raises(UserError, match="is due a check"):
        run.step(dpfest.Batch(0, batch.microbatches))
    assert run.epsilon() == 0
    run.step(batch)


def test_a_ledger_of_another_plan_is_refused() -> None:
    run, model = training(), Shop()
    cheap = dpfest.plan(DPSGD(), epsilon=5.0, delta=1e-4, examples=EXAMPLES, batch_size=40, steps=STEPS)
    read = dpfest.DatasetReader(data())
    with pytest.raises(UserError, match="ledger belongs to another plan"):
        PrivateTraining(model, losses, torch.optim.SGD(model.parameters()), cheap, read, ledger=run.ledger)


def test_a_branch_takes_no_more_than_it_was_granted() -> None:
    run = training(noise_seed=None)
    take(run, 1)
    state = run.fork(2)
    with pytest.raises(UserError, match="between 1 and the 2"):
        training(noise_seed=None).load_state_dict(state, steps=5)


def test_lazy_noise_covers_every_layer_of_a_table_and_every_way_to_look_up() -> None:
    class Twice(Shop):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.again, self.how = nn.Embedding(7, 2), how
            self.again.weight = self.shop.weight

        def forward(self, basket: Tensor, shop: Tensor) -> Tensor:
            if self.how == "functional":
                return super().forward(basket, shop) + F.embedding(shop, self.shop.weight.detach()).sum(1)
            return super().forward(basket, shop) + self.again(shop).sum(1)

    run = training(DPSGD(noise="lazy"), model=Twice("layer"))
    start = run.model.shop.weight.detach().clone()
    take(run, 1)
    run.model.again(torch.tensor([0]))
    assert not bool((run.model.shop.weight == start).any())
    with pytest.raises(UserError, match="reads the table shop outside of a look-up"):
        take(training(DPSGD(noise="lazy"), model=Twice("functional")), 1)


def test_draws_whose_first_dimension_is_not_the_examples_are_refused() -> None:
    def shared(model: nn.Module, batch: Any) -> Tensor:
        return losses(model, batch) * (1 + 0.01 * torch.rand(16).mean())

    with pytest.raises(UserError, match="does not count the examples"):
        take(training(loss_fn=shared), 1)


def test_select_refuses_public_counts_and_look_ups_that_depend_on_the_batch() -> None:
    public = dpfest.FEST(selection=dpfest.SelectionConfig(mechanism="public", prior="counts.npy"))
    with pytest.raises(UserError, match="public counts come from select_rows"):
        dpfest.select(Shop(), data(), losses, public, rows_per_example=3)

    def rolled(model: nn.Module, batch: Any) -> Tensor:
        return losses(model, (batch[0].roll(1, 0), *batch[1:]))

    with pytest.raises(UserError, match=r"mix|looks up other rows"):
        dpfest.select(Shop(), data(), rolled, dpfest.FEST(), rows_per_example=3)
