"""Every option exists with the right type and default, and has a visible effect or is documented as a hint.

The tables are compared with the catalogues, so a new option without a row fails.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from commands import program, run, succeed

from cnn_harness.base import plugins
from cnn_harness.base.storage import tables
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.harness.options.catalogue import Option, section_options
from cnn_harness.harness.options.sections import SECTIONS
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.loop import TrainingLoop

EMULATOR = plugins.ROOT / "cnn_harness/emulator"
SCHEDULES = plugins.names("LR_Schedules")


def every_option() -> dict[str, Option]:
    """Return all options of all scripts, models and schedules; those of plug-ins as plug-in/name."""
    found = {option.name: option for name, cls in SECTIONS.items() for option in section_options(name, cls)}
    for folder in ("Models", "LR_Schedules"):
        for plugin in plugins.names(folder):
            options = section_options(folder, plugins.load(folder, plugin).Options)
            found |= {f"{plugin}/{option.name}": option for option in options}
    return found


OPTIONS = every_option()
KINDS = {key: option.meta["kind"] for key, option in OPTIONS.items()}


# 1. Defaults, except of options that are off or unset. A default of None is taken from the model or the data.

DEFAULTS = {
    "model": "resnet", "lr_schedule": "stepped", "pipeline_num_parallel": 48, "dataset_cache": True, "augment": "none",
    "augment_magnitude": 9.0, "colour_jitter": 0.0, "random_erasing": 0.0, "mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "dataset_percentage_to_use": 100, "shuffle_block": 1, "skip_bad_records": 0,
    "validation_split": 0.0, "gradient_accumulation_count": 1, "loss": "cross-entropy", "loss_scaling": 128.0, "loss_scaling_period": 2000, "clip_grad_norm": 0.0,
    "optimiser": "SGD", "momentum": 0.9, "rmsprop_epsilon": 0.001, "frozen_norm_statistics": "moving",
    "worker_timeout": 60.0, "syncs_per_epoch": 0, "epochs_per_sync": 0.0, "lars_epsilon": 0.0, "lars_eeta": 0.001,
    "lars_skip_list": ("beta", "gamma", "bias"), "lamb_beta1": 0.9, "lamb_beta2": 0.999, "lamb_epsilon": 1e-06,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-07, "lamb_skip_list": ("beta", "gamma", "bias"),
    "ckpts_per_epoch": 1, "epochs_per_ckpt": 0, "ckpt_epochs_offset": 0.0, "patience": 0, "safety_ckpt_minutes": "10",
    "mtbf_hours": 24.0, "best_by": "accuracy", "ema": 0.0, "validation": True, "shards": 1, "replicas": 1, "pipeline_schedule": "Interleaved",
    "max_cross_replica_buffer_size": 10485760, "all_reduce_format": "fp32", "min_remote_tensor_size": 128,
    "precision": "16.16", "format_scaling": "fixed", "stochastic_rounding": "ON", "batches_per_step": 1000,
    "device": "auto", "select_ipu": ("AUTO",), "memory_check": True, "on_demand": True, "fold": "auto",
    "fold_memory": 1024, "num_io_tiles": 0, "BN_span": 1, "scheduling_algorithm": "choose-best",
    "max_reduce_many_buffer_size": 0, "executable_cache": True, "executable_cache_size": 1000, "log_dir": "./logs/",
    "logs": True, "wandb_project": "tf-cnn", "mlflow_experiment": "tf-cnn", "repeat": 1, "num_inference_thread": 1, "tensorboard_images": 0,
    "resnext/convolution_groups": 32, "resnext/group_dim": 4, "efficientnet/block_survival_prob": 0.8,
    "efficientnet/se": True, "efficientnet/depth_divisor": 8, "efficientnet/top_width": 1280,
    "efficientnet/expand_ratio": 6, "efficientnet/group_dim": 1, "efficientnet/BN_decay": 0.97, "efficientnet/groups": 4,
    "efficientnet/norm_epsilon": 0.001, "efficientnet/proxy_epsilon": 0.03, "efficientnet/proxy_recompute": True,
    "stepped/learning_rate_decay": 0.1, "stepped/warmup_epochs": 5.0, "cosine/warmup_epochs": 5.0,
    "exponential/warmup_epochs": 5.0, "polynomial_decay_lr/warmup_epochs": 5.0,
    "polynomial_decay_lr/poly_lr_decay_power": 2.0, "polynomial_decay_lr/poly_lr_end_ratio": 1e-05,
}  # fmt: skip


def test_defaults_are_as_listed():
    given = {
        key: option.default
        for key, option in OPTIONS.items()
        if option.default not in (None, ()) and option.default is not False
    }
    assert given == DEFAULTS


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


@pytest.mark.parametrize(
    ("words", "decay"),
    [
        ("", 1 - 768 * 2.0**-14), ("--global-batch-size 512 --batch-size 8", 1 - 512 * 2.0**-14), ("--rmsprop-decay 0.8", 0.8),
        ("--rmsprop-decay 0", 0.0), ("--rmsprop-base-decay-exp -12", 1 - 768 * 2.0**-12), ("--dataset cifar-10", 0.9),
        ("--model resnet", 0.9), ("--rmsprop-decay 0.8 --rmsprop-base-decay-exp -12", 0.8),
        ("--config B0-G16-GN-Native_16IPU_2x8 --batch-size 12", 1 - 768 * 2.0**-14),
        ("--config B0-G16-GN-Native_mini --rmsprop-decay 0.8 --dataset imagenet --image-size 32", 0.8),
    ],
)  # fmt: skip
def test_rmsprop_decay_follows_batch_on_imagenet(words, decay):
    """EfficientNet's default exponent is -14. If two layers give a decay, the higher one wins."""
    base = "--model efficientnet --dataset imagenet --optimiser RMSprop --generated-data --abs-learning-rate 0.01"
    batch = "" if "batch" in words or "mini" in words else "--batch-size 8 --global-batch-size 768"
    parsed = cli.parse(f"{base} {batch} {words}".split(), environ={})
    run = prepare(parsed.options, {}, parsed.notes)
    assert run.options.training.update_rule(run.plan.global_batch).decay == decay


@pytest.mark.parametrize("words", [(), ("--dataset", "imagenet")])
def test_exponential_drops_of_efficientnet_match_paper(words):
    words = ["--model", "efficientnet", "--dataset", "cifar-10", "--lr-schedule", "exponential", *words]
    schedule = cli.parse(words, environ={}).options.schedule
    assert (schedule.lr_decay_rate, schedule.lr_drops) == (0.97, 146)


# 2. What an option changes. Each row: the call without the option, the words of the option, and what must change
# in the prepared run: everything named, and nothing else.

BASE = "--dataset cifar-10 --generated-data --seed 7"
IMAGENET = BASE.replace("cifar-10", "imagenet")
EFFICIENT = BASE + " --model efficientnet"
GROUPED = BASE + " --group-norm"
STAGED = BASE + " --shards 2 --pipeline-splits b2/1/relu --gradient-accumulation-count 8 --fold 1"
LENGTH = {"length", "rates"}
NORM = {"layers", "variables"}
# notes that generated images are not affected, and that one option of the norms overrides the other
PREPARED: dict[str, tuple[str, str, set[str]]] = {
    "model": (BASE, "--model resnext --micro-batch-size 32", {"layers", "variables", "name"}),
    "lr_schedule": (BASE, "--lr-schedule cosine", {"rates"}),
    "dataset": ("--generated-data --seed 7 --dataset cifar-10", "--dataset cifar-100", {"data", "layers", "variables"}),
    "generated_data": ("--dataset fashion-mnist --seed 7", "--generated-data", {"data"}),
    "num_classes": (IMAGENET, "--num-classes 10", {"data", "layers", "variables"}),
    "eight_bit_io": (BASE, "--eight-bit-io", {"request"}),
    "fused_preprocessing": (IMAGENET, "--fused-preprocessing", {"request", *NORM}),
    "dataset_percentage_to_use": (IMAGENET, "--dataset-percentage-to-use 50", {"data", "length", "rates"}),
    "shuffle_block": (IMAGENET, "--shuffle-block 8", {"request", "notes"}),
    "image_size": (BASE, "--image-size 40", {"image size", "request", "layers", "notes"}),
    "dataset_cache": (BASE, "--no-dataset-cache", {"request", "notes"}),
    "normalise_input": (IMAGENET, "--normalise-input", {"request"}),
    "symmetric_input": (IMAGENET, "--symmetric-input", {"request"}),
    "image_mean": (f"{IMAGENET} --image-std 1 1 1 --image-mean 0 0 0", "--image-mean 0.5 0.5 0.5", {"request"}),
    "image_std": (f"{IMAGENET} --image-mean 0 0 0 --image-std 1 1 1", "--image-std 0.5 0.5 0.5", {"request"}),
    "hostside_norm": (IMAGENET, "--hostside-norm", {"request"}),
    "train_with_valid_preprocessing": (BASE, "--train-with-valid-preprocessing", {"request", "notes"}),
    "augment": (BASE, "--augment trivial", {"request", "notes"}),
    "augment_magnitude": (BASE + " --augment rand", "--augment-magnitude 5", {"request"}),
    "colour_jitter": (BASE, "--colour-jitter 0.4", {"request", "notes"}),
    "random_erasing": (BASE, "--random-erasing 0.25", {"request", "notes"}),
    "pipeline_num_parallel": (BASE, "--pipeline-num-parallel 3", {"request", "notes"}),
    "micro_batch_size": (BASE, "--micro-batch-size 16", {"plan", "peak", "request", "name", *LENGTH}),
    "gradient_accumulation_count": (BASE, "--gradient-accumulation-count 2", {"plan", "peak", "name", *LENGTH}),
    "global_batch_size": (BASE, "--global-batch-size 96", {"plan", "peak", "name", *LENGTH}),
    "epochs": (BASE, "--epochs 10", {*LENGTH}),
    "whole_epochs": (BASE, "--whole-epochs", {*LENGTH}),
    "iterations": (BASE, "--iterations 100", {"plan", *LENGTH}),
    "base_learning_rate_exponent": (BASE, "--base-learning-rate-exponent -11", {"peak", "rates"}),
    "abs_learning_rate": (BASE, "--abs-learning-rate 0.125", {"peak", "rates"}),
    "ckpts_per_epoch": (BASE, "--ckpts-per-epoch 0", {"length"}),
    "epochs_per_ckpt": (BASE, "--epochs-per-ckpt 3", {"length"}),
    "ckpt_epochs_offset": (BASE, "--ckpt-epochs-offset 9.5", {"length"}),
    "valid_batch_size": (BASE, "--valid-batch-size 5", {"validation batch"}),
    "shards": (BASE, "--shards 2", {"plan", "obeyed", "stages"}),
    "pipeline": (STAGED, "--pipeline", {"plan", "obeyed", "name"}),
    "pipeline_splits": (BASE, "--pipeline-splits b2/1/relu", {"plan", "stages"}),
    "pipeline_schedule": (STAGED + " --pipeline", "--pipeline-schedule Grouped", {"plan"}),
    "sharding_include_filter": (BASE + " --shards 2", "--sharding-include-filter b1", {"stages"}),
    "sharding_exclude_filter": (BASE + " --shards 2", "--sharding-exclude-filter b2", {"stages"}),
    "enable_recomputation": (BASE, "--enable-recomputation", {"obeyed"}),
    "select_ipu": (BASE, "--select-ipu 3 5", {"plan"}),
    "identical_replica_seeding": (BASE + " --replicas 2", "--identical-replica-seeding", {"obeyed"}),
    "BN_span": (BASE + " --replicas 4", "--BN-span 2", {"plan", "obeyed"}),
    "fold": (BASE + " --gradient-accumulation-count 4", "--fold 2", {"plan"}),
    "fold_memory": (BASE + " --gradient-accumulation-count 4", "--fold-memory 1", {"plan"}),
    "replicas": (BASE, "--replicas 3", {"plan", "obeyed", "peak", "name", *LENGTH}),
    "batches_per_step": (BASE, "--batches-per-step 20", {"plan", "length"}),
    "stochastic_rounding": (BASE, "--stochastic-rounding OFF", {"name", "plan"}),
    "seed": (BASE.replace("--seed 7", ""), "--seed 8", {"seed", "request"}),
    "stable_norm": (GROUPED, "--stable-norm", {"layers"}),
    "force_unstable_norm": (GROUPED + " --stable-norm", "--force-unstable-norm", {"layers"}),
    "name_suffix": (BASE, "--name-suffix second", {"name"}),
    "logs_per_epoch": (BASE, "--logs-per-epoch 2", {"plan", "length"}),
    "log_freq": (BASE, "--log-freq 7", {"plan", "length"}),
    **{
        f"{model}/{name}": (f"{BASE} --model {model} {rest}", words, changes)
        for model in ("resnet", "resnext")
        for name, rest, words, changes in [
            ("model_size", "", "--model-size 29", {*NORM, "name"}),
            ("batch_norm", "", "--no-batch-norm", {*NORM, "name"}),
            ("group_norm", "", "--group-norm", {*NORM, "name"}),
            ("groups", "--group-norm", "--groups 8", {"layers", "name"}),
            ("BN_decay", "", "--BN-decay 0.9", {*NORM}),
            ("contiguous_groups", "--group-norm", "--contiguous-groups", {"layers"}),
            ("symmetric_padding", "", "--symmetric-padding", {"layers"}),
        ]
    },
    "squeezenet/use_bypass": (BASE + " --model squeezenet --image-size 64", "--use-bypass", {"layers"}),
    "resnext/convolution_groups": (BASE + " --model resnext", "--convolution-groups 16", {*NORM}),
    "resnext/group_dim": (BASE + " --model resnext", "--group-dim 8", {*NORM}),
    "resnext/widenet": (BASE + " --model resnext", "--widenet", {*NORM}),
    "efficientnet/model_size": (EFFICIENT, "--model-size 1", {*NORM, "name"}),
    "efficientnet/batch_norm": (EFFICIENT, "--batch-norm", {*NORM, "name"}),
    "efficientnet/contiguous_groups": (EFFICIENT, "--contiguous-groups", {"layers"}),
    "efficientnet/proxy_norm": (EFFICIENT, "--proxy-norm", {*NORM}),
    "efficientnet/proxy_epsilon": (EFFICIENT + " --proxy-norm", "--proxy-epsilon 0.1", {*NORM}),
    "efficientnet/groups": (EFFICIENT, "--groups 8", {"layers", "name"}),
    "efficientnet/BN_decay": (EFFICIENT + " --batch-norm", "--BN-decay 0.9", {*NORM}),
    "efficientnet/symmetric_padding": (EFFICIENT, "--symmetric-padding", {"layers"}),
    "efficientnet/norm_epsilon": (EFFICIENT, "--norm-epsilon 0.01", {"layers"}),
    "efficientnet/dropout_rate": (EFFICIENT, "--dropout-rate 0.5", {"layers"}),
    "efficientnet/block_survival_prob": (EFFICIENT, "--block-survival-prob 0.5", {"layers"}),
    "efficientnet/se": (EFFICIENT, "--no-se", {*NORM}),
    "efficientnet/depth_divisor": (EFFICIENT, "--depth-divisor 16", {*NORM}),
    "efficientnet/top_width": (EFFICIENT, "--top-width 0", {*NORM}),
    "efficientnet/use_relu": (EFFICIENT, "--use-relu", {"layers"}),
    "efficientnet/use_relu6": (EFFICIENT, "--use-relu6", {"layers"}),
    "efficientnet/fix_stem_head": (EFFICIENT, "--fix-stem-head", {*NORM}),
    "efficientnet/expand_ratio": (EFFICIENT, "--expand-ratio 4", {*NORM}),
    "efficientnet/group_dim": (EFFICIENT, "--group-dim 16", {*NORM}),
    "efficientnet/width_coefficient": (EFFICIENT, "--width-coefficient 1", {*NORM}),
    "efficientnet/depth_coefficient": (EFFICIENT, "--depth-coefficient 2", {*NORM}),
    "stepped/learning_rate_decay": (BASE, "--learning-rate-decay 0.5", {"rates"}),
    "stepped/learning_rate_schedule": (BASE, "--learning-rate-schedule 0.25", {"rates"}),
    **{
        f"{schedule}/warmup_epochs": (f"{EFFICIENT} --lr-schedule {schedule}", "--warmup-epochs 0", {"rates"})
        for schedule in SCHEDULES
    },
    "exponential/lr_decay_rate": (EFFICIENT + " --lr-schedule exponential", "--lr-decay-rate 0.5", {"rates"}),
    "exponential/lr_drops": (EFFICIENT + " --lr-schedule exponential", "--lr-drops 3", {"rates"}),
    **{
        f"polynomial_decay_lr/{name}": (BASE + " --lr-schedule polynomial_decay_lr", words, {"rates"})
        for name, words in [
            ("poly_lr_decay_power", "--poly-lr-decay-power 1"),
            ("poly_lr_end_ratio", "--poly-lr-end-ratio 0.1"),
            ("abs_end_learning_rate", "--abs-end-learning-rate 0.01"),
        ]
    },
    **{  # also the initial rate of the curve, and the update in a log row
        f"polynomial_decay_lr/{name}": (BASE + " --lr-schedule polynomial_decay_lr", words, {"rates", "peak", "length"})
        for name, words in [
            ("poly_lr_early", "--poly-lr-early"),
            ("poly_lr_decay_steps", "--poly-lr-decay-steps 20000"),
        ]
    },
}
HALF, CLOTHES = "--precision 16.16", "--dataset fashion-mnist"
RULES = {"rmsprop": "RMSprop", "lars": "LARS", "lamb": "LAMB", "adam": "Adam"}
# options visible only in a graph: the difference after two updates, or in the graph itself
BUILT: dict[str, tuple[str, str, set[str]]] = {
    "optimiser": ("", "--optimiser momentum", {"weights", "slots"}),
    "momentum": ("--optimiser momentum", "--momentum 0.5", {"weights", "slots"}),
    "nesterov": ("--optimiser momentum", "--nesterov", {"weights", "slots"}),
    "weight_decay": ("", "--weight-decay 0.5", {"weights", "loss"}),
    "clip_grad_norm": ("", "--clip-grad-norm 0.1", {"weights", "loss"}),
    "ema": ("", "--ema 0.5", {"weights"}),  # the averages alone
    # 100 is no power of two, so gradients round differently; slots hold the scaled gradients
    "loss_scaling": ("--optimiser momentum", "--loss-scaling 100", {"weights", "slots"}),
    "loss": ("", "--loss bce", {"weights", "loss"}),
    "label_smoothing": ("", "--label-smoothing 0.5", {"weights", "loss"}),
    "synthetic_data": ("", "--synthetic-data", {"graph"}),
    "mixup_alpha": (CLOTHES, "--mixup-alpha 0.2", {"weights", "loss"}),
    "cutmix_lambda": (CLOTHES, "--cutmix-lambda 0.6", {"weights", "loss"}),
    "cutmix_version": (f"{CLOTHES} --cutmix-lambda 0.6", "--cutmix-version 2", {"weights", "loss"}),
    "precision": ("", "--precision 16.32", {"weights", "loss"}),
    "fp32_accumulators": (
        "--precision 16.32 --gradient-accumulation-count 3 --fold 1",
        "--fp32-accumulators",
        {"weights"},
    ),
    "weight_format": (HALF, "--weight-format e4m3fn", {"weights", "loss"}),
    "activation_format": (HALF, "--activation-format e5m2", {"weights", "loss"}),
    "gradient_format": (HALF, "--gradient-format e5m2fnuz", {"weights", "loss"}),
    "weight_bias": ("--precision 8.16", "--weight-bias 4", {"weights", "loss"}),
    "activation_bias": ("--precision 8.16", "--activation-bias 3", {"weights", "loss"}),
    "gradient_bias": ("--precision 8.16", "--gradient-bias 6", {"weights"}),
    "format_for": ("--precision 8.16", "--format-for last=bf16", {"weights", "loss"}),
    "accumulator_format": (
        "--precision 16.32 --gradient-accumulation-count 3 --fold 1",
        "--accumulator-format bf16",
        {"weights"},
    ),
    "master_format": (HALF, "--master-format bf16", {"weights", "loss"}),
    "format_scaling": ("--precision 8.16", "--format-scaling", {"weights", "loss"}),
    "slot_format": (f"{HALF} --optimiser momentum", "--slot-format bf16", {"weights", "slots"}),
    "automatic_loss_scaling": (HALF, "--automatic-loss-scaling largest", {"weights"}),
    "loss_scaling_period": (f"{HALF} --automatic-loss-scaling", "--loss-scaling-period 1", {"weights"}),
    "saturate_on_overflow": (f"{HALF} --loss-scaling 1e9", "--saturate-on-overflow", {"weights", "loss"}),
    "offload_fp32_weight_copy": (HALF, "--offload-fp32-weight-copy", {"weights", "slots"}),
    **{
        name: (f"--optimiser {RULES[name.split('_')[0]]}", words, {"weights", *more})
        for name, words, *more in [
            ("rmsprop_decay", "--rmsprop-decay 0.5", "slots", "loss"),
            ("rmsprop_base_decay_exp", "--rmsprop-base-decay-exp -8", "slots", "loss"),
            ("rmsprop_epsilon", "--rmsprop-epsilon 0.5", "slots", "loss"),
            ("lars_epsilon", "--lars-epsilon 0.5", "slots", "loss"),
            ("lars_eeta", "--lars-eeta 0.5", "slots", "loss"),
            ("lars_skip_list", "--lars-skip-list gamma", "slots"),
            ("lars_weight_decay", "--lars-weight-decay 0.5", "slots", "loss"),
            ("lamb_beta1", "--lamb-beta1 0.5", "slots"),
            ("lamb_beta2", "--lamb-beta2 0.5", "slots"),
            ("lamb_epsilon", "--lamb-epsilon 0.1", "slots", "loss"),
            ("lamb_weight_decay", "--lamb-weight-decay 0.5", "slots", "loss"),
            ("lamb_skip_list", "--lamb-skip-list gamma"),
            ("adam_beta1", "--adam-beta1 0.5", "slots"),
            ("adam_beta2", "--adam-beta2 0.5", "slots"),
            ("adam_epsilon", "--adam-epsilon 0.1", "slots", "loss"),
        ]
    },
}
HINTS = {
    "efficientnet/proxy_recompute": "false",
    "standard_imagenet": "", "disable_variable_offloading": "", "rts": "", "min_remote_tensor_size": "256",
    "available_memory_proportion": "0.2", "enable_half_partials": "", "gather_conv_output": "",
    "enable_conv_dithering": "", "internal_exchange_optimisation_target": "memory",
    "max_reduce_many_buffer_size": "216",
    "scheduling_algorithm": "post-order", "on_demand": "false", "prefetch_depth": "3", "num_io_tiles": "32",
    "gcl_method": "auto", "gcl_max_broadcast_size": "4096",
    "poplar_sync_configuration": "x", "gradient_mean_reduce_re": "a b", "only_use_slic_vmac_16": "",
}  # fmt: skip
OBEYED = (  # by the device layer's programs, unchanged
    "replicas", "shards", "pipeline", "enable_recomputation", "identical_replica_seeding", "BN_span",
    "max_cross_replica_buffer_size", "all_reduce_format",
)  # fmt: skip
EXCLUDED = ("disable_variable_offloading", "rts")  # mutually exclusive, by the plan


def test_every_option_has_its_row():
    """Options that decide what a command does or writes must occur in a test. This finds options without any effect."""
    texts = [path.read_text() for path in (plugins.ROOT / "test").rglob("test_*.py")]
    assert {key for key, kind in KINDS.items() if kind == "hint"} == HINTS.keys()
    others = {key for key, kind in KINDS.items() if kind == "now"} - PREPARED.keys() - BUILT.keys()
    assert [key for key in others if not any(OPTIONS[key].flag[2:] in text for text in texts)] == []


def prepared(words: str) -> Run:
    return prepare(cli.parse(shlex.split(words), "train", None, {}).options, {})


def fingerprint(words: str) -> dict[str, object]:
    """Return everything visible about a prepared run, by name."""
    run = prepared(words)
    length = run.length
    points = sorted({0, 1, 50, 300, 1500, 3000, 30_000, *(length.iterations * k // 20 for k in range(21))})
    return {
        "data": (type(run.data_source), run.data_source.spec),
        "image size": run.image_size,
        "layers": [dataclasses.replace(node, variables=()) for node in run.network.nodes],
        "variables": [dataclasses.astuple(variable) for variable in run.network.variables],
        "plan": dataclasses.replace(run.plan, stages=(), options=DeviceOptions()),
        "obeyed": {name: getattr(run.plan.options, name) for name in OBEYED},
        "stages": run.plan.stages if "--shards" in words or "--pipeline-splits" in words else None,
        "length": length,
        "peak": run.peak_rate,
        "rates": [run.learning_rate(i) for i in points],
        "seed": run.seed,
        "name": run.name,
        "request": run.request(run.plan.micro_batch_size),
        "validation batch": run.validation_batch if "--valid" in words else None,
        "not decayed": run.not_decayed,
        "notes": run.notes,
    }


@pytest.mark.parametrize("key", PREPARED)
def test_option_changes_prepared_run(key):
    base, words, expected = PREPARED[key]
    before, after = fingerprint(base), fingerprint(f"{base} {words}")
    assert {name for name in before if before[name] != after[name]} == expected


def asked(key: str, value: str) -> tuple[list[str], str]:
    """Return the command-line words for a hint, and its flag."""
    flag = OPTIONS[key].flag
    model = ["--model", key.split("/")[0]] if "/" in key else []
    return [*model, "--no-" + flag[2:]] if value == "false" else [*model, flag, *value.split()], flag


@pytest.mark.parametrize("key", HINTS)
def test_hint_changes_only_record_and_log(key):
    given, flag = asked(key, HINTS[key])
    base = [*BASE.split(), *(given[:2] if given[0] == "--model" else [])]
    words = [*BASE.split(), *given]
    parsed = cli.parse(words, "train", None, {})
    assert parsed.options.values()[key.split("/")[-1]] != OPTIONS[key].default
    assert len(parsed.notes) == 1 and flag in parsed.notes[0]
    before, after = fingerprint(" ".join(base)), fingerprint(" ".join(words))
    differ = {name for name in before if before[name] != after[name]}
    assert differ == ({"notes"} if key == "enable_half_partials" else set())  # a note: not emulated
    cost_model = set((EMULATOR / "cost_model").glob("*.py"))  # predicts the speed on a POD and changes nothing
    files = set(EMULATOR.rglob("*.py")) - cost_model
    readers = {path.name for path in files if f"options.{key}" in path.read_text(encoding="utf-8")}
    assert readers == ({"plan.py"} if key in EXCLUDED else set())


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


@pytest.mark.sampled
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


def test_latency_is_per_micro_batch(tmp_path):
    words = ("--dataset", "cifar-10", "--model-size", 8, "--batch-size", 2000, "--image-size", 8, "--log-dir", tmp_path)
    synthetic = succeed("validation", *words, "--latency", "--synthetic-data")
    assert "--latency is ignored" in synthetic.out
    generated = succeed("validation", *words, "--latency", "--generated-data")
    assert "--latency is ignored" not in generated.out
    line = next(line for line in generated.out.splitlines() if line.startswith("Validation top-1"))
    seconds, latency = (float(re.search(rf"{what}: *([\d.]+)", line)[1]) for what in ("time", r"latency \(ms\)"))
    assert latency != pytest.approx(1000 * seconds / 5, rel=1e-6)  # the value that is logged without a measurement
