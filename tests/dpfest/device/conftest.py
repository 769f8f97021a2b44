"""The kernels run on a GPU where there is one; elsewhere Triton interprets them, and tensors on the CPU are pretended.

Triton reads ``TRITON_INTERPRET`` when it is first imported: ``tests/conftest.py`` sets it where the machine has no GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

from dpfest import device

pytest.importorskip("triton", reason="the kernels need Triton: pip install triton")

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if HERE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU that PyTorch does not see", allow_module_level=True)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that the kernels serve."""
    monkeypatch.setattr(device, "PRETENDED", True)
    return HERE
