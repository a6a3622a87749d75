"""An installation: one package with everything needed to run, and the command cnn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cnn_harness.base import plugins
from cnn_harness.base.process import commands

ROOT = plugins.ROOT
NOT_RUN = ("docs", "test", "benchmarks", ".ci")  # only in a checkout
NOT_RUN += ("Makefile", "README.md", "LICENSE", "pyproject.toml", "constraints.txt", "Dockerfile")
NOT_RUN += ("requirements.txt", "requirements-test.txt", "requirements-bench.txt", ".gitignore", ".dockerignore")
BUILD = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"


def tracked() -> list[str]:
    """Return the files of the checkout, including uncommitted ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel in a copy of the checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, of which git could tell the files")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run([sys.executable, "-c", BUILD, str(target)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(target.glob("*.whl"))


def test_wheel_has_checkout_in_one_package(wheel):
    needed = {name for name in tracked() if name.split("/")[0] not in NOT_RUN}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"cnn_harness-{wheel.name.split('-')[1]}.dist-info"
        assert {name.split("/")[0] for name in names} == {commands.PACKAGE, "popdist", info}
        assert {name.partition("/")[2] for name in names if name.startswith("cnn_harness/")} == needed
        assert [name for name in needed if archive.read(f"cnn_harness/{name}") != (ROOT / name).read_bytes()] == []
        entries = archive.read(f"{info}/entry_points.txt").decode()
    assert [line.split(" = ")[0] for line in entries.splitlines()[1:] if line] == ["cnn", "gc-info", "gc-profile", "poprun"]


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
