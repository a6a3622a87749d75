"""Defaults follow the model and the data, and options change the program as they say."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from commands import program, run, succeed

from cnn_harness.base.storage import tables
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.loop import TrainingLoop

# (model, data set) -> weight decay, LARS weight decay, exponent with SGD and with momentum, epochs, stepped drops,
# micro-batch, group norm, groups, model size, stable norm, label smoothing
RESOLVED = [
    ("resnet", "imagenet", 1e-4, 1e-4, -8, -11, 100, "0.3,0.6,0.8,0.9", 4, True, 32, 18, False, None),
    ("resnet", "cifar-10", 1e-6, 1e-6, -6, -6, 160, "0.5,0.75", 32, False, 16, 20, False, None),
    ("resnet", "cifar-100", 1e-6, 1e-6, -6, -6, 160, "0.5,0.75", 32, False, 16, 20, False, None),
    ("resnet", "fashion-mnist", 1e-6, 1e-6, -6, -6, 160, "0.5,0.75", 32, False, 16, 20, False, None),
    ("resnext", "imagenet", 1e-4, 1e-4, -8, -11, 100, "0.3,0.6,0.8,0.9", 1, True, 32, 14, True, None),
    ("resnext", "cifar-10", 1e-6, 1e-6, -6, -6, 160, "0.5,0.75", 8, False, 16, 11, True, None),
    ("squeezenet", "imagenet", 1e-4, 1e-4, -8, -11, 100, "0.3,0.6,0.8,0.9", 2, None, None, None, False, None),
    ("squeezenet", "cifar-10", 1e-6, 1e-6, -10, -10, 160, "0.5,0.75", 128, None, None, None, False, None),
    ("efficientnet", "imagenet", 1e-5, 1e-5, -7, -10, 350, "0.3,0.6,0.8,0.9", 4, True, 4, "B0", True, 0.1),
    ("efficientnet", "cifar-10", 1e-6, 1e-6, -6, -6, 300, "0.5,0.75", 8, True, 4, "CIFAR", True, None),
]  # fmt: skip


@pytest.mark.parametrize("row", RESOLVED, ids=lambda row: "-".join(row[:2]))
def test_defaults_by_model_and_data(row):
    model, dataset, decay, lars_decay, sgd, momentum, epochs, drops, batch, group, groups, size, stable, smoothing = row
    words = ["--model", model, "--dataset", dataset]
    values = cli.parse(words, environ={}).options.values()
    assert (values["weight_decay"], values["lars_weight_decay"], values["epochs"]) == (decay, lars_decay, epochs)
    assert (values["learning_rate_schedule"], values["micro_batch_size"]) == (drops, batch)
    if group is not None:
        assert (values["group_norm"], values["batch_norm"]) == (group, not group)
        assert (values["groups"], values["model_size"], values["BN_decay"]) == (groups, size, 0.97)
    assert (bool(values["stable_norm"]), values["label_smoothing"]) == (stable, smoothing)
    assert values["base_learning_rate_exponent"] == sgd
    with_momentum = cli.parse([*words, "--optimiser", "momentum"], environ={}).options
    assert with_momentum.training.base_learning_rate_exponent == momentum
    assert (with_momentum.training.iterations, with_momentum.training.abs_learning_rate) == (None, None)
    lamb = cli.parse([*words, "--optimiser", "LAMB"], environ={}).options  # no model has a rate for it
    assert (lamb.training.base_learning_rate_exponent, lamb.training.abs_learning_rate) == (None, None)


# the difference after two updates: options that no other test gives to a program
BUILT: dict[str, tuple[str, str, set[str]]] = {
    "nesterov": ("--optimiser momentum", "--nesterov", {"weights", "slots"}),
    "clip_grad_norm": ("", "--clip-grad-norm 0.1", {"weights", "loss"}),
    "loss": ("", "--loss bce", {"weights", "loss"}),
    "label_smoothing": ("", "--label-smoothing 0.5", {"weights", "loss"}),
    "synthetic_data": ("", "--synthetic-data", {"graph"}),
    "activation_bias": ("--precision 8.16", "--activation-bias 3", {"weights", "loss"}),
    "rmsprop_decay": ("--optimiser RMSprop", "--rmsprop-decay 0.5", {"weights", "slots", "loss"}),
    "lars_eeta": ("--optimiser LARS", "--lars-eeta 0.5", {"weights", "slots", "loss"}),
    "lamb_skip_list": ("--optimiser LAMB", "--lamb-skip-list gamma", {"weights"}),
    "adam_beta1": ("--optimiser Adam", "--adam-beta1 0.5", {"weights", "slots"}),
}


def prepared(words: str) -> Run:
    return prepare(cli.parse(shlex.split(words), "train", None, {}).options, {}).run


SMALL = ("--precision 32.32 --dataset cifar-10 --model-size 8 --group-norm --micro-batch-size 4 --iterations 2 --log-freq 2 "
         "--abs-learning-rate 0.1 --warmup-epochs 0 --seed 7")  # fmt: skip


def outcome(words: str) -> dict[str, object]:
    """Train a small network for two updates; return weights, slots, losses and kinds of operation in the graph."""
    run = prepared(f"{SMALL} {words if '-data' in words else '--generated-data ' + words}")
    with closing(program(run)) as built:
        metrics = built.step(np.array([run.learning_rate(i) for i in range(2)], np.float32))
        values = built.values()
        kinds = {operation.type for operation in built.graph.get_operations()}
    slots = {name for name in values if name.rsplit("/", 1)[-1].startswith(("Momentum", "RMSProp", "LAMB", "Adam", "fp32"))}
    return {
        "weights": {name: value.tobytes() for name, value in values.items() if name not in slots},
        "slots": {name: values[name].tobytes() for name in slots},
        "loss": metrics.loss.tobytes(),
        "graph": "IteratorGetNext" in kinds,
    }


@pytest.fixture(scope="module")
def outcomes():
    """Return a cached function from words to outcomes."""
    known: dict[str, dict[str, object]] = {}

    def find(words: str) -> dict[str, object]:
        words = words.strip()
        if words not in known:
            known[words] = outcome(words)
        return known[words]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("key", BUILT)
def test_option_changes_program(key, outcomes):
    base, words, expected = BUILT[key]
    before, after = outcomes(base), outcomes(f"{base} {words}")
    differing = {name for name in before if before[name] != after[name]}
    # the last bit of a weight may or may not show in the next loss: that depends on the machine's order of sums
    optional = {"loss"} if "weights" in expected else set()
    assert expected <= differing <= expected | optional


def test_stable_norm_takes_two_passes(outcomes):
    one, two = outcomes(""), outcomes("--stable-norm")
    assert one["weights"] != two["weights"]
    assert outcomes("--stable-norm --force-unstable-norm") == one


@pytest.mark.parametrize("release", [None, "2.1", "3.0"])
def test_wandb_gets_the_names_of_the_original(tmp_path, monkeypatch, release):
    """With --release, the keys are the columns of the tables: the original's names."""
    logged: list[dict] = []
    service = SimpleNamespace(log=lambda values, step: logged.append({**values, "step of W&B": step}))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: service, Settings=dict))
    words = ("--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 8, "--iterations", 1, "--wandb")
    asked = ("--release", release) if release else ()
    succeed("train", *words, *asked, "--logs-path", tmp_path / "run")
    training, validation = logged
    named = {*tables.TRAINING_COLUMNS} <= {*training} and {"val_acc", "val_time", "val_size"} <= {*validation}
    assert named == bool(release) == ("loss/train" not in training) == ("accuracy/validation" not in validation)
    assert {type(value) for row in logged for value in row.values()} <= {int, float}


def test_services_get_project_and_run(tmp_path, monkeypatch):
    calls: list[dict] = []
    logged: list[dict] = []
    flow: list[tuple] = []

    def init(**how):
        calls.append(how)
        return SimpleNamespace(log=lambda values, step: logged.append({**values, "step": step}))

    class Recorder:
        def __getattr__(self, name):
            return lambda *words, **named: flow.append((name, words, named))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    monkeypatch.setitem(sys.modules, "mlflow", Recorder())
    words = ("--dataset", "fashion-mnist", "--precision", "32.32", "--model-size", 8, "--batch-size", 8)
    words = (*words, "--no-validation", "--log-freq", 1)
    both = ("--wandb", "--wandb-project", "mine", "--mlflow", "--mlflow-experiment", "ours")
    first = succeed("train", *words, "--iterations", 1, "--log-dir", tmp_path, *both)
    assert [(how["project"], how["name"], how["id"]) for how in calls] == [("mine", first.folder.name, None)]
    assert [row["step"] for row in logged] == [1] and {"loss/train", "learning rate"} <= set(logged[0])
    sent = {name: (positional, named) for name, positional, named in flow}
    assert list(sent) == ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"]
    assert sent["set_experiment"][0] == ("ours",) and sent["start_run"][1] == {"run_name": first.folder.name}
    assert sent["log_params"][0][0]["model_size"] == "8" and sent["end_run"][0] == ("FINISHED",)
    (measures,), step = sent["log_metrics"]
    assert step == {"step": 1} and measures == {name: value for name, value in logged[0].items() if name != "step"}
    flow.clear()
    succeed("restore", "--restore-path", first.folder, "--iterations", 2, "--wandb-id", "abc", "--mlflow-id", "def")
    assert [(how["project"], how["id"], how["resume"]) for how in calls[1:]] == [("mine", "abc", "must")]
    assert [(name, named) for name, _, named in flow[1:3]] == [
        ("start_run", {"run_id": "def"}),
        ("log_metrics", {"step": 2}),
    ]
    flow.clear()
    succeed("restore", "--restore-path", first.folder, "--iterations", 3, "--no-wandb", "--no-mlflow")
    assert len(calls) == 2 and not flow

    def broken(self, last):
        raise ZeroDivisionError  # an unexpected error

    monkeypatch.setattr(TrainingLoop, "run", broken)
    with pytest.raises(ZeroDivisionError):
        run("restore", "--restore-path", first.folder, "--iterations", 4, "--mlflow")
    assert flow[-1][:2] == ("end_run", ("KILLED",))


@pytest.mark.slow
def test_latency_is_per_micro_batch(tmp_path):
    words = ("--dataset", "cifar-10", "--model-size", 8, "--batch-size", 2000, "--image-size", 8, "--log-dir", tmp_path)
    synthetic = succeed("validation", *words, "--latency", "--synthetic-data")
    assert "--latency is ignored" in synthetic.out
    generated = succeed("validation", *words, "--latency", "--generated-data")
    assert "--latency is ignored" not in generated.out
    line = next(line for line in generated.out.splitlines() if line.startswith("Validation top-1"))
    seconds, latency = (float(re.search(rf"{what}: *([\d.]+)", line)[1]) for what in ("time", r"latency \(ms\)"))
    assert latency != pytest.approx(1000 * seconds / 5, rel=1e-6)  # the value that is logged without a measurement
