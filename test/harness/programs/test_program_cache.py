"""The program cache: the same bits from wherever they come, nothing used that is not whole."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, succeed, variables

from base import plugins
from base.tracing import compiled, compiling_ahead
from emulator.program.optimised_graph import OptimisedGraph
from emulator.program.runtime import new_graph
from harness.commands import cli
from harness.programs import program_cache
from harness.programs.program_cache import DiskCacheEntry
from harness.run.resolve import prepare
from harness.run.run import Run

ROOT = plugins.ROOT
SMALL = ("--dataset", "fashion-mnist", "--model-size", 8, "--micro-batch-size", 4, "--gradient-accumulation-count", 2,
         "--fold", 1, "--group-norm", "--stochastic-rounding", "all", "--iterations", 2, "--no-validation")  # fmt: skip
MADE = OptimisedGraph(b"graph", {"step": ["a:0", "b"]}, {"watched": ["conv"]}, {"dropout": "key_0"})


def prepared(*words: object) -> Run:
    return prepare(cli.parse([*map(str, SMALL), *map(str, words)], "train", environ={}).options, {})


def test_a_kept_program_ends_in_the_same_bits_whatever_the_seed(tmp_path):
    """A seed's program serves another seed; from another folder; and without one."""
    words = [*SMALL, "--executable-cache-path", tmp_path / "first"]
    succeed("train", *words, "--seed", 1, "--logs-path", tmp_path / "built")
    assert "The program was built in" in (tmp_path / "built/log.txt").read_text()
    (tmp_path / "first").rename(tmp_path / "moved")
    words[-1] = tmp_path / "moved"
    succeed("train", *words, "--seed", 2, "--logs-path", tmp_path / "taken")
    assert f"The program was taken from {tmp_path / 'moved'}/" in (tmp_path / "taken/log.txt").read_text()
    succeed("train", *SMALL, "--seed", 2, "--no-executable-cache", "--logs-path", tmp_path / "alone")
    assert "The program was" not in (tmp_path / "alone/log.txt").read_text()
    assert_same_bits(variables(tmp_path / "taken", 2), variables(tmp_path / "alone", 2))
    other = variables(tmp_path / "built", 2)
    assert any(other[name].tobytes() != value.tobytes() for name, value in variables(tmp_path / "taken", 2).items())
    rows = [(tmp_path / name / "training.csv").read_text().split(",loss")[0] for name in ("taken", "alone")]
    assert rows[0] == rows[1]


def test_kernels_are_kept_with_the_program(tmp_path):
    """Two processes: the second one compiles nothing, writes nothing, and neither leaves anything or says a word of it."""
    environ = {k: v for k, v in os.environ.items() if k not in ("TF_XLA_FLAGS", "TF_POPLAR_FLAGS", "TF_CPP_MIN_LOG_LEVEL")}
    environ |= {"TMPDIR": str(tmp_path / "tmp"), "TF_POPLAR_FLAGS": f"--executable_cache_path={tmp_path / 'kept'} -x"}
    (tmp_path / "tmp").mkdir()
    entries = []
    for name, said in (("one", "built in"), ("two", "taken from")):
        words = [sys.executable, ROOT / "train.py", *SMALL, "--seed", 1, "--logs-path", tmp_path / name]
        result = subprocess.run([*map(str, words)], env=environ, capture_output=True, text=True, check=True)
        assert f"The program was {said}" in (tmp_path / name / "log.txt").read_text()
        assert result.stderr == ""
        (entry,) = (tmp_path / "kept").iterdir()
        entries.append(entry.read_bytes())
    assert entries[0] == entries[1]
    assert entries[0].count(b"passes/xla_compile_cache") >= 4  # twice each: before it and in the list at the end
    assert not list((tmp_path / "tmp").glob("cnn-harness*"))
    assert_same_bits(variables(tmp_path / "one", 2), variables(tmp_path / "two", 2))


def test_kernels_are_compiled_while_a_graph_is_written():
    """Before anything runs that has them."""
    folder = Path(re.search(r"persistent_cache_directory=(\S+)", os.environ["TF_XLA_FLAGS"])[1])
    before = set(folder.glob("*"))
    added = compiled(lambda x: x * 3.14159 + os.getpid())  # no other pass
    with compiling_ahead(), new_graph().as_default():
        added(tf.constant([1.0, 2.0]))
    assert set(folder.glob("*")) - before


def kept(place: Path, limit: int = 1 << 20, **described: object) -> DiskCacheEntry:
    return DiskCacheEntry(place, described or {"kind": "training"}, limit)


def test_what_was_kept_is_found(tmp_path):
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
def test_what_is_not_whole_is_told_of_and_built_anew(tmp_path, damage):
    entry = kept(tmp_path)
    entry.save(MADE)
    damage(entry)
    entry = kept(tmp_path)
    assert entry.load() is None
    (warning,) = entry.warnings
    assert str(entry.path) in warning and "is built anew" in warning
    if damage is not a_folder:
        entry.save(MADE)
        assert kept(tmp_path).load() == MADE


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    entry = kept(tmp_path / "file")
    entry.save(MADE)
    assert "is not kept" in entry.warnings[0]
    entry.ran()
    assert len(entry.warnings) == 1


def test_the_longest_unused_are_removed(tmp_path):
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


def test_what_is_left_out_of_the_key_reaches_no_graph():
    """The graphs of two runs that differ in all of it are the same."""
    from harness.programs.build import training_program

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
            training_program(run, 0, cache_entry=MemoryCacheEntry())
        found.append(caught.value.args)
    assert found[0] == found[1]
    assert found[0][1]  # there are keys: the seed is not in the graph


@pytest.mark.parametrize(
    ("words", "flags", "expected"),
    [
        ((), "", "cache/cnn-harness/executables"),
        ((), "--executable_cache_path=/e/x --other", "/e/x"),
        ((), "--other --executable_cache_path /e/y", "/e/y"),
        (("--executable-cache-path", "z"), "--executable_cache_path=/e/x", "z"),
        ((), "--executable_cache_path --use_ipu_model", "cache/cnn-harness/executables"),
        ((), '--executable_cache_path=/e/z --other="x', "/e/z"),
        (("--no-executable-cache",), "--executable_cache_path=/e/x", None),
    ],
)
def test_where_programs_are_kept(words, flags, expected):
    environ = {"XDG_CACHE_HOME": "cache", "TF_POPLAR_FLAGS": flags}
    assert program_cache.folder(prepared(*words), environ) == (Path(expected) if expected else None)
    assert program_cache.folder(prepared(*words), {**environ, "TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}) is None


def test_training_goes_on_and_is_validated_with_the_programs_that_it_kept():
    """Nothing that differs between a run, its continuation and its validation is in the key of what they share."""
    recorded = [*SMALL, "--num-classes", 10, "--iterations", 9, "--batches-per-step", 3, "--shuffle-block", 2]
    for kind, script in (("training", "train"), ("validation", "train"), ("validation", "validation")):
        words = recorded if script == "train" else [word for word in recorded if word not in ("--no-validation",)]
        other = prepare(cli.parse([*map(str, words)], script, environ={}).options, {}, training=script == "train")
        assert program_cache.cache_entry(prepared(), kind).path == program_cache.cache_entry(other, kind).path, (
            kind,
            script,
        )
