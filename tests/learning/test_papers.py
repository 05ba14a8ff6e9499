"""PAPERS.md names functions, and modules of the network, that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_function_exists():
    names = set(
        re.findall(
            r"`((?:cascade_jax|pallas_kernels)(?:\.\w+)+)\.(\w+)`", (ROOT / "PAPERS.md").read_text(encoding="utf-8")
        )
    )
    assert len(names) > 15
    for module, function in sorted(names):
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        defined = {node.name for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert function in defined, f"{module}.{function}"
