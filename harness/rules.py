"""What the options say of the weight update, before any graph: decays, and lists of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.options import OptionError, TrainingOptions

DECAY_UNLESS_GIVEN = 0.9  # of RMSprop's mean square
LINEAR = ("SGD", "momentum")  # in the gradient


def rmsprop_decay(options: TrainingOptions, global_batch: int) -> float:
    """--rmsprop-decay, or 1 - global batch x 2^--rmsprop-base-decay-exp, or 0.9."""
    if options.rmsprop_decay is not None:
        return options.rmsprop_decay
    if options.rmsprop_base_decay_exp is None:
        return DECAY_UNLESS_GIVEN
    share = global_batch * 2.0**options.rmsprop_base_decay_exp
    if not 0 < share <= 1:
        raise OptionError(
            f"--rmsprop-base-decay-exp {options.rmsprop_base_decay_exp:g}: 1 - global batch x 2^exp = 1 - {global_batch} x "
            f"{2.0**options.rmsprop_base_decay_exp:.4g} = {1 - share:.4g} must lie between 0 and 1; give a smaller exponent"
        )
    return 1 - share


def named_by(words: Sequence[str]) -> Callable[[str], bool]:
    """Whether a variable's name contains one of the words."""
    return lambda name: any(word in name for word in words)


def notes(options: TrainingOptions, sources: Mapping[str, str], global_batch: int, names: Sequence[str]) -> list[str]:
    """What the log says of the update; OptionError for a skip list's word, given explicitly, that matches nothing."""
    found: list[str] = []
    if options.optimiser == "RMSprop":
        rmsprop_decay(options, global_batch)
    if options.optimiser == "RMSprop" and options.rmsprop_decay is not None and options.rmsprop_base_decay_exp is not None:
        found.append("--rmsprop-decay and --rmsprop-base-decay-exp are both given: the decay is used")
    for rule in ("lars", "lamb"):
        given = f"{rule}_skip_list"
        if options.optimiser.lower() != rule or given not in sources:
            continue
        for word in getattr(options, given):
            if not any(word in name for name in names):
                raise OptionError(
                    f"--{rule}-skip-list {word} matches no trained variable; their names are like {', '.join(names[:3])}"
                )
    return found
