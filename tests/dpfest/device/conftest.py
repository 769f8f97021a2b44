"""The kernels run on a GPU where there is one; elsewhere Triton interprets them, and tensors on the CPU are pretended.

Triton reads ``TRITON_INTERPRET`` when it is first imported: ``tests/conftest.py`` sets it where the machine has no GPU.
An interpreted program takes as long for many lanes as for few, so that programs are few.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dpfest import devices

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_SIZES = {
    "gather": {"_BLOCK": 2048},
    "lookups": {"_BLOCK": 2048},
    "noise": {"_BLOCK": 2048},
    "sums": {"_BLOCK": 2048, "_RUNS": 256},
    "update": {"_ROWS": 64},
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python float reaches a kernel: a compiled one takes it as float32."""
    if HERE.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("kernels are compiled, for a GPU that PyTorch does not see")
        # Sums of 32 bits that wrap around are meant; to look for them takes most of the time.
        interpreter = importlib.import_module("triton.runtime.interpreter").interpreter_builder
        monkeypatch.setattr(interpreter, "options", dataclasses.replace(interpreter.options, sanitize_overflow=False))
    start = importlib.import_module("dpfest.device.memory").launch

    def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        assert not any(isinstance(one, float) for one in (*args, *constants.values()))
        start(kernel, grid, *args, **constants)

    for name, sizes in _SIZES.items():
        module = importlib.import_module(f"dpfest.device.{name}")
        monkeypatch.setattr(module, "launch", launch)
        for constant, size in sizes.items() if HERE.type == "cpu" else ():
            monkeypatch.setattr(module, constant, size)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels serve tensors on the CPU, too."""
    monkeypatch.setattr(devices, "PRETENDED", True)
    devices._parts.cache_clear()  # whether they are wanted was asked before
    yield
    devices._parts.cache_clear()
