"""Rules on devices, stages, precision, norms and processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from base import plugins
from base.errors import OptionError
from emulator.native import library
from emulator.plan import plan as plans
from emulator.plan.number_formats import BF16, FP16, FP32, Format, by_name
from emulator.plan.precision import ALL, FIRST, LAST, MAXIMUM, NAMED, OFF, UPDATE, Operands, Precision, is_kernel, layer_of
from harness.cluster import membership
from harness.options.sections import flag
from harness.options.update_rules import UPDATE_RULES
from harness.run.update_checks import check_matched, only_moving, trained_names
from Models import _norms
from Models._layers import Variable

if TYPE_CHECKING:
    from harness.run.rule_tables import Resolved, TracedOptions


def forced_precision(traced: TracedOptions) -> None:
    """Each word of --force-weight-to-... names a trained variable, and no variable is forced both ways."""
    device, trace = traced.options.device, traced.trace
    half, single = device.force_weight_to_fp16, device.force_weight_to_fp32
    for word in only_moving(half, trace):
        raise OptionError(
            f"--force-weight-to-fp16 {word} names moving statistics only, and they are kept in FP32; leave it out"
        )
    moving = only_moving(single, trace)
    check_matched("--force-weight-to-fp16", half, trace)
    check_matched("--force-weight-to-fp32", [word for word in single if word not in moving], trace)
    for name in trained_names(trace):
        words = [next((word for word in forced if word in name), "") for forced in (half, single)]
        if all(words):
            raise OptionError(
                f"--force-weight-to-fp16 {words[0]} and --force-weight-to-fp32 {words[1]} both name {name}; leave it in one "
                "of them"
            )


def layer_formats(traced: TracedOptions) -> None:
    """Each word of --format-for names a layer with a kernel."""
    names = [variable.name for variable in traced.trace.variables if is_kernel(variable.name)]
    for word in traced.options.device.format_for:
        part = word.rpartition("=")[0]
        if part not in (FIRST, LAST) and not any(part in name for name in names):
            parts = sorted({FIRST, LAST, *(part for name in names for part in name.split("/")[1:-1])})
            raise OptionError(
                f"--format-for {word}: no convolution's or dense layer's name contains {part}"
                f"{plugins.did_you_mean(part, parts)}; {FIRST} is {names[0]}, {LAST} is {names[-1]}"
            )


def forced_statistics(resolved: Resolved) -> Iterator[str]:
    """Moving statistics need no force."""
    words = only_moving(resolved.run.options.device.force_weight_to_fp32, resolved.run.trace)
    if words:
        yield f"--force-weight-to-fp32 {' '.join(words)} changes nothing: moving statistics are FP32 already"


def name_suffix(resolved: Resolved) -> None:
    """A run's name is one printable part of a path."""
    suffix = resolved.run.options.logging.name_suffix
    if suffix and (any(part in suffix for part in ("/", "\\", "..")) or not suffix.isprintable()):
        raise OptionError(f"--name-suffix '{suffix}' must not contain / \\ .. or unprintable characters")


def replaced_replicas(resolved: Resolved) -> Iterator[str]:
    """The number of poprun's replicas goes before --replicas, which may be that of all instances."""
    before, cluster = resolved.requested.device.replicas, resolved.run.cluster
    if cluster.replicas is not None and before not in (1, cluster.replicas, cluster.replicas * cluster.size):
        yield (f"--replicas {before} is replaced by poprun's {cluster.replicas} of {cluster.replicas * cluster.size}")


def rounding_everywhere(resolved: Resolved) -> Iterator[str]:
    """Note that no update rounds with FP32 weights."""
    before = resolved.requested.device.stochastic_rounding
    if before != resolved.run.options.device.stochastic_rounding:
        yield (
            f"--stochastic-rounding {before}: with {resolved.run.plan.precision.name}'s FP32 weights, results and gradients "
            "are rounded at random (all)"
        )


def fp32_copy(resolved: Resolved) -> Iterator[str]:
    """FP32 weights need no copy."""
    precision, variables = resolved.run.plan.precision, resolved.run.trace.variables
    copied = any(precision.has_fp32_copy(variable) for variable in variables if variable.trainable)
    if precision.offload_fp32_weight_copy and not copied:
        yield f"--offload-fp32-weight-copy changes nothing: with {precision.name} the weights are FP32"


def saturation(resolved: Resolved) -> Iterator[str]:
    """Only what is rounded saturates."""
    precision = resolved.run.plan.precision
    if not (precision.rounds_results or precision.rounds_operands) and precision.saturate_on_overflow:
        yield f"--saturate-on-overflow changes nothing: with {precision.name} nothing is half"


def native_arithmetic(resolved: Resolved) -> Iterator[str]:
    """Only what is BF16 throughout, and rounded to the nearest, can be left to the processor."""
    run, precision = resolved.run, resolved.run.plan.precision
    if not precision.native_arithmetic:
        return
    operands = (*precision.operands, *(each for _, each in precision.exceptions))
    if any(each != BF16 for each in (precision.compute, *operands)):
        raise OptionError(
            f"--native-arithmetic multiplies in BF16, and --precision {precision.name} has other formats in its products; "
            "give --precision bf16.32, without other formats"
        )
    if precision.stochastic == ALL:
        raise OptionError(
            "--native-arithmetic rounds products to the nearest, and --stochastic-rounding all asks for random rounding; "
            "leave one of them out, or give --no-native-arithmetic"
        )
    if run.plan.stage_devices[0].startswith("/cpu") and not library.has_bf16():
        yield "warning: --native-arithmetic: this processor has no instructions for BF16: slower, and less exact"


def pipeline_on_one_device(resolved: Resolved) -> Iterator[str]:
    """The stages of one device take turns."""
    run = resolved.run
    if run.trains and run.options.device.pipeline and run.options.device.shards == 1:
        stages = f"{len(run.plan.stages)} stages" if len(run.plan.stages) > 1 else "one stage"
        yield f"--pipeline with --shards 1: {stages} on one device, run as Sequential"


def memory_proportions(resolved: Resolved) -> Iterator[str]:
    """Refuse a number of values other than one, or two a shard. A configuration's list may be for other shards than the
    command line's."""
    run, options = resolved.run, resolved.run.options
    values, shards = options.device.available_memory_proportion, options.device.shards
    if len(values) in (0, 1, 2 * shards):
        return
    rule = f"--available-memory-proportion has {len(values)} values but needs 1, or 2 for each of the {shards} shards"
    if options.given("available_memory_proportion") or (run.trains and not options.given("shards")):
        raise OptionError(rule)
    yield f"{rule}: the configuration's list, which changes nothing here, was for other shards"


def batch_statistics(resolved: Resolved) -> Iterator[str]:
    """Batch norm averages over several pictures, and its moving statistics move."""
    run = resolved.run
    if run.frozen_statistics.issuperset(v.name for v in run.trace.variables if v.decay is not None):
        return
    if getattr(run.options.model, "BN_decay", None) == 1 and run.options.training.init_path is None:
        yield (
            "warning: --BN-decay 1 leaves the moving statistics as they begin, and validation takes them for those of the "
            "pictures; give less than 1"
        )
    elif run.plan.micro_batch_size * run.plan.options.BN_span == 1:
        yield (
            "warning: batch norm takes the statistics of one picture at a time, which are not those of validation; give "
            "--micro-batch-size 2 or more, a --BN-span over replicas, or --group-norm"
        )


def neighbours(resolved: Resolved) -> Iterator[str]:
    """A process that trains alone where the environment names others."""
    if not resolved.run.cluster.source:  # neither one of several, nor started by poprun
        yield from membership.ignored_others(resolved.environ)


def options_of_stages(resolved: Resolved) -> Iterator[str]:
    """Options of cuts and schedules beside an uncut network."""
    options = resolved.run.options
    for name in ("pipeline_splits", "pipeline_schedule", "sharding_include_filter", "sharding_exclude_filter"):
        if options.given(name) and len(resolved.run.plan.stages) == 1:
            yield f"{options.words(name)} changes nothing: there is one stage"
        elif name.startswith("sharding_") and options.given(name) and not plans.cuts_automatically(options.device):
            yield f"{options.words(name)} changes nothing: --pipeline-splits names the cuts"


def options_of_several(resolved: Resolved) -> Iterator[str]:
    """Options of several processes, or replicas, where there is one."""
    run, options = resolved.run, resolved.run.options
    processes = (
        "ckpt_all_instances",
        "log_all_instances",
        "worker_timeout",
        "bind",
        "max_cross_replica_buffer_size",
        "all_reduce_format",
    )
    alone = {
        "one process trains": processes if run.cluster.size == 1 else (),
        "there is one replica": ("identical_replica_seeding",) if run.plan.total_replicas == 1 else (),
    }
    for why, names in alone.items():
        for name in filter(options.given, names):
            yield f"{options.words(name)} changes nothing: {why}"


def options_of_other_norms(resolved: Resolved) -> Iterator[str]:
    """Options of norms that the network does not have; a span of one replica asks for nothing."""
    run, options = resolved.run, resolved.run.options
    idle = {"BN_span"} if options.device.BN_span == 1 else set()
    for kind in (kind for kind in _norms.KINDS if kind not in run.norms):
        for name in (name for name in kind.reads if options.given(name) and name not in idle):
            yield f"{options.words(name)} changes nothing: the network has no {kind.title}"
    if options.given("frozen_norm_statistics") and not run.frozen_norms:
        yield f"{options.words('frozen_norm_statistics')} changes nothing: each batch norm, if there is any, is trained"


def options_of_half_precision(resolved: Resolved) -> Iterator[str]:
    """Options of FP16 where nothing is half, and of forced weights that are so already."""
    options, precision = resolved.run.options, resolved.run.plan.precision
    device, half, single = options.device, options.device.force_weight_to_fp16, options.device.force_weight_to_fp32
    of_results = {"fp32_accumulators": device.fp32_accumulators, "enable_half_partials": device.enable_half_partials}
    for name, on in of_results.items():
        if on and not precision.rounds_results:
            yield f"{flag(name)} changes nothing: with {precision.name} nothing is half"
    if device.enable_half_partials and precision.rounds_results:
        yield f"{flag('enable_half_partials')} is not emulated: all sums inside of an operation are FP32"
    updates = precision.rounds_updates(resolved.run.trace.variables)
    results = precision.rounds_results or precision.rounds_operands
    at_random = updates if precision.stochastic == UPDATE else updates or results
    if options.given("stochastic_rounding") and precision.stochastic != OFF and not at_random:
        why = "the weights that updates move are FP32" if results else f"with {precision.name} nothing is half"
        yield f"{options.words('stochastic_rounding')} changes nothing: {why}"
    if half and precision.master == FP16:
        yield f"--force-weight-to-fp16 changes nothing: with {precision.name} weights are half already"
    for kind in Operands._fields:
        own = getattr(precision.operands, kind)
        for name in filter(options.given, (f"{kind}_format", f"{kind}_bias")):
            if own.contains(precision.compute) and own == getattr(NAMED[precision.name].operands, kind):
                yield f"{options.words(name)} changes nothing: with {precision.name} it is {own.name} already"
            elif kind != "weight" and own.contains(precision.compute) and precision.compute != FP32:
                yield f"{options.words(name)} changes nothing: {kind}s are numbers of {precision.compute.name} already"
            elif name.endswith("_bias") and precision.scaled_kernels:
                effect = "changes nothing" if kind == "weight" else "counts in the first update alone"
                yield f"{options.words(name)} {effect}: --format-scaling moves the range of {kind}s by their largest number"
    if options.given("format_scaling") and device.format_scaling == MAXIMUM and not precision.rounds_operands:
        yield f"{options.words('format_scaling')} changes nothing: no product rounds what it multiplies"
    yield from _idle_state_formats(resolved)
    yield from _idle_exceptions(resolved)
    if options.given("slot_format") and not UPDATE_RULES[options.training.optimiser].slots:
        yield f"{options.words('slot_format')} changes nothing: --optimiser {options.training.optimiser} has no slots"
    if single and not precision.rounds_weights and not half:
        yield f"--force-weight-to-fp32 changes nothing: with {precision.name} weights are FP32 already"


def biases_out_of_range(resolved: Resolved) -> Iterator[str]:
    """Formats of what products multiply that are moved away from the numbers of networks."""
    options, precision = resolved.run.options, resolved.run.plan.precision
    for kind, least in (("weight", 2.0**-4), ("activation", 2.0**-2), ("gradient", 2.0**-24)):  # of the largest number
        own: Format = getattr(precision.operands, kind)
        if not options.given(f"{kind}_bias") or precision.scaled_kernels or (own.largest >= least and own.smallest <= 1.0):
            continue
        above = f"all above {own.largest:.3g} are beyond its largest"
        lost = above if own.largest < least else f"all below {own.smallest / 2:.3g} become 0"
        yield f"warning: {options.words(f'{kind}_bias')}: of the {kind}s as {own.name}, {lost}; give another bias"


def _idle_state_formats(resolved: Resolved) -> Iterator[str]:
    """Formats of weights, slots and sums without which every one of these would be what it is."""
    run, options, precision = resolved.run, resolved.run.options, resolved.run.plan.precision
    trained = [v for v in run.trace.variables if v.trainable and not v.proxy and run.is_trained(v.name)]

    def of(own: Precision) -> dict[str, list[Format]]:
        masters, slots = [own.master_format(v) for v in trained], [own.slot_format(v) for v in trained]
        return {"master_format": masters, "slot_format": slots if UPDATE_RULES[options.training.optimiser].slots else []}

    without = {
        "master_format": replace(precision, master=NAMED[precision.name].master),
        "slot_format": replace(precision, slot=None),
    }
    for name, other in without.items():
        kept = " and ".join(sorted({each.name for each in of(precision)[name]}))
        if options.given(name) and kept and of(other) == of(precision):
            kind = "weights that updates move" if name == "master_format" else "slots"
            yield f"{options.words(name)} changes nothing: without it the {kind} are {kept} too"
    for name in ("accumulator_format", "fp32_accumulators"):
        if options.given(name) and run.plan.passes_per_update * run.plan.instances == 1:
            yield f"{options.words(name)} changes nothing: an update is one pass, whose gradients are no sum"


def _idle_exceptions(resolved: Resolved) -> Iterator[str]:
    """Words of --format-for whose layers earlier words name, or whose layers round neither with them nor without."""
    run, options, precision = resolved.run, resolved.run.options, resolved.run.plan.precision
    if not options.given("format_for"):
        return
    kernels = [variable for variable in run.trace.variables if is_kernel(variable.name)]
    ends = {FIRST: f"{layer_of(kernels[0].name)}/", LAST: f"{layer_of(kernels[-1].name)}/"}
    left = kernels
    for word in options.device.format_for:
        part, _, text = word.rpartition("=")
        decided, own = [v for v in left if ends.get(part, part) in v.name], Operands.all_in(by_name(text))
        left = [v for v in left if v not in decided]
        rounding = {_rounding(precision, v, each) for v in decided for each in (own, precision.operands)}
        if not decided:
            yield f"--format-for {word} changes nothing: the words before it name all of its layers"
        elif len(rounding) == 1 and own != precision.operands and not precision.scaled_kernels:
            yield f"--format-for {word} changes nothing: every number that its layers multiply is one of {own.weight.name}"


def _rounding(precision: Precision, kernel: Variable, operands: Operands) -> Operands:
    """The formats that a product of that kernel rounds to, and FP32 for those that lose nothing of what they are given."""
    given = Operands(precision.stored_format(kernel), precision.compute, precision.compute)
    return Operands(*(FP32 if own.contains(each) else own for own, each in zip(operands, given)))
