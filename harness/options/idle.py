"""Options that change nothing in the company of others, as a table: whoever gives one in a call is told so. Options that
depend on the network or on the devices have rules in `harness/run/`; a configuration may have options for other calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from base.fields import TRAINING_ONLY
from harness.options.sections import AUTO, RunOptions, TrainingOptions, with_trait


class IdleOptions(NamedTuple):
    """A row: options, a condition under which they change nothing, and the reason for people."""

    names: tuple[str, ...]
    idle: Callable[[RunOptions], bool]
    why: str


def _without_checkpoints(options: RunOptions) -> bool:
    return not (options.checkpoint.ckpts_per_epoch or options.checkpoint.epochs_per_ckpt)


def _at_random(options: RunOptions) -> bool:
    return options.dataset.random_data


IN_EACH_CALL: tuple[IdleOptions, ...] = (
    IdleOptions(("log_dir", "logs_path"), lambda run: not run.logging.logs, "--no-logs keeps no run folder"),
    IdleOptions(
        ("log_dir",), lambda run: run.logging.logs and run.logging.logs_path is not None, "--logs-path is the run's folder"
    ),
)  # fmt: skip
IN_TRAINING: tuple[IdleOptions, ...] = (
    *IN_EACH_CALL,
    IdleOptions(("wandb_project", "wandb_id"), lambda run: not run.logging.wandb, "it is for --wandb, which is not given"),
    IdleOptions(
        ("mlflow_experiment", "mlflow_id"), lambda run: not run.logging.mlflow, "it is for --mlflow, which is not given"
    ),
    IdleOptions(
        ("numerics", "tensorboard_images"), lambda run: not run.logging.logs, "--no-logs keeps no run folder",
    ),
    IdleOptions(("valid_batch_size", "latency"), lambda run: not run.checkpoint.validation, "--no-validation"),
    IdleOptions(
        ("ckpt_epochs_offset", "max_ckpts_to_keep", "safety_ckpt_minutes", "mtbf_hours"),
        _without_checkpoints,
        "--ckpts-per-epoch 0 writes no checkpoints",
    ),
    IdleOptions(
        ("mtbf_hours",),
        lambda run: run.checkpoint.safety_ckpt_minutes != AUTO and not _without_checkpoints(run),
        "it is for --safety-ckpt-minutes auto, which is not given",
    ),
    IdleOptions(
        ("executable_cache_path", "executable_cache_size"),
        lambda run: not run.device.executable_cache,
        "--no-executable-cache",
    ),
    IdleOptions(
        ("loss_scaling_period",), lambda run: run.training.automatic_loss_scaling != "back-off",
        "it is for --automatic-loss-scaling back-off",
    ),
    IdleOptions(
        ("lr_decay_rate",), lambda run: getattr(run.schedule, "lr_drops", None) == 0, "--lr-drops 0 lets the rate never drop"
    ),
    IdleOptions(
        ("lr_drops",), lambda run: getattr(run.schedule, "lr_decay_rate", None) == 1, "--lr-decay-rate 1 is no drop"
    ),
    IdleOptions(
        ("learning_rate_schedule",),
        lambda run: getattr(run.schedule, "learning_rate_decay", None) == 1, "--learning-rate-decay 1 is no drop",
    ),
    IdleOptions(("fold_memory",), lambda run: run.device.fold != "auto", "--fold gives the number itself"),
    IdleOptions(
        ("stable_norm",), lambda run: bool(run.training.stable_norm) and run.device.force_unstable_norm,
        "--force-unstable-norm goes before it",
    ),
    IdleOptions(
        ("force_unstable_norm",), lambda run: getattr(run.model, "group_norm", False) and not run.training.stable_norm,
        "the statistics are one-pass anyway",
    ),
    IdleOptions(
        ("proxy_epsilon",), lambda run: not getattr(run.model, "proxy_norm", True), "it is for --proxy-norm, which is off"
    ),
    IdleOptions(
        ("shuffle_block", "skip_bad_records", "validation_split", "dataset_cache"),
        _at_random,
        "generated and synthetic data have no records",
    ),
    IdleOptions(
        ("train_with_valid_preprocessing", "pipeline_num_parallel"),
        _at_random,
        "generated and synthetic data are not preprocessed",
    ),
    IdleOptions(
        ("eight_bit_io", "hostside_norm"), lambda run: run.dataset.synthetic_data, "--synthetic-data has no host input"
    ),
)  # fmt: skip
USED_WITHOUT_TRAINING = frozenset(
    ("micro_batch_size", "gradient_accumulation_count", "global_batch_size", "iterations", "label_smoothing", "stable_norm",
     "distributed", "worker_timeout", "bind", "offload_fp32_weight_copy")
)  # fmt: skip
FOR_TRAINING = (
    *(field.name for field in dataclasses.fields(TrainingOptions) if field.name not in USED_WITHOUT_TRAINING),
    *("mixup_alpha", "cutmix_lambda", "cutmix_version", "hostside_image_mixing", "train_with_valid_preprocessing"),
    *("ckpts_per_epoch", "epochs_per_ckpt", "ckpt_epochs_offset", "ckpt_all_instances", "max_ckpts_to_keep"),
    *("keep_best_ckpt", "patience", "safety_ckpt_minutes", "mtbf_hours", "validation", "logs_per_epoch", "log_freq"),
    *sorted(with_trait(TRAINING_ONLY)),
    *("fold", "fold_memory", "fp32_accumulators", "all_reduce_format", "max_cross_replica_buffer_size"),
    *("mlperf_logging", "lr_schedule"),
)
IN_VALIDATION: tuple[IdleOptions, ...] = (
    *IN_EACH_CALL,
    IdleOptions(
        ("repeat", "latency", "valid_batch_size", "inference"),
        lambda run: bool(run.checkpoint.predict),
        "--predict names photographs and validates nothing",
    ),
    IdleOptions(("force_recompile",), lambda run: run.checkpoint.tmp_execs, "--tmp-execs builds the program anew anyway"),
)


def rows(options: RunOptions, trains: bool) -> tuple[IdleOptions, ...]:
    """Return the rows for a call that trains, or for one that only infers, which has no use for a learning rate either."""
    if trains:
        return IN_TRAINING
    of_training = IdleOptions((*FOR_TRAINING, *vars(options.schedule)), lambda run: True, "nothing is trained here")
    return (of_training, *IN_VALIDATION)


def notes(options: RunOptions, trains: bool) -> Iterator[str]:
    """Yield a line for each reason for which options that the command line gives, with other values than their defaults,
    change nothing."""
    values = options.values()
    defaults = {field.name: field.default for section in options.sections for field in dataclasses.fields(section)}
    for row in rows(options, trains):
        given = [name for name in row.names if options.given(name) and values[name] != defaults[name]]
        if given and row.idle(options):
            verb = "changes" if len(given) == 1 else "change"
            yield f"{', '.join(map(options.words, given))} {verb} nothing: {row.why}"
