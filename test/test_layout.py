"""The structure of the code: allowed imports, where TensorFlow may be imported, and what modules may contain."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys

import pytest

from cnn_harness.base import plugins
from cnn_harness.LR_Schedules._schedule import Schedule
from cnn_harness.Models._model import Model
from tools.draw_packages import draw, graph, imported, module

ROOT = plugins.ROOT
PACKAGES = ("base", "Models", "Datasets", "LR_Schedules", "Optimisers", "emulator", "harness", "tools")
SCRIPTS = ("train", "validation", "restore", "weight_avg", "inference_embedded", "poprun")
FACES = ("ipu_utils", "log")
OWN = (*PACKAGES, *SCRIPTS, *FACES, "api", "experiments")
NO_SUBJECTS = re.compile(
    r"(?:\A|(?<=[.!?])\s+)((?:What|Of|Those|That|Its?|How|Which|So many|The same)\b.*)"
)  # of a docstring's sentences
# layers from the bottom up; a file imports from its own package and from lower layers
LAYERS = (
    ("base",),
    ("base.storage",),
    ("base.process",),
    ("Datasets._spec",),
    ("Datasets.formats",),
    ("Datasets.pipeline",),
    ("Datasets.sources",),
    ("Models", "LR_Schedules", "Datasets", "log"),
    ("emulator.network",),
    ("tools.datasets", "emulator.plan"),
    ("emulator.cost_model", "emulator.passes"),
    ("emulator.native",),
    ("emulator.layers",),
    ("emulator.lowering",),
    ("emulator.program",),
    ("emulator.inference",),
    ("emulator.numerics",),
    ("ipu_utils",),
    ("Optimisers",),
    ("harness.options",),
    ("harness.run",),
    ("harness.checkpoints",),
    ("harness.distributed",),
    ("harness.reports",),
    ("harness.programs",),
    ("harness.evaluation",),
    ("harness.commands",),
    ("harness.training",),
    ("train", "validation", "inference_embedded", "weight_avg", "poprun"),
    ("restore",),
    ("tools.planning", "tools.exporting"),
    ("tools",),
    ("api", "__main__", "experiments"),
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
PACKAGE_FILES = 18  # at most, without plug-ins
FILES = [ROOT / f"{name}.py" for name in (*SCRIPTS, *FACES)] + [
    path
    for name in ("cnn_harness", "Models", "Datasets", "LR_Schedules", "Optimisers", "experiments", "tools")
    for path in sorted((ROOT / name).rglob("*.py"))
]
# they build graphs; everything else must answer before TensorFlow is loaded
TENSORFLOW = (
    "ipu_utils",
    "base.draws",
    "base.gradient_rules",
    "base.tracing",
    "Datasets.pipeline",
    "emulator.layers",
    "emulator.lowering",
    "emulator.program",
    "emulator.inference",
)
TENSORFLOW += ("emulator.numerics.observing_program",)
TENSORFLOW += tuple(f"harness.programs.{name}" for name in ("build", "losses"))


def package(name: str) -> str:
    """Return where a module is: its folder, or the module itself if that is a layer."""
    return name if name in LAYER else name.rpartition(".")[0] or name


def private(name: str) -> bool:
    return name.split(".")[-1].startswith("_")


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_never_go_up(path):
    """Nor do they name a plug-in from outside its folder."""
    here = package(module(path))
    for other in imported(path):
        there = package(other)
        if other.split(".")[0] not in OWN or there == here:
            continue
        if other in PACKAGES and other != "base":  # the folder of plug-ins itself
            there = other
        assert LAYER[there] < LAYER[here], f"{module(path)} imports {other}"
        if there in ("Models", "Datasets", "LR_Schedules", "Optimisers") and there != here:
            assert private(other), f"{module(path)} imports the plug-in {other}"


PUBLIC = ("network", "plan", "cost_model", "native", "numerics.observation")  # of the device layer


@pytest.mark.parametrize("path", FILES, ids=module)
def test_device_layer_is_used_through_its_interface(path):
    here = module(path)
    if not here.startswith(("emulator", "ipu_utils")):
        inside = {name.removeprefix("emulator.") for name in imported(path, types=True) if name.startswith("emulator.")}
        assert not {name for name in inside if not name.startswith(PUBLIC)}


def test_number_formats_come_from_precision_alone():
    for path in FILES:
        if not module(path).startswith(("emulator.plan", "emulator.layers", "emulator.lowering", "emulator.numerics")):
            assert "emulator.layers.rounding" not in imported(path), path


def test_drawn_packages_match_imports():
    assert (ROOT / "docs/packages.svg").read_text() == draw(graph()), "call python -m tools.draw_packages"


def test_packages_are_small():
    for folder in {path.parent for path in FILES} - {
        ROOT,
        ROOT / "Datasets",
        ROOT / "Models",
        ROOT / "LR_Schedules",
        ROOT / "Optimisers",
        ROOT / "cnn_harness/tools",
    }:
        assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= PACKAGE_FILES, folder


@pytest.mark.parametrize("path", FILES, ids=module)
def test_tensorflow_is_imported_by_graph_builders_only(path):
    at_once = {name.split(".")[0] for name in imported(path, top_level_only=True)}
    name = module(path)
    if "tensorflow" in at_once:
        assert name.startswith(TENSORFLOW), name


@pytest.mark.parametrize("path", FILES, ids=module)
def test_modules_have_no_mutable_lists_or_sets(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, (ast.List, ast.Set, ast.ListComp)):
            pytest.fail(f"{module(path)}:{node.lineno} holds a list or set at module level; a tuple cannot be changed")
        assert not isinstance(node, ast.Global)


@pytest.mark.parametrize("path", FILES, ids=module)
def test_public_things_are_documented_and_nothing_pickled(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree) is not None
    explained = (node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)))
    vague = [found for node in explained for found in NO_SUBJECTS.findall(ast.get_docstring(node) or "")]
    assert not vague, f"sentences of {module(path)} do not begin with what they are about: {vague}"
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


@pytest.mark.parametrize(("folder", "contract"), [("Models", Model), ("LR_Schedules", Schedule)])
def test_plugins_follow_their_contract(folder, contract):
    """By the same names, with functions of the same parameters."""
    for name in plugins.names(folder):
        plugin = plugins.load(folder, name)
        assert not set(contract.__annotations__) - set(vars(plugin)), name
        for function, promised in inspect.getmembers(contract, inspect.isfunction):
            if not function.startswith("_"):
                parameters = list(inspect.signature(promised).parameters)[1:]
                assert list(inspect.signature(getattr(plugin, function)).parameters) == parameters, (name, function)


def test_lint():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_texts_are_plain():
    done = subprocess.run([sys.executable, "tools/wording.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_planning_imports_no_tensorflow():
    code = ("import sys; from cnn_harness.harness.commands import answers; import cnn_harness.train as train; "
            "code = answers.run_command('train', train.main, ['--config', 'quickstart', '--dry-run']); "
            "assert code == 0; assert 'tensorflow' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("script", ["train.py", "validation.py", "restore.py", "inference_embedded.py"])
def test_help_imports_only_essentials(script):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "cnn_harness.harness.run.cli" in imported
    assert not {"numpy", "yaml", "grpc", "tensorflow"} & imported
    assert not {"cnn_harness.harness.run.run", "cnn_harness.harness.checkpoints.read"} & imported


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "bench").rglob("*.py"))], ids=module)
def test_imports_are_python_s_own(path):
    """No module changes where or how Python imports."""
    assert not re.search(r"sys\.(path|meta_path|path_hooks)\b|__import__", path.read_text())
