"""Kernels compiled for GPUs that need not be there: registers, spills, and how floats are added and rounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton: pip install triton")

HOME = Path(__file__).resolve().parents[3]
MOST_REGISTERS = {"sm_80": 128, "sm_90": 128, "gfx942": 256}


@pytest.mark.slow
@pytest.mark.parametrize("target", MOST_REGISTERS)
def test_kernels_fit_into_registers_and_add_no_float_atomically(target: str, tmp_path: Path) -> None:
    """Slow: 15 kernels are compiled, 5 seconds of one core."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.dpfest.device.compiled", target]
    made = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    found = {one["kernel"]: one for one in map(json.loads, made.stdout.splitlines())}
    for name, kernel in found.items():
        assert kernel["registers"] <= MOST_REGISTERS[target] and kernel["spilled"] == 0, kernel
        assert not kernel["approximate"], kernel  # divisions, roots: float64's are rounded as IEEE 754 says
        assert set(kernel["atomic"]) <= {"add"}, kernel  # of whole numbers; of floats it would be fadd
        assert kernel["seconds"] < 30, name
    assert found["map_sums"]["atomic"] == ["add"] and len(found) == 15


def test_every_kernel_that_is_started_is_compiled_above() -> None:
    """What a module launches is what `compiled` lists; read as text, as that runs where nothing is interpreted."""
    listed = (Path(__file__).with_name("compiled.py")).read_text(encoding="utf-8")
    for module in ("gather", "lookups", "noise", "sums", "update"):
        text = (HOME / "dpfest" / "device" / f"{module}.py").read_text(encoding="utf-8")
        for name in {part.split(",")[0].strip() for part in text.split("launch(")[1:]}:
            assert f"{module}.{name}" in listed, name
