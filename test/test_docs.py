"""The documentation says what is so: its examples run, and its lists are complete."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from base import plugins
from harness.commands import cli
from harness.options import configs
from harness.options.catalogue import section_options
from harness.options.sections import SECTIONS
from harness.options.sources import DEFAULT_CONFIG_PATH

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("base", "Models", "Datasets", "LR_Schedules", "emulator", "harness")


def test_the_examples_of_plug_ins_train(tmp_path):
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_weights"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, tmp_path)
    shutil.copy(ROOT / "configs.yml", tmp_path)
    text = (DOCS / "extending.md").read_text()
    examples = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.S)
    assert [name for name, _ in examples] == ["Models/tiny.py", "LR_Schedules/triangle.py", "Datasets/numbers.py"]
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
    assert "64 training and 64 validation images" in done.stdout and (tmp_path / "run/ckpt-20.index").exists()


def test_every_option_without_effect_is_on_the_list():
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


@pytest.mark.parametrize("page", ["recipes.md", "emulation.md", "extending.md", "distributed.md", "architecture.md"])
def test_names_in_the_pages_exist(page):
    text = (DOCS / page).read_text()
    names = configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names
    for name in re.findall(r"--config (\S+)", text):
        assert name in names or name == "NAME", name
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (DOCS / link).exists(), link
    known = {"--executable_cache_path", "--numa-aware", "--host", "--tag-output", "--bind-to", "--map-by"}
    for script in ("train", "validation", "restore", "inference_embedded"):
        for model in plugins.names("Models"):
            known |= cli.parse(["--model", model, "--dataset", "imagenet", "-h"], script, None, {}).catalogue.flags().keys()
    for schedule in plugins.names("LR_Schedules"):
        known |= (
            cli.parse(["--lr-schedule", schedule, "--dataset", "imagenet", "-h"], "train", None, {}).catalogue.flags().keys()
        )
    import poprun

    known |= {f"--{name}" for name in poprun.OPTIONS}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*\w(?![\w-])", text, re.I)) - known == set()


def test_the_tour_leads_to_places_that_exist():
    """Files by their paths, or by their names in the room of that row; and what is named in them."""
    text = (DOCS / "architecture.md").read_text()
    rooms = re.findall(r"^\| `([\w/]+/)` \| .* \| (.*) \|$", text, re.M)
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if path.stem != "__init__"]
    assert {room for room, _ in rooms} == {f"{path.parent.relative_to(ROOT)}/" for path in files}
    places = [(room + name, "") for room, names in rooms for name in re.findall(r"`(\w+\.py)`", names)]
    places += re.findall(r"`(\w+/[\w/]+\.py)(?:: ([\w.]+))?`", text)
    assert len(places) > 40
    for path, name in places:
        code = (ROOT / path).read_text()
        for part in filter(None, name.split(".")):
            assert re.search(rf"^ *(def|class) {part}\b", code, re.M), (path, name)
