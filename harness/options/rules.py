"""What the options say together of pictures, weight updates and averages, before any graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from base.errors import OptionError
from harness.options.sections import CheckpointOptions, DatasetOptions, TrainingOptions
from harness.options.sources import RECORDED

DECAY_UNLESS_GIVEN = 0.9  # of RMSprop's mean square
LINEAR = ("SGD", "momentum")  # in the gradient
SLOTS: Mapping[str, Mapping[str, float]] = {  # of each optimiser, for each weight, with what they begin at
    "SGD": {},
    "momentum": {"Momentum": 0.0},
    "RMSprop": {"RMSProp": 1.0, "RMSProp_1": 0.0},
    "LARS": {"Momentum": 0.0},
    "LAMB": {"LAMB_m": 0.0, "LAMB_v": 0.0},
}


def rmsprop_decay(options: TrainingOptions, global_batch: int) -> float:
    """--rmsprop-decay, or 1 - global batch x 2^--rmsprop-base-decay-exp, or 0.9."""
    if options.rmsprop_decay is not None:
        return options.rmsprop_decay
    if options.rmsprop_base_decay_exp is None:
        return DECAY_UNLESS_GIVEN
    share = global_batch * 2.0**options.rmsprop_base_decay_exp
    if not 0 < share <= 1 or 1 - share == 1:
        another = "smaller" if share > 1 else "larger"
        raise OptionError(
            f"--rmsprop-base-decay-exp {options.rmsprop_base_decay_exp:g}: 1 - global batch x 2^exp = 1 - {global_batch} x "
            f"{2.0**options.rmsprop_base_decay_exp:.4g} = {1 - share:.4g} must lie between 0 and 1; give a "
            f"{another} exponent"
        )
    return 1 - share


def named_by(words: Sequence[str]) -> Callable[[str], bool]:
    """Whether a variable's name contains one of the words."""
    return lambda name: any(word in name for word in words)


def only_moving(words: Sequence[str], trained: Sequence[str], moving: Sequence[str]) -> list[str]:
    """The words that some name of a moving statistic contains, and no name of a trained variable."""
    return [word for word in words if any(word in name for name in moving) and not any(word in name for name in trained)]


def notes(
    options: TrainingOptions, sources: Mapping[str, str], global_batch: int, names: Sequence[str], moving: Sequence[str] = ()
) -> list[str]:
    """What the log says of the update; OptionError for a skip list's word, given explicitly, that matches nothing. `names`:
    of the trained variables, `moving`: of the moving statistics."""
    found: list[str] = []
    if options.optimiser == "RMSprop":
        rmsprop_decay(options, global_batch)
    if options.optimiser == "RMSprop" and options.rmsprop_decay is not None and options.rmsprop_base_decay_exp is not None:
        found.append("--rmsprop-decay and --rmsprop-base-decay-exp are both given: the decay is used")
    for rule in ("lars", "lamb"):
        given = f"{rule}_skip_list"
        if options.optimiser.lower() != rule or sources.get(given, RECORDED).startswith(RECORDED):
            continue  # a recorded list has been looked at when it was given, and the default need not match
        words = getattr(options, given)
        spared = only_moving(words, names, moving)
        if spared:
            found.append(f"--{rule}-skip-list {' '.join(spared)} changes nothing: moving statistics are not trained")
        for word in words:
            if word not in spared and not any(word in name for name in names):
                raise OptionError(
                    f"--{rule}-skip-list {word} matches no trained variable; their names are like {', '.join(names[:3])}"
                )
    return found


def mixes(options: DatasetOptions) -> bool:
    """Whether pictures are mixed."""
    made = options.generated_data or options.synthetic_data
    return (options.mixup_alpha > 0 or options.cutmix_lambda < 1) and not made


def input_notes(options: DatasetOptions, family: str) -> list[str]:
    """What the log says of the way pictures take to the device; OptionError for what does not go together."""
    if options.eight_bit_io and options.hostside_image_mixing and mixes(options):
        raise OptionError(
            "--eight-bit-io sends whole numbers, and --hostside-image-mixing makes others of them; mix on the device"
        )
    found = []
    photographs_only = {
        "--fused-preprocessing": options.fused_preprocessing,
        f"--shuffle-block {options.shuffle_block}": options.shuffle_block > 1,
        f"--skip-bad-records {options.skip_bad_records}": options.skip_bad_records > 0,
    }
    if family != "imagenet":
        ignored = [asked for asked, on in photographs_only.items() if on]
        found += [f"{asked} is ignored: {options.dataset} has no photographs" for asked in ignored]
    moved = [name for name in ("eight_bit_io", "fused_preprocessing") if getattr(options, name)]
    if family == "imagenet" and options.hostside_norm and moved:
        found.append(f"--hostside-norm is ignored: --{moved[0].replace('_', '-')} normalises on the device")
    return found


def mixing_notes(options: DatasetOptions, micro_batch: int) -> list[str]:
    """What the log says of mixup and cutmix; OptionError where there is nothing to mix with."""
    asked = [f"--mixup-alpha {options.mixup_alpha:g}"] * (options.mixup_alpha > 0)
    asked += [f"--cutmix-lambda {options.cutmix_lambda:g}"] * (options.cutmix_lambda < 1)
    if not asked:
        return ["--hostside-image-mixing changes nothing: no pictures are mixed"] * options.hostside_image_mixing
    if not mixes(options):
        return [f"{' and '.join(asked)} is off: all pictures of generated and synthetic data are alike"]
    if micro_batch < 2:
        raise OptionError(
            f"{asked[0]} mixes the pictures of one micro-batch, and --micro-batch-size {micro_batch} leaves none to mix "
            "with; give 2 or more"
        )
    return []


def averaging_notes(training: TrainingOptions, checkpoint: CheckpointOptions) -> list[str]:
    """What the log says of weight averaging; OptionError where there is nothing to average."""
    asked = [f"--weight-avg-N {n}" for n in training.weight_avg_N] + [
        f"--weight-avg-exp {d:g}" for d in training.weight_avg_exp
    ]
    if asked and not (checkpoint.ckpts_per_epoch or checkpoint.epochs_per_ckpt):
        raise OptionError(f"{asked[0]} averages the run's checkpoints, and --ckpts-per-epoch 0 writes none; give 1 or more")
    if asked and checkpoint.max_ckpts_to_keep:
        kept = f"--max-ckpts-to-keep {checkpoint.max_ckpts_to_keep}"
        return [f"{kept}: {' and '.join(asked)} can only take the checkpoints that are left at the end"]
    return []
