"""Every option of the scripts, typed.

Each argument group is a frozen section; the device layer declares its own. A section checks nothing that needs another
section; rules between options are rows of `harness/options/exclusive.py`, or functions in `harness/run/rules.py`. The
model's and the schedule's own options are the `Options` classes of their plug-ins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from base.errors import OptionError
from base.fields import (
    HALVES,
    HINT,
    LARGEST_COUNT,
    LENGTH,
    NOT_IN_GRAPH,
    ONE_CALL,
    PER_INSTANCE,
    above,
    at_least,
    below_one,
    between,
    decimal_number,
    opt,
)  # fmt: skip
from emulator.plan.options import DeviceOptions
from harness.options import releases
from harness.options.update_rules import RMSPROP_DECAY, SKIPPED, UPDATE_RULES

COMMAND_LINE, CONFIGURATION, RECORDED = "command line", "configuration", "the recorded run"  # of values: where from
ACCUMULATION, AUTO = "gradient_accumulation_count", "auto"


def _channels(low: float) -> Callable[[tuple[float, ...]], str | None]:
    """Check: none, or a number from `low` on for each of three channels."""

    def check(values: tuple[float, ...]) -> str | None:
        good = not values or (len(values) == 3 and all(low <= value <= 1e6 for value in values))
        return None if good else f"must be three numbers, R G B, between {low:g} and 1e+06"

    return check


def _minutes(value: str) -> str | None:
    try:
        number = AUTO if value == AUTO else decimal_number(value)
    except ValueError:
        return "must be a number of minutes, or auto"
    return None if number == AUTO else at_least(0)(number)


def _pipeline_depth(raw: str) -> dict[str, str]:
    """The old --pipeline-depth D: D micro-batches per update, pipelined if D > 1."""
    return {ACCUMULATION: raw, "pipeline": "false" if raw == "1" else "true"}


@dataclass(frozen=True, kw_only=True)
class MainOptions:
    """Main"""

    model: str = opt("resnet", "the network: a module of Models/")
    lr_schedule: str = opt("stepped", "the learning-rate curve: a module of LR_Schedules/")
    config: str | None = opt(None, "named block of the configuration file", traits=(ONE_CALL, PER_INSTANCE))
    config_path: str | None = opt(
        None, "YAML file to read (default: configs.yml beside the scripts)", traits=(ONE_CALL, PER_INSTANCE)
    )
    release: str | None = opt(
        None,
        "do as this release of the original did (2.1), with the values that --config NAME had in it (default: its last)",
        read=releases.normalised,
        traits=(LENGTH,),
    )
    restore_path: str | None = opt(
        None,
        "run folder to resume (train, restore); run folder, checkpoint, .npz, .safetensors, efficientnet-lite0 (validation)",
        traits=(ONE_CALL, PER_INSTANCE),
    )
    explain: bool = opt(False, "print every value and where it came from, then stop", traits=(ONE_CALL,))
    summary: bool = opt(
        False, "print every layer by stage: output, parameters, multiply-adds, activations; then stop", traits=(ONE_CALL,)
    )
    dry_run: bool = opt(
        False, "print the resolved run (batches, updates, learning rate, size), then stop", traits=(ONE_CALL,)
    )
    list_configs: str | None = opt(
        None, "print the named configurations, or those with this word, then stop", bare="all", traits=(ONE_CALL,)
    )
    version: bool = opt(False, "print the versions of the harness, Python and TensorFlow, then stop", traits=(ONE_CALL,))
    help: str | None = opt(
        None, "print the options that most people use; with a word, others", bare="common", flags=("-h",), traits=(ONE_CALL,)
    )


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Data set"""

    dataset: str | None = opt(
        None,
        "fashion-mnist (embedded), fashion-mnist-full, cifar-10, cifar-100, imagenet (inferred from the path), imagefolder",
    )
    data_dir: str | None = opt(
        None,
        "folder of the data (default: the environment's DATA_DIR)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    train_dir: str | None = opt(
        None,
        "imagefolder: the folder whose folders are the classes, in data-dir or elsewhere (default: as its names say)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    validation_dir: str | None = opt(
        None, "imagefolder: the same of validation", traits=(NOT_IN_GRAPH, PER_INSTANCE), needs="data files"
    )
    num_classes: int | None = opt(
        None,
        "classes of imagenet shards or of generated photographs (default: labels.txt, else 1000)",
        check=at_least(1),
        traits=(NOT_IN_GRAPH,),
    )
    image_size: int | None = opt(None, "side of the pictures in pixels (default by model or data set)", check=at_least(8))
    generated_data: bool = opt(False, "random data made once on the host")
    synthetic_data: bool = opt(False, "random data made on the device, no host input or output")
    dataset_cache: bool = opt(
        True,
        "keep raw records in host memory; --no-dataset-cache reads them each time",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    normalise_input: bool = opt(False, "ImageNet: scale to unit deviation too, not only subtract the mean", needs="photos")
    symmetric_input: bool = opt(False, "ImageNet: (x - 127) / 128 instead, as EfficientNet-Lite was trained", needs="photos")
    image_mean: tuple[float, ...] = opt(
        (),
        "ImageNet: (x / 255 - mean) / std with these means instead, R G B; needs --image-std",
        check=_channels(-1e6),
        needs="photos",
    )
    image_std: tuple[float, ...] = opt(
        (), "standard deviations for --image-mean, R G B", check=_channels(1e-6), needs="photos"
    )
    hostside_norm: bool = opt(False, "ImageNet: normalise on the host instead of the device", needs="photos")
    train_with_valid_preprocessing: bool = opt(False, "train on evaluation crops, without augmentation", needs="data files")
    augment: str = opt(
        "none",
        "change each training image after its crop: by one random operation of 14 (trivial), or by two (rand)",
        choices=("none", "trivial", "rand"),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    augment_magnitude: float = opt(
        9.0, "strength of the two operations, 0 to 10", check=between(0, 10), traits=(NOT_IN_GRAPH,), needs="--augment rand"
    )
    colour_jitter: float = opt(
        0.0,
        "the most by which brightness, contrast and saturation of a training image change, as 0.4; 0 is off",
        aliases=("color_jitter",),
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    random_erasing: float = opt(
        0.0,
        "probability that a rectangle of a training image becomes grey",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    standard_imagenet: bool = opt(False, "the plain ImageNet pipeline (the only one so far)", kind=HINT)
    pipeline_num_parallel: int = opt(
        48, "pictures preprocessed in parallel", check=at_least(1), traits=(NOT_IN_GRAPH, PER_INSTANCE), needs="data files"
    )
    mixup_alpha: float = opt(0.0, "parameter of mixup's Beta distribution; 0 is off", check=at_least(0))
    cutmix_lambda: float = opt(1.0, "part of the picture that cutmix keeps; 1 is off", check=between(0, 1))
    cutmix_version: int = opt(
        1, "1: the part varies at random, 2: it is cutmix-lambda", choices=("1", "2"), needs="--cutmix-lambda"
    )
    hostside_image_mixing: bool = opt(False, "mixup and cutmix on the host instead of the device")
    eight_bit_io: bool = opt(False, "send pictures to the device as bytes, normalised there")
    dataset_percentage_to_use: int = opt(
        100, "ImageNet: the first N of a hundred shards", check=between(1, 100), traits=(NOT_IN_GRAPH,)
    )
    fused_preprocessing: bool = opt(
        False, "ImageNet: normalise on the device, pictures padded to 4 channels with zeros", needs="photos"
    )
    shuffle_block: int = opt(
        1,
        "ImageNet: records that stay together in the shuffled order, for disks that are slow to seek",
        check=at_least(1),
        traits=(NOT_IN_GRAPH,),
        needs="photo files",
    )
    validation_split: float = opt(
        0.0,
        "imagefolder: the part of every class that validates instead of training, the same pictures each time; 0 is none",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="data files",
    )
    skip_bad_records: int = opt(
        0,
        "ImageNet: go on past N records that cannot be used; the next good one stands in",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
        needs="photo files",
    )
    dataset_benchmark: bool = opt(False, "only measure the input pipeline, stage by stage", traits=(ONE_CALL, NOT_IN_GRAPH))

    @property
    def random_data(self) -> bool:
        """True if random pictures stand in for the data set's files."""
        return self.generated_data or self.synthetic_data

    @property
    def mixes(self) -> bool:
        """True if mixup or cutmix mixes pictures; all random ones are alike."""
        return self.least_micro_batch > 1 and not self.random_data

    @property
    def least_micro_batch(self) -> int:
        """The least pictures of a micro-batch: mixup and cutmix need two different ones, and are off with random ones."""
        return 2 if self.mixup_alpha > 0 or self.cutmix_lambda < 1 else 1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training"""

    micro_batch_size: int | None = opt(
        None, "samples of one micro-batch (default by model); also --batch-size", aliases=("batch_size",), check=at_least(1)
    )
    gradient_accumulation_count: int = opt(
        1, "micro-batches per replica and weight update", aliases=("gradients_to_accumulate",), check=at_least(1),
        rewrites={"pipeline_depth": _pipeline_depth}, factors=("gradients_to_accumulate", "pipeline_depth"),
    )  # fmt: skip
    global_batch_size: int | None = opt(
        None, "samples per weight update; sets the accumulation count (validation: for the epoch shown)",
        aliases=("total_batch_size",), check=at_least(1),
    )  # fmt: skip
    epochs: float | None = opt(
        None,
        "length of training in passes over the data (default by model)",
        aliases=("epoch",),
        check=above(0),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    iterations: int | None = opt(
        None, "length of training in weight updates, instead of epochs", check=at_least(1), traits=(NOT_IN_GRAPH, LENGTH)
    )
    keep_going: bool = opt(
        False, "go on when the loss is not finite, or when a checkpoint cannot be written", traits=(NOT_IN_GRAPH,)
    )
    stop_after: int | None = opt(
        None,
        "stop cleanly once this many weight updates are done, leaving the run's length as it is",
        check=at_least(1),
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    base_learning_rate_exponent: float | None = opt(
        None,
        "learning rate = 2^exponent x global batch (default by model)",
        aliases=("base_learning_rate",),
        check=between(-126, 64),
        traits=(NOT_IN_GRAPH,),
    )
    abs_learning_rate: float | None = opt(
        None,
        "learning rate as it is (Adam, AdamW: 0.001)",
        aliases=("poly_lr_initial_lr",),
        check=above(0),
        traits=(NOT_IN_GRAPH,),
    )
    optimiser: str = opt("SGD", "weight update rule", choices=tuple(UPDATE_RULES), aliases=("optimizer",))
    momentum: float = opt(0.9, "of momentum, RMSprop and LARS", check=below_one)
    nesterov: bool = opt(False, "momentum: step by the gradient plus momentum x the new sum")
    weight_decay: float | None = opt(
        None,
        "L2 coefficient, added to the gradients (default by model; Adam 0); AdamW: of the weights themselves (0.01)",
        check=at_least(0),
    )
    clip_grad_norm: float = opt(
        0.0,
        "scale the gradients of an update down to this global L2 norm, before weight decay is added; 0 is off",
        check=at_least(0),
    )
    loss_scaling: float = opt(128.0, "the loss is multiplied by it before differentiation", check=above(0))
    automatic_loss_scaling: str | None = opt(
        None, "begin with --loss-scaling and let the run find its scale: halved where gradients overflow, and doubled after "
        "a while without (back-off), or such that the largest gradient is an eighth of what overflows (largest)",
        aliases=("auto_loss_scaling",), bare="back-off", choices=("back-off", "largest"),
    )  # fmt: skip
    loss_scaling_period: int = opt(
        2000,
        "updates without overflow until back-off doubles the scale",
        check=at_least(1),
        needs="--automatic-loss-scaling back-off",
    )
    loss: str = opt(
        "cross-entropy",
        "softmax cross entropy, or bce: binary cross entropy of every class by itself, and its mean over the classes",
        choices=("cross-entropy", "bce"),
    )
    class_weights: str | None = opt(
        None,
        "imagefolder: in training, multiply the loss of an image by images / (classes x images of its class)",
        choices=("balanced",),
    )
    label_smoothing: float | None = opt(
        None, "probability taken from the true class (default 0, EfficientNet 0.1)", check=between(0, 1)
    )
    stable_norm: bool | None = opt(None, "two-pass statistics in group norm (default by model)")
    rmsprop_decay: float | None = opt(None, "decay of the mean square", check=below_one)
    rmsprop_base_decay_exp: float | None = opt(
        None,
        "decay = 1 - global batch x 2^exp (EfficientNet on ImageNet: -14; else the decay is 0.9)",
        check=between(-126, 64),
    )
    rmsprop_epsilon: float = opt(0.001, "added inside the root", check=above(0))
    lars_epsilon: float = opt(0.0, "added to the trust ratio's denominator", check=at_least(0))
    lars_eeta: float = opt(0.001, "trust coefficient", check=above(0))
    lars_skip_list: tuple[str, ...] = opt(SKIPPED, "names without trust ratio")
    lars_weight_decay: float | None = opt(None, "LARS' own weight decay (default by model)", check=at_least(0))
    lamb_beta1: float = opt(0.9, "decay of the first moment", check=below_one)
    lamb_beta2: float = opt(0.999, "decay of the second moment", check=below_one)
    lamb_epsilon: float = opt(1e-6, "added to the root of the second moment", check=above(0))
    lamb_weight_decay: float | None = opt(None, "LAMB's own weight decay", check=at_least(0))
    lamb_skip_list: tuple[str, ...] = opt(SKIPPED, "names without decay and trust ratio")
    adam_beta1: float = opt(0.9, "decay of the first moment", check=below_one)
    adam_beta2: float = opt(0.999, "decay of the second moment", check=below_one)
    adam_epsilon: float = opt(1e-7, "added to the root of the second moment", check=above(0))
    variable_filter: tuple[str, ...] = opt((), "train only variables whose name contains one of these")
    fit_classifier: bool = opt(
        False,
        "before the first update, fit the classifier to the features of the training images: logistic regression, with its "
        "penalty chosen by cross-validation",
        needs="--init-path",
        traits=(NOT_IN_GRAPH,),
    )
    frozen_norm_statistics: str = opt(
        "moving",
        "batch norms with no trained variable normalise with their moving statistics, as validation does, or with those of "
        "each batch (the default with a configuration of the original's releases)",
        choices=("batch", "moving"),
        needs="frozen batch norms",
    )
    init_path: str | None = opt(
        None,
        "weights to begin with, at update 0: a checkpoint, run folder, .npz, .safetensors or efficientnet-lite0",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
    )
    offload_fp32_weight_copy: bool = opt(False, "update an FP32 copy of half-precision weights", traits=(HALVES,))
    ema: float = opt(
        0.0,
        "validate and use, instead of the weights, their exponential average with this decay, moved by every update, as "
        "0.9999; 0 is off",
        check=below_one,
    )
    weight_avg_N: tuple[int, ...] = opt(
        (),
        "after training: mean of the checkpoints of the last N epochs",
        check=between(0, LARGEST_COUNT),
        traits=(NOT_IN_GRAPH,),
    )
    weight_avg_exp: tuple[float, ...] = opt(
        (),
        "after training: exponential average of the run's checkpoints, with this decay",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
    )
    distributed: bool = opt(
        False,
        "one of several processes that train together, described by TF_CONFIG or started by Slurm's srun",
        traits=(ONE_CALL,),
    )
    worker_timeout: float = opt(
        60.0,
        "seconds after which a process that does not come or answer ends the others",
        check=at_least(2),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="several processes",
    )
    bind: str | None = opt(
        None,
        "address of this host that takes the other processes' connections, or all (default: that in the cluster's list)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE, ONE_CALL),
        needs="several processes",
    )
    syncs_per_epoch: int = opt(
        0, "poprun: broadcasts of instance 0's weights per epoch", check=at_least(0), traits=(NOT_IN_GRAPH,)
    )
    epochs_per_sync: float = opt(
        0.0, "poprun: epochs between broadcasts of instance 0's weights", check=at_least(0), traits=(NOT_IN_GRAPH,)
    )

    @property
    def slots(self) -> int:
        """The number of values that are kept for each weight: the slots of the rule, and the average of --ema."""
        return len(UPDATE_RULES[self.optimiser].slots) + bool(self.ema)

    @property
    def unscales_in_rate(self) -> bool:
        """True if the learning rate is divided by the loss scale, and not the gradients: a rule that is linear in the
        gradient gives the same, as long as the scale stays."""
        return UPDATE_RULES[self.optimiser].linear and not self.automatic_loss_scaling

    @property
    def gradient_scale(self) -> float:
        """The factor on the gradients that a rule computes with, slots included: the loss scale where the learning rate is
        divided by it, and 1 where gradients are."""
        return self.loss_scaling if self.unscales_in_rate else 1.0

    def mean_square_decay(self, global_batch: int) -> float:
        """RMSprop's decay: --rmsprop-decay, or 1 - global batch x 2^--rmsprop-base-decay-exp, or 0.9; OptionError for a
        product above 1, or lost beside 1."""
        exponent = self.rmsprop_base_decay_exp
        if self.rmsprop_decay is not None:
            return self.rmsprop_decay
        if exponent is None:
            return RMSPROP_DECAY
        share = global_batch * 2.0**exponent
        if not 0 < share <= 1 or 1 - share == 1:
            remedy = f"give a {'smaller' if share > 1 else 'larger'} exponent, or --rmsprop-decay"
            raise OptionError(
                f"--rmsprop-base-decay-exp {exponent:g}: 1 - global batch x 2^exp = 1 - {global_batch} x {2.0**exponent:.4g}"
                f" = {1 - share:.4g} must lie between 0 and 1; {remedy}"
            )
        return 1 - share


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Checkpoints and validation"""

    ckpts_per_epoch: int = opt(1, "checkpoints per epoch; 0 for none", check=at_least(0), traits=(LENGTH,))
    epochs_per_ckpt: int = opt(0, "epochs between checkpoints, instead", check=at_least(0), traits=(LENGTH,))
    ckpt_epochs_offset: float = opt(
        0.0, "first epoch with a checkpoint", check=at_least(0), traits=(LENGTH,), needs="a checkpoint"
    )
    ckpt_all_instances: bool = opt(
        False, "every instance writes checkpoints, each in a folder of its own", bare="true", needs="several processes"
    )
    max_ckpts_to_keep: int | None = opt(
        None, "keep only the newest checkpoints (default: all)", check=at_least(1), needs="a checkpoint"
    )
    keep_best_ckpt: bool = opt(
        False,
        "with --max-ckpts-to-keep, keep the checkpoint with the best validation, too; it stands for the run in --predict, "
        "exports and reports",
        traits=(NOT_IN_GRAPH,),
        needs="--max-ckpts-to-keep",
    )
    best_by: str = opt(
        "accuracy",
        "the best validation has the highest top-1 accuracy, or the lowest loss, which less chance is in with few images",
        choices=("accuracy", "loss"),
        traits=(NOT_IN_GRAPH,),
        needs="--keep-best-ckpt",
    )
    patience: int = opt(
        0,
        "end the run after N validations in a row that bring no better accuracy; 0 is off",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
    )
    safety_ckpt_minutes: str = opt(
        "10", "also save (instance 0 alone) whenever N minutes have passed since the last checkpoint; the next one "
        "replaces it; 0 is off; auto finds the minutes with which failures cost least",
        check=_minutes,
        read=str.lower, needs="a checkpoint")  # fmt: skip
    mtbf_hours: float = opt(
        24.0,
        "mean time between two failures of one host, for --safety-ckpt-minutes auto",
        check=above(0),
        traits=(NOT_IN_GRAPH,),
        needs="--safety-ckpt-minutes auto",
    )
    validation: bool = opt(True, "validate at every checkpoint; --no-validation trains only")
    valid_batch_size: int | None = opt(
        None, "samples of one micro-batch in validation (default: that of training)", check=at_least(1), needs="--validation"
    )
    repeat: int = opt(
        1, "validation.py, inference_embedded.py: times to run each checkpoint", check=at_least(1),
        scripts=("validation", "inference_embedded"),
     traits=(ONE_CALL,))  # fmt: skip
    num_inference_thread: int = opt(
        1, "inference_embedded.py: threads that call the program at once", check=between(1, 1024),
        scripts=("inference_embedded",),
     traits=(ONE_CALL,))  # fmt: skip
    force_recompile: bool = opt(
        False,
        "inference_embedded.py: build the program anew, whatever its file holds",
        scripts=("inference_embedded",),
        traits=(ONE_CALL,),
    )
    tmp_execs: bool = opt(
        False,
        "inference_embedded.py: keep the program in a temporary file only",
        scripts=("inference_embedded",),
        traits=(ONE_CALL,),
    )
    inference: bool = opt(
        False,
        "validation.py: leaves out sums over replicas, of which there are none here: the same row",
        bare="true",
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    predict: tuple[str, ...] = opt(
        (),
        "validation.py: name what photographs (JPEG, PNG, WebP), or those in folders, show, instead of validating",
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    output: str | None = opt(
        None,
        "validation.py --predict: write the five most probable classes into this file, .csv or .json",
        scripts=("validation",),
        traits=(ONE_CALL, PER_INSTANCE),
    )
    tta: str | None = opt(
        None,
        "validation.py: test-time augmentation, the mean of the probabilities of each image and its mirror image (flip)",
        bare="flip",
        choices=("flip",),
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    latency: bool = opt(
        False, "measure the latency of one validation batch at a time", traits=(ONE_CALL,), needs="--validation"
    )


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Logging"""

    log_dir: str = opt("./logs/", "parent of the run folders", traits=(PER_INSTANCE,), needs="--logs")
    logs_path: str | None = opt(
        None,
        "the run folder itself, instead of a generated name below log-dir",
        traits=(ONE_CALL, PER_INSTANCE),
        needs="--logs",
    )
    autoresume: bool = opt(
        False,
        "with --logs-path: begin the run there, go on with the one that is there, or leave it if it is complete",
        scripts=("train",),
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    name_suffix: str | None = opt(None, "appended to the run's name", traits=(PER_INSTANCE,))
    logs_per_epoch: int | None = opt(
        None, "log lines per epoch (default 16 when epochs are given)", check=at_least(0), traits=(LENGTH,)
    )
    log_freq: int | None = opt(
        None, "weight updates between log lines (default 500 when iterations are given)", check=at_least(1), traits=(LENGTH,)
    )
    logs: bool = opt(True, "write a run folder; --no-logs keeps checkpoints in a temporary folder")
    brief: bool = opt(
        False,
        "show a line for each validation, and warnings; log.txt has everything",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    log_all_instances: bool = opt(
        False, "every instance prints and writes logs, each in a folder of its own", bare="true", needs="several processes"
    )
    mlperf_logging: bool = opt(
        False, "lines for MLPerf's compliance checker (:::MLLOG ...), also in result_<seed>.txt of the run's folder"
    )
    tensorboard_images: int = opt(
        0,
        "the first N pictures of a call in TensorBoard's events, as the network sees them after augmentation and mixing",
        check=at_least(0),
        scripts=("train", "restore"),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--logs",
    )
    numerics: int | None = opt(
        None,
        "every N updates a look at the exponents of weights, activations and gradients, and at what their formats "
        "lose: numerics.svg and numerics.jsonl in the run's folder, TensorBoard",
        check=at_least(1),
        scripts=("train", "restore"),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--logs",
    )
    wandb: bool = opt(False, "send metrics to Weights & Biases, if it is installed and logged in", traits=(PER_INSTANCE,))
    wandb_project: str = opt("tf-cnn", "its project", traits=(PER_INSTANCE,), needs="--wandb")
    wandb_id: str | None = opt(None, "its run, to continue", scripts=("restore",), traits=(PER_INSTANCE,), needs="--wandb")
    mlflow: bool = opt(
        False, "send metrics to MLflow, if it is installed, where MLFLOW_TRACKING_URI says", traits=(PER_INSTANCE,)
    )
    mlflow_experiment: str = opt("tf-cnn", "its experiment", traits=(PER_INSTANCE,), needs="--mlflow")
    mlflow_id: str | None = opt(None, "its run, to continue", scripts=("restore",), traits=(PER_INSTANCE,), needs="--mlflow")


SECTIONS: dict[str, type] = {
    "main": MainOptions,
    "dataset": DatasetOptions,
    "training": TrainingOptions,
    "checkpoint": CheckpointOptions,
    "device": DeviceOptions,
    "logging": LoggingOptions,
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of a call, complete but for the values that only the data can give."""

    main: MainOptions
    dataset: DatasetOptions
    training: TrainingOptions
    checkpoint: CheckpointOptions
    device: DeviceOptions
    logging: LoggingOptions
    model: Any  # the model plug-in's Options
    schedule: Any  # the schedule plug-in's Options
    sources: Mapping[str, str] = field(default_factory=dict)  # option -> where its value came from

    @property
    def sections(self) -> tuple[Any, ...]:
        """Every section, those of the plug-ins last."""
        return tuple(getattr(self, name) for name in (*SECTIONS, "model", "schedule"))

    def values(self) -> dict[str, Any]:
        """Every option by its name."""
        return {name: value for section in self.sections for name, value in vars(section).items()}

    @property
    def two_pass_norms(self) -> bool:
        """True if norms read their input twice for the statistics."""
        return bool(self.training.stable_norm) and not self.device.force_unstable_norm

    def given(self, name: str) -> bool:
        """Return whether the command line gives an option."""
        return self.sources.get(name, "").startswith(COMMAND_LINE)

    def words(self, name: str) -> str:
        """Flag and value of an option, as on the command line."""
        value = self.values()[name]
        if isinstance(value, bool):
            return flag(name if value else f"no_{name}")
        return f"{flag(name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


@cache
def with_trait(trait: str) -> frozenset[str]:
    """The options of all sections that have a trait of base/fields.py."""
    fields = (field for section in SECTIONS.values() for field in dataclasses.fields(section))
    return frozenset(field.name for field in fields if trait in field.metadata.get("traits", ()))


def flag(name: str) -> str:
    """The spelling of an option on the command line."""
    return "--" + name.replace("_", "-")
