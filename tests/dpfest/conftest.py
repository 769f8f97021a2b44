"""What several tests of the library take."""

from __future__ import annotations

import pytest

from dpfest import kernels


@pytest.fixture(params=["compiled", "in Python"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops, or their references in Python."""
    if request.param == "in Python":
        monkeypatch.setattr(kernels, "library", None)
    elif kernels.library is None:
        pytest.skip("dpfest was installed without a compiler")
