"""Compiles every kernel without a GPU and prints, as JSON, what each takes: ``python -m tests.dpfest.device.compiled``.

Run where ``TRITON_INTERPRET`` is not 1. For NVIDIA's the assembler's report is read, for AMD's the code's own notes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dpfest.device import gather, lookups, noise, sums, update

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

# Types of arguments by name; whole numbers that are not named are i32.
_TYPES = {
    "*u32": "key",
    "*fp64": "reals rounded lookups",
    "*i32": "found new counts lacking",
    "*i64": "keys calls units unit_of call_of output_of rank rows starts row_of example position places gradients "
    "spans trained uses offsets sums bounds ends dims alive matrices out tables",
    "*fp32": "values squared weights",
}
_OWN = {
    ("touched_rows", "sums"): "*fp64", ("touched_rows", "alive"): "*i8", ("lookup_norms", "out"): "*fp64",
    ("matrix_norms", "out"): "*fp64", ("join", "matrices"): "*fp64", ("join", "tables"): "i32",
    ("row_sums", "tables"): "i32", ("gather", "out"): "*fp32",
}  # fmt: skip
_CONSTANTS = {"FLOAT": tl.float32, "SUM": tl.float32, "COUNT": 32, "WIDTH": 64, "TILE": 32, "BLOCK": 128}
_FLAGS = ("UNITS", "WEIGHTED", "EVERY")
_SIZES = {
    "gather": {"BLOCK": gather._BLOCK, "WIDTH": gather._WIDTH},
    "lookup_norms": {"BLOCK": sums._RUNS},
    "matrix_norms": {"BLOCK": sums._RUNS},
    "take": {"BLOCK": update._ROWS, "WIDTH": update._WIDTH},
}


def kernels() -> list[Any]:
    """Every kernel that is started from the host."""
    return [
        gather.gather, lookups.keys, lookups.heads, lookups.compact, lookups.count_rows, lookups.map_sums,
        noise.untouched_rows, noise.touched_rows, noise.dense_noise, noise.row_noise, sums.lookup_norms,
        sums.matrix_norms, sums.join, sums.row_sums, update.take,
    ]  # fmt: skip


def report(kernel: Any, target: GPUTarget) -> dict[str, Any]:
    """Registers, spilled bytes and seconds of one kernel."""
    name, signature, constants = kernel.fn.__name__, {}, {}
    types = {argument: kind for kind, names in _TYPES.items() for argument in names.split()}
    for argument in kernel.arg_names:
        if argument.isupper():
            signature[argument] = "constexpr"
            constants[argument] = True if argument in _FLAGS else _CONSTANTS[argument]
        else:
            signature[argument] = _OWN.get((name, argument), types.get(argument, "i32"))
    constants |= _SIZES.get(name, {})
    began = time.process_time()
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=target, options={"num_warps": 4})
    found: dict[str, Any] = {"kernel": name, "seconds": round(time.process_time() - began, 1)}
    found["atomic"] = re.findall(r"atomic_rmw (\w+),", made.asm["ttir"])
    if target.backend == "cuda":
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
            text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
        numbers = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
        found |= {"registers": numbers["REG"], "spilled": numbers["STACK"] + numbers["LOCAL"]}
        found["approximate"] = re.findall(r"\b\S*\.approx\S*|\S*\.ftz\S*", made.asm["ptx"])
    else:
        text = made.asm["amdgcn"]
        found["registers"] = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])  # type: ignore[index]
        found["spilled"] = sum(map(int, re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", text)))
        found["approximate"] = []
    return found


if __name__ == "__main__":
    for target in sys.argv[1:]:
        for kernel in kernels():
            print(json.dumps({"target": target} | report(kernel, TARGETS[target])), flush=True)
