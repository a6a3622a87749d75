"""The options of the device layer. `emulator.plan.plan.resolve` takes them as one section, and the plan keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from base import plugins
from base.fields import HALVES, HINT, LENGTH, NOT_IN_GRAPH, ONE_CALL, PER_INSTANCE, TRAINING_ONLY, at_least, between, opt
from emulator.plan import number_formats
from emulator.plan.schedules import SCHEDULES

ALL_REDUCE_FORMATS = ("fp32", "fp16", "bf16")


def _fold(value: str) -> str | None:
    number = value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0
    return None if value == "auto" or number else "must be auto or a whole number above 0, up to 999,999,999"


def _format(value: str) -> str | None:
    try:
        number_formats.by_name(value)
    except number_formats.FormatError as error:
        return f"must be a number format; {value} {error}{plugins.did_you_mean(value, number_formats.NAMES)}"
    return None


def _format_option(help: str, *traits: str, **more: str) -> Any:
    return opt(None, help, check=_format, read=str.lower, traits=(HALVES, *traits), **more)


def _layer_formats(values: tuple[str, ...]) -> str | None:
    for value in values:
        part, equals, name = value.rpartition("=")
        if not part or not equals:
            return f"must be LAYER=FORMAT, e.g. Stem=fp16 or first=fp16; {value} is not"
        if fault := _format(name):
            return fault
    return None


def _device_ids(values: tuple[str, ...]) -> str | None:
    fit = len(values) <= 2 and all(value == "AUTO" or (value.isascii() and value.isdigit()) for value in values)
    return None if fit else "must be AUTO or a device id, optionally followed by one for validation"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Device layer"""

    shards: int = opt(1, "use N IPUs per replica, one per stage of the network", check=at_least(1), traits=(TRAINING_ONLY,))
    replicas: int = opt(1, "train N data-parallel copies of the model", check=at_least(1), traits=(TRAINING_ONLY,))
    pipeline: bool = opt(False, "run the stages as a pipeline, on several micro-batches at once", traits=(TRAINING_ONLY,))
    pipeline_splits: tuple[str, ...] = opt(
        (),
        "begin the 2nd, 3rd, ... stage at these segments; auto makes stages of about equal cost",
        aliases=("pipeline_split",),
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    pipeline_schedule: str = opt(
        "Interleaved",
        "choose the order of the forward and backward passes in the pipeline",
        choices=tuple(SCHEDULES),
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    sharding_include_filter: tuple[str, ...] = opt(
        (),
        "cut automatically only before segments whose names contain one of these",
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    sharding_exclude_filter: tuple[str, ...] = opt(
        (),
        "cut automatically never before segments whose names contain one of these",
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    enable_recomputation: bool = opt(
        False,
        "recompute activations in the backward pass, to save memory",
        aliases=("xla_recompute", "enable_recompute"),
        traits=(TRAINING_ONLY,),
    )
    fold: str = opt(
        "auto",
        "compute N micro-batches together in one pass of the network, or choose the number (auto)",
        check=_fold,
        read=str.lower,
        traits=(TRAINING_ONLY,),
    )
    fold_memory: int = opt(
        1024, "use up to N megabytes of activations in one pass with --fold auto", check=at_least(1), needs="--fold auto"
    )
    batches_per_step: int = opt(
        1000,
        "run up to N weight updates per host step",
        aliases=("device_iterations",),
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    precision: str = opt(
        "16.16",
        "set the number formats of results and weights, COMPUTE.MASTER (default for own data and Fashion-MNIST: 32.32)",
        choices=("16.16", "16.32", "32.32", "8.16", "8.32", "bf16.16", "bf16.32"),
    )
    weight_format: str | None = _format_option(
        "set the number format of weights in products, such as e4m3fnuz or e5m2b16 (default: from --precision)"
    )
    activation_format: str | None = _format_option(
        "set the number format of activations in products (default: from --precision)"
    )
    gradient_format: str | None = _format_option(
        "set the number format of gradients in products (default: from --precision)", TRAINING_ONLY
    )
    weight_bias: int | None = opt(
        None, "set the exponent bias of weights in products (default: by format)", traits=(HALVES,)
    )
    activation_bias: int | None = opt(
        None, "set the exponent bias of activations in products (default: by format)", traits=(HALVES,)
    )
    gradient_bias: int | None = opt(
        None,
        "set the exponent bias of gradients in products (default: by format)",
        traits=(HALVES, TRAINING_ONLY),
    )
    format_scaling: str = opt(
        "fixed",
        "set the range of formats in products by the bias (fixed), or shift it for each tensor by a power of two that "
        "follows its largest value so far (maximum)",
        bare="maximum",
        choices=("fixed", "maximum"),
        traits=(HALVES,),
    )
    format_for: tuple[str, ...] = opt(
        (),
        "set the formats of single layers in products, such as Stem=fp16 or last=fp32 (default with 8.16 and 8.32: "
        "first=fp16 last=fp16)",
        check=_layer_formats,
        traits=(HALVES,),
    )
    accumulator_format: str | None = _format_option(
        "set the number format of accumulated gradients (default: that of layer results)",
        TRAINING_ONLY,
        needs="half precision",
    )
    master_format: str | None = _format_option(
        "set the number format of the weights that the optimiser updates (default: from --precision)"
    )
    slot_format: str | None = _format_option(
        "set the number format of the optimiser's slots (default: that of the weights)", TRAINING_ONLY
    )
    native_arithmetic: bool = opt(
        False,
        "compute products of bf16.32 and bf16.16 with the processor's BF16 instructions, which add in another order",
        traits=(HALVES,),
    )
    stochastic_rounding: str = opt(
        "ON",
        "round half-precision weights and slots at random in updates (ON, update), or every result (all; with 16.32 "
        "also an explicit ON), or nothing (OFF)",
        bare="ON",
        choices=("ON", "ON_prng_stable", "RI_prng_stable", "OFF", "update", "all"),
        off="OFF",
        traits=(HALVES,),
    )
    fp32_accumulators: bool = opt(
        False,
        "accumulate gradients in FP32 if they are computed in half precision",
        traits=(HALVES,),
        needs="half precision",
    )
    saturate_on_overflow: bool = opt(
        False, "replace overflow by the largest finite number instead of NaN", traits=(HALVES,), needs="half precision"
    )
    fp_exceptions: bool = opt(
        False, "stop at the first invalid operation, division by zero or overflow, and report layer and update"
    )
    seed: int | None = opt(
        None,
        "set the seed of all random numbers (default: drawn, printed and recorded)",
        check=between(0, 2**63 - 1),
        traits=(NOT_IN_GRAPH,),
    )
    identical_replica_seeding: bool = opt(
        False,
        "draw the same random numbers on the device in all replicas",
        traits=(TRAINING_ONLY,),
        needs="several replicas",
    )
    BN_span: int = opt(1, "share batch-norm statistics over N replicas", check=at_least(1), traits=(TRAINING_ONLY,))
    device: str = opt("auto", "choose the processor; auto uses GPUs if there are any", choices=("auto", "cpu", "gpu"))
    select_ipu: tuple[str, ...] = opt(
        ("AUTO",),
        "choose the emulated device for training, and maybe one for validation: ids of gc-info -l, or AUTO",
        aliases=("select_ipus",),
        check=_device_ids,
        read=str.upper,
        traits=(PER_INSTANCE,),
    )
    compile_only: bool = opt(False, "build the programs, print their sizes, then stop", traits=(ONE_CALL, NOT_IN_GRAPH))
    executable_cache: bool = opt(
        True,
        "compile programs in each call, without the cache of compiled programs",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
    )
    executable_cache_path: str | None = opt(
        None,
        "keep compiled programs in this folder (default: from TF_POPLAR_FLAGS, else in the user's cache)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    executable_cache_size: int = opt(
        1000,
        "limit the folder of compiled programs to N megabytes; the least recently used ones are deleted",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    memory_check: bool = opt(
        True,
        "warn about a run that needs more memory than the host has, instead of rejecting it",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    disable_variable_offloading: bool = opt(False, "keep optimiser state on the chip", kind=HINT)
    rts: bool = opt(False, "shard optimiser state over the replicas", kind=HINT, traits=(TRAINING_ONLY,))
    min_remote_tensor_size: int = opt(128, "offload optimiser state of at least N bytes", kind=HINT, check=at_least(0))
    available_memory_proportion: tuple[float, ...] = opt(
        (), "use this fraction of tile memory for temporaries: one value, or two per shard", kind=HINT, check=between(0, 1)
    )
    enable_half_partials: bool = opt(
        False,
        "use half-precision partial sums on an IPU; the emulation always uses FP32",
        kind=HINT,
        needs="half precision",
    )
    gather_conv_output: bool = opt(False, "combine small reductions of convolutions", kind=HINT)
    enable_conv_dithering: bool = opt(False, "spread convolutions over the tiles", kind=HINT)
    internal_exchange_optimisation_target: str | None = opt(
        None, "choose what the compiler optimises", choices=("balanced", "cycles", "memory"), kind=HINT
    )
    max_cross_replica_buffer_size: int = opt(
        10485760,
        "all-reduce up to N bytes of gradients at once between processes; 0: one tensor at a time",
        check=at_least(0),
        needs="several processes",
    )
    all_reduce_format: str = opt(
        "fp32",
        "set the number format of gradients in the all-reduce between processes",
        choices=ALL_REDUCE_FORMATS,
        needs="several processes",
    )
    max_reduce_many_buffer_size: int = opt(0, "merge reductions of up to N bytes", kind=HINT, check=at_least(0))
    scheduling_algorithm: str = opt(
        "choose-best",
        "choose the scheduling algorithm of the compiler",
        kind=HINT,
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
    )
    on_demand: bool = opt(True, "attach to devices at once, not only when they are needed", kind=HINT)
    prefetch_depth: int | None = opt(None, "fetch N micro-batches in advance, 1 to 255", kind=HINT, check=between(1, 255))
    num_io_tiles: int = opt(
        0,
        "reserve N tiles for host input and output",
        kind=HINT,
        check=between(0, 1471),  # of a Mk2's 1472, one computes
    )
    gcl_method: str | None = opt(None, "choose the method of collective operations", kind=HINT)
    gcl_max_broadcast_size: int | None = opt(None, "broadcast at most N bytes at once", kind=HINT, check=at_least(0))
    poplar_sync_configuration: str | None = opt(None, "choose the synchronisation of the devices", kind=HINT)
    gradient_mean_reduce_re: tuple[str, ...] = opt((), "average these gradients instead of adding them", kind=HINT)
    only_use_slic_vmac_16: bool = opt(False, "restrict the convolution methods", kind=HINT)
    force_weight_to_fp16: tuple[str, ...] = opt((), "keep weights in FP16 if their names contain one of these")
    force_weight_to_fp32: tuple[str, ...] = opt(
        (), "keep weights in FP32 if their names contain one of these", traits=(HALVES,)
    )
    force_unstable_norm: bool = opt(False, "compute norm statistics in one pass, even if the model asks for two")
    analyse_nans: bool = opt(False, "stop at the first NaN or infinity and report its layer; saturated overflow is allowed")
    profile: str | None = opt(
        None,
        "record one update in FILE.svg and FILE.json; without FILE, or with auto: profile.* in the run directory",
        bare="auto",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    gc_profile: str | None = opt(
        None,
        "record one update as with --profile, and write execution.json and stdout.txt (console output), in the run "
        "directory or that of gc-profile -d",
        bare="IPU_PROFILE",
        off="NO_PROFILE",
        choices=("DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE", "NO_PROFILE"),
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    profile_compilation: bool = opt(
        False,
        "report where the time before the first update goes: a table, and compilation.json in the run directory",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )

    @property
    def local_span(self) -> int:
        """Replicas of one instance that share batch-norm statistics."""
        return min(self.BN_span, self.replicas)
