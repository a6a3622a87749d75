"""Profiles show the cells as they ran: overlapping stages in the schedule's order, as a trace and a chart."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from commands import assert_same_bits, rows, succeed, training_program, variables
from figures import SVG

from cnn_harness.base import plugins
from cnn_harness.emulator.plan import schedules, timings
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.program.training_program import Profile
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

ROOT = plugins.ROOT
RESNET = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --fold 1"
STAGED = f"{RESNET} --shards 4 --pipeline --pipeline-splits b1/0/relu b2/0/relu b3/0/relu --gradient-accumulation-count 10"


def profiled(words: str, operations: bool = False, **device: str) -> tuple[ExecutionPlan, Profile]:
    """Return a recorded update; a first one warms up."""
    options = cli.parse(words.split(), "train", environ={}).options
    prepared = prepare(replace(options, device=replace(options.device, **device)), {}).run
    built = training_program(prepared, 0, recording=True)
    built.step([0.05])
    found = built.profile(0.05, operations)
    built.close()
    return prepared.plan, found


@pytest.fixture(scope="module", params=sorted({row.make: name for name, row in schedules.SCHEDULES.items()}.values()))
def scheduled(request):
    shards = 4 // schedules.SCHEDULES[request.param].stages_per_device
    return profiled(f"{STAGED} --shards {shards} --pipeline-schedule {request.param}")


def done(cells, device, devices=4):
    """Return the actions of a device, sorted by begin."""
    own = sorted((cell for cell in cells if cell.action.stage % devices == device), key=lambda cell: (cell.begin, cell.end))
    return tuple(cell.action for cell in own)


@pytest.mark.slow
def test_stages_keep_to_schedule(scheduled):
    plan, found = scheduled
    drawn = schedules.build(plan.schedule, 4, plan.passes_per_update)
    ended = {cell.action: cell.end for cell in found.cells}
    begun = {cell.action: cell.begin for cell in found.cells}
    for device in range(plan.pipeline_devices):
        own = done(found.cells, device, plan.pipeline_devices)
        assert own == schedules.order(drawn, device)
        assert all(ended[before] <= begun[after] for before, after in itertools.pairwise(own))
    for cell in found.cells:
        assert all(ended[needed] <= cell.begin for needed in schedules.dependencies(cell.action, 4))


def test_stages_overlap_if_schedule_allows(scheduled):
    plan, found = scheduled
    at_once = timings.busy_at_once(found.cells)
    assert at_once == 1 if plan.schedule == "Sequential" else at_once >= min(3, plan.pipeline_devices)


@pytest.mark.parametrize("layout", ["", "--enable-recomputation"])
def test_split_backward_delays_gradients_of_weights(layout):
    """Products for gradients of kernels run inside W cells, and products for gradients of inputs inside B cells."""
    _, found = profiled(f"{STAGED} --pipeline-schedule ZB-H1 {layout}", operations=True)
    for product, kind in (("BackpropFilter", schedules.WEIGHTS), ("BackpropInput", schedules.BACKWARD)):
        cells = [(1e6 * cell.begin, 1e6 * cell.end) for cell in found.cells if cell.action.kind == kind]
        ran = [each for each in found.operations if each.get("args", {}).get("op", "").endswith(product)]
        assert ran and all(
            any(begin <= each["ts"] and each["ts"] + each["dur"] <= end + 1 for begin, end in cells) for each in ran
        )


def test_missing_gates_break_order(monkeypatch):
    """Without the gates, cells run as soon as their data allows, and the check notices."""
    from cnn_harness.emulator.program.cells import Cells

    monkeypatch.setattr(Cells, "_gates", lambda self, stage, kind, x: [])
    plan, found = profiled(f"{STAGED} --pipeline-schedule Interleaved".replace("count 10", "count 24"))
    drawn = schedules.build(plan.schedule, 4, plan.passes_per_update)
    assert any(done(found.cells, stage) != schedules.order(drawn, stage) for stage in range(4))


@pytest.mark.slow
def test_recording_changes_no_bit(tmp_path):
    folders = [tmp_path / name for name in ("with", "without")]
    for folder, words in zip(folders, (["--profile"], [])):
        succeed("train", *STAGED.split(), "--iterations", 2, "--no-validation", "--logs-path", folder, *words)
    assert_same_bits(*(variables(folder, 2) for folder in folders))
    names = ("step", "iteration", "loss_batch", "loss_avg", "lr")
    one, other = ([[row[name] for name in names] for row in rows(folder / "training.csv")] for folder in folders)
    assert one == other


def bars(path: Path) -> list[str]:
    """Return the texts of the chart's cells, shown under the mouse."""
    return [title.text for group in ET.parse(path).iter(f"{SVG}g") for title in group.findall(f"{SVG}title")]


@pytest.mark.slow
def test_profile_is_written_where_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*STAGED.split(), "--iterations", 3, "--no-validation"]
    out = succeed("train", *words, "--logs-path", "one", "--profile").out
    assert "one/profile.svg" in out
    events = json.loads(Path("one/profile.json").read_text())["traceEvents"]
    cells = [event for event in events if event.get("cat") in ("forward", "backward")]
    assert len(cells) == 2 * 4 * 10
    assert {(event["tid"], event["name"]) for event in cells} == {
        (j, f"{kind} {i}") for j in range(4) for kind in ("forward", "backward") for i in range(10)
    }
    convolutions = [event for event in events if event.get("args", {}).get("op", "").endswith("Conv2D")]
    assert len(convolutions) >= 7 * 10
    begin, end = min(e["ts"] for e in cells), max(e["ts"] + e["dur"] for e in cells)
    assert all(begin <= event["ts"] <= end for event in convolutions)
    drawn = bars(Path("one/profile.svg"))
    assert len(drawn) == 2 * 2 * 4 * 10  # scheduled and measured
    assert "stage 3, backward of pass 9: clock 22" in drawn

    succeed("train", *words, "--logs-path", "two", "--profile", "kept/", "--gc-profile", "DEVICE_PROFILE")
    assert not Path("two/profile.svg").exists()
    assert len(bars(Path("kept/profile.svg"))) == len(drawn)
    assert all(event.get("cat") != "Op" for event in json.loads(Path("kept/profile.json").read_text())["traceEvents"])
    assert Path("kept/execution.json").exists() and not Path("one/execution.json").exists()  # --profile alone writes none

    succeed("train", *words, "--logs-path", "three", "--gc-profile", "NO_PROFILE")
    assert not Path("three/profile.svg").exists()


def phases(output: str) -> dict[str, float]:
    """Return the table of a build's profile: seconds by phase."""
    table = output.split("Compilation profile, ")[1].split("\nTrace of")[0]
    return {name: float(seconds) for name, seconds in re.findall(r"^  (\S.*?) +([\d.]+) s(?:  .*)?$", table, re.M)}


@pytest.mark.slow
def test_profile_explains_time_before_first_update(tmp_path):
    words = [*RESNET.split(), "--iterations", 6, "--no-validation", "--batches-per-step", 6,
             "--executable-cache-path", tmp_path / "programs"]  # fmt: skip
    before, after = ["options, data and plan", "import of TensorFlow"], [
        "loading of the optimised graph", "session and initial weights", "executors"]  # fmt: skip
    built, taken = [*before, "graph", "optimisation of the graph", *after], [*before, *after]
    out = succeed("train", *words, "--logs-path", tmp_path / "one", "--profile-compilation").out
    found = phases(out)
    assert list(found) == [*built, "restoring, first checkpoint", "first update"]
    assert re.search(r"first update +[\d.]+ s  the second took [\d.]+ s\n", out)
    assert re.search(r"graph +[\d.]+ s  [\d,]{5,} operations\n", out)
    events = json.loads((tmp_path / "one/compilation.json").read_text())["traceEvents"]
    assert {event["name"]: round(event["dur"] / 1e6, 2) for event in events} == found
    assert all(math.isclose(a["ts"] + a["dur"], b["ts"], abs_tol=1) for a, b in itertools.pairwise(events))

    succeed("train", *words, "--logs-path", tmp_path / "two")  # six updates at once, not one, one and four
    assert not (tmp_path / "two/compilation.json").exists()
    assert_same_bits(*(variables(tmp_path / name, 6) for name in ("one", "two")))
    out = succeed("restore", "--restore-path", tmp_path / "one", "--iterations", 7, "--profile-compilation").out
    assert list(phases(out))[-1] == "first update" and "the second took" not in out
    assert "Compilation profile" not in succeed("restore", "--restore-path", tmp_path / "one", "--iterations", 8).out

    out = succeed(
        "validation", "--restore-path", tmp_path / "one", "--profile-compilation", "--logs-path", tmp_path / "v"
    ).out
    assert list(phases(out)) == [*built, "first micro-batch"] and (tmp_path / "v/compilation.json").exists()
    out = succeed("train", *words, "--logs-path", tmp_path / "three", "--profile-compilation", "--compile-only").out
    assert list(phases(out)) == taken and not (tmp_path / "three").exists()


@pytest.mark.slow
def test_gc_profile_runs_command(tmp_path):
    words = [*RESNET.split(), "--iterations", "3", "--no-validation", "--no-logs"]
    tool = [sys.executable, "-m", "cnn_harness.tools.gc_profile", "-d", str(tmp_path / "kept")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*tool, "--", sys.executable, str(ROOT / "train.py"), *words, "--gc-profile", "DEVICE_PROFILE"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "profile.json", "profile.svg", "execution.json", "archive.a", "stdout.txt"
    }  # fmt: skip
    subprocess.run(["ar", "x", "archive.a", "--output", tmp_path], cwd=tmp_path / "kept", check=True)
    for name in ("profile.json", "profile.svg", "execution.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()
    assert (tmp_path / "kept/stdout.txt").read_text() == done.stdout
    found = json.loads((tmp_path / "kept/execution.json").read_text())
    assert (found["kind"], found["stages"], found["operations"]) == ("DEVICE_PROFILE", 1, {})
    assert [cell["kind"] for cell in found["cells"]] == ["forward", "backward"]


def test_validation_is_profiled(tmp_path):
    words = [*RESNET.split(), "--generated-data", "--logs-path", tmp_path / "run", "--profile", tmp_path / "p"]
    out = succeed("validation", *words, "--gc-profile").out
    assert "operations of one micro-batch" in out
    assert out.endswith((tmp_path / "stdout.txt").read_text()) and "top-1 accuracy" in (tmp_path / "stdout.txt").read_text()
    counted = json.loads((tmp_path / "execution.json").read_text())["operations"]
    assert sum(counted[kind]["count"] for kind in counted if kind.endswith("Conv2D")) >= 7
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert any(event.get("args", {}).get("op", "").endswith("Conv2D") for event in events)


@pytest.mark.slow
def test_recomputation_lowers_peak_accumulation_adds_nothing():
    """Measured in bytes of tensors alive at once in a recorded update."""
    words = (
        "--precision 32.32 --model resnet --model-size 14 --dataset fashion-mnist --synthetic-data --batch-size 8 --fold 1"
    )

    def most_alive(extra: str) -> int:
        return profiled(f"{words} {extra}", operations=True)[1].most_alive

    def least(extra: str) -> int:  # which operations overlap depends on the machine's load
        return min(most_alive(extra) for _ in range(2))

    alone, more = least(""), least("--batch-size 64")
    assert 2e6 < alone < 500e6
    # without oneDNN, convolutions take some 50 MB for any batch: only the increase per image counts
    recomputed = least("--enable-recomputation")
    assert any(most_alive("--enable-recomputation --batch-size 64") - recomputed < 0.8 * (more - alone) for _ in range(3))
    for extra in ("--gradient-accumulation-count 8", "--replicas 8"):  # keeping all eight would take four times as much
        assert any(most_alive(f"{extra} --batch-size 64") < 2 * more for _ in range(3)), extra
