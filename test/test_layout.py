"""How the code hangs together: who may import whom, where TensorFlow may be imported, what modules may hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ("Models", "Datasets", "LR_Schedules")
PACKAGES = (*PLUGINS, "harness", "emulator")
SCRIPTS = ("train", "validation", "restore", "weight_avg", "ipu_utils", "log", "poprun", "inference_embedded")
LEAVES = {
    "harness.bounds",
    "harness.command_line",
    "harness.early",
    "harness.fields",
    "harness.input_files",
    "harness.npz",
    "harness.quiet",
    "harness.signals",
    "harness.tether",
    "harness.zips",
    "emulator.draws",
    "emulator.host_limits",
    "emulator.tracing",
}  # import nothing of the project, may be imported by all
FILES = [ROOT / f"{name}.py" for name in SCRIPTS] + [
    path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))
]
# building graphs is their work; everything else must answer before TensorFlow is there
TENSORFLOW = {
    "ipu_utils",
    "emulator.executable",
    "emulator.executor",
    "emulator.stages",
    "emulator.weights",
    "emulator.cells",
    "emulator.group",
    "emulator.inference",
    "emulator.frozen",
    "emulator.draws",
    "emulator.tracing",
    "harness.build",
    "harness.losses",
    "harness.optimisers",
}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path: Path, top_level_only: bool = False) -> set[str]:
    """Full names of the modules that a file imports; those for type checking alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
               for node in ast.walk(test)}  # fmt: skip
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" if _is_module(f"{node.module}.{alias.name}") else node.module
                      for alias in node.names}  # fmt: skip
    return found


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] in (*PACKAGES, *SCRIPTS)} - LEAVES


def private(name: str) -> bool:
    return name.split(".")[-1].startswith("_")


@pytest.mark.parametrize("path", FILES, ids=module)
def test_direction_of_imports(path):
    name, package = module(path), module(path).split(".")[0]
    for other in ours(path):
        home = other.split(".")[0]
        if name in LEAVES:
            pytest.fail(f"{name} is a leaf but imports {other}")
        elif package in PLUGINS:
            assert home == package, f"{name} imports {other} of another folder"
            assert private(other) or other == package or package == "Datasets", f"{name} imports the plug-in {other}"
        elif package == "emulator":
            assert home in ("emulator", "Models"), f"{name} imports {other}"
            assert home == "emulator" or private(other), f"{name} imports the plug-in {other}"
        elif package == "harness":
            assert other not in ("train", "validation", "restore"), f"{name} imports {other}"
            assert home not in PLUGINS or private(other) or other == "Datasets.generated", (
                f"{name} imports the plug-in {other}"
            )
        elif name == "validation":
            assert other not in ("train", "restore")
        elif name == "log":
            assert other in ("harness.files", "harness.tables"), f"{name} imports {other}"
        elif name == "ipu_utils":
            assert home != "harness", f"{name} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_tensorflow_is_imported_only_where_graphs_are_built(path):
    at_once = {name.split(".")[0] for name in imported(path, top_level_only=True)}
    name = module(path)
    if "tensorflow" in at_once:
        assert name in TENSORFLOW or (name.split(".")[0] in ("Models", "Datasets") and private(name)), name


@pytest.mark.parametrize("path", FILES, ids=module)
def test_modules_hold_no_lists_or_sets_to_be_changed(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, (ast.List, ast.Set, ast.ListComp)):
            pytest.fail(f"{module(path)}:{node.lineno} holds a list or set at module level; a tuple cannot be changed")
        assert not isinstance(node, ast.Global)


@pytest.mark.parametrize("path", FILES, ids=module)
def test_public_things_are_explained_and_nothing_is_pickled(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree) is not None
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module(path)}.{node.name} has no docstring"
    used = imported(path)
    assert not used & {"pickle", "marshal", "shelve", "torch"}
    for forbidden in (
        "yaml.load(",
        "full_load",
        "unsafe_load",
        "shell=True",
        "import_meta_graph",
        "allow_pickle=True",
        "eval(",
    ):
        assert forbidden not in text, f"{module(path)} uses {forbidden}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_functions_stay_short(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{module(path)}.{node.name} has {length} lines"


def test_lint():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_planning_a_run_imports_no_tensorflow():
    code = ("import sys; from harness import entry; import train; "
            "code = entry.run_command('train', train.main, ['--config', 'quickstart', '--dry-run']); "
            "assert code == 0; assert 'tensorflow' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
