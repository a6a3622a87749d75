"""Rules on weight updates: learning rates, optimisers, loss scale, averages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from base import plugins
from base.errors import OptionError
from emulator.plan.number_formats import FP16, FP32
from emulator.plan.precision import is_kernel
from emulator.plan.trace import Trace
from harness.options.catalogue import LARGEST
from harness.options.sections import CONFIGURATION, RECORDED, RunOptions, flag
from harness.options.update_rules import SKIPPED, UPDATE_RULES, rmsprop_decay
from Models._layers import TRAINED_PROXY_ROWS

if TYPE_CHECKING:
    from harness.run.rule_tables import Resolved, TracedOptions

LOWEST_RATE = 1e-9  # moves no weight of size 0.01 by the last bit of FP32
EXPONENTS = "from -14 to -5"  # of the published recipes
ROUNDING = 1.001  # times a peak: more is a rise
BELOW_ONE = {  # a decay of 1 keeps every gradient for ever, divides by 0, or takes none in
    **dict.fromkeys(("momentum", "lamb_beta1", "lamb_beta2", "adam_beta1", "adam_beta2"), "forgets no gradient ever"),
    "rmsprop_decay": "takes no gradient into the mean square ever",
}
# beyond which most gradients are 0, or too large: in FP16, and in FP32
LOSS_SCALES = {True: ("FP16", 2.0**-10, 2.0**20), False: ("FP32", 2.0**-90, 2.0**90)}
LARGEST_EPSILON = 1e3  # that is added to gradients' sizes, or to variances of what norms see
SMALLEST = 1.17549436e-38  # of FP32; less is taken for 0
SMALL_MEAN_SQUARE = 1e-20  # of gradients that still move weights


def trained_variables(traced: TracedOptions) -> None:
    """Each word of --variable-filter names a trained variable."""
    check_matched("--variable-filter", traced.options.training.variable_filter, traced.trace)


def check_matched(option: str, words: Sequence[str], trace: Trace) -> None:
    """OptionError for a word that no trained variable's name contains."""
    names = trained_names(trace)
    for word in words:
        if not any(word in name for name in names):
            parts = sorted({name.split("/")[1] for name in names} | {name.rsplit("/", 1)[-1] for name in names})
            raise OptionError(
                f"{option} {word}: no trained variable's name contains it{plugins.did_you_mean(word, parts)}; names are "
                f"like {names[0]} and {names[-1]}"
            )


def trained_names(trace: Trace) -> list[str]:
    """Names of the variables that gradients move."""
    return [variable.name for variable in trace.variables if variable.trainable]


def only_moving(words: Sequence[str], trace: Trace) -> list[str]:
    """The words that some name of a moving statistic contains, and no name of a trained variable."""
    trained, moving = trained_names(trace), [variable.name for variable in trace.variables if not variable.trainable]
    return [word for word in words if any(word in name for name in moving) and not any(word in name for name in trained)]


def rmsprop_decays(resolved: Resolved) -> Iterator[str]:
    """The decay lies between 0 and 1, however it is given."""
    options = resolved.run.options.training
    if options.optimiser == "RMSprop":
        rmsprop_decay(options, resolved.run.plan.global_batch)
        if options.rmsprop_decay is not None and options.rmsprop_base_decay_exp is not None:
            yield "--rmsprop-decay and --rmsprop-base-decay-exp are both given: the decay is used"


def skip_lists(resolved: Resolved) -> Iterator[str]:
    """Each word of a skip list names a trained variable, or row of a proxy. A recorded list was checked when it was given,
    and the default's words need not match."""
    options, trace = resolved.run.options, resolved.run.trace
    name = f"{options.training.optimiser.lower()}_skip_list"
    words = getattr(options.training, name, ())
    if options.sources.get(name, RECORDED).startswith(RECORDED):
        return
    moving = only_moving(words, trace)
    if moving:
        yield f"{flag(name)} {' '.join(moving)} changes nothing: moving statistics are not trained"
    names = trained_names(trace)
    rows = [f"{v.name}/{row}" for v in trace.variables if v.proxy for row in TRAINED_PROXY_ROWS]
    for word in words:
        if word not in (*moving, *SKIPPED) and not any(word in name for name in (*names, *rows)):
            raise OptionError(
                f"{flag(name)} {word} matches no trained variable; their names are like {', '.join(names[:3])}"
            )


def more_than_an_epoch(resolved: Resolved) -> Iterator[str]:
    """An update that takes pictures twice."""
    batch, images = resolved.run.plan.global_batch, resolved.run.data_source.spec.train_images
    if batch > images:
        yield f"one update takes {batch} samples: more than the {images} images of an epoch"


def averages(resolved: Resolved) -> Iterator[str]:
    """Averages of weights need checkpoints."""
    training, checkpoint = resolved.run.options.training, resolved.run.options.checkpoint
    words = [f"--weight-avg-N {n}" for n in training.weight_avg_N]
    words += [f"--weight-avg-exp {decay:g}" for decay in training.weight_avg_exp]
    if words and not (checkpoint.ckpts_per_epoch or checkpoint.epochs_per_ckpt):
        raise OptionError(f"{words[0]} averages the run's checkpoints, and --ckpts-per-epoch 0 writes none; give 1 or more")
    if words and checkpoint.max_ckpts_to_keep:
        yield (
            f"--max-ckpts-to-keep {checkpoint.max_ckpts_to_keep}: {' and '.join(words)} can only take the checkpoints that "
            "are left at the end"
        )


def validations(resolved: Resolved) -> Iterator[str]:
    """Options that go by the accuracy of validation."""
    options, source = resolved.run.options.checkpoint, resolved.run.data_source
    if options.keep_best_ckpt and not options.max_ckpts_to_keep:
        yield "--keep-best-ckpt changes nothing: every checkpoint is kept without --max-ckpts-to-keep"
    off = {f"--patience {options.patience}": "--patience 0", "--keep-best-ckpt": "--no-keep-best-ckpt"}
    given_words = [words for words, on in zip(off, (options.patience, options.keep_best_ckpt)) if on]
    none = {
        "--no-validation leaves that out": not options.validation,
        "the data set has no pictures for that": not source.spec.validation_images,
        "--ckpts-per-epoch 0 writes no checkpoints": not (options.ckpts_per_epoch or options.epochs_per_ckpt),
    }
    for why in [why for why, holds in none.items() if holds][:1] if given_words else ():
        words = given_words[0]
        raise OptionError(f"{words} goes by the accuracy of validation, and {why}; leave it out, or give {off[words]}")


def decays_of_one(resolved: Resolved) -> None:
    """A decay below 1 lets old gradients go."""
    training = resolved.run.options.training
    for name, effect in BELOW_ONE.items():
        value = getattr(training, name)
        if name in UPDATE_RULES[training.optimiser].options and value is not None and value >= 1:
            raise OptionError(f"{flag(name)} {value:g} {effect}; give less than 1")


def label_smoothing(resolved: Resolved) -> None:
    """The true class stays the most probable one."""
    classes = resolved.run.data_source.spec.num_classes
    smoothing, most = resolved.run.options.training.label_smoothing or 0.0, (classes - 1) / classes
    if smoothing >= most:
        raise OptionError(
            f"--label-smoothing {smoothing:g} leaves the true class of {classes} no more than each other one; give less "
            f"than {most:.4g}"
        )


def peak_rate(resolved: Resolved) -> Iterator[str]:
    """The highest learning rate lies where published ones do."""
    run, training = resolved.run, resolved.run.options.training
    exponent, published = training.base_learning_rate_exponent, UPDATE_RULES[training.optimiser].highest_rate
    if not run.highest_rate:
        yield (
            f"warning: the learning rate is 0 in all of the run's {run.length.iterations} updates: the warm-up begins "
            "there, and nothing is learnt; give more --iterations or --epochs, or --warmup-epochs 0"
        )
    elif training.abs_learning_rate is None and exponent is not None and exponent > 0:
        yield (
            f"warning: --base-learning-rate-exponent {exponent:g} makes the learning rate 2^{exponent:g} x "
            f"{run.plan.global_batch} = {run.peak_rate:.4g}; published exponents are {EXPONENTS}, and --abs-learning-rate "
            "takes a rate as it is"
        )
    elif run.highest_rate > published:
        yield (
            f"warning: the learning rate goes up to {run.highest_rate:.4g}, and published ones for --optimiser "
            f"{training.optimiser} not beyond {published:g}; see --abs-learning-rate and --base-learning-rate-exponent"
        )
    elif run.highest_rate < LOWEST_RATE:
        yield (
            f"warning: the learning rate is {run.highest_rate:.4g} at most, and below {LOWEST_RATE:g} hardly a weight moves"
        )


def final_rate(resolved: Resolved) -> Iterator[str]:
    """A schedule's rate falls."""
    run = resolved.run
    last = run.learning_rate(run.length.iterations - 1)
    rise = f"the {run.options.main.lr_schedule} schedule lets the learning rate rise from {run.peak_rate:.4g}"
    if not last <= LARGEST:
        raise OptionError(f"{rise} beyond FP32's largest number, {LARGEST:.4g}; {_falling(run.options)} if it is to fall")
    if last > ROUNDING * run.peak_rate:
        yield f"warning: {rise} to {last:.4g} at the end; {_falling(run.options)} if it is to fall"


def _falling(options: RunOptions) -> str:
    """The remedy for a rate that rises."""
    if not hasattr(options.schedule, "poly_lr_end_ratio"):
        return "its decay must be below 1"
    if options.schedule.abs_end_learning_rate is not None:
        return f"--abs-end-learning-rate {options.schedule.abs_end_learning_rate:g} must be below the first"
    return f"--poly-lr-end-ratio {options.schedule.poly_lr_end_ratio:g} must be below 1"


def weight_decay(resolved: Resolved) -> Iterator[str]:
    """An update leaves some of each weight. LARS and LAMB decay by shares of a norm."""
    training, highest = resolved.run.options.training, resolved.run.highest_rate
    shrunk = highest * (training.weight_decay or 0)
    rule = UPDATE_RULES[training.optimiser]
    if (rule.linear or rule.decoupled_decay) and shrunk >= 1:
        yield (
            f"warning: --weight-decay {training.weight_decay:g} x learning rate {highest:.4g} = {shrunk:.4g}: an update "
            "takes away as much as the weights are, or more; give less of either"
        )


def half_mean_squares(resolved: Resolved) -> Iterator[str]:
    """Mean squares of gradients, as Adam and LAMB keep them, lie far below FP16's smallest number."""
    run, training = resolved.run, resolved.run.options.training
    names = [name for name in UPDATE_RULES[training.optimiser].options if name in ("adam_epsilon", "lamb_epsilon")]
    trained = [v for v in run.trace.variables if v.trainable and not v.proxy and run.is_trained(v.name)]
    precision = run.plan.precision
    formats = {precision.slot_format(variable) for variable in trained}
    coarsest = max(formats, key=lambda each: each.smallest, default=FP32)
    advice = "give --precision 16.32 or 32.32, or --offload-fp32-weight-copy"
    if precision.slot == coarsest:
        advice = "give --slot-format fp32"
    elif not precision.rounds_weights:
        advice = "leave --force-weight-to-fp16 out, or give --offload-fp32-weight-copy"
    if names and coarsest.smallest > SMALL_MEAN_SQUARE:
        yield (
            f"warning: --optimiser {training.optimiser} keeps mean squares of gradients in {coarsest.name}, "
            f"where those below {coarsest.smallest / 2:.0e} become 0, and the update is divided by {flag(names[0])} "
            f"{getattr(training, names[0]):g} alone; {advice}"
        )


def averages_worth_having(resolved: Resolved) -> Iterator[str]:
    """A decay of 1 takes no later checkpoint in, and an average is made once."""
    training = resolved.run.options.training
    for option, values in (("--weight-avg-N", training.weight_avg_N), ("--weight-avg-exp", training.weight_avg_exp)):
        twice = next((value for k, value in enumerate(values) if value in values[:k]), None)
        if twice is not None:
            yield f"warning: {option} has {twice:g} twice; one average is made of it"
    if 1.0 in training.weight_avg_exp:
        yield "warning: --weight-avg-exp 1 is the first checkpoint, and takes nothing of the others; give less than 1"
    if 0.0 in training.weight_avg_exp:
        yield "warning: --weight-avg-exp 0 is the last checkpoint, and takes nothing of the others; give more than 0"
    if 0 in training.weight_avg_N:
        yield "warning: --weight-avg-N 0 takes the checkpoints of the run's last moment alone; give 1 or more"
    most = max(training.weight_avg_N, default=0)
    if most > resolved.run.length.epochs > 1:
        yield f"--weight-avg-N {most:g} takes every checkpoint: the run has {resolved.run.length.epochs:.4g} epochs"


def endless_warmup(resolved: Resolved) -> Iterator[str]:
    """A warm-up that is not a default leaves the rate time to rise."""
    run = resolved.run
    warmup = getattr(run.options.schedule, "warmup_epochs", 0)
    given, configured = run.options.given, run.options.sources.get("warmup_epochs", "").startswith(CONFIGURATION)
    chosen = given("warmup_epochs") or (configured and given("epochs"))
    if run.highest_rate and chosen and warmup and run.is_far_below_peak:
        share = "the whole run of" if warmup >= run.length.epochs else "most of the run's"
        yield (
            f"warning: --warmup-epochs {warmup:g} is {share} {run.length.epochs:.4g} epochs: the learning rate never gets "
            f"to its {run.peak_rate:.4g}, and to {run.highest_rate:.4g} at most; give more --epochs, or a shorter warm-up"
        )


def loss_scale(resolved: Resolved) -> Iterator[str]:
    """Scaled gradients are numbers of the format that they are computed in."""
    scale, precision = resolved.run.options.training.loss_scaling, resolved.run.plan.precision
    if scale < SMALLEST:
        raise OptionError(
            f"--loss-scaling {scale:g} is 0 in FP32, which gradients are divided in; give {SMALLEST:.3g} or more"
        )
    kind, least, most = LOSS_SCALES[precision.compute == FP16]
    if not least <= scale <= most:
        effect = "overflow" if scale > most else "become 0"
        advice = f"give from {least:.2g} to {most:.2g}"
        yield f"warning: --loss-scaling {scale:g} lets most gradients {effect} in {kind}; {advice}"


def automatic_loss_scale(resolved: Resolved) -> None:
    """A run finds its loss scale by gradients that overflow, which must be able to, and must not end it."""
    run, rule = resolved.run, resolved.run.options.training.automatic_loss_scaling
    if not rule:
        return
    kernels = [variable.name for variable in run.trace.variables if is_kernel(variable.name)]
    precision = run.plan.precision
    if all(each == FP32 for name in kernels for each in precision.gradients_of(name)):
        moved = ", or in a format that follows its size" * bool(precision.scaled_kernels)
        raise OptionError(
            f"--automatic-loss-scaling {rule} has nothing to go by: with --precision {precision.name} every gradient is "
            f"FP32{moved}, which does not overflow; leave it out, or give --precision 16.16"
        )
    if precision.checks:
        check = "fp-exceptions" if run.options.device.fp_exceptions else "analyse-nans"
        raise OptionError(
            f"--automatic-loss-scaling {rule} finds the scale by gradients that overflow, at which --{check} ends the run; "
            f"leave one of them out, or give --no-{check}"
        )
    if rule == "back-off" and precision.saturate_on_overflow:
        raise OptionError(
            "--automatic-loss-scaling back-off finds the scale by gradients that overflow, which --saturate-on-overflow "
            "hides; leave one of them out, or give --no-saturate-on-overflow or --automatic-loss-scaling largest"
        )


def epsilons(resolved: Resolved) -> Iterator[str]:
    """A denominator of 0 is kept from dividing by a number that is not 0 in FP32 either, and that is small."""
    options = resolved.run.options
    read = {name: getattr(options.training, name) for name in UPDATE_RULES[options.training.optimiser].options}
    for use, values in (("weights are updated", read), ("norms are computed", vars(options.model))):
        for name, value in values.items():
            if name.endswith("_epsilon") and 0 < value < SMALLEST:
                raise OptionError(f"{flag(name)} {value:g} is 0 in FP32, which {use} in; give {SMALLEST:.3g} or more")
            if name.endswith("_epsilon") and value > LARGEST_EPSILON and options.given(name):
                yield f"warning: {flag(name)} {value:g} hides the numbers that it is added to; give 1 or less"


def options_of_other_rules(resolved: Resolved) -> Iterator[str]:
    """Options of another optimiser than the run's."""
    options = resolved.run.options
    read = UPDATE_RULES[options.training.optimiser].options
    for name in dict.fromkeys(name for rule in UPDATE_RULES.values() for name in rule.options):
        if options.given(name) and name not in read:
            yield f"{flag(name)} changes nothing: --optimiser is {options.training.optimiser}"


def beyond_the_end(resolved: Resolved) -> Iterator[str]:
    """Stops, looks and checkpoints lie within the run."""
    options, length = resolved.run.options, resolved.run.length
    stop, every, updates = options.training.stop_after, options.logging.numerics, length.iterations
    if stop is not None and stop >= updates:
        yield f"--stop-after {stop} changes nothing: the run has {updates} updates"
    if options.given("numerics") and options.logging.logs and every and every > updates:
        yield f"--numerics {every} changes nothing: the run has {updates} updates"
    offset, patience, period = options.checkpoint.ckpt_epochs_offset, options.checkpoint.patience, length.iterations_per_ckpt
    if options.given("ckpt_epochs_offset") and period and offset > length.epochs:
        yield f"--ckpt-epochs-offset {offset:g} leaves the last checkpoint alone: the run has {length.epochs:.4g} epochs"
    validations = (updates - 1) // period + 1 if period else 0
    if options.given("patience") and 0 < validations <= patience:
        often = "once" if validations == 1 else f"{validations} times at most"
        yield f"--patience {patience} changes nothing: the run is validated {often}"
