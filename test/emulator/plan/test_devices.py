"""Where a plan runs: emulated device ids, TensorFlow devices, and programs that are only built."""

from __future__ import annotations

import dataclasses

import pytest
from commands import succeed

from cnn_harness.base.errors import OptionError
from cnn_harness.emulator.plan import plan
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.emulator.plan.plan import PlanError
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

RESNET = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 4 --seed 3"
STAGED = f"{RESNET} --shards 4 --pipeline --pipeline-splits b1/0/relu b2/0/relu b3/0/relu --gradient-accumulation-count 8"


def prepared(words: str) -> Run:
    return prepare(cli.parse(words.split(), "train", environ={}).options, {}).run


def resolved(words: str, there: Machine, **request: object) -> plan.ExecutionPlan:
    run = prepared(words)
    asked = dataclasses.replace(run.options.device, **request)
    return plan.resolve(asked, run.network, there, micro_batch_size=4, accumulation=8)


@pytest.mark.parametrize(
    ("words", "training", "validation"),
    [
        (RESNET, (0, 1), 0),
        (f"{RESNET} --select-ipu 5", (5, 1), 0),
        (f"{RESNET} --select-ipus 5 7", (5, 1), 7),
        (f"{RESNET} --select-ipu auto 7", (0, 1), 7),
        (f"{STAGED} --select-ipu 25", (25, 4), 0),
        (f"{RESNET} --shards 3", (24, 4), 0),  # groups are powers of two
        (f"{RESNET} --replicas 32", (62, 32), 0),  # a larger system
    ],
)
def test_selected_device_fits_plan(words, training, validation):
    run = prepared(words)
    found = run.plan
    assert (found.training_device.id, len(found.training_device.ipus)) == training
    assert found.validation_device.id == validation
    assert str(found.training_device) in run.summary(Execution(seed=0))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--select-ipu 31", "31 0 to 30"),
        ("--select-ipu 3 --replicas 2", "3 16 to 23"),
        ("--device gpu", "--device gpu"),
        ("--rts --disable-variable-offloading", "--rts --disable-variable-offloading"),
    ],
)
def test_impossible_devices_are_rejected(words, named):
    with pytest.raises(OptionError) as error:
        prepared(f"{RESNET} {words}")
    assert all(word in str(error.value) for word in named.split())


def test_stages_use_available_graphics_cards():
    names = lambda there, **request: resolved(STAGED, there, **request).stage_devices
    assert names(Machine(2, 0)) == ("/cpu:0", "/cpu:1", "/cpu:2", "/cpu:3")
    assert names(Machine(2, 2)) == ("/gpu:0", "/gpu:0", "/gpu:1", "/gpu:1")
    assert names(Machine(2, 8)) == ("/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3")
    assert names(Machine(2, 2), device="cpu") == names(Machine(2, 0))
    assert names(Machine(2, 2), shards=1, pipeline=False, pipeline_splits=()) == ("/gpu:0",)
    with pytest.raises(PlanError, match="--device gpu"):
        names(Machine(2, 0), device="gpu")


def test_compile_only_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = succeed("train", *STAGED.split(), "--compile-only").out
    assert "The training graph was successfully compiled: " in out
    assert "The validation graph was successfully compiled: " in out
    assert "Compilation time: " in out
    assert "iteration:" not in out
    assert not list(tmp_path.iterdir())
    alone = succeed("validation", *RESNET.split(), "--compile-only").out
    assert "The validation graph was successfully compiled: " in alone
    assert "training graph" not in alone
    assert not list(tmp_path.iterdir())
