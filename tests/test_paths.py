"""The documents' table of algorithms and paths is what small trainings show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import paths

HOME = Path(__file__).parents[1]


@pytest.mark.documents
def test_the_documents_have_the_table_of_today() -> None:
    written = paths.table()
    for document in paths.DOCUMENTS:
        text = (HOME / document).read_text(encoding="utf-8")
        assert text.count(paths.BEGIN) == 1 and paths.with_table(text, written) == text, f"{document}: make readme"
