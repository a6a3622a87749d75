"""Host memory: predictions agree with measurements, limits are read from the system, and a run that does not fit is rejected."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cnn_harness.train as train
from cnn_harness.base import host_limits, plugins
from cnn_harness.base.host_limits import ADDRESSES, DATA, RESIDENT, Limit
from cnn_harness.emulator.plan import host_memory
from cnn_harness.harness.commands import answers, entry
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.run.resolve import prepare

ROOT = plugins.ROOT
R50 = "--model resnet --model-size 50 --dataset imagenet --generated-data --optimiser momentum --no-validation"
R18 = "--model resnet --model-size 18 --dataset imagenet --generated-data --optimiser momentum --no-validation --batch-norm"
B0 = "--model efficientnet --dataset imagenet --generated-data --no-validation"
STAGES = "--shards 4 --pipeline --pipeline-splits auto"
SMALL = "--model resnet --model-size 8 --dataset cifar-10 --generated-data"
# words -> peaks of a process with native kernels on two cores of an AMD EPYC (Zen 5), in MB: resident (VmHWM), address space
# (VmPeak), writable (VmData). Trainings had 6 iterations.
MEASURED = {
    f"{SMALL} --precision 32.32 --micro-batch-size 32 --no-validation": (604, 2272, 544),
    f"{R50} --precision 32.32 --micro-batch-size 2": (1523, 3659, 1988),
    f"{R50} --precision 32.32 --micro-batch-size 8": (2179, 4766, 3125),
    f"{R50} --precision 32.32 --micro-batch-size 16": (3163, 4756, 3118),
    f"{R50} --precision 32.32 --micro-batch-size 1 --image-size 64 --optimiser LAMB --abs-learning-rate 1": (2089, 3850, 2187),
    f"{B0} --precision 32.32 --micro-batch-size 4 --group-norm": (1146, 3062, 1370),
    f"{B0} --precision 32.32 --micro-batch-size 16 --batch-norm": (2094, 4725, 3058),
    f"{B0} --precision 32.32 --micro-batch-size 8 --batch-norm --enable-recomputation": (1184, 3096, 1427),
    f"{R18} --precision 32.32 --micro-batch-size 24 --enable-recomputation": (1490, 3498, 1812),
    f"{R18} --precision 32.32 --micro-batch-size 4 --gradient-accumulation-count 8": (1569, 3513, 1827),
    f"{R18} --precision 32.32 --micro-batch-size 8 --gradient-accumulation-count 8 {STAGES} --fold 1": (1833, 3528, 1868),
    f"{R18} --precision 32.32 --micro-batch-size 2 --optimiser RMSprop --abs-learning-rate 1": (1213, 3040, 1346),
    f"{SMALL} --model-size 20 --precision 32.32 --micro-batch-size 1024 --no-validation": (2347, 4475, 2759),
    f"{SMALL} --precision 32.32 --micro-batch-size 16 --valid-batch-size 2500": (1288, 3469, 1764),
    f"{SMALL} --precision 16.16 --micro-batch-size 32 --no-validation": (598, 2274, 544),
    f"{R50} --precision 16.16 --micro-batch-size 8": (1778, 3880, 2207),
    f"{B0} --precision 16.16 --micro-batch-size 16 --group-norm": (1818, 3710, 2065),
    f"{R50} --precision bf16.32 --micro-batch-size 8 --image-size 128": (1574, 3742, 2083),
    f"{R50} --precision bf16.32 --no-native-arithmetic --micro-batch-size 8 --image-size 128": (1565, 3686, 2008),
    f"validation: {R18} --precision 32.32 --micro-batch-size 256 --image-size 128": (1217, 2845, 1127),
    f"validation: {R18} --precision 32.32 --micro-batch-size 128": (1549, 3394, 1666),
    f"validation: {B0} --precision 32.32 --micro-batch-size 64 --batch-norm": (1545, 3391, 1643),
}  # fmt: skip


def prepared(words: str, script: str = "train"):
    parsed = answers.parse(Call.of_words(words.split(), script))
    return prepare(parsed.options, {}, training=script == "train").run


def with_limits(monkeypatch, *limits: Limit) -> None:
    monkeypatch.setattr(host_limits, "limits", lambda: limits)


def machine(gigabytes: float) -> Limit:
    return Limit(RESIDENT, int(gigabytes * 1e9), "this machine has", shared=True)


def asked(words: str, script: str = "train"):
    """Return the run as a command gets it before it builds anything."""
    return entry.checked_run(Call.of_words(words.split(), script), training=script == "train")


@pytest.mark.parametrize("words", MEASURED)
def test_predictions_match_measurements(words):
    script, _, options = words.rpartition(": ")
    memory = prepared(options, script or "train").memory
    for kind, tolerated, measured in zip((RESIDENT, ADDRESSES, DATA), (0.12, 0.13, 0.28), MEASURED[words]):
        predicted = memory.of_kind(kind) / 1e6
        assert abs(predicted / measured - 1) < tolerated, f"{kind}: {predicted:.0f} MB, measured {measured}"
        assert not host_memory.find_exceeded_limit(memory, [Limit(kind, measured * 10**6, "measured")])[1]


def test_smaller_runs_predict_less_memory():
    words = f"{R18} --precision 32.32 --micro-batch-size 8 --gradient-accumulation-count 8"

    def peak(more: str = "") -> int:
        return prepared(f"{words} {more}").memory.peak

    assert peak("--fold 1 --enable-recomputation") < peak("--fold 1") < peak("--fold 4")
    assert peak("--fold 1 --micro-batch-size 4") < peak("--fold 1") < peak("--fold 1 --image-size 256")
    assert peak("--fold 1 --gradient-accumulation-count 64") == peak("--fold 1") == peak("--fold 1 --replicas 4")
    stages = "--fold 1 --shards 4 --pipeline --pipeline-splits auto --pipeline-schedule"
    assert peak("--fold 1") < peak(f"{stages} Interleaved") < peak(f"{stages} Grouped")
    assert peak("--fold 1 --variable-filter fc1") < peak("--fold 1")
    with_validation = words.replace("--no-validation", "--valid-batch-size 512")
    assert prepared(with_validation).memory.peak > peak()
    assert prepared(f"{R18} --micro-batch-size 8", "validation").memory.peak < peak("--fold 1")


@pytest.mark.parametrize(
    "kind, source, shared",
    [
        (RESIDENT, "this machine has", True), (RESIDENT, "the control group (container) allows", True),
        (ADDRESSES, "ulimit -v allows", False), (DATA, "ulimit -d allows", False),
    ],
)  # fmt: skip
def test_oversized_batch_fails_before_building(monkeypatch, capsys, tmp_path, kind, source, shared):
    monkeypatch.chdir(tmp_path)
    words = f"{R18} --precision 32.32 --micro-batch-size 64 --no-memory-check".split()
    need = prepared(" ".join(words)).memory.of_kind(kind)
    limit = Limit(kind, int(0.75 * need), source, shared=shared)
    with_limits(monkeypatch, limit)
    assert answers.run_command("train", train.main, words[:-1]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert f"{need / 1e9:.1f} GB" in error and f"{source} {limit.bytes / 1e9:.1f} GB" in error, error
    knobs = [error.index(word) for word in ("--micro-batch-size", "--image-size", "--no-memory-check")]
    assert knobs == sorted(knobs)
    assert not list(tmp_path.iterdir())
    run = asked(" ".join(words))
    assert any(note.startswith("warning: training needs about") for note in run.notes)


def test_processes_on_one_machine_share_memory(monkeypatch):
    memory = prepared(f"{R18} --micro-batch-size 8").memory
    room = machine(1.5 * memory.peak / 1e9)
    assert host_memory.find_exceeded_limit(memory, [room])[0] is None
    assert host_memory.find_exceeded_limit(memory, [room], sharing=2) == (room, True)
    own = Limit(DATA, room.bytes * 2, "ulimit -d allows")
    assert host_memory.find_exceeded_limit(memory, [own], sharing=2)[0] is None


GROUPS = {
    "none": ({}, []),
    "version 2": ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "3000\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, [3000]),
    "version 2 in a container": ({"proc/self/cgroup": "0::/elsewhere\n", "sys/fs/cgroup/memory.max": "5000\n"}, [5000]),
    "version 1": (
        {"proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4000\n",
         "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, [4000],
    ),
    "damaged": ({"proc/self/cgroup": "nonsense\n0::\n::::\n", "proc/meminfo": "MemAvailable: many kB\n\n:\n"}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_control_groups_are_read(tmp_path, name):
    files, expected = GROUPS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert [limit.bytes for limit in host_limits.limits(tmp_path) if limit.shared] == expected


def test_available_memory_includes_swap(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 4000 kB\nSwapFree: 500 kB\n")
    assert [limit.bytes for limit in host_limits.limits(tmp_path) if limit.shared] == [4500 * 1024]
    assert host_limits.hard_bytes(tmp_path) == 9000 * 1024
    assert host_limits.hard_bytes(tmp_path / "nowhere") is None


@pytest.mark.parametrize("option, expected", [("-v", "ulimit -v allows 1.8 GB"), ("-d", "ulimit -d allows 0.4 GB")])
def test_ulimit_error_is_one_line(tmp_path, option, expected):
    kilobytes = 1_800_000 if option == "-v" else 400_000
    command = [
        "sh",
        "-c",
        f'ulimit {option} {kilobytes}; exec "$@"',
        "sh",
        sys.executable,
        "train.py",
        *SMALL.split(),
        "--no-logs",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=120
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr
    assert not list(tmp_path.iterdir())
