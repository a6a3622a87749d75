"""The commands in README.md and docs/*.md run: each is executed in a copy of a checkout, or listed here with a reason.

A command is a line of a code block or an inline code span that begins with one of PROGRAMS. Without an entry in LISTED or
LONGER, it must succeed as it is printed. The lines that a page prints below a command must be in its output.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from timm_networks import recorded

from cnn_harness.base import plugins
from cnn_harness.base.process import commands

ROOT = plugins.ROOT
PAGES = {page.name: page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
OWN = r"(?:\S*/)?(?:python|cnn|poprun|gc-profile|gc-info|\w+\.py)"
FOREIGN = r"(?:\S*/)?(?:make|pip|docker|git|apt|apt-get|sudo|kill|iptables|mpirun|mpiexec|srun|sbatch|scontrol|kubectl)"
PROGRAMS = re.compile(rf"(?:[A-Z_]+=\S+ )*({OWN}|{FOREIGN}) \S|make$")

# These are not run. A text is a beginning of commands.
LISTED = {
    "make": "other lines of .ci/run call the targets",
    "pip": "installs packages",
    ".venv/bin/pip": "installs packages",
    "python -m venv env": "installs the package, as test_installed.py does",
    "env/bin/": "installs the package, as test_installed.py does",
    "docker": "needs Docker",
    "iptables": "changes the firewall",
    "kill -USR1 <mpirun>": "needs a run of mpirun",
    "mpirun": "needs two hosts",
    "mpiexec": "needs two hosts",
    "poprun --host host0,host1": "needs two hosts",
    "python train.py --config quickstart --distributed": "needs two hosts",
    "srun": "needs Slurm",
    "sbatch": "needs Slurm",
    "python train.py --model tiny --lr-schedule triangle": "test_docs.py runs it with the three plug-ins of the page",
    "python train.py --config quickstart --lr-schedule triangle": "needs the plug-in of the page",
    "python train.py --config B0-G16-GN-Half_16IPU_2x8": "needs ImageNet and days",
    "python validation.py --config B0-G16-GN-Native_16IPU_2x8": "needs ImageNet and days",
    "python -m cnn_harness train": "needs an installed package, as in test_installed.py",
    ".venv/bin/python -m bench.data_sets sets": "downloads packages",
    ".venv/bin/python -m bench.finetuning sets": "takes more than ten minutes",
    "cnn systems --measure computer.yml": "takes a minute of a computer without load; test_plan.py measures small networks",
    "cnn plan --config quickstart --system computer.yml": "needs the file of the line before",
    "cnn plan --system office.yml": "needs the files of the page, as in test_plan.py",
    ".venv/bin/cnn finetune sets/digits": "takes minutes; the others run cnn finetune photos",
    "python -m experiments.findings": "takes more than ten minutes",
    "python -m experiments.compare": "takes more than ten minutes",
    "python -m experiments.sizes": "takes ten minutes",
    "python -m experiments.faults": "takes more than ten minutes",
    "python -m experiments.large_batch": "takes an hour",
    "cnn COMMAND --help": "is the form of all commands; test_commands.py runs them",
}
# These take more than a minute, or need a confirmation: options that are appended.
DRY, SHORT, PART = "--dry-run", "--iterations 20 --no-validation", "--epochs 0.05 --no-validation"
LONGER = {
    ".venv/bin/cnn finetune photos": "--image-size 64 --epochs 1",
    ".venv/bin/python restore.py --restore-path logs/RN14_bs64_BN_32.32_8ML --epochs 12": DRY,
    ".venv/bin/poprun --num-instances 2 --num-replicas 2 .venv/bin/python train.py --config quickstart":
        "--iterations 20 --stop-after 10 --no-validation --logs-path RUN",
    "poprun --max-restarts 10 --num-instances 2 --num-replicas 4 python train.py --config quickstart --autoresume "
    "--logs-path RUN": f"{SHORT} --logs-path restarted",
    ".venv/bin/gc-profile -d profile -- .venv/bin/python train.py --config quickstart --gc-profile": SHORT,
    "train.py --config quickstart --precision 8.16 --loss-scaling 1": SHORT,
    "train.py --config quickstart --logs-path logs/RUN --autoresume": "--batch-size 8 --iterations 520",
    ".venv/bin/python train.py --dataset fashion-mnist --model-size 8 --batch-size 64 --epochs 16": PART,
    ".venv/bin/python train.py --config quickstart --epochs 12": DRY,
    "train.py FOLDER": DRY,
    "train.py NAME": DRY,
    "restore.py --restore-path logs/RUN --epochs 16": DRY,
    ".venv/bin/cnn train --dataset imagefolder --data-dir photos": "--epochs 1 --image-size 64",
    "python train.py --config B0-G16-GN-Half_mini --logs-path logs/half": SHORT,
    "python train.py --config B0-G16-GN-Native_mini --init-path": PART,
    "poprun --num-instances 2 --num-replicas 2 --ipus-per-replica 2": SHORT,
    "python train.py --config resnet50_mlperf_mini": SHORT,
    ".venv/bin/cnn sweep sweep.yml rates --jobs 2": "--epochs 0.1",
    ".venv/bin/cnn runs logs --remove diverged": "--yes",
}  # fmt: skip
FAILS = {"train.py --config quickstart --precision 16.16 --loss-scaling 1e7 --fp-exceptions": 1}
# The lines below these commands differ in each run or need the user's data.
VARIES = (
    "make",
    ".venv/bin/cnn finetune",
    ".venv/bin/cnn export",
    ".venv/bin/cnn runs",
    ".venv/bin/poprun",
    "train.py --config quickstart --precision",
)
# What a user would write for a placeholder. The runs and folders are made by `place`.
WORDS = {
    "logs/<run>": "logs/quickstart", "logs/<other>": "logs/RUN", "PHOTO...": "cat.jpg dog.jpg", "PHOTO.jpg": "cat.jpg",
    "NAME": "B0-G1-GN-Native_16IPU_2x8", "FOLDER": "photos", "WEIGHTS": "efficientnet-lite0", "DIR": "shards", "FILE": "page.svg",
    "RUN": "logs/RUN",
    # the packages of ONNX are not among those of the tests
    "onnx,tflite": "tflite", "savedmodel,tflite,onnx": "savedmodel,tflite",
}  # fmt: skip
ON_PAGE = {"options.md": {"NAME": "quickstart"}, "distributed.md": {"RUN": "RUN"}}
# These spans name a command; without words, most commands only report what is missing.
NAMES = {*(f"cnn {name}" for name in commands.COMMANDS), *(row.call for row in commands.COMMANDS.values())}
AFTER = {"recipes.md": "paper.md"}  # a page that uses the runs of another page


@dataclass(frozen=True)
class Printed:
    """A command on a page, and the lines that the page prints below it."""

    text: str
    output: tuple[str, ...] = ()

    @property
    def listed(self) -> bool:
        return _entry(LISTED, self.text) is not None

    def words(self, page: str) -> str:
        """Return the command as a user would call it."""
        text = f"{self.text} {_entry(LONGER, self.text) or ''}"
        if re.match(r"(\S*/)?\w+\.py ", text):
            text = f"python {text}"
        for word, value in {**WORDS, **ON_PAGE.get(page, {})}.items():
            text = re.sub(rf"(?<![\w/<]){re.escape(word)}(?![\w>])", value, text)
        return text


def _entry(table: dict[str, str], text: str) -> str | None:
    return next((value for start, value in table.items() if text.startswith(start)), None)


def printed(text: str) -> Iterator[Printed]:
    """Yield the commands of a page in its order."""
    for kind, block, span in re.findall(r"^```(\w*)\n(.*?)^```$|`([^`]+)`", text, re.M | re.S):
        if span:
            line = " ".join(span.split())
            if PROGRAMS.match(line) and line not in NAMES:
                yield Printed(line)
        elif not kind:
            yield from _in_block(re.sub(r"\\\n\s*", "", block).splitlines())


def _in_block(lines: list[str]) -> Iterator[Printed]:
    """Yield the commands of a code block."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if PROGRAMS.match(line.removeprefix("$ ")):
            found.append((re.sub(r"\s+# .*", "", line.removeprefix("$ ")), []))
        elif found and line.strip() and not line.startswith("# "):
            found[-1][1].append(line)
    yield from (Printed(text, tuple(output)) for text, output in found)


def _commands() -> dict[str, list[Printed]]:
    """Return the commands by the first page that prints them."""
    seen: set[str] = set()
    found: dict[str, list[Printed]] = {name: [] for name in PAGES}
    for name, page in PAGES.items():
        for command in printed(page.read_text()):
            if command.text not in seen:
                found[name].append(command)
            seen.add(command.text)
    return found


COMMANDS = _commands()


def test_every_command_is_run_or_listed():
    """A command of another program needs an entry; an entry needs a command."""
    everything = [command for page in COMMANDS.values() for command in page]
    assert len(everything) > 100
    unknown = [each.text for each in everything if not each.listed and not re.match(rf"(?:[A-Z_]+=\S+ )*{OWN} ", each.text)]
    assert unknown == []
    unused = [entry for table in (LISTED, LONGER, FAILS, dict.fromkeys(VARIES)) for entry in table
              if not any(each.text.startswith(entry) for each in everything)]  # fmt: skip
    assert unused == []


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """Return a folder that looks like a checkout of a user: with a folder of photos, a sweep and some runs."""
    place = tmp_path_factory.mktemp("docs") / "checkout"
    place.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "logs"):
            (place / path.name).symlink_to(path)
    (place / ".venv").symlink_to(sys.prefix)
    _write_photos(place)
    (sweeps,) = re.findall(r"^```yaml\n(.*?)^```$", PAGES["sweeps.md"].read_text(), re.M | re.S)
    (place / "sweep.yml").write_text(sweeps)
    _write_weights(place / "model.safetensors")
    _call(place, "cnn finetune photos --image-size 64 --epochs 1")
    quick = "cnn train --config quickstart --batch-size 8 --iterations 520 --log-freq 100 --ckpts-per-epoch 12"
    _call(place, f"{quick} --stop-after 500 --logs-path logs/quickstart")
    for name in ("RUN", "RN14_bs64_BN_32.32_8ML", "diverged"):
        shutil.copytree(place / "logs/quickstart", place / "logs" / name)
    return place


def _write_photos(place: Path) -> None:
    """Write 60 images of each of four classes as PNGs, and some photos under the names that the pages use."""
    _call(ROOT, f"python test/helpers/clothing.py {place / 'photos'} --images 60")
    one = next((place / "photos").rglob("*.png"))
    for name in ("cat", "dog", "chelsea", "coffee", "china", "flower"):
        for ending in ("jpg", "png"):
            shutil.copy(one, place / f"{name}.{ending}")
    (place / "new-photos").mkdir()
    shutil.copy(one, place / "new-photos")


def _write_weights(path: Path) -> None:
    """Write a file of torchvision's ResNet-18 as a user would download it, with random weights."""
    draw, (_, shapes) = np.random.default_rng(1), recorded("resnet18")
    save_file({name: draw.uniform(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}, path)


def _call(place: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, as after `. .venv/bin/activate`."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=place, env=environ, capture_output=True, text=True, timeout=600)


def shown(output: tuple[str, ...]) -> list[str]:
    """Return the pieces of printed lines that must be in the output; `...` stands for anything."""
    return [" ".join(piece.split()) for line in output for piece in line.split("...") if piece.strip()]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # with other programs on the cores
@pytest.mark.parametrize("page", [name for name, found in COMMANDS.items() if name not in AFTER and found])
def test_commands_run_as_printed(page: str, place: Path, tmp_path: Path):
    """In one copy of `place` for each page, in the order of the page."""
    copy = tmp_path / "checkout"
    shutil.copytree(place, copy, symlinks=True)
    wrong = []
    for name in (page, *(later for later, before in AFTER.items() if before == page)):
        for command in COMMANDS[name]:
            if command.listed:
                continue
            line = command.words(name)
            done = _call(copy, line)
            said = " ".join(f"{done.stdout} {done.stderr}".split())
            if done.returncode != (_entry(FAILS, command.text) or 0):
                wrong.append(f"{name}: {line}: exit code {done.returncode}: {done.stderr[-500:]}")
            elif not command.text.startswith(VARIES):
                wrong += [f"{name}: {line}: not printed: {piece}" for piece in shown(command.output) if piece not in said]
    assert wrong == [], "\n".join(wrong)
