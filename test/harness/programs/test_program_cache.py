"""The program cache: a cached program gives the same bits, and a damaged entry is never used."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, succeed, variables, without_waits

from cnn_harness.base import plugins
from cnn_harness.emulator.program.optimised_graph import OptimisedGraph
from cnn_harness.harness.programs import program_cache
from cnn_harness.harness.programs.program_cache import DiskCacheEntry
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution, seed_of
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

ROOT = plugins.ROOT
SMALL = ("--dataset", "fashion-mnist", "--model-size", 8, "--micro-batch-size", 4, "--gradient-accumulation-count", 2,
         "--fold", 1, "--group-norm", "--stochastic-rounding", "all", "--iterations", 2, "--no-validation")  # fmt: skip
MADE = OptimisedGraph(b"graph", {"step": ["a:0", "b"]}, {"watched": ["conv"]}, {"dropout": "key_0"})


def prepared(*words: object) -> Run:
    return prepare(cli.parse([*map(str, SMALL), *map(str, words)], "train", environ={}).options, {}).run


@pytest.mark.slow
def test_cached_program_is_exact_for_any_seed(tmp_path):
    """One seed's program serves another seed, also from another folder."""
    words = [*SMALL, "--executable-cache-path", tmp_path / "first"]
    succeed("train", *words, "--seed", 1, "--logs-path", tmp_path / "built")
    assert "The program was built in" in (tmp_path / "built/log.txt").read_text()
    (tmp_path / "first").rename(tmp_path / "moved")
    words[-1] = tmp_path / "moved"
    succeed("train", *words, "--seed", 2, "--logs-path", tmp_path / "taken")
    assert f"The program was loaded from {tmp_path / 'moved'}/" in (tmp_path / "taken/log.txt").read_text()
    succeed("train", *SMALL, "--seed", 2, "--no-executable-cache", "--logs-path", tmp_path / "alone")
    assert "The program was" not in (tmp_path / "alone/log.txt").read_text()
    assert_same_bits(variables(tmp_path / "taken", 2), variables(tmp_path / "alone", 2))
    other = variables(tmp_path / "built", 2)
    assert any(other[name].tobytes() != value.tobytes() for name, value in variables(tmp_path / "taken", 2).items())
    rows = [(tmp_path / name / "training.csv").read_text().split(",loss")[0] for name in ("taken", "alone")]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_kernels_are_cached_with_program(tmp_path):
    """A second process compiles nothing, writes nothing and logs nothing; neither process leaves files."""
    environ = {k: v for k, v in os.environ.items() if k not in ("TF_XLA_FLAGS", "TF_POPLAR_FLAGS", "TF_CPP_MIN_LOG_LEVEL")}
    environ |= {"TMPDIR": str(tmp_path / "tmp"), "TF_POPLAR_FLAGS": f"--executable_cache_path={tmp_path / 'kept'} -x"}
    (tmp_path / "tmp").mkdir()
    entries = []
    for name, said in (("one", "built in"), ("two", "loaded from")):
        words = [sys.executable, ROOT / "train.py", *SMALL, "--seed", 1, "--logs-path", tmp_path / name]
        result = subprocess.run([*map(str, words)], env=environ, capture_output=True, text=True, check=True)
        assert f"The program was {said}" in (tmp_path / name / "log.txt").read_text()
        assert without_waits(result.stderr) == ""
        (entry,) = (tmp_path / "kept").iterdir()
        entries.append(entry.read_bytes())
    assert entries[0] == entries[1]
    assert entries[0].count(b"passes/xla_compile_cache") >= 4  # twice each: before the entry and in the list at the end
    assert not list((tmp_path / "tmp").glob("cnn-harness*"))
    assert_same_bits(variables(tmp_path / "one", 2), variables(tmp_path / "two", 2))


def kept(place: Path, limit: int = 1 << 20, **described: object) -> DiskCacheEntry:
    return DiskCacheEntry(place, described or {"kind": "training"}, limit)


def test_saved_program_is_found(tmp_path):
    assert kept(tmp_path / "a").load() is None
    kept(tmp_path / "a").save(MADE)
    entry = kept(tmp_path / "a")
    assert entry.load() == MADE
    assert entry.hit and not entry.warnings
    assert kept(tmp_path / "a", kind="another").load() is None


def changed(entry: DiskCacheEntry) -> None:
    content = bytearray(entry.path.read_bytes())
    content[len(content) // 2] ^= 1
    entry.path.write_bytes(content)


def of_another(entry: DiskCacheEntry) -> None:
    other = kept(entry.path.parent, kind="another")
    other.save(MADE)
    other.path.rename(entry.path)


def a_folder(entry: DiskCacheEntry) -> None:
    entry.path.unlink()
    entry.path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        changed,
        of_another,
        a_folder,
        lambda entry: os.truncate(entry.path, 100),
        lambda entry: os.truncate(entry.path, 0),
        lambda entry: entry.path.write_bytes(b"x" * 1000),
    ],
)
def test_damaged_entry_is_reported_and_rebuilt(tmp_path, damage):
    entry = kept(tmp_path)
    entry.save(MADE)
    damage(entry)
    entry = kept(tmp_path)
    assert entry.load() is None
    (warning,) = entry.warnings
    assert str(entry.path) in warning and "rebuilding" in warning
    if damage is not a_folder:
        entry.save(MADE)
        assert kept(tmp_path).load() == MADE


def test_least_recently_used_are_removed(tmp_path):
    big = dataclasses.replace(MADE, graph=os.urandom(1000))
    for age, kind in enumerate("abc"):
        entry = kept(tmp_path, kind=kind)
        entry.save(big)
        os.utime(entry.path, (1000 + age, 1000 + age))
    assert kept(tmp_path, kind="a").load() is not None  # used now
    (tmp_path / "nowhere.program").symlink_to("/nowhere")
    newest = kept(tmp_path, limit=3000, kind="d")
    newest.save(big)
    assert newest.warnings == []
    assert [kind for kind in "abcd" if kept(tmp_path, kind=kind).load()] == ["a", "d"]


@pytest.mark.slow
def test_options_outside_key_reach_no_graph():
    """The graphs of two runs that differ in all of these options are equal."""
    from cnn_harness.harness.programs.build import training_program

    class Caught(Exception):
        pass

    class MemoryCacheEntry:
        keeps_kernels = False

        def load(self) -> None:
            return None

        def save(self, executable: OptimisedGraph) -> None:
            definition = tf.GraphDef.FromString(executable.graph)
            raise Caught(definition.SerializeToString(deterministic=True), sorted(executable.keys))

    others = ("--no-dataset-cache", "--num-classes", 10, "--pipeline-num-parallel", 3, "--keep-going", "--abs-learning-rate", 0.3, "--seed", 77,
              "--stop-after", 1, "--weight-avg-N", 1, "--weight-avg-exp", 0.9, "--worker-timeout", 30, "--batches-per-step", 7,
              "--no-memory-check", "--profile-compilation", "--executable-cache-size", 7, "--iterations", 9)  # fmt: skip
    found = []
    for words in ((), others):
        run = prepared(*words)
        with pytest.raises(Caught) as caught:
            training_program(run, seed_of(run.options), 0, cache_entry=MemoryCacheEntry())
        found.append(caught.value.args)
    assert found[0] == found[1]
    assert found[0][1]  # there are keys: the seed is not in the graph


def test_resume_and_validation_reuse_cached_programs():
    """The key of a shared program has nothing that differs between a run, its continuation and its validation."""
    recorded = [*SMALL, "--num-classes", 10, "--iterations", 9, "--batches-per-step", 3, "--shuffle-block", 2]
    here = Execution(seed=1)
    for kind, script in (("training", "train"), ("validation", "train"), ("validation", "validation")):
        words = recorded if script == "train" else [word for word in recorded if word not in ("--no-validation",)]
        other = prepare(cli.parse([*map(str, words)], script, environ={}).options, {}, training=script == "train").run
        assert program_cache.cache_entry(prepared(), here, kind).path == program_cache.cache_entry(other, here, kind).path, (
            kind,
            script,
        )
