"""Declare the options of the scripts, with one frozen dataclass for each group of options.

The options of the device layer are in `emulator/plan/options.py`. Each model and each schedule has a class `Options`.
`harness/run/option_values.py` and `harness/run/rules.py` check options against each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.conditions import (
    checkpoints,
    cutmix,
    data_files,
    frozen_batch_norms,
    option,
    photo_files,
    photos,
    random_crops,
    several_processes,
)
from cnn_harness.base.fields import (
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
    local,
    on_host,
    one_call,
    opt,
    per_instance,
    timing,
)  # fmt: skip
from cnn_harness.emulator.plan.options import PASSES, DeviceOptions
from cnn_harness.harness.options import releases
from cnn_harness.Optimisers._rule import UpdateRule

COMMAND_LINE, CONFIGURATION, RECORDED = "command line", "configuration", "the recorded run"  # sources of values
ACCUMULATION, AUTO = "gradient_accumulation_count", "auto"

_FIRST = ("SGD", "momentum", "RMSprop", "LARS", "LAMB", "Adam", "AdamW")  # the order in --help; others follow
_FILES = {
    name: plugins.load("Optimisers", name) for name in dict.fromkeys((*_FIRST, *plugins.names("Optimisers")))
}  # the optimisers in Optimisers/
UPDATE_RULES: Mapping[str, type[UpdateRule]] = {name: file.Rule for name, file in _FILES.items()}
OPTIMISER_OPTIONS: Mapping[str, frozenset[str]] = {
    name: frozenset(field.name for field in dataclasses.fields(file.Options)) for name, file in _FILES.items()
}  # the options that each optimiser uses
# dataclasses collects the fields of the last base class first
_BASES = tuple(dict.fromkeys(file.Options for file in _FILES.values()))[::-1]
OptimiserOptions = dataclass(frozen=True, kw_only=True)(type("OptimiserOptions", _BASES, {}))


def channels(low: float) -> Callable[[tuple[float, ...]], str | None]:
    """Return a check that accepts no value, or three numbers (R, G, B) that are at least `low`."""

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
    """Translate the older --pipeline-depth D: accumulate over D micro-batches, in a pipeline if D > 1."""
    return {ACCUMULATION: raw, "pipeline": "false" if raw == "1" else "true"}


@dataclass(frozen=True, kw_only=True)
class MainOptions:
    """Main"""

    model: str = opt("resnet", "set the network: resnet, resnext, squeezenet, efficientnet, or another file of Models/")
    lr_schedule: str = opt(
        "stepped",
        "set the learning-rate schedule: stepped, cosine, exponential, polynomial_decay_lr, or another file of "
        "LR_Schedules/",
    )
    config: str | None = opt(
        None, "use the options of this named configuration; --list-configs prints the names", traits=(ONE_CALL, PER_INSTANCE)
    )
    config_path: str | None = opt(
        None,
        "read configurations from this YAML file (default: configs.yml next to the scripts)",
        traits=(ONE_CALL, PER_INSTANCE),
    )
    release: str | None = timing(
        None,
        "behave like this release of Graphcore's original harness, such as 2.1; --config NAME uses its values in that"
        " release",
        read=releases.normalised,
    )
    restore_path: str | None = opt(
        None,
        "resume or validate the run in this directory; validation.py also accepts a checkpoint, an .npz or "
        ".safetensors file, or efficientnet-lite0 (included weights)",
        traits=(ONE_CALL, PER_INSTANCE),
    )
    explain: bool = one_call(False, "print the value of every option and where the value comes from, then stop")
    summary: bool = one_call(False, "print the size and cost of every layer, grouped by pipeline stage, then stop")
    after: str | None = one_call(
        None,
        "with --summary, print the network after this pass: operations, formats, kernels, and who rounds",
        choices=PASSES,
        needs=option("summary"),
    )
    dry_run: bool = one_call(False, "print what the run would do (batches, updates, learning rate, memory), then stop")
    list_configs: str | None = one_call(
        None, "print the named configurations, or only those whose name or summary contains this word, then stop", bare="all"
    )
    version: bool = one_call(False, "print the versions of the harness, Python and TensorFlow, then stop")
    help: str | None = one_call(
        None,
        "print the common options, the options of a group, or the options whose names contain a word",
        bare="common",
        flags=("-h",),
    )


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Data set"""

    dataset: str | None = opt(
        None,
        "set the data set: fashion-mnist (included), fashion-mnist-full, cifar-10, cifar-100, imagenet or imagefolder"
        " (default: inferred from the path of the data)",
    )
    data_dir: str | None = local(
        None, "read the data from this folder (default: the environment variable DATA_DIR)", needs=data_files
    )
    train_dir: str | None = local(
        None,
        "imagefolder: train on the images in this folder, which has one subfolder per class (default: a folder in "
        "--data-dir with a usual name, such as train)",
        needs=data_files,
    )
    validation_dir: str | None = local(
        None,
        "imagefolder: validate on the images in this folder, which has one subfolder per class (default: a folder in "
        "--data-dir with a usual name, such as val)",
        needs=data_files,
    )
    num_classes: int | None = on_host(
        None,
        "set the number of classes of ImageNet or of random images (default: from labels.txt, or 1000 without this file)",
        check=at_least(1),
    )
    image_size: int | None = opt(
        None,
        "set the width and height of the images, in pixels (default: depends on the model and the data set)",
        check=at_least(8),
    )
    generated_data: bool = opt(False, "use random images instead of a data set; the host generates them once")
    synthetic_data: bool = opt(
        False, "use random images instead of a data set; the device generates them, so the host sends no data"
    )
    dataset_cache: bool = local(
        True, "read records from disk in every epoch instead of keeping them in host memory", needs=data_files
    )
    normalise_input: bool = opt(
        False,
        "ImageNet: subtract the mean and divide by the standard deviation (default: only subtract the mean)",
        needs=photos,
    )
    symmetric_input: bool = opt(
        False, "ImageNet: normalise pixels to (x - 127) / 128, as for EfficientNet-Lite", needs=photos
    )
    image_mean: tuple[float, ...] = opt(
        (),
        "ImageNet: normalise pixels to (x / 255 - mean) / std; these are the three means, for R, G and B; needs --image-std",
        check=channels(-1e6),
        needs=photos,
    )
    image_std: tuple[float, ...] = opt(
        (),
        "ImageNet: set the three standard deviations, for R, G and B, in the formula of --image-mean",
        check=channels(1e-6),
        needs=photos,
    )
    hostside_norm: bool = opt(False, "ImageNet: normalise images on the host instead of the device", needs=photos)
    train_with_valid_preprocessing: bool = opt(
        False, "crop training images as in validation, without augmentation", needs=data_files
    )
    augment: str = on_host(
        "none",
        "augment each cropped training image with 1 (trivial) or 2 (rand) operations, drawn at random from 14",
        choices=("none", "trivial", "rand"),
        needs=random_crops,
    )
    augment_magnitude: float = on_host(
        9.0,
        "set the strength of the operations of --augment rand, from 0 to 10",
        check=between(0, 10),
        needs=option("augment", "rand"),
    )
    colour_jitter: float = on_host(
        0.0,
        "vary brightness, contrast and saturation of training images by up to this fraction, such as 0.4; 0 is off",
        aliases=("color_jitter",),
        check=between(0, 1),
        needs=random_crops,
    )
    random_erasing: float = on_host(
        0.0,
        "with this probability, fill a random rectangle of a training image with grey; 0 is off",
        check=between(0, 1),
        needs=random_crops,
    )
    standard_imagenet: bool = opt(
        False,
        "accepted for compatibility with the original harness; the standard ImageNet pipeline is always used",
        kind=HINT,
    )
    pipeline_num_parallel: int = local(
        48, "preprocess this many images in parallel on the host", check=at_least(1), needs=data_files
    )
    mixup_alpha: float = opt(
        0.0, "mix pairs of training images by mixup, with this alpha of the Beta distribution; 0 is off", check=at_least(0)
    )
    cutmix_lambda: float = opt(
        1.0, "mix pairs of training images by cutmix, and keep this fraction of each image; 1 is off", check=between(0, 1)
    )
    cutmix_version: int = opt(
        1,
        "choose how much of an image cutmix keeps: 1 draws the fraction at random, 2 always uses --cutmix-lambda",
        choices=("1", "2"),
        needs=cutmix,
    )
    hostside_image_mixing: bool = opt(False, "apply mixup and cutmix on the host instead of the device")
    eight_bit_io: bool = opt(False, "send images to the device as bytes and normalise them there")
    dataset_percentage_to_use: int = on_host(
        100, "ImageNet: use only the first N per cent of the files", check=between(1, 100)
    )
    fused_preprocessing: bool = opt(
        False, "ImageNet: normalise images on the device, and add a fourth channel of zeros", needs=photos
    )
    shuffle_block: int = on_host(
        1,
        "ImageNet: shuffle blocks of N consecutive records instead of single records, for disks that are slow to seek",
        check=at_least(1),
        needs=photo_files,
    )
    validation_split: float = on_host(
        0.0,
        "imagefolder: use this fraction of each class for validation, the same images in every run; 0 is off",
        check=between(0, 1),
        needs=data_files,
    )
    skip_bad_records: int = on_host(
        0,
        "ImageNet: replace up to N unusable records by the next good record; one more stops the run",
        check=at_least(0),
        needs=photo_files,
    )
    dataset_benchmark: bool = opt(
        False, "measure the speed of each stage of the input pipeline, then stop", traits=(ONE_CALL, NOT_IN_GRAPH)
    )

    @property
    def random_data(self) -> bool:
        """True if random images replace the files of the data set."""
        return self.generated_data or self.synthetic_data

    @property
    def mixes(self) -> bool:
        """True if mixup or cutmix mixes images. All random images are the same, so the harness does not mix them."""
        return self.least_micro_batch > 1 and not self.random_data

    @property
    def least_micro_batch(self) -> int:
        """The smallest valid micro-batch: two images for mixup and cutmix, otherwise one."""
        return 2 if self.mixup_alpha > 0 or self.cutmix_lambda < 1 else 1


@dataclass(frozen=True, kw_only=True)
class _BatchAndRate:
    """The first options of a training."""

    micro_batch_size: int | None = opt(
        None,
        "set the number of images in a micro-batch (default: depends on the model)",
        aliases=("batch_size",),
        check=at_least(1),
    )
    gradient_accumulation_count: int = opt(
        1, "accumulate gradients over N micro-batches per replica for each weight update",
        aliases=("gradients_to_accumulate",), check=at_least(1),
        rewrites={"pipeline_depth": _pipeline_depth}, factors=("gradients_to_accumulate", "pipeline_depth"),
    )  # fmt: skip
    global_batch_size: int | None = opt(
        None, "set the number of images per weight update, instead of --gradient-accumulation-count",
        aliases=("total_batch_size",), check=at_least(1),
    )  # fmt: skip
    epochs: float | None = opt(
        None,
        "train for this many passes over the data (default: depends on the model)",
        aliases=("epoch",),
        check=above(0),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    whole_epochs: bool = opt(
        False,
        "round an epoch up to whole batches, so that epochs 1, 2, 3 end exactly at an update",
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    iterations: int | None = opt(
        None,
        "train for this many weight updates, instead of --epochs; in inference_embedded.py, run this many "
        "micro-batches per thread",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    keep_going: bool = on_host(False, "continue if the loss is not finite or a checkpoint cannot be written")
    stop_after: int | None = opt(
        None,
        "stop after this many weight updates; restore.py can resume the run",
        check=at_least(1),
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    base_learning_rate_exponent: float | None = on_host(
        None,
        "set the peak learning rate to 2^X x global batch size (default: depends on the model)",
        aliases=("base_learning_rate",),
        check=between(-126, 64),
    )
    abs_learning_rate: float | None = on_host(
        None,
        "set the peak learning rate directly (default for Adam and AdamW: 0.001)",
        aliases=("poly_lr_initial_lr",),
        check=above(0),
    )
    optimiser: str = opt(
        "SGD", "choose the optimiser; SGD has no momentum", choices=tuple(UPDATE_RULES), aliases=("optimizer",)
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(OptimiserOptions, _BatchAndRate):
    """Training"""

    weight_decay: float | None = opt(
        None,
        "set the coefficient of L2 regularisation, or of decoupled weight decay with AdamW (default: 0.01 for AdamW, "
        "0 for Adam and LARS; otherwise depends on the model)",
        check=at_least(0),
    )
    clip_grad_norm: float = opt(
        0.0,
        "clip the gradients of each update to this global L2 norm, before weight decay is added; 0 is off",
        check=at_least(0),
    )
    gradient_noise: bool = opt(
        False, "estimate the gradient noise scale, above which larger batches save little, from the gradients of passes"
    )
    inject: str | None = opt(
        None,
        "flip BIT (default: 30, the highest exponent bit) of one number in LAYER during UPDATE, to test checks; KIND is "
        "weight, gradient, activation or message",
        metavar="KIND:LAYER:UPDATE[:BIT]",
    )
    fingerprints: bool = opt(
        False,
        "record a hash and the norm of every gradient and weight, in every update and process, in fingerprints.csv; "
        "cnn compare finds the first difference",
        needs=option("logs"),
    )
    loss_scaling: float = opt(128.0, "multiply the loss by this factor before the backward pass", check=above(0))
    automatic_loss_scaling: str | None = opt(
        None, "adapt the loss scale, starting at --loss-scaling: back-off halves it on overflow and doubles it later; "
        "largest keeps the largest gradient at 1/8 of the overflow limit",
        aliases=("auto_loss_scaling",), bare="back-off", choices=("back-off", "largest"),
    )  # fmt: skip
    loss_scaling_period: int = opt(
        2000,
        "double the loss scale after N updates without overflow",
        check=at_least(1),
        needs=option("automatic_loss_scaling", "back-off"),
    )
    loss: str = opt(
        "cross-entropy",
        "choose the loss: softmax cross-entropy, or sigmoid cross-entropy averaged over the classes (bce)",
        choices=("cross-entropy", "bce"),
    )
    class_weights: str | None = opt(
        None,
        "imagefolder: weight the training loss of each image, so that every class has the same total weight",
        choices=("balanced",),
    )
    label_smoothing: float | None = opt(
        None,
        "move this probability from the true class to the other classes (default: 0.1 for EfficientNet, otherwise 0)",
        check=between(0, 1),
    )
    stable_norm: bool | None = opt(
        None, "compute the mean and variance of group norm in two passes (default: depends on the model)"
    )
    variable_filter: tuple[str, ...] = opt((), "train only variables whose names contain one of these words")
    fit_classifier: bool = on_host(
        False,
        "before the first update, fit the last layer by logistic regression; cross-validation chooses the penalty",
        needs=option("init_path"),
    )
    trial_epochs: float = on_host(
        0.0,
        "after --fit-classifier, train for X epochs without a held-out fold, and end the run unless"
        " the accuracy on the fold rises; --epochs skips this trial; 0 is off",
        check=at_least(0),
        needs=option("fit_classifier"),
    )
    frozen_norm_statistics: str = opt(
        "moving",
        "choose what batch norms that are not trained use: the statistics of each batch, or the moving averages "
        "(default in configurations of the original harness: batch)",
        choices=("batch", "moving"),
        needs=frozen_batch_norms,
    )
    init_path: str | None = local(
        None,
        "start from these weights: a checkpoint, a run directory, an .npz or .safetensors file, or efficientnet-lite0"
        " (included)",
    )
    offload_fp32_weight_copy: bool = opt(
        False, "keep an FP32 copy of half-precision weights, and apply updates to the copy", traits=(HALVES,)
    )
    ema: float = opt(
        0.0,
        "validate with an exponential moving average of the weights; X is the decay per update, such as 0.9999; 0 is off",
        check=below_one,
    )
    weight_avg_N: tuple[int, ...] = on_host(
        (),
        "after training, average the checkpoints of the last N epochs; several numbers give several averages",
        check=between(0, LARGEST_COUNT),
    )
    weight_avg_exp: tuple[float, ...] = on_host(
        (),
        "after training, average all checkpoints exponentially with this decay; several numbers give several averages",
        check=between(0, 1),
    )
    distributed: bool = one_call(
        False, "train together with the other processes that TF_CONFIG lists or that Slurm's srun started"
    )
    worker_timeout: float = local(
        60.0,
        "stop if another process does not join or answer within this many seconds",
        check=at_least(2),
        needs=several_processes,
    )
    bind: str | None = opt(
        None,
        "listen for other processes on this address of the host, or on every address with 'all' (default: the address"
        " in the cluster list)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE, ONE_CALL),
        needs=several_processes,
    )
    syncs_per_epoch: int = on_host(
        0, "poprun: broadcast the weights of process 0 to the other processes N times per epoch; 0 is off", check=at_least(0)
    )
    epochs_per_sync: float = on_host(
        0.0, "poprun: broadcast the weights of process 0 to the other processes every X epochs; 0 is off", check=at_least(0)
    )

    @property
    def rule(self) -> type[UpdateRule]:
        """The class of the optimiser."""
        return UPDATE_RULES[self.optimiser]

    def update_rule(self, global_batch: int) -> UpdateRule:
        """Return the optimiser with these options."""
        return self.rule(self, global_batch)

    @property
    def slots(self) -> int:
        """The number of values that training stores for each weight: the optimiser's state, and one average with --ema."""
        return len(self.rule.slots) + bool(self.ema)

    @property
    def unscales_in_rate(self) -> bool:
        """True if training divides the learning rate, instead of the gradients, by the loss scale.

        The results are the same if the optimiser is linear in the gradient and the loss scale is constant.
        """
        return self.rule.linear and not self.automatic_loss_scaling

    @property
    def gradient_scale(self) -> float:
        """The factor on the gradients and the state of the optimiser: the loss scale, or 1 if gradients are unscaled."""
        return self.loss_scaling if self.unscales_in_rate else 1.0


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Checkpoints and validation"""

    ckpts_per_epoch: int = timing(1, "save N checkpoints per epoch; 0 is off", check=at_least(0))
    epochs_per_ckpt: int = timing(0, "save a checkpoint every N epochs, instead of --ckpts-per-epoch", check=at_least(0))
    ckpt_epochs_offset: float = timing(0.0, "save no checkpoint before this epoch", check=at_least(0), needs=checkpoints)
    ckpt_all_instances: bool = opt(
        False, "save checkpoints in every process (instance), each in its own folder", bare="true", needs=several_processes
    )
    max_ckpts_to_keep: int | None = opt(
        None, "keep only the N newest checkpoints (default: all)", check=at_least(1), needs=checkpoints
    )
    keep_best_ckpt: bool = on_host(
        False,
        "also keep the checkpoint with the best validation; --predict, exports and reports use this checkpoint",
        needs=option("max_ckpts_to_keep"),
    )
    best_by: str = on_host(
        "accuracy",
        "choose how --keep-best-ckpt ranks validations: by top-1 accuracy, or by loss, which is less noisy if there "
        "are few images",
        choices=("accuracy", "loss"),
        needs=option("keep_best_ckpt"),
    )
    patience: int = on_host(
        0, "stop if N validations in a row do not improve the best accuracy; 0 is off", check=at_least(0)
    )
    safety_ckpt_minutes: str = opt(
        "10", "save a temporary checkpoint when the last one is N minutes old; 0 is off; auto chooses the interval that "
        "loses the least time to failures",
        check=_minutes,
        read=str.lower, needs=checkpoints)  # fmt: skip
    mtbf_hours: float = on_host(
        24.0,
        "set the mean time between failures of a host, in hours; --safety-ckpt-minutes auto uses it",
        check=above(0),
        needs=option("safety_ckpt_minutes", "auto"),
    )
    validation: bool = opt(True, "do not validate at checkpoints")
    valid_batch_size: int | None = opt(
        None,
        "set the number of images in a micro-batch of validation (default: --micro-batch-size)",
        check=at_least(1),
        needs=option("validation"),
    )
    repeat: int = one_call(
        1, "validate each checkpoint N times", check=at_least(1), scripts=("validation", "inference_embedded")
    )
    num_inference_thread: int = one_call(
        1, "run inference in N threads at the same time", check=between(1, 1024), scripts=("inference_embedded",)
    )
    force_recompile: bool = one_call(
        False, "rebuild the inference program even if its file exists", scripts=("inference_embedded",)
    )
    tmp_execs: bool = one_call(False, "store the inference program in a temporary file", scripts=("inference_embedded",))
    inference: bool = one_call(
        False, "accepted for compatibility with the original harness; has no effect", bare="true", scripts=("validation",)
    )
    predict: tuple[str, ...] = one_call(
        (), "classify these photos (JPEG, PNG, WebP) or folders of photos instead of validating", scripts=("validation",)
    )
    output: str | None = opt(
        None,
        "write the five most probable classes of --predict to this .csv or .json file",
        scripts=("validation",),
        traits=(ONE_CALL, PER_INSTANCE),
    )
    tta: str | None = one_call(
        None,
        "test-time augmentation: average the class probabilities of each image and its mirror image",
        bare="flip",
        choices=("flip",),
        scripts=("validation",),
    )
    latency: bool = one_call(False, "measure the latency of validation, one batch at a time", needs=option("validation"))


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Logging"""

    log_dir: str = per_instance("./logs/", "create run directories in this folder", needs=option("logs"))
    logs_path: str | None = opt(
        None,
        "write the run to this directory, instead of to a generated name in --log-dir",
        traits=(ONE_CALL, PER_INSTANCE),
        needs=option("logs"),
    )
    autoresume: bool = opt(
        False,
        "start a run in --logs-path, or resume the run that is there; do nothing if it is complete",
        scripts=("train",),
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    name_suffix: str | None = per_instance(None, "append this text to the name of the run")
    logs_per_epoch: int | None = timing(
        None, "log N lines per epoch (default: 16 if --epochs sets the length)", check=at_least(0)
    )
    log_freq: int | None = timing(
        None, "log a line every N weight updates (default: 500 if --iterations sets the length)", check=at_least(1)
    )
    logs: bool = opt(True, "write no run directory; keep checkpoints in a temporary folder")
    brief: bool = opt(
        False,
        "print only validations and warnings; log.txt still contains every line",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    log_all_instances: bool = opt(
        False,
        "print and write the log in every process (instance), each in its own folder",
        bare="true",
        needs=several_processes,
    )
    mlperf_logging: bool = opt(
        False, "log :::MLLOG lines for MLPerf's compliance checker, and copy them to result_<seed>.txt in the run directory"
    )
    tensorboard_images: int = local(
        0,
        "show the first N training images in TensorBoard, after augmentation and mixing",
        check=at_least(0),
        scripts=("train", "restore"),
        needs=option("logs"),
    )
    numerics: int | None = local(
        None,
        "every N updates, record the exponents and rounding errors of weights, activations and gradients in "
        "numerics.svg, numerics.jsonl and TensorBoard",
        check=at_least(1),
        scripts=("train", "restore"),
        needs=option("logs"),
    )
    wandb: bool = per_instance(False, "send metrics to Weights & Biases; install the package wandb and log in first")
    wandb_project: str = per_instance("tf-cnn", "set the project in Weights & Biases", needs=option("wandb"))
    wandb_id: str | None = per_instance(
        None, "continue this run in Weights & Biases", scripts=("restore",), needs=option("wandb")
    )
    mlflow: bool = per_instance(
        False, "send metrics to the MLflow server that MLFLOW_TRACKING_URI names; install the package mlflow first"
    )
    mlflow_experiment: str = per_instance("tf-cnn", "set the experiment in MLflow", needs=option("mlflow"))
    mlflow_id: str | None = per_instance(None, "continue this run in MLflow", scripts=("restore",), needs=option("mlflow"))


SECTIONS: dict[str, type] = {
    "main": MainOptions,
    "dataset": DatasetOptions,
    "training": TrainingOptions,
    "checkpoint": CheckpointOptions,
    "device": DeviceOptions,
    "logging": LoggingOptions,
}


@dataclass(frozen=True, kw_only=True)
class RecipeBatch:
    """The batch of a named configuration, without the options of the call that change it."""

    name: str
    size: int  # the global batch
    replicas: int


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one call. Options whose default depends on the data may still be None."""

    main: MainOptions
    dataset: DatasetOptions
    training: TrainingOptions
    checkpoint: CheckpointOptions
    device: DeviceOptions
    logging: LoggingOptions
    model: Any  # the class `Options` of the model's file
    schedule: Any  # the class `Options` of the schedule's file
    sources: Mapping[str, str] = field(default_factory=dict)  # {option: where its value comes from}
    recipe: RecipeBatch | None = None  # None without --config
    values_release: str | None = None  # the release of --release, or of the values of a configuration or recorded run

    @property
    def sections(self) -> tuple[Any, ...]:
        """All sections; the sections of the model and the schedule are last."""
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

    def with_values(self, values: Mapping[str, Any], source: str = "") -> RunOptions:
        """Return options with these values from `source`; by default, as if they were on the command line."""
        sections = dict(zip((*SECTIONS, "model", "schedule"), self.sections))
        changed = {
            section: replace(old, **own)
            for section, old in sections.items()
            if (own := {name: value for name, value in values.items() if name in vars(old)})
        }
        sources = {name: source or f"{COMMAND_LINE}: {flag(name)}" for name in values}
        return replace(self, **changed, sources={**self.sources, **sources})

    def words(self, name: str) -> str:
        """Return an option as a user types it: the flag and the value."""
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
    """Return the flag of an option, such as --micro-batch-size for micro_batch_size."""
    return "--" + name.replace("_", "-")
