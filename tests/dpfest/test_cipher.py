"""The cipher of a training's key: chosen by name, kept by the state, stated by the ledger, and never exchanged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from dpfest import AdaFEST, NoiseKey, PrivateTraining, UserError, make_private
from dpfest.noise.key import AES, CHACHA, CIPHERS
from dpfest.planning.ledger import Ledger
from dpfest.planning.search_law import Search
from dpfest.selection.exponential import draw_rows

DATA = TensorDataset(torch.arange(60) % 20, torch.linspace(-1, 1, 60))
SETTINGS: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "batch_size": 20, "steps": 6}


def made(noise_seed: int | None = 1, **options: Any) -> PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 3), nn.Dropout(0.3), nn.Linear(3, 1))
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DATA,
        lambda model, batch: (model(batch[0])[:, 0] - batch[1]) ** 2,
        **{"algorithm": AdaFEST(threshold=1.5), "noise_seed": noise_seed, **SETTINGS, **options},
    )


def taken(training: PrivateTraining, steps: int) -> dict[str, torch.Tensor]:
    for _, batch in zip(range(steps), training, strict=False):
        training.step(batch)
    return {name: value.clone() for name, value in training.model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_under_chacha20_repeats_itself_and_not_another() -> None:
    first = taken(made(cipher=CHACHA), 4)
    assert equal(first, taken(made(cipher=CHACHA), 4))
    assert not equal(first, taken(made(), 4)) and not equal(first, taken(made(2, cipher=CHACHA), 4))
    assert equal(taken(made(cipher=AES), 4), taken(made(), 4)), "AES is a CPU's default"


def test_micro_batches_do_not_change_the_noise() -> None:
    whole, parts = taken(made(cipher=CHACHA), 3), taken(made(cipher=CHACHA, micro_batch_size=3), 3)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-4)


def test_a_state_resumes_under_its_cipher_to_the_same_bits() -> None:
    run = made(cipher=CHACHA)
    taken(run, 2)
    state = run.state_dict()
    assert state["cipher"] == CHACHA == state["bound_to"]["cipher"]
    resumed = made(cipher=CHACHA)
    resumed.load_state_dict(state)
    assert resumed.engine.key.cipher == CHACHA and equal(taken(resumed, 4), taken(run, 4))


def test_a_state_of_aes_names_no_cipher() -> None:
    state = made().state_dict()
    assert "cipher" not in state and "cipher" not in state["bound_to"]
    made().load_state_dict(state)


@pytest.mark.parametrize(("saved", "now"), [(AES, CHACHA), (CHACHA, AES)])
def test_a_state_of_the_other_cipher_is_refused(saved: str, now: str) -> None:
    run = made(cipher=saved)
    taken(run, 1)
    with pytest.raises(UserError, match="The state was saved under another cipher"):
        made(cipher=now).load_state_dict(run.state_dict())


@pytest.mark.parametrize("noise_seed", [None, 1])
def test_a_branch_has_the_cipher_of_what_it_leaves(noise_seed: int | None) -> None:
    run = made(noise_seed, cipher=CHACHA)
    taken(run, 1)
    branch = made(noise_seed, cipher=CHACHA)
    branch.load_state_dict(run.fork(2), steps=2)
    assert branch.engine.key.cipher == CHACHA and branch.engine.key != run.engine.key
    taken(branch, 2)


def test_the_cipher_of_a_key_is_its_own() -> None:
    assert made(None, key=NoiseKey.fresh(CHACHA)).engine.key.cipher == CHACHA
    assert made(None).engine.key.cipher == AES and made(None, cipher=CHACHA).engine.key.cipher == CHACHA
    with pytest.raises(UserError, match="'aes256-ctr' is not the cipher of key=, 'chacha20/1'"):
        made(None, key=NoiseKey.fresh(CHACHA), cipher=AES)
    with pytest.raises(UserError, match="cipher='rot13' must be one of"):
        made(cipher="rot13")


def test_the_ledger_states_a_cipher_that_is_not_aes() -> None:
    record = made(cipher=CHACHA).ledger.to_json()
    assert record["cipher"] == CHACHA and any("ChaCha20 (RFC 8439)" in words for words in record["statements"])
    assert Ledger.from_json(record).to_json() == record
    silent = made().ledger.to_json()
    assert "cipher" not in silent and not any("ChaCha" in words for words in silent["statements"])
    assert Ledger.from_json(silent).cipher == AES


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_search_draws_its_number_of_runs_under_either(cipher: str) -> None:
    """A geometric number of mean 3; 2.5 is rejected."""
    key, draws = NoiseKey.from_seed(1, cipher=cipher), 3000
    drawn = [Search(3.0, shape=1.0).number(key.stream("number of runs", draw)) for draw in range(draws)]
    off = (sum(drawn) / draws - 3.0) / math.sqrt(6 / draws)
    assert abs(off) < 3.9 < abs(off + 0.5 / math.sqrt(6 / draws))


@pytest.mark.parametrize("cipher", CIPHERS)
def test_exponential_selection_has_its_law_under_either(cipher: str) -> None:
    """One row of utility 1 and nine of 0 at scale 1: it is drawn with probability e / (e + 9)."""
    key, draws = NoiseKey.from_seed(1, cipher=cipher), 4000
    one = {"universe": 10, "count": 1, "scale": 1.0}
    rows, utilities = np.array([4]), np.array([1.0])
    found = [draw_rows(rows, utilities, stream=key.stream("rows", draw), **one)[0] == 4 for draw in range(draws)]
    assert stats.binomtest(sum(found), draws, math.e / (math.e + 9)).pvalue > 1e-4
    assert stats.binomtest(sum(found), draws, 0.1).pvalue < 1e-6
