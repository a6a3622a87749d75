"""--fingerprints changes no bit of a run, and comparing two runs, or the processes of one, finds an injected fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import commands
import numpy as np
import pytest
from commands import assert_same_bits, succeed, variables
from instances import by_tf_config, succeeded

from cnn_harness.base.storage import fingerprints
from cnn_harness.base.storage.fingerprints import GRADIENT, WEIGHT, Difference, compare_processes, compare_runs
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

NETWORK = "--dataset fashion-mnist --model-size 8 --seed 3 --batch-size 4 --gradient-accumulation-count 2 --fold 1"
RUN = [*NETWORK.split(), "--precision", "32.32", "--no-validation", "--iterations", 5]
STAGES = "--shards 2 --pipeline --pipeline-splits auto"
LAYOUTS = {
    "plain": "--precision 32.32",
    "recomputed": f"--precision 32.32 --enable-recomputation {STAGES} --pipeline-schedule Interleaved",
    "half": f"--precision 16.16 {STAGES}",
}
LAYER, UPDATE = "b1/0/2", 2
KERNEL = f"all/{LAYER}/conv/conv2d/kernel"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str, str], tuple[Path, np.ndarray]]:
    """Return a function that makes three updates and returns the folder of the fingerprints and the losses."""

    @cache
    def ran(layout: str, fault: str = "") -> tuple[Path, np.ndarray]:
        words = f"{NETWORK} {LAYOUTS[layout]} --fingerprints {fault and f'--inject {fault}'}".split()
        folder = tmp_path_factory.mktemp("run")
        with commands.program(prepare(cli.parse(words, "train", environ={}).options, {}).run) as program:
            metrics = program.step([0.1] * 3)
            fingerprints.append(folder, 0, program.trained, metrics.fingerprints)
            return folder, metrics.loss

    return ran


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "bit"), [("weight", 23), ("gradient", 30), ("activation", 27)])
def test_fault_is_located(kind, bit, layout, trained):
    found = compare_runs(trained(layout)[0], trained(layout, f"{kind}:{LAYER}:{UPDATE}:{bit}")[0])
    count, difference = found
    assert count == UPDATE and (difference.update, difference.processes) == (UPDATE, (0,))
    if kind == "activation":
        assert difference.kind == GRADIENT and KERNEL in difference.tensors
    else:
        assert (difference.kind, difference.tensors) == (kind, (KERNEL,))


def test_sound_runs_agree(trained):
    """The layout does not matter. In other number formats, the first update differs."""
    assert compare_runs(trained("plain")[0], trained("recomputed")[0]) == (3, None)
    assert compare_runs(trained("plain")[0], trained("half")[0])[1].update == 1
    assert compare_processes(trained("plain")[0]) == (1, None)


def test_recomputation_is_without_fault(trained):
    """The loss has the fault of the first computation, so it does not depend on recomputation; the gradients do."""
    fault = f"activation:{LAYER}:{UPDATE}:27"
    (stored, loss), (recomputed, again), expected = (
        trained("plain", fault),
        trained("recomputed", fault),
        trained("plain")[1],
    )
    assert loss[0] == expected[0] and loss[1] != expected[1] and np.array_equal(loss[:2], again[:2])
    assert compare_runs(stored, recomputed)[1].kind == GRADIENT


@pytest.mark.parametrize("damage", [b"garbage\n", b"\0\0\n", b"\xff", b"4,weight,0,a,\n", b"iteration\n"])
def test_damaged_record_ends_before_the_damage(damage, tmp_path):
    for folder, tensors in ((tmp_path / "one", "abc"), (tmp_path / "other", "abd")):
        folder.mkdir()
        found = [(np.full([1, 2, 3], k, np.uint64), np.full([1, 2, 3], np.nan, np.float32)) for k in range(3)]
        fingerprints.append(folder, 0, tensors, found)
    with (tmp_path / "one" / fingerprints.RECORD).open("ab") as file:
        file.write(damage)
    assert [update for update, _ in fingerprints.updates(tmp_path / "one")] == [1, 2, 3]
    assert compare_runs(tmp_path / "one", tmp_path / "other") == (0, None)  # other tensors
    fingerprints.truncate_after(tmp_path / "one", 2)
    fingerprints.append(tmp_path / "one", 2, "abc", found[:1])
    assert [update for update, _ in fingerprints.updates(tmp_path / "one")] == [1, 2, 3]


@pytest.mark.slow
def test_fingerprints_change_no_bit_and_continue(tmp_path):
    whole, resumed, plain = (tmp_path / name for name in ("whole", "resumed", "plain"))
    succeed("train", *RUN, "--logs-path", plain)
    succeed("train", *RUN, "--logs-path", whole, "--fingerprints")
    succeed("train", *RUN, "--logs-path", resumed, "--fingerprints", "--stop-after", 3)
    with (resumed / fingerprints.RECORD).open("a") as file:
        file.write("4,gradient,0,all/fc1/dense/kernel,0123456789abcdef,1\n4,gradi")  # of a call that was killed
    succeed("restore", "--restore-path", resumed)
    assert_same_bits(variables(plain, 5), variables(whole, 5))
    texts = [(folder / fingerprints.RECORD).read_text() for folder in (whole, resumed)]
    assert texts[0] == texts[1]
    assert compare_runs(whole, resumed) == (5, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weight", "gradient", "activation", "message"])
def test_fault_in_process_is_located(kind, tmp_path):
    for name, more in (("sound", []), ("faulty", ["--inject", f"{kind}:{LAYER}:{UPDATE}:29", "--keep-going"])):
        succeeded(by_tf_config("train.py", [[*RUN, "--fingerprints", *more, "--logs-path", tmp_path / name]] * 2))
    count, found = compare_runs(tmp_path / "sound", tmp_path / "faulty")
    assert (count, found.update) == (UPDATE, UPDATE)
    assert found.processes == ((0, 1) if kind == "message" else (0,))
    assert found.kind == (WEIGHT if kind in ("weight", "message") else GRADIENT)
    assert found.tensors == (KERNEL,) or kind == "activation"
    assert compare_processes(tmp_path / "sound") == (2, None)
    expected = Difference(UPDATE, WEIGHT, (0, 1), (KERNEL,)) if kind == "weight" else None
    assert compare_processes(tmp_path / "faulty") == (2, expected)
    out = succeed("compare", tmp_path / "sound", tmp_path / "faulty", "--output", tmp_path / "chart.svg").out
    assert f"{tmp_path / 'faulty'}: first differ in update {UPDATE}, {found.kind}" in out


@pytest.mark.parametrize("processes", [3, 4])
def test_minority_of_processes_is_named(processes, tmp_path):
    draw = np.random.default_rng(processes)
    for trial in range(20):
        hashes = np.repeat(draw.integers(1 << 63, size=(6, 1, 2, 5), dtype=np.uint64), processes, 1)
        update, process, tensor = draw.integers(6), draw.integers(processes), draw.integers(5)
        hashes[update, process, 1, tensor] ^= np.uint64(1 << draw.integers(64))
        hashes[:, :, 0] = draw.integers(1 << 63, size=(6, processes, 5), dtype=np.uint64)  # gradients always differ
        (tmp_path / str(trial)).mkdir()
        found = [(each, np.ones(each.shape, np.float32)) for each in hashes]
        fingerprints.append(tmp_path / str(trial), 0, "abcde", found)
        expected = Difference(update + 1, WEIGHT, (process,), ("abcde"[tensor],))
        assert compare_processes(tmp_path / str(trial)) == (processes, expected)
