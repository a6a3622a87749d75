"""The documentation is true: its examples run, and its lists are complete."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import succeed

from cnn_harness.base import plugins
from cnn_harness.base.process import commands
from cnn_harness.harness.distributed import poprun_options
from cnn_harness.harness.options import configs, sections
from cnn_harness.harness.options.catalogue import section_options
from cnn_harness.harness.options.sections import SECTIONS
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.harness.run import cli

ROOT = plugins.ROOT
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PACKAGES = ("cnn_harness", "Models", "Datasets", "LR_Schedules", "Optimisers")
# scripts with their own flags, by the page that prints them, and flags of other programs
TOOLS = {
    "own-photos.md": ("cnn_harness/tools/import_weights.py", "bench/finetuning.py"),
    "data-sets.md": ("cnn_harness/tools/datasets/convert.py", "cnn_harness/tools/datasets/verify.py"),
    "reading-a-run.md": (
        "weight_avg.py",
        "cnn_harness/tools/report.py",
        "cnn_harness/tools/runs.py",
        "cnn_harness/tools/planning/plan_options.py",
    ),
    "export.md": ("cnn_harness/tools/exporting/export_options.py",),
    "comparison.md": ("cnn_harness/tools/exporting/export_options.py",),
    "number-formats.md": ("experiments/compare.py", "experiments/study.py"),
    "distributed.md": ("experiments/simulate_groups.py",),
    "sweeps.md": ("cnn_harness/tools/sweep.py", "cnn_harness/tools/planning/costs.py"),
    "paper.md": (
        "experiments/findings.py",
        "experiments/large_batch.py",
        "experiments/study.py",
        "cnn_harness/tools/planning/plan_options.py",
    ),
    "planner.md": (
        "cnn_harness/tools/planning/costs.py",
        "cnn_harness/tools/planning/plan_options.py",
        "cnn_harness/tools/fit_planner.py",
        "cnn_harness/tools/systems.py",
    ),
    "README.md": ("cnn_harness/tools/planning/plan_options.py",),
    "installing.md": ("cnn_harness/tools/planning/plan_options.py",),
}
OTHERS = {
    "emulation.md": {"--executable_cache_path"},
    "export.md": {"--strip-components"},
    "distributed.md": {"--host", "--tag-output", "--bind-to", "--map-by", "--dport", "--gpus-per-task"},
    "schedulers.md": {"--cpus-per-task", "--job-name", "--nodes", "--ntasks-per-node", "--time", "--signal", "--requeue", "--open-mode",
                      "--kill-on-bad-exit", "--resv-ports", "--mpi"},
    "measured.md": {"--slow"},
    "installing.md": {"--build-arg", "--gpus", "--no-deps", "--rm"},
}  # fmt: skip


def name(page: Path) -> str:
    """Return the name of a page's test."""
    return page.name


def test_plugin_examples_train(tmp_path):
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_weights"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, tmp_path)
    shutil.copy(ROOT / "configs.yml", tmp_path)
    text = (DOCS / "extending.md").read_text()
    examples = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.S)
    assert [name for name, _ in examples] == [
        "Models/tiny.py",
        "LR_Schedules/triangle.py",
        "Optimisers/Lion.py",
        "Datasets/numbers.py",
    ]
    for name, source in examples:
        (tmp_path / name).write_text(source)
    records = np.random.default_rng(0).integers(0, 10, (64, 3073), np.uint8)
    (tmp_path / "data").mkdir()
    for name in ("train.bin", "test.bin"):
        (tmp_path / "data" / name).write_bytes(records.tobytes())
    command = re.search(r"^python (train.py --model tiny .*)$", text, re.M)[1].replace("DIR", "data")
    done = subprocess.run(
        [sys.executable, *shlex.split(command), "--logs-path", "run", "--seed", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "64 training and 64 validation images" in done.stdout and ", Lion, learning rate up to 0.0001" in done.stdout
    assert (tmp_path / "run/ckpt-20.index").exists()


def test_options_without_effect_are_listed():
    page = (DOCS / "emulation.md").read_text()
    listed = set(re.findall(r"`(--[\w-]+)`", page.split("## Options that are recorded")[1].split("\n## ")[0]))
    options = [option for name, cls in SECTIONS.items() for option in section_options(name, cls)]
    for model in plugins.names("Models"):
        options += section_options("model", plugins.load("Models", model).Options)
    hints = {
        o.flag if o.default is not True or o.name == "on_demand" else "--no-" + o.flag[2:]
        for o in options
        if o.meta["kind"] == "hint"
    }
    assert listed == hints


def flags_of(*files: str) -> set[str]:
    """Return the flags of scripts with their own command line."""
    texts = [(ROOT / file).read_text() for file in files]
    written = [flag for text in texts for flag in re.findall(r'"(--[\w-]+)"', text)]
    written += [sections.flag(name) for text in texts for name in re.findall(r"(?m)^    (\w+): .* = opt\(", text)]
    return {*written, *(flag.replace("--", "--no-", 1) for flag in written)}


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Return the flags of the scripts with every model and schedule, and of poprun."""
    found = poprun_options.flags()
    for script in ("train", "validation", "restore", "inference_embedded"):
        for model in plugins.names("Models"):
            found |= cli.parse(["--model", model, "--dataset", "imagenet", "-h"], script, None, {}).catalogue.flags().keys()
    for schedule in plugins.names("LR_Schedules"):
        found |= (
            cli.parse(["--lr-schedule", schedule, "--dataset", "imagenet", "-h"], "train", None, {}).catalogue.flags().keys()
        )
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_docs_exist(page, known):
    text = page.read_text()
    names = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names
    for config in re.findall(r"--config ([^\s`]+)", text):
        assert config in names or config == "NAME", config
    written = set(re.findall(r"(?<![\w-])--[a-z][\w-]*\w(?![\w-])", text, re.I))
    assert written - known - OTHERS.get(page.name, set()) - flags_of(*TOOLS.get(page.name, ())) == set()
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    for called in re.findall(r"(?:^\$? ?|`)make ((?:\w+=\S+ )?[\w-]+)", text, re.M):
        assert called.split()[-1] in targets, called


@pytest.mark.parametrize("page", [*PAGES, ROOT / "bench/NOTES.md"], ids=name)
def test_links_between_pages_work(page):
    for link, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", page.read_text()):
        there = page.parent / link if link else page
        assert there.is_file(), link
        assert not anchor or anchor in anchors(there.read_text()), (link, anchor)
    assert not re.search(r"\]\([^)]*\s", page.read_text())


def anchors(text: str) -> set[str]:
    """Return the anchors of headings as used in links."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short_and_links_everything():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    listed = re.findall(r"^\| .* \| \[([\w.-]+)\]\(docs/\1\) \|$", text, re.M)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))
    charts = {link for page in PAGES for link in re.findall(r"!\[[^\]]+\]\((?:docs/)?([\w.-]+\.svg)\)", page.read_text())}
    assert charts == {path.name for path in DOCS.glob("*.svg")}


def printed(text: str) -> list[str]:
    """Return the commands in a page's code."""
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)
    return [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]


CALL = re.compile(r"(?:^|python |\$ )(train|validation|restore|inference_embedded)\.py (.*)$")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_docs_are_accepted(page):
    for line in printed(page.read_text()):
        call = CALL.search(line.split(" # ")[0])
        if call and call[2] != "..." and page.name != "extending.md":  # its model and data set do not exist yet
            words = shlex.split(call[2])
            recorded = {"dataset": "fashion-mnist"} if "--restore-path" in words else None
            cli.parse(words, call[1], recorded, dict(re.findall(r"(\bDATA_DIR)=(\S+)", line)))


CNN = re.compile(r"(?:^|/|\\$ )cnn (.*)$")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_installed_commands_are_accepted(page):
    """Commands that take only run options are parsed; the others only have to exist."""
    lines = [CNN.search(line.split(" # ")[0]) for line in printed(page.read_text())]
    for name, *words in [shlex.split(call[1]) for call in lines if call]:
        row = commands.COMMANDS.get(name)
        assert row or name in ("--version", "--list-configs"), name
        if row and row.module == row.takes:
            cli.parse(
                row.words(words), row.takes, {"dataset": "imagenet"} if "restore" in name or "predict" in name else None, {}
            )
    assert any(lines) or page.name != "installing.md"
    written = re.findall(r"`cnn ([\w-]+)", page.read_text())
    assert [name for name in written if name not in (*commands.COMMANDS, "COMMAND", "help")] == []


def test_script_for_all_versions_names_existing_commands():
    found = re.findall(r"\bcnn ([a-z][a-z-]*)", (ROOT / ".ci/matrix").read_text())
    assert len(found) > 5 and set(found) <= commands.COMMANDS.keys()


def test_drawn_schedule_matches_dry_run():
    block = next(
        b for b in re.findall(r"^```\n(.*?)^```$", (DOCS / "layouts.md").read_text(), re.M | re.S) if "--dry-run" in b
    )
    command, drawn = re.sub(r"\\\n\s*", "", block).split("\n", 1)
    assert drawn in succeed("train", *shlex.split(CALL.search(command)[2])).out


def test_tour_names_existing_places():
    """Files by their paths, and the functions and classes that are named in them."""
    text = (DOCS / "architecture.md").read_text()
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if path.stem != "__init__"]
    places = [(folder + name, "") for folder, names in re.findall(r"`([\w/]+/)`: ((?:`\w+\.py`(?:, )?)+)", text)
              for name in re.findall(r"`(\w+\.py)`", names)]  # fmt: skip
    places += re.findall(r"`(\w+/[\w/]+\.py)(?:: ([\w.]+))?`", text)
    for path, names in re.findall(r"`(\w+/[\w/]+\.py)(?:: [\w.]+)?`:?((?:,? `\w+`)+)", text):
        places += [(path, name) for name in re.findall(r"\w+", names)]
    assert len(places) > 40
    for path, name in places:
        code = next(place for place in (ROOT / "cnn_harness" / path, ROOT / path) if place.exists()).read_text()
        for part in filter(None, name.split(".")):
            assert re.search(rf"^ *((def|class) {part}\b|{part}\b.* = )", code, re.M), (path, name)
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)`", text)
    assert len(methods) > 5
    everything = "\n".join(path.read_text() for path in files)
    for kind, method in methods:
        (body,) = re.findall(rf"^class {kind}\b.*?(?=^\S|\Z)", everything, re.M | re.S) or [""]
        assert re.search(rf"^    (def {method}\b|{method}\b.*[:=])", body, re.M), (kind, method)
