"""The public names: the same at run time, in the stub, and to a type checker."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dpfest

STUB = Path(dpfest.__file__).with_suffix(".pyi")


def test_the_stub_names_what_is_public_and_nothing_else() -> None:
    imports = [node for node in ast.walk(ast.parse(STUB.read_text())) if isinstance(node, ast.ImportFrom)]
    named = {alias.asname or alias.name: f"{node.module}" for node in imports for alias in node.names}
    assert named.keys() == set(dpfest.__all__)
    for name, module in named.items():
        assert getattr(dpfest, name).__module__.endswith(module.rpartition(".")[2]), name


@pytest.mark.slow
def test_a_type_checker_finds_every_public_name(tmp_path: Path) -> None:
    """Slow: starts a type checker, as make lint does."""
    api = pytest.importorskip("mypy.api")
    lines = ["import dpfest", *(f"reveal_type(dpfest.{name})" for name in dpfest.__all__)]
    (tmp_path / "names.py").write_text("\n".join(lines))
    # dpfest alone is read: a class is found whatever torch's own types are.
    others = "[mypy]\n[mypy-torch.*,numpy.*,scipy.*,dp_accounting.*,cryptography.*,mpmath.*]\nfollow_imports = skip\n"
    (tmp_path / "mypy.ini").write_text(others)
    options = [f"--cache-dir={tmp_path}/cache", "--follow-imports=silent", f"--config-file={tmp_path}/mypy.ini"]
    words, errors, status = api.run([*options, str(tmp_path / "names.py")])
    assert status == 0 and not errors, words
    assert words.count("Revealed type") == len(dpfest.__all__) and '"Any"' not in words
