"""Reads the source instead of running it: which way imports point, what Flax is used for, how long things are."""

import ast
import sys
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cascade_jax", "pallas_kernels", "launch", "configs", "evals")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

# A module may import those of its own row and of the rows above it. A new module needs a place here.
ROWS = (
    ("types", "leaves", "config", "seeding", "graph", "manifest", "workdir", "folder", "offload", "processes", "peers"),
    ("mesh",),
    ("model",),
    ("logprob",),
    ("data",),
    ("rollout",),
    ("reward", "teacher"),
    ("environment",),
    ("advantage", "loss", "domains"),
    ("optimizer", "update", "checkpoint", "metrics"),
    ("stages",),
    ("evaluation", "profiling"),
    ("workbench", "export", "cascade", "report", "conformance", "plan"),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

# What each folder may import of the others.
MAY_IMPORT = {
    "pallas_kernels": set(),
    "cascade_jax": {"pallas_kernels"},
    "configs": {"cascade_jax"},
    "evals": {"cascade_jax", "pallas_kernels"},
    "launch": {"cascade_jax", "pallas_kernels", "configs", "evals"},
}
CORE = {"absl", "flax", "jax", "jaxtyping", "ml_collections", "numpy", "optax", "orbax", "rich"}

LONGEST_FILE, LONGEST_FUNCTION = 260, 60


def module_name(path):
    """cascade_jax/data/chat.py -> cascade_jax.data.chat"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


def imports(path, nodes=ast.walk):
    """Full names of all modules that the file imports; with `nodes` of its top level only."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield from (
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module
                for alias in node.names
            )


def top_level(tree):
    """All statements that run on import, those under `if` and `try` too, but for `if TYPE_CHECKING`."""
    for node in tree.body if isinstance(tree, ast.Module) else tree:
        yield node
        if isinstance(node, ast.If) and not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from top_level(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from top_level(node.body + node.orelse + list(chain(*(handler.body for handler in node.handlers))))


def station(name):
    """cascade_jax.data.chat -> data"""
    return name.split(".")[1] if "." in name else None


def flax_names(path):
    """Attributes of flax.nnx that the file uses, however it was imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "flax.nnx"}
        elif isinstance(node, ast.ImportFrom) and node.module == "flax":
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "nnx"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("flax.nnx"):
            yield from (alias.name for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases | {"flax.nnx"}:
            yield node.attr


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    module = module_name(path)
    folder, here = module.split(".")[0], station(module)
    for name in imports(path):
        top = name.split(".")[0]
        if top in FOLDERS and top != folder:
            assert top in MAY_IMPORT[folder], f"{module} imports {name}: {folder} must not know {top}"
        if folder == top == "cascade_jax" and here and station(name):
            assert here in ROW and station(name) in ROW, f"give {here} and {station(name)} a row in this test"
            assert ROW[station(name)] <= ROW[here], f"{module} imports {name}, which comes after it"


def test_no_circle_among_the_stations():
    edges = {}
    for path in FILES:
        here = station(module_name(path))
        if module_name(path).startswith("cascade_jax.") and here:
            found = {station(name) for name in imports(path) if name.startswith("cascade_jax.")}
            edges.setdefault(here, set()).update(found - {here})
    done = set()

    def visit(name, trail):
        assert name not in trail, f"a circle of imports: {' -> '.join([*trail, name])}"
        if name not in done:
            for other in sorted(edges.get(name, ())):
                visit(other, [*trail, name])
            done.add(name)

    for name in sorted(edges):
        visit(name, [])


@pytest.mark.parametrize(
    "path", [p for p in FILES if "cascade_jax" in name_of(p) or "pallas" in name_of(p)], ids=name_of
)
def test_a_core_install_can_import_it(path):
    """What belongs to an extra is imported by the function that needs it."""
    outside = {name.split(".")[0] for name in imports(path, top_level)} - set(sys.stdlib_module_names) - set(FOLDERS)
    assert outside <= CORE, f"{sorted(outside - CORE)} belong to extras; import them inside a function"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_flax_declares_and_functions_compute(path):
    used = set(flax_names(path))
    assert not used & {"jit", "grad", "value_and_grad", "Optimizer", "scan", "vmap"}
    if name_of(path) != "cascade_jax/model/apply.py":
        assert not used & {"split", "merge", "eval_shape"}, "these belong into cascade_jax/model/apply.py"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE, f"{text.count(chr(10))} lines; split it by what it is about"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.body[0].lineno + 1  # arguments stand one a line and do not count
            assert lines <= LONGEST_FUNCTION, f"{node.name} has {lines} lines; give its parts names"


def test_the_checks_see_what_they_look_for(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "from flax import nnx as n\nimport flax.nnx\nfrom flax.nnx import split\n"
        "n.jit(f)\nflax.nnx.merge(a, b)\nif x:\n    import torch\ndef f():\n    import pandas\n"
    )
    assert sorted(flax_names(path)) == ["jit", "merge", "split"]
    assert sorted(imports(path, top_level)) == ["flax", "flax.nnx", "flax.nnx", "torch"]
    assert "pandas" in set(imports(path))
