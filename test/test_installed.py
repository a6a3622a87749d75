"""An installation: one package with everything needed to run, and the command cnn."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands
from cnn_harness.emulator.native import library
from cnn_harness.harness.commands import hints

ROOT = plugins.ROOT
NOT_RUN = ("docs", "test", "bench", "experiments", "tools", ".ci", "setup.py")  # only in a checkout
NOT_RUN += ("Makefile", "README.md", "LICENSE", "pyproject.toml", "constraints.txt", "Dockerfile")
NOT_RUN += ("requirements.txt", "requirements-test.txt", "requirements-bench.txt", ".gitignore", ".dockerignore")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def tracked() -> list[str]:
    """Return the files of the checkout, including uncommitted ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a copy of the checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, of which git could tell the files")
    folder = tmp_path_factory.mktemp("source")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def built(how: str, source: Path, target: Path) -> Path:
    """Return a new wheel. `how` is the function of setuptools that builds it."""
    done = subprocess.run([sys.executable, "-c", BUILD, how, str(target)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    """Build the wheel in a copy of the checkout."""
    return built("build_wheel", source, tmp_path_factory.mktemp("wheel"))


def test_wheel_has_checkout_in_one_package(wheel):
    packaged = {
        name.removeprefix("cnn_harness/"): name for name in tracked() if name.split("/")[0] not in (*NOT_RUN, "popdist")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"cnn_harness-{wheel.name.split('-')[1]}.dist-info"
        assert {name.split("/")[0] for name in names} == {commands.PACKAGE, "popdist", info}
        assert {name.partition("/")[2] for name in names if name.startswith("cnn_harness/")} == packaged.keys()
        assert [
            name for name, source in packaged.items() if archive.read(f"cnn_harness/{name}") != (ROOT / source).read_bytes()
        ] == []
        entries = archive.read(f"{info}/entry_points.txt").decode()
    assert [line.split(" = ")[0] for line in entries.splitlines()[1:] if line] == ["cnn", "gc-info", "gc-profile", "poprun"]


EDITABLE = """import importlib.util, site, sys
site.addsitedir(sys.argv[1])
import cnn_harness.base.errors, popdist
print(importlib.util.find_spec("cnn_harness.train").origin, *filter(importlib.util.find_spec, sys.argv[2:]))
"""


def test_editable_installation_has_two_names(source, tmp_path, elsewhere):
    with zipfile.ZipFile(built("build_editable", source, tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    modules = {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".py"}
    names = modules - {"cnn_harness", "popdist", "test"} | {"base", "harness"}  # Python itself has a package `test`
    call = [sys.executable, "-I", "-S", "-c", EDITABLE, str(tmp_path / "site"), *(name for name in names if "." not in name)]
    done = subprocess.run(call, cwd=elsewhere, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{source / 'train.py'}\n", "")


@pytest.mark.parametrize(
    "words", ["import ipu_utils as device; device.compile_training", "import log, Models.resnet; log.RunLog"]
)
def test_scripts_next_to_train_can_use_short_names(words):
    subprocess.run([sys.executable, "-c", words], cwd=ROOT, check=True, timeout=60)


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """Return a folder with the package, like site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """Return a working directory with modules of the project's names, which must not be imported."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "Models").mkdir()
    for name in ("log", "train", "plan", "base", "harness", "emulator", "tools", "console", "Models/resnet"):
        (folder / f"{name}.py").write_text("raise SystemExit('a file of the working directory was imported')")
    return folder


SCRIPT = """import atexit, sys
sys.path[0] = {folder!r}  # where the program's file lies
sys.argv[0] = {folder!r} + "/cnn"
if {quick!r}:
    atexit.register(lambda: print("TensorFlow:", "tensorflow" in sys.modules, file=sys.stderr))
from cnn_harness.tools.console import {entry}
sys.exit({entry}())
"""


def called(site: Path, elsewhere: Path, *words: str, entry: str = "cnn", quick: bool = False) -> subprocess.CompletedProcess:
    """Call the installed command from a working directory with decoys."""
    start = ["-m", "cnn_harness"] if entry == "module" else [str(site / "cnn")]
    (site / "cnn").write_text(SCRIPT.format(folder=str(site), quick=quick, entry=entry))
    environ = {
        **os.environ,
        "PYTHONPATH": f"{elsewhere}{os.pathsep}{site}",
        "XDG_CACHE_HOME": str(site / "cache"),
        "HARNESS_KERNELS": "1",
    }
    return subprocess.run([sys.executable, *start, *words], cwd=elsewhere, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", "usage: cnn COMMAND"),
        ("--version", "cnn-harness 0."),
        ("train --help", "usage: cnn train [FOLDER|CONFIGURATION] [options]"),
        ("predict --help", "usage: cnn predict WEIGHTS PHOTO... [options]"),
        ("runs --help", "cnn runs logs/resnet --sort accuracy --json"),
        ("import-weights --help", "    cnn import-weights resnet50.pth --output rn50.npz"),
        ("--list-configs quickst", "quickstart  resnet 14"),
    ],
)
def test_cnn_answers_without_tensorflow(words, shown, site, elsewhere):
    done = called(site, elsewhere, *words.split(), quick=True)
    assert (done.returncode, done.stderr) == (0, "TensorFlow: False\n")
    assert shown in done.stdout
    assert ".py " not in done.stdout.replace("configs.yml", "")


@pytest.mark.parametrize("entry", ["cnn", "module"])
def test_installed_plan_ignores_working_directory(entry, site, elsewhere):
    done = called(site, elsewhere, "train", "--config", "quickstart", "--dry-run", entry=entry)
    assert done.returncode == 0, done.stderr
    assert "10000 training and 2000 validation images" in done.stdout
    assert "cnn kernels" in done.stdout  # make built them in the checkout, for the checkout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("trian", "no command 'trian'; did you mean train?"),
        ("train --modle resnet", "cnn train: error: command line: unknown option --modle"),
        ("restore", "cnn restore: error: --restore-path"),
        ("predict efficientnet-lite0 --output x.csv", "cnn predict: error: the photos"),
        ("train", "cnn train --config quickstart"),
        ("poprun", "cnn train [option]..."),
        ("poprun python restore.py", "cnn restore"),
    ],
)
def test_errors_name_commands_as_called(words, named, site, elsewhere):
    done = called(site, elsewhere, *words.split())
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr


IMPORTED = """import sys
import cnn_harness
def own(): return {m for m in sys.modules if str(getattr(sys.modules[m], "__file__", "")).startswith(cnn_harness.__path__[0])}
assert own() == {"cnn_harness"} and "numpy" not in sys.modules
plan = cnn_harness.plan("mk2_resnet50_mlperf_pod16_bs20", "POD16")
assert "tensorflow" not in sys.modules
run = cnn_harness.train("quickstart", iterations=2, micro_batch_size=4, validation=False, logs_path="api_run", quiet=True)
from cnn_harness import ipu_utils
print([m for m in own() if not m.startswith("cnn_harness")], plan["fits"], cnn_harness.train(restore_path=run.folder, iterations=3, quiet=True))
try: cnn_harness.train("quickstart", modle="resnet")
except cnn_harness.OptionError as error: print(error)
"""


def test_api_imports_package_names_only(site, elsewhere):
    environ = {**os.environ, "PYTHONPATH": f"{elsewhere}{os.pathsep}{site}"}
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=elsewhere, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[] True TrainedNetwork('api_run')",
        "unknown option modle=; did you mean model=, model_size= or profile=?",
    ]


# The table of commands


def test_every_script_is_command():
    rows = commands.COMMANDS.values()
    assert [row.module for row in rows if importlib.util.find_spec(f"{commands.PACKAGE}.{row.module}") is None] == []
    scripts = {path.stem for path in ROOT.glob("*.py") if "\nif __name__ ==" in path.read_text()}
    assert scripts <= {row.module for row in rows}


@pytest.fixture
def as_cnn(monkeypatch):
    """Make this process look like a call of cnn train."""
    monkeypatch.setattr(commands, "_call", commands.Call(prog="cnn", command="train", path="/opt/env/bin/cnn"))


@pytest.mark.parametrize(("name", "row"), commands.COMMANDS.items(), ids=list(commands.COMMANDS))
def test_texts_name_commands_as_called(name, row, as_cnn):
    name = next(first for first, each in commands.COMMANDS.items() if each.module == row.module)
    expected = "poprun" if name == "poprun" else f"cnn {name}"
    assert commands.as_invoked(f"see {row.call} --help; or `{row.call}`") == f"see {expected} --help; or `{expected}`"


def test_file_names_are_unchanged(as_cnn, monkeypatch):
    for text in ("my/train.py is a file", "./train.py", "train.py: no such file", "mytrain.py", "train.pyc"):
        assert commands.as_invoked(text) == text
    monkeypatch.setattr(commands, "_call", None)
    assert commands.as_invoked("python train.py --help") == "python train.py --help"


def test_hints_use_program_as_called(as_cnn, monkeypatch, tmp_path):
    assert hints.command("validation", "--restore-path", "a b").endswith("/opt/env/bin/cnn validate --restore-path 'a b'")
    program = tmp_path / "cnn"
    program.touch(0o755)
    monkeypatch.setattr(commands, "_call", commands.Call(prog="cnn", command="train", path=str(program)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hints.command("restore") == "cnn restore"
    monkeypatch.setattr(commands, "_call", commands.Call(prog="python -m cnn_harness", command="train"))
    assert hints.command("restore").endswith(" -m cnn_harness restore")


def test_predict_is_validation_with_options():
    words = commands.COMMANDS["predict"].words
    named = ["--restore-path", "w.npz", "--predict", "a.jpg", "b"]
    assert words(["w.npz", "a.jpg", "b", "--output", "o.csv"]) == [*named, "--output", "o.csv"]
    assert words(named) == named
    with pytest.raises(OptionError, match="the photos are missing"):
        words(["w.npz"])


def test_installed_kernels_are_in_user_cache(monkeypatch, tmp_path):
    assert library.built() == ROOT / "cnn_harness/emulator/native/built"
    monkeypatch.setattr(commands, "in_checkout", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.built() == tmp_path / "cnn-harness/kernels"
