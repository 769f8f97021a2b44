"""The kernels run on a GPU where there is one; elsewhere Triton interprets them, and tensors on the CPU are pretended.

Triton reads ``TRITON_INTERPRET`` when it is first imported: ``tests/conftest.py`` sets it where the machine has no GPU.
An interpreted program takes as long for many lanes as for few, so that programs are few.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any

import pytest
import torch

from dpfest import device

pytest.importorskip("triton", reason="the kernels need Triton: pip install triton")

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if HERE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled, for a GPU that PyTorch does not see", allow_module_level=True)

from dpfest.device import lookups, memory, noise, sums, update  # noqa: E402

if HERE.type == "cpu":  # sums of 32 bits that wrap around are meant; to look for them takes most of the time
    interpreter = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    interpreter.options = dataclasses.replace(interpreter.options, sanitize_overflow=False)

_LANES = {
    lookups: {"_BLOCK": 2048},
    noise: {"_BLOCK": 2048},
    sums: {"_BLOCK": 2048, "_RUNS": 256},
    update: {"_ROWS": 64},
}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels serve tensors on the CPU, too. No Python float reaches one: a compiled one would take it as float32."""
    monkeypatch.setattr(device, "PRETENDED", True)

    def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        assert not any(isinstance(one, float) for one in (*args, *constants.values()))
        memory.launch(kernel, grid, *args, **constants)

    for module, sizes in _LANES.items():
        monkeypatch.setattr(module, "launch", launch)
        for name, size in sizes.items() if HERE.type == "cpu" else ():
            monkeypatch.setattr(module, name, size)
