"""Two device commands printed in the original's manual run, with smaller images and fewer updates by flags only. Every model
and every norm learn.
"""

from __future__ import annotations

import shlex

import manual
import numpy as np
import pytest
import small_sets
from commands import program, rows, succeed, variables

from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v13-eight-ipus", "v13-b0-groups"])
def test_printed_commands_run(name, tmp_path):
    words = shlex.split(manual.COMMANDS[name].replace("<DIR>", str(tmp_path / "imagenet")))[2:]
    # smaller by flags only; without warm-up, whose first rates are too small for FP16 weights
    smaller = "--generated-data --image-size 32 --iterations 2 --batch-size 2 --no-validation --seed 1 --warmup-epochs 0"
    depth = "--pipeline-depth 8" if "--pipeline-depth" in words else "--gradient-accumulation-count 2"
    succeed("train", *words, *smaller.split(), *depth.split(), "--logs-path", tmp_path / "run")
    assert [float(row["loss_batch"]) for row in rows(tmp_path / "run/training.csv")] != []
    before, after = variables(tmp_path / "run", 0), variables(tmp_path / "run", 2)
    assert after["global_step"] == 2
    moved = {key for key in before if key.endswith("kernel") and not np.array_equal(before[key], after[key])}
    # if the last scale of a unit starts at 0, no gradient reaches the kernels yet
    assert any("dense" in key for key in moved) and len(moved) > 10


NETWORKS = {
    "resnet": "--model resnet --model-size 8",
    "resnet-bottleneck": "--model resnet --model-size 11",
    "resnext": "--model resnext --model-size 11",
    "efficientnet": "--model efficientnet --width-coefficient 0.5 --depth-coefficient 0.5 --dropout-rate 0 --block-survival-prob 1",
    "squeezenet": "--model squeezenet --use-bypass --image-size 64",
}
NORMS = {"batch": "--batch-norm", "group": "--group-norm --groups 4", "layer": "--group-norm --groups 1",
         "proxy": "--group-norm --groups 1 --proxy-norm"}  # fmt: skip
PIPELINED = "--shards 2 --pipeline --pipeline-splits auto"  # a layout changes no bit, in 16.16 too


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> str:
    """Write a CIFAR-10 of 32 of the embedded photos."""
    return str(small_sets.cifar10(tmp_path_factory.mktemp("cifar"), 32, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "norm", "layout", "precision"),
    [
        ("resnet", "batch", PIPELINED, "16.16"),
        ("resnet-bottleneck", "group", "", "16.32"),
        ("resnext", "layer", "", "32.32"),
        ("efficientnet", "batch", "", "16.16"),
        ("efficientnet", "proxy", PIPELINED, "16.16"),
        ("squeezenet", "batch", "", "32.32"),
    ],
)
def test_every_network_memorises_32_images(network, norm, layout, precision, images):
    words = (
        f"--precision {precision} --dataset cifar-10 --data-dir {images} {NETWORKS[network]} {'' if network == 'squeezenet' else NORMS[norm]} "
        f"--batch-size 8 --gradient-accumulation-count 4 --optimiser momentum --weight-decay 0 --seed 5 --label-smoothing 0 "
        f"--train-with-valid-preprocessing {layout}"
    )
    built = program(prepare(cli.parse(words.split(), "train", environ={}).options, {}).run)
    rate = 0.005 if network == "squeezenet" else 0.02  # larger steps kill outputs without norms: its logits end in a ReLU
    losses = [np.inf]
    while losses[-1] >= 0.1 and len(losses) < 1000:
        losses += built.step([rate] * 20).loss.tolist()
    built.close()
    assert losses[1] > 1.5
    assert min(losses) < 0.1
