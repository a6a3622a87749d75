"""Declare every option of the scripts, one frozen dataclass for each argument group.

The device layer declares its own section, and each model and schedule has an `Options` class. Rules between options are in
`harness/options/exclusive.py` and `harness/run/rules.py`.
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

COMMAND_LINE, CONFIGURATION, RECORDED = "command line", "configuration", "the recorded run"  # sources of values
ACCUMULATION, AUTO = "gradient_accumulation_count", "auto"


def _channels(low: float) -> Callable[[tuple[float, ...]], str | None]:
    """Return a check: no value, or three numbers (R, G, B) of at least `low`."""

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
    """Translate the old --pipeline-depth D: D micro-batches per update, with a pipeline if D > 1."""
    return {ACCUMULATION: raw, "pipeline": "false" if raw == "1" else "true"}


@dataclass(frozen=True, kw_only=True)
class MainOptions:
    """Main"""

    model: str = opt("resnet", "choose the network: a module in Models/")
    lr_schedule: str = opt("stepped", "choose the learning-rate curve: a module in LR_Schedules/")
    config: str | None = opt(None, "load a named configuration", traits=(ONE_CALL, PER_INSTANCE))
    config_path: str | None = opt(
        None,
        "read configurations from this YAML file (default: configs.yml next to the scripts)",
        traits=(ONE_CALL, PER_INSTANCE),
    )
    release: str | None = opt(
        None,
        "behave as this release of the original harness, such as 2.1, and use its values of --config NAME",
        read=releases.normalised,
        traits=(LENGTH,),
    )
    restore_path: str | None = opt(
        None,
        "use this run directory; validation also takes a checkpoint, .npz, .safetensors or efficientnet-lite0",
        traits=(ONE_CALL, PER_INSTANCE),
    )
    explain: bool = opt(False, "print every option with its value and source, then stop", traits=(ONE_CALL,))
    summary: bool = opt(False, "print the size and cost of every layer, by stage, then stop", traits=(ONE_CALL,))
    dry_run: bool = opt(
        False, "print the plan of the run (batches, updates, learning rate, memory), then stop", traits=(ONE_CALL,)
    )
    list_configs: str | None = opt(
        None, "print all named configurations, or those that contain a word, then stop", bare="all", traits=(ONE_CALL,)
    )
    version: bool = opt(False, "print the versions of the harness, Python and TensorFlow, then stop", traits=(ONE_CALL,))
    help: str | None = opt(
        None,
        "print the common options; with a topic or word, print others",
        bare="common",
        flags=("-h",),
        traits=(ONE_CALL,),
    )


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Data set"""

    dataset: str | None = opt(
        None,
        "choose the data set: fashion-mnist (included), fashion-mnist-full, cifar-10, cifar-100, imagenet or imagefolder "
        "(default: inferred from the path of the data)",
    )
    data_dir: str | None = opt(
        None,
        "read the data from this folder (default: the environment variable DATA_DIR)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    train_dir: str | None = opt(
        None,
        "imagefolder: train on this folder, in --data-dir or elsewhere, with a subfolder per class (default: found by name)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    validation_dir: str | None = opt(
        None,
        "imagefolder: validate on this folder, with a subfolder per class (default: found by name)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    num_classes: int | None = opt(
        None,
        "set the number of classes of imagenet shards or generated images (default: from labels.txt, else 1000)",
        check=at_least(1),
        traits=(NOT_IN_GRAPH,),
    )
    image_size: int | None = opt(
        None, "set the side of the images, in pixels (default: by model or data set)", check=at_least(8)
    )
    generated_data: bool = opt(False, "use random images, generated once on the host")
    synthetic_data: bool = opt(False, "use random images, generated on the device without host input or output")
    dataset_cache: bool = opt(
        True,
        "read records from disk in every epoch instead of keeping them in host memory",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    normalise_input: bool = opt(
        False,
        "ImageNet: subtract the mean and divide by the standard deviation, instead of only subtracting",
        needs="photos",
    )
    symmetric_input: bool = opt(
        False, "ImageNet: normalise pixels to (x - 127) / 128, as for EfficientNet-Lite", needs="photos"
    )
    image_mean: tuple[float, ...] = opt(
        (),
        "ImageNet: normalise pixels to (x / 255 - mean) / std with these three means, R G B; needs --image-std",
        check=_channels(-1e6),
        needs="photos",
    )
    image_std: tuple[float, ...] = opt(
        (), "ImageNet: set the three standard deviations for --image-mean, R G B", check=_channels(1e-6), needs="photos"
    )
    hostside_norm: bool = opt(False, "ImageNet: normalise images on the host instead of the device", needs="photos")
    train_with_valid_preprocessing: bool = opt(
        False, "train on the crops of validation, without augmentation", needs="data files"
    )
    augment: str = opt(
        "none",
        "augment each training image after its crop, with 1 (trivial) or 2 (rand) of 14 random operations",
        choices=("none", "trivial", "rand"),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    augment_magnitude: float = opt(
        9.0,
        "set the strength of the operations of --augment rand, from 0 to 10",
        check=between(0, 10),
        traits=(NOT_IN_GRAPH,),
        needs="--augment rand",
    )
    colour_jitter: float = opt(
        0.0,
        "vary brightness, contrast and saturation of training images by up to this fraction, such as 0.4; 0 is off",
        aliases=("color_jitter",),
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    random_erasing: float = opt(
        0.0,
        "fill a random rectangle of a training image with grey, with this probability; 0 is off",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="random crops",
    )
    standard_imagenet: bool = opt(False, "use the plain ImageNet pipeline, which is the only one here", kind=HINT)
    pipeline_num_parallel: int = opt(
        48,
        "preprocess this many images in parallel",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="data files",
    )
    mixup_alpha: float = opt(
        0.0, "mix images by mixup, with this parameter of the Beta distribution; 0 is off", check=at_least(0)
    )
    cutmix_lambda: float = opt(
        1.0, "mix images by cutmix, which keeps this fraction of each image; 1 is off", check=between(0, 1)
    )
    cutmix_version: int = opt(
        1,
        "choose the fraction that cutmix keeps: drawn at random (1) or --cutmix-lambda (2)",
        choices=("1", "2"),
        needs="--cutmix-lambda",
    )
    hostside_image_mixing: bool = opt(False, "mix images on the host instead of the device")
    eight_bit_io: bool = opt(False, "send images to the device as bytes and normalise them there")
    dataset_percentage_to_use: int = opt(
        100, "ImageNet: use the first N per cent of the shards", check=between(1, 100), traits=(NOT_IN_GRAPH,)
    )
    fused_preprocessing: bool = opt(
        False, "ImageNet: normalise on the device and pad images to 4 channels with zeros", needs="photos"
    )
    shuffle_block: int = opt(
        1,
        "ImageNet: shuffle blocks of N consecutive records, for disks that are slow to seek",
        check=at_least(1),
        traits=(NOT_IN_GRAPH,),
        needs="photo files",
    )
    validation_split: float = opt(
        0.0,
        "imagefolder: keep this fraction of each class for validation, always the same images; 0 is off",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
        needs="data files",
    )
    skip_bad_records: int = opt(
        0,
        "ImageNet: tolerate up to N unusable records, each replaced by the next good one",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
        needs="photo files",
    )
    dataset_benchmark: bool = opt(
        False, "measure the speed of the input pipeline, stage by stage, then stop", traits=(ONE_CALL, NOT_IN_GRAPH)
    )

    @property
    def random_data(self) -> bool:
        """True if random images replace the files of the data set."""
        return self.generated_data or self.synthetic_data

    @property
    def mixes(self) -> bool:
        """True if mixup or cutmix mixes images. Random images are all the same, so they are not mixed."""
        return self.least_micro_batch > 1 and not self.random_data

    @property
    def least_micro_batch(self) -> int:
        """The smallest micro-batch: mixup and cutmix need two images."""
        return 2 if self.mixup_alpha > 0 or self.cutmix_lambda < 1 else 1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training"""

    micro_batch_size: int | None = opt(
        None, "set the number of samples in a micro-batch (default: by model)", aliases=("batch_size",), check=at_least(1)
    )
    gradient_accumulation_count: int = opt(
        1, "accumulate gradients over N micro-batches per replica for each weight update",
        aliases=("gradients_to_accumulate",), check=at_least(1),
        rewrites={"pipeline_depth": _pipeline_depth}, factors=("gradients_to_accumulate", "pipeline_depth"),
    )  # fmt: skip
    global_batch_size: int | None = opt(
        None, "set the samples per weight update, instead of the accumulation count",
        aliases=("total_batch_size",), check=at_least(1),
    )  # fmt: skip
    epochs: float | None = opt(
        None,
        "train for this many passes over the data (default: by model)",
        aliases=("epoch",),
        check=above(0),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    iterations: int | None = opt(
        None,
        "train for this many weight updates, instead of --epochs (inference_embedded.py: micro-batches per thread)",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    keep_going: bool = opt(
        False, "continue if the loss is not finite or a checkpoint cannot be written", traits=(NOT_IN_GRAPH,)
    )
    stop_after: int | None = opt(
        None,
        "stop after this many weight updates; restore.py can resume the run",
        check=at_least(1),
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    base_learning_rate_exponent: float | None = opt(
        None,
        "set the peak learning rate to 2^X x global batch (default: by model)",
        aliases=("base_learning_rate",),
        check=between(-126, 64),
        traits=(NOT_IN_GRAPH,),
    )
    abs_learning_rate: float | None = opt(
        None,
        "set the peak learning rate itself (default for Adam and AdamW: 0.001)",
        aliases=("poly_lr_initial_lr",),
        check=above(0),
        traits=(NOT_IN_GRAPH,),
    )
    optimiser: str = opt("SGD", "choose the weight update rule", choices=tuple(UPDATE_RULES), aliases=("optimizer",))
    momentum: float = opt(0.9, "set the momentum of momentum, RMSprop and LARS", check=below_one)
    nesterov: bool = opt(False, "momentum: use Nesterov momentum")
    weight_decay: float | None = opt(
        None,
        "set the L2 coefficient, or with AdamW the decay of the weights (default: by model; Adam 0, AdamW 0.01)",
        check=at_least(0),
    )
    clip_grad_norm: float = opt(
        0.0,
        "clip the gradients of an update to this global L2 norm, before weight decay; 0 is off",
        check=at_least(0),
    )
    loss_scaling: float = opt(128.0, "multiply the loss by this factor before differentiation", check=above(0))
    automatic_loss_scaling: str | None = opt(
        None, "adapt the loss scale, starting at --loss-scaling: halve it on overflow and double it later (back-off), or "
        "keep the largest gradient at 1/8 of overflow (largest)",
        aliases=("auto_loss_scaling",), bare="back-off", choices=("back-off", "largest"),
    )  # fmt: skip
    loss_scaling_period: int = opt(
        2000,
        "double the loss scale after N updates without overflow",
        check=at_least(1),
        needs="--automatic-loss-scaling back-off",
    )
    loss: str = opt(
        "cross-entropy",
        "choose the loss: softmax cross-entropy, or binary cross-entropy averaged over the classes (bce)",
        choices=("cross-entropy", "bce"),
    )
    class_weights: str | None = opt(
        None,
        "imagefolder: weight the training loss of an image by images / (classes x images of its class)",
        choices=("balanced",),
    )
    label_smoothing: float | None = opt(
        None,
        "move this probability from the true class to the others (default: 0, EfficientNet 0.1)",
        check=between(0, 1),
    )
    stable_norm: bool | None = opt(None, "compute the statistics of group norm in two passes (default: by model)")
    rmsprop_decay: float | None = opt(
        None, "RMSprop: set the decay of the mean square (default: see --rmsprop-base-decay-exp)", check=below_one
    )
    rmsprop_base_decay_exp: float | None = opt(
        None,
        "RMSprop: set the decay to 1 - global batch x 2^X (default: EfficientNet on ImageNet -14, else decay 0.9)",
        check=between(-126, 64),
    )
    rmsprop_epsilon: float = opt(0.001, "RMSprop: add this constant inside the square root", check=above(0))
    lars_epsilon: float = opt(0.0, "LARS: add this constant to the denominator of the trust ratio", check=at_least(0))
    lars_eeta: float = opt(0.001, "LARS: set the trust coefficient", check=above(0))
    lars_skip_list: tuple[str, ...] = opt(
        SKIPPED, "LARS: skip the trust ratio and LARS decay for variables whose names contain one of these"
    )
    lars_weight_decay: float | None = opt(
        None, "LARS: set its own weight decay, in addition to --weight-decay (default: by model)", check=at_least(0)
    )
    lamb_beta1: float = opt(0.9, "LAMB: set the decay of the first moment", check=below_one)
    lamb_beta2: float = opt(0.999, "LAMB: set the decay of the second moment", check=below_one)
    lamb_epsilon: float = opt(1e-6, "LAMB: add this constant to the root of the second moment", check=above(0))
    lamb_weight_decay: float | None = opt(None, "LAMB: set its own weight decay", check=at_least(0))
    lamb_skip_list: tuple[str, ...] = opt(
        SKIPPED, "LAMB: skip decay and trust ratio for variables whose names contain one of these"
    )
    adam_beta1: float = opt(0.9, "Adam, AdamW: set the decay of the first moment", check=below_one)
    adam_beta2: float = opt(0.999, "Adam, AdamW: set the decay of the second moment", check=below_one)
    adam_epsilon: float = opt(1e-7, "Adam, AdamW: add this constant to the root of the second moment", check=above(0))
    variable_filter: tuple[str, ...] = opt((), "train only variables whose names contain one of these")
    fit_classifier: bool = opt(
        False,
        "fit the classifier by logistic regression before the first update, with a cross-validated penalty",
        needs="--init-path",
        traits=(NOT_IN_GRAPH,),
    )
    frozen_norm_statistics: str = opt(
        "moving",
        "choose the statistics of batch norms without trained variables (default with a configuration of a release: batch)",
        choices=("batch", "moving"),
        needs="frozen batch norms",
    )
    init_path: str | None = opt(
        None,
        "start from these weights: a checkpoint, run directory, .npz, .safetensors or efficientnet-lite0",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
    )
    offload_fp32_weight_copy: bool = opt(False, "keep and update an FP32 copy of half-precision weights", traits=(HALVES,))
    ema: float = opt(
        0.0,
        "validate with an exponential average of the weights, with this decay per update, such as 0.9999; 0 is off",
        check=below_one,
    )
    weight_avg_N: tuple[int, ...] = opt(
        (),
        "average the checkpoints of the last N epochs after training",
        check=between(0, LARGEST_COUNT),
        traits=(NOT_IN_GRAPH,),
    )
    weight_avg_exp: tuple[float, ...] = opt(
        (),
        "average all checkpoints exponentially after training, with this decay",
        check=between(0, 1),
        traits=(NOT_IN_GRAPH,),
    )
    distributed: bool = opt(
        False,
        "join the processes that TF_CONFIG lists or Slurm's srun started, and train together",
        traits=(ONE_CALL,),
    )
    worker_timeout: float = opt(
        60.0,
        "stop if another process does not join or answer for this many seconds",
        check=at_least(2),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="several processes",
    )
    bind: str | None = opt(
        None,
        "listen for other processes on this address, or on all (default: the address in the cluster list)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE, ONE_CALL),
        needs="several processes",
    )
    syncs_per_epoch: int = opt(
        0,
        "poprun: broadcast the weights of instance 0 N times per epoch; 0 is off",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
    )
    epochs_per_sync: float = opt(
        0.0,
        "poprun: broadcast the weights of instance 0 every X epochs; 0 is off",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
    )

    @property
    def slots(self) -> int:
        """The number of extra values per weight: the slots of the update rule, and the average of --ema."""
        return len(UPDATE_RULES[self.optimiser].slots) + bool(self.ema)

    @property
    def unscales_in_rate(self) -> bool:
        """True if the loss scale divides the learning rate instead of the gradients. Both are the same for a rule that is
        linear in the gradient, as long as the scale is constant."""
        return UPDATE_RULES[self.optimiser].linear and not self.automatic_loss_scaling

    @property
    def gradient_scale(self) -> float:
        """The factor on the gradients that the update rule sees, and on its slots: the loss scale, or 1 if the gradients
        are unscaled first."""
        return self.loss_scaling if self.unscales_in_rate else 1.0

    def mean_square_decay(self, global_batch: int) -> float:
        """Return RMSprop's decay: --rmsprop-decay, or 1 - global batch x 2^--rmsprop-base-decay-exp, or 0.9.

        OptionError for a result outside of 0 <= decay < 1.
        """
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
                f" = {1 - share:.4g} must be between 0 and 1; {remedy}"
            )
        return 1 - share


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Checkpoints and validation"""

    ckpts_per_epoch: int = opt(1, "save N checkpoints per epoch; 0 is off", check=at_least(0), traits=(LENGTH,))
    epochs_per_ckpt: int = opt(
        0, "save a checkpoint every N epochs, instead of --ckpts-per-epoch", check=at_least(0), traits=(LENGTH,)
    )
    ckpt_epochs_offset: float = opt(
        0.0, "save no checkpoint before this epoch", check=at_least(0), traits=(LENGTH,), needs="a checkpoint"
    )
    ckpt_all_instances: bool = opt(
        False, "save checkpoints in every instance, each in its own folder", bare="true", needs="several processes"
    )
    max_ckpts_to_keep: int | None = opt(
        None, "keep only the N newest checkpoints (default: all)", check=at_least(1), needs="a checkpoint"
    )
    keep_best_ckpt: bool = opt(
        False,
        "also keep the checkpoint with the best validation; --predict, exports and reports use it",
        traits=(NOT_IN_GRAPH,),
        needs="--max-ckpts-to-keep",
    )
    best_by: str = opt(
        "accuracy",
        "rank validations by top-1 accuracy or by loss, which is less noisy with few images",
        choices=("accuracy", "loss"),
        traits=(NOT_IN_GRAPH,),
        needs="--keep-best-ckpt",
    )
    patience: int = opt(
        0,
        "stop after N validations in a row without better accuracy; 0 is off",
        check=at_least(0),
        traits=(NOT_IN_GRAPH,),
    )
    safety_ckpt_minutes: str = opt(
        "10", "save a temporary checkpoint N minutes after the last one, in instance 0; 0 is off; auto minimises the "
        "expected loss of time",
        check=_minutes,
        read=str.lower, needs="a checkpoint")  # fmt: skip
    mtbf_hours: float = opt(
        24.0,
        "set the mean time between failures of a host, in hours, for --safety-ckpt-minutes auto",
        check=above(0),
        traits=(NOT_IN_GRAPH,),
        needs="--safety-ckpt-minutes auto",
    )
    validation: bool = opt(True, "train without validation at each checkpoint")
    valid_batch_size: int | None = opt(
        None,
        "set the number of samples in a micro-batch of validation (default: as in training)",
        check=at_least(1),
        needs="--validation",
    )
    repeat: int = opt(
        1, "validate each checkpoint N times", check=at_least(1),
        scripts=("validation", "inference_embedded"),
     traits=(ONE_CALL,))  # fmt: skip
    num_inference_thread: int = opt(
        1, "call the program from N threads at once", check=between(1, 1024),
        scripts=("inference_embedded",),
     traits=(ONE_CALL,))  # fmt: skip
    force_recompile: bool = opt(
        False,
        "rebuild the program even if its file exists",
        scripts=("inference_embedded",),
        traits=(ONE_CALL,),
    )
    tmp_execs: bool = opt(
        False,
        "store the program in a temporary file",
        scripts=("inference_embedded",),
        traits=(ONE_CALL,),
    )
    inference: bool = opt(
        False,
        "accept the original's option; it changes nothing here",
        bare="true",
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    predict: tuple[str, ...] = opt(
        (),
        "classify these photos (JPEG, PNG, WebP) or folders of photos instead of validating",
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    output: str | None = opt(
        None,
        "write the five most probable classes of --predict to this .csv or .json file",
        scripts=("validation",),
        traits=(ONE_CALL, PER_INSTANCE),
    )
    tta: str | None = opt(
        None,
        "average the probabilities of each image and its mirror image: test-time augmentation",
        bare="flip",
        choices=("flip",),
        scripts=("validation",),
        traits=(ONE_CALL,),
    )
    latency: bool = opt(False, "measure the latency of single validation batches", traits=(ONE_CALL,), needs="--validation")


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Logging"""

    log_dir: str = opt("./logs/", "create run directories in this folder", traits=(PER_INSTANCE,), needs="--logs")
    logs_path: str | None = opt(
        None,
        "write the run to this directory, instead of a generated name in --log-dir",
        traits=(ONE_CALL, PER_INSTANCE),
        needs="--logs",
    )
    autoresume: bool = opt(
        False,
        "start the run in --logs-path, or resume it if it exists, or do nothing if it is complete",
        scripts=("train",),
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    name_suffix: str | None = opt(None, "append this text to the name of the run", traits=(PER_INSTANCE,))
    logs_per_epoch: int | None = opt(
        None, "log N lines per epoch (default: 16 with --epochs)", check=at_least(0), traits=(LENGTH,)
    )
    log_freq: int | None = opt(
        None, "log a line every N weight updates (default: 500 with --iterations)", check=at_least(1), traits=(LENGTH,)
    )
    logs: bool = opt(True, "write no run directory, and keep checkpoints in a temporary folder")
    brief: bool = opt(
        False,
        "print only validations and warnings; log.txt has everything",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    log_all_instances: bool = opt(
        False, "print and write logs in every instance, each in its own folder", bare="true", needs="several processes"
    )
    mlperf_logging: bool = opt(
        False, "log :::MLLOG lines for MLPerf's compliance checker, also to result_<seed>.txt in the run directory"
    )
    tensorboard_images: int = opt(
        0,
        "show the first N training images in TensorBoard, after augmentation and mixing",
        check=at_least(0),
        scripts=("train", "restore"),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--logs",
    )
    numerics: int | None = opt(
        None,
        "record the exponents of weights, activations and gradients, and their rounding losses, every N updates, in "
        "numerics.svg, numerics.jsonl and TensorBoard",
        check=at_least(1),
        scripts=("train", "restore"),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--logs",
    )
    wandb: bool = opt(
        False, "send metrics to Weights & Biases, which must be installed and logged in", traits=(PER_INSTANCE,)
    )
    wandb_project: str = opt("tf-cnn", "set the project in Weights & Biases", traits=(PER_INSTANCE,), needs="--wandb")
    wandb_id: str | None = opt(
        None, "continue this run in Weights & Biases", scripts=("restore",), traits=(PER_INSTANCE,), needs="--wandb"
    )
    mlflow: bool = opt(
        False, "send metrics to the MLflow server in MLFLOW_TRACKING_URI; MLflow must be installed", traits=(PER_INSTANCE,)
    )
    mlflow_experiment: str = opt("tf-cnn", "set the experiment in MLflow", traits=(PER_INSTANCE,), needs="--mlflow")
    mlflow_id: str | None = opt(
        None, "continue this run in MLflow", scripts=("restore",), traits=(PER_INSTANCE,), needs="--mlflow"
    )


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
    """All options of a call. Only values that depend on the data are still missing."""

    main: MainOptions
    dataset: DatasetOptions
    training: TrainingOptions
    checkpoint: CheckpointOptions
    device: DeviceOptions
    logging: LoggingOptions
    model: Any  # the model plug-in's Options
    schedule: Any  # the schedule plug-in's Options
    sources: Mapping[str, str] = field(default_factory=dict)  # source of the value by option

    @property
    def sections(self) -> tuple[Any, ...]:
        """All sections; the sections of the plug-ins are last."""
        return tuple(getattr(self, name) for name in (*SECTIONS, "model", "schedule"))

    def values(self) -> dict[str, Any]:
        """Return the value of every option by name."""
        return {name: value for section in self.sections for name, value in vars(section).items()}

    @property
    def two_pass_norms(self) -> bool:
        """True if norms compute their statistics in two passes."""
        return bool(self.training.stable_norm) and not self.device.force_unstable_norm

    def given(self, name: str) -> bool:
        """Return whether an option is on the command line."""
        return self.sources.get(name, "").startswith(COMMAND_LINE)

    def words(self, name: str) -> str:
        """Return an option as on the command line: its flag and value."""
        value = self.values()[name]
        if isinstance(value, bool):
            return flag(name if value else f"no_{name}")
        return f"{flag(name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


@cache
def with_trait(trait: str) -> frozenset[str]:
    """Return the names of the options with a trait of base/fields.py."""
    fields = (field for section in SECTIONS.values() for field in dataclasses.fields(section))
    return frozenset(field.name for field in fields if trait in field.metadata.get("traits", ()))


def flag(name: str) -> str:
    """Return the spelling of an option on the command line."""
    return "--" + name.replace("_", "-")
