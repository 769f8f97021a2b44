"""Tables that are looked up together: what they compute one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dpfest


def made(kind: type[nn.ModuleList]) -> nn.ModuleList:
    torch.manual_seed(0)
    return kind(nn.Embedding(rows, dim, padding_idx=pad) for rows, dim, pad in ((6, 3, None), (50, 4, 49)))


COLUMNS = [torch.tensor([0, 5, 5]), torch.tensor([[1, 49], [2, 2], [3, 49]], dtype=torch.int32)]


def test_it_is_the_list_of_its_tables_and_trains_as_they_do() -> None:
    together, apart = made(dpfest.Tables), made(nn.ModuleList)
    assert isinstance(together, dpfest.Tables) and isinstance(together[:1], dpfest.Tables)
    assert list(together.state_dict()) == list(apart.state_dict()) == ["0.weight", "1.weight"]
    ours, theirs = together(COLUMNS), [table(ids) for table, ids in zip(apart, COLUMNS, strict=True)]
    assert [tuple(one.shape) for one in ours] == [(3, 3), (3, 2, 4)]
    for outputs in (ours, theirs):
        sum((one * one).sum() for one in outputs).backward()  # type: ignore[union-attr]
    for mine, others in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.equal(mine.grad, others.grad) and mine.grad.any()  # type: ignore[arg-type,union-attr]


def test_a_column_without_a_table_is_refused() -> None:
    for columns in (COLUMNS[:1], [*COLUMNS, COLUMNS[0]]):
        with pytest.raises(ValueError, match="zip"):
            made(dpfest.Tables)(columns)
