"""The sabotages of `tests/mutations.py`: each still fits the code, and is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import HOME, MUTATIONS, Mutation, copy_of_the_tree


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_sabotage_fits_the_code(mutation: Mutation) -> None:
    assert (HOME / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert all((HOME / name.partition("::")[0]).is_file() for name in mutation.tests.split())


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_sabotage_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    """Slow: each starts pytest on a copy of the code."""
    assert mutation.catches(copy_of_the_tree(tmp_path)), f"{mutation.tests} pass although {mutation.what}"
