"""States by shard: killed at any message, resumed on more or fewer ranks, and refused where ranks disagree."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfest.algorithms.adafest import AdaFEST
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.planning.ledger import Ledger
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.ranks.group import Group
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import RankTraining
from tests.dpfest.ranks import small
from tests.dpfest.ranks.together import Failed, together

Planned = tuple[PrivacyPlan, Ledger]
MESSAGES = ["sizes", "asked rows", "map", "survivors", "values", "row sums", "counts", "dense sums", "dense gradient"]
"""What a step of DP-AdaFEST exchanges, in this order."""
_QUICK = ("map", "row sums", "dense gradient")


@cache
def planned(name: str) -> Planned:
    return small.planned(small.RULES[name], steps=5)


def save(own: RankTraining, folder: Path) -> None:
    for shard, state in own.shard_states():
        torch.save(state, folder / f"{shard}.pt")
    if own.group.rank == 0:
        torch.save(own.common_state(), folder / "common.pt")
    own.group.wait()


def resumed(planned: Planned, folder: Path, training: Callable[..., RankTraining] = small.training) -> RankTraining:
    own = training(planned)
    own.load(torch.load(folder / "common.pt"), lambda shard: torch.load(folder / f"{shard}.pt"))
    return own


def stretch(
    planned: Planned, folder: Path, steps: int, first: bool, training: Callable[..., RankTraining] = small.training
) -> tuple[str, int]:
    """Take some steps, from the start or from what the folder holds, and save."""
    own = training(planned) if first else resumed(planned, folder, training)
    for batch in small.batches(own, steps):
        own.step(batch)
    save(own, folder)
    return small.digest(own), own.ledger.events[-1].count if own.ledger.events else 0


@pytest.mark.parametrize("name", ["adafest", "lazy", "bands"])
def test_a_run_of_two_then_four_then_one_ranks_is_the_run_of_one(name: str, tmp_path: Path) -> None:
    whole = small.training(planned(name))
    for batch in small.batches(whole, 5):
        whole.step(batch)
    expected = small.digest(whole), 5
    together(stretch, 2, planned(name), tmp_path, 2, True)
    together(stretch, 4, planned(name), tmp_path, 1, False)
    assert stretch(planned(name), tmp_path, 2, False) == expected


def loaded(planned: Planned, folder: Path) -> str:
    """The weights once the noise pending in a state is drawn, without a step in between."""
    return small.digest(resumed(planned, folder))


def test_noise_pending_in_a_state_is_drawn_as_without_the_interruption(tmp_path: Path) -> None:
    whole = small.training(planned("lazy"))
    for batch in small.batches(whole, 2):
        whole.step(batch)
    save(whole, tmp_path)
    assert whole.engine.lazy.settled[1].min() < whole.engine.lazy.pending[1]
    expected = small.digest(whole)  # flushes
    assert loaded(planned("lazy"), tmp_path) == expected
    assert together(loaded, 2, planned("lazy"), tmp_path) == [expected] * 2


def test_a_shards_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    whole = small.training(planned("adafest"))
    save(whole, tmp_path)
    state = torch.load(tmp_path / "0.pt")
    torch.save(state | {"tables.1.weight": state["tables.1.weight"][:1]}, tmp_path / "0.pt")
    with pytest.raises(UserError, match=r"shard 0 does not hold 5 rows of 3 of the table tables\.1"):
        resumed(planned("adafest"), tmp_path)


def read_while_pending(planned: Planned) -> list[str]:
    """What is said of reads after a step of lazy noise, and the rows that ``state_dict()`` gives and a flush would."""
    own = small.training(planned)
    for batch in small.batches(own, 1):
        own.step(batch)
    said = []
    for read in (copy.deepcopy, pickle.dumps, lambda model: own.engine.rows.fetch(np.arange(3))):
        with pytest.raises(UserError) as refusal:
            read(own.model)
        said.append(str(refusal.value))
    own.common_state()  # a checkpoint's: private, and draws nothing
    assert own.engine.lazy.is_pending
    saved = {name: value.clone() for name, value in own.model.state_dict().items()}
    assert not own.engine.lazy.is_pending
    own.flush()
    assert all(torch.equal(saved[name], value) for name, value in own.model.state_dict().items())
    copy.deepcopy(own.model)
    return [*said, small.digest(own)]


def test_rows_without_their_noise_are_not_handed_out() -> None:
    whole = small.training(planned("lazy"))
    for batch in small.batches(whole, 1):
        whole.step(batch)
    expected = small.digest(whole)
    for *said, digest in together(read_while_pending, 2, planned("lazy")):
        assert digest == expected
        for refusal, words in zip(said, ("before you copy", "cannot be pickled", "before you read"), strict=True):
            assert words in refusal


def killed(planned: Planned, folder: Path, message: int) -> None:
    """After a saved step, rank 1 dies in the next one before it takes part in a message."""
    own = small.training(planned)
    for batch in small.batches(own, 1):
        own.step(batch)
    save(own, folder)
    sent = [0]

    def dying(name: str) -> None:
        call = getattr(own.group, name)

        def counted(*arguments: object) -> object:
            if own.group.rank == 1 and sent[0] == message:
                os.kill(os.getpid(), signal.SIGKILL)
            sent[0] += 1
            return call(*arguments)

        setattr(own.group, name, counted)

    for name in ("exchange", "joined", "sum"):
        dying(name)
    for batch in small.batches(own, 1):
        own.step(batch)
    os._exit(0 if own.group.rank else 1)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(number, id=name, marks=[] if name in _QUICK else pytest.mark.slow)
        for number, name in enumerate(MESSAGES)
    ],
)
def test_a_rank_killed_at_any_message_of_a_step_leaves_the_same_run(message: int, tmp_path: Path) -> None:
    whole = small.training(planned("adafest"))
    for batch in small.batches(whole, 3):
        whole.step(batch)
    with pytest.raises(Failed):
        together(killed, 2, planned("adafest"), tmp_path, message)
    assert stretch(planned("adafest"), tmp_path, 2, False) == (small.digest(whole), 3)


def disagreeing(planned: Planned, what: str) -> str:
    group = Group()
    options = {"key": NoiseKey.from_seed(3 + (group.rank if what == "key" else 0))}
    if what == "ledger" and group.rank:
        planned[1].spend_step()
    try:
        small.training(planned, parts=4 + (group.rank if what == "shards and parts" else 0), **options)
    except UserError as error:
        return str(error)
    return "agreed"


def test_ranks_that_disagree_refuse_to_start_and_say_on_what() -> None:
    for what in ("key", "ledger", "shards and parts"):
        for said in together(disagreeing, 2, planned("adafest"), what):
            assert f"do not agree on {what}: rank 1 has" in said or f", {what}: rank 1 has" in said


def impatient() -> str:
    group = Group(timedelta(seconds=1))
    if group.rank:
        time.sleep(1.5)
        return ""
    with pytest.raises(RuntimeError) as error:
        group.wait()
    return str(error.value)


def test_a_rank_that_waits_in_vain_says_so() -> None:
    assert "imed out" in together(impatient, 2)[0]


def drawn_together(planned: Planned) -> bytes:
    return small.training(planned, key=None)._own_key.secret


def test_a_key_of_the_operating_system_is_one_for_all_ranks() -> None:
    made = small.plan(
        AdaFEST(), epsilon=20.0, delta=1e-3, examples=small.EXAMPLES, batch_size=small.BATCH, steps=1,
        calibrate=lambda *question: 1.0,
    )  # fmt: skip
    first, second = together(drawn_together, 2, (made, made.ledger()))
    assert first == second and first != NoiseKey.from_seed(3).secret


def test_a_state_of_other_shards_or_another_loss_is_refused(tmp_path: Path) -> None:
    stretch(planned("adafest"), tmp_path, 1, True)
    other = small.training(planned("adafest"), shards=4)
    with pytest.raises(UserError, match="shards and parts"):
        other.load(torch.load(tmp_path / "common.pt"), lambda shard: {})


def test_what_needs_one_process_is_refused() -> None:
    own = small.training(planned("adafest"))
    for call in (own.state_dict, lambda: own.load_state_dict({}), lambda: own.fork(1)):
        with pytest.raises(UserError, match=r"one process|no process"):
            call()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: setattr(table, "padding_idx", 0), "padding_idx=0"),
        (lambda table: setattr(table, "max_norm", 1.0), "max_norm=1.0"),
        (lambda table: setattr(table, "scale_grad_by_freq", True), "scale_grad_by_freq=True"),
        (lambda table: table.register_forward_hook(lambda *call: None), "its forward_hooks"),
    ],
)
def test_what_a_table_over_ranks_would_leave_out_is_refused(change: Callable[[Any], object], reason: str) -> None:
    model = small.Clicks()
    change(model.tables[0])
    with pytest.raises(UserError, match=rf"The table tables\.0 cannot lie in several processes, because of {reason}"):
        shard_tables(model, 4)


def test_tables_stay_in_evaluation_mode() -> None:
    model = small.Clicks().eval()
    shard_tables(model, 4)
    assert not any(module.training for module in model.modules())
