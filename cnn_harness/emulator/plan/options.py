"""The options of the device layer. `emulator.plan.plan.resolve` turns them into an execution plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.conditions import (
    block_formats,
    half_precision,
    option,
    pipelined,
    several_processes,
    several_replicas,
    several_stages,
)
from cnn_harness.base.fields import (
    HALVES,
    HINT,
    LENGTH,
    NOT_IN_GRAPH,
    ONE_CALL,
    PER_INSTANCE,
    TRAINING_ONLY,
    at_least,
    between,
    halves,
    local,
    on_host,
    opt,
    per_instance,
    training_only,
)
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.schedules import SCHEDULES

ALL_REDUCE_FORMATS = ("fp32", "fp16", "bf16")
FASTEST = "auto"  # this precision is resolved before the plan: the fastest here with the accuracy of FP32
PASSES = (
    "stages",
    "normal-form",
    "formats",
    "checks",
    "fuse",
    "kernels",
)  # over a network, in order: emulator/lowering/lists.py


def _fold(value: str) -> str | None:
    number = value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0
    return None if value == "auto" or number else "must be auto or a whole number above 0, up to 999,999,999"


def _named(by_name: Callable[[str], object], names: Sequence[str], value: str) -> str | None:
    try:
        by_name(value)
    except number_formats.FormatError as error:
        near = "" if value in number_formats.BLOCKS else plugins.did_you_mean(value, names)
        return f"must be a number format; {value} {error}{near}"
    return None


_format = partial(_named, number_formats.by_name, number_formats.NAMES)
_operand_format = partial(_named, number_formats.operand_by_name, number_formats.OPERAND_NAMES)


def _format_option(help: str, *traits: str, check: Callable[[str], str | None] = _format, **more: str) -> Any:
    return opt(None, help, check=check, read=str.lower, traits=(HALVES, *traits), **more)


def _layer_formats(values: tuple[str, ...]) -> str | None:
    for value in values:
        part, equals, name = value.rpartition("=")
        if not part or not equals:
            return f"must be LAYER=FORMAT, e.g. Stem=fp16 or first=fp16; {value} is not"
        if fault := _operand_format(name):
            return fault
    return None


def _device_ids(values: tuple[str, ...]) -> str | None:
    fit = len(values) <= 2 and all(value == "AUTO" or (value.isascii() and value.isdigit()) for value in values)
    return None if fit else "must be AUTO or a device id; a second value chooses the device for validation"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Device layer"""

    shards: int = training_only(
        1, "split each replica over N IPUs; each IPU computes one stage of the network", check=at_least(1)
    )
    replicas: int = training_only(1, "train N data-parallel copies of the model", check=at_least(1))
    pipeline: bool = training_only(False, "run the stages as a pipeline, which works on several micro-batches at once")
    pipeline_splits: tuple[str, ...] = training_only(
        (),
        "begin the 2nd, 3rd, ... stage at these blocks of layers (--dry-run prints their names); auto makes stages of"
        " about equal cost",
        aliases=("pipeline_split",),
        needs=several_stages,
    )
    pipeline_schedule: str = training_only(
        "Interleaved",
        "choose the order of the forward and backward passes in the pipeline",
        choices=tuple(SCHEDULES),
        needs=pipelined,
    )
    sharding_include_filter: tuple[str, ...] = training_only(
        (),
        "if the splits are automatic, split only before blocks of layers whose names contain one of these words",
        needs=several_stages,
    )
    sharding_exclude_filter: tuple[str, ...] = training_only(
        (),
        "if the splits are automatic, never split before blocks of layers whose names contain one of these words",
        needs=several_stages,
    )
    enable_recomputation: bool = training_only(
        False, "save memory: recompute activations in the backward pass", aliases=("xla_recompute", "enable_recompute")
    )
    fold: str = training_only(
        "auto",
        "speed up the emulation: compute N micro-batches in one pass through the network; auto chooses N",
        check=_fold,
        read=str.lower,
    )
    fold_memory: int = opt(
        1024,
        "let --fold auto use up to N megabytes for the activations of one pass",
        check=at_least(1),
        needs=option("fold", "auto"),
    )
    batches_per_step: int = opt(
        1000,
        "run up to N weight updates before control returns to the host, which then logs and saves",
        aliases=("device_iterations",),
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    precision: str = opt(
        "16.16",
        "set the number formats of layer results and weights, such as 16.32 for FP16 results and FP32 weights "
        "(default for own images and Fashion-MNIST: 32.32); auto takes the fastest with FP32's accuracy on this processor",
        choices=("16.16", "16.32", "32.32", "8.16", "8.32", "bf16.16", "bf16.32", FASTEST),
    )
    weight_format: str | None = _format_option(
        "set the number format of weights in convolutions and dense layers, such as e4m3fnuz, e5m2b16 or mxfp8_e4m3 "
        "(default: from --precision)",
        check=_operand_format,
    )
    activation_format: str | None = _format_option(
        "set the number format of input activations in convolutions and dense layers (default: from --precision)",
        check=_operand_format,
    )
    gradient_format: str | None = _format_option(
        "set the number format of gradients in the backward pass of convolutions and dense layers (default: from "
        "--precision)",
        TRAINING_ONLY,
        check=_operand_format,
    )
    weight_bias: int | None = halves(None, "set the exponent bias of --weight-format (default: the format's usual bias)")
    activation_bias: int | None = halves(
        None, "set the exponent bias of --activation-format (default: the format's usual bias)"
    )
    gradient_bias: int | None = opt(
        None, "set the exponent bias of --gradient-format (default: the format's usual bias)", traits=(HALVES, TRAINING_ONLY)
    )
    format_scaling: str = halves(
        "fixed",
        "choose the range of the formats in convolutions and dense layers: fixed by the bias, or scaled for each "
        "tensor by a power of two that follows its largest value so far (maximum)",
        bare="maximum",
        choices=("fixed", "maximum"),
    )
    format_for: tuple[str, ...] = halves(
        (),
        "set the number format of single layers, as LAYER=FORMAT, such as Stem=fp16 or last=fp32 (default with 8.16 "
        "and 8.32: first=fp16 last=fp16)",
        check=_layer_formats,
    )
    hadamard: bool = opt(
        False,
        "before rounding, apply a random Hadamard transform to the activations and gradients that give a weights' gradient, "
        "in layers where both have block formats such as nvfp4",
        traits=(HALVES, TRAINING_ONLY),
        needs=block_formats,
    )
    accumulator_format: str | None = _format_option(
        "set the number format of accumulated gradients (default: the format of layer results)",
        TRAINING_ONLY,
        needs=half_precision,
    )
    master_format: str | None = _format_option(
        "set the number format of the weights that the optimiser updates (default: from --precision)"
    )
    slot_format: str | None = _format_option(
        "set the number format of the optimiser's state, such as momentum (default: the format of the weights)",
        TRAINING_ONLY,
    )
    native_arithmetic: bool | None = halves(
        None,
        "with bf16.32 and bf16.16, multiply in the processor's BF16 units; they add in another order, so results differ "
        "slightly (default: if the processor has such units)",
    )
    stochastic_rounding: str = halves(
        "ON",
        "choose what is rounded at random: half-precision weights and optimiser state in updates (ON, update), every "
        "result (all), or nothing (OFF); with 16.32, an explicit ON means all",
        bare="ON",
        choices=("ON", "ON_prng_stable", "RI_prng_stable", "OFF", "update", "all"),
        off="OFF",
    )
    fp32_accumulators: bool = halves(
        False, "accumulate gradients in FP32, even if they are computed in half precision", needs=half_precision
    )
    saturate_on_overflow: bool = halves(
        False, "on overflow, use the largest finite number instead of NaN", needs=half_precision
    )
    fp_exceptions: bool = opt(
        False, "stop at the first invalid operation, division by zero or overflow, and report its layer and update"
    )
    seed: int | None = on_host(
        None,
        "set the seed of all random numbers (default: a random seed, which is printed and recorded)",
        check=between(0, 2**63 - 1),
    )
    identical_replica_seeding: bool = training_only(
        False, "use the same random numbers on the device in all replicas", needs=several_replicas
    )
    BN_span: int = training_only(1, "compute batch-norm statistics over groups of N replicas", check=at_least(1))
    device: str = opt(
        "auto", "choose the processor that computes; auto uses GPUs if there are any", choices=("auto", "cpu", "gpu")
    )
    select_ipu: tuple[str, ...] = per_instance(
        ("AUTO",),
        "choose the emulated device for training, and optionally another device for validation; gc-info -l lists the ids",
        aliases=("select_ipus",),
        check=_device_ids,
        read=str.upper,
    )
    compile_only: bool = opt(False, "build the programs, print their sizes, then stop", traits=(ONE_CALL, NOT_IN_GRAPH))
    executable_cache: bool = local(
        True, "compile programs in every call; neither read nor write the cache of compiled programs"
    )
    executable_cache_path: str | None = local(
        None,
        "keep compiled programs in this folder (default: the folder in TF_POPLAR_FLAGS, or else a folder in the "
        "user's cache)",
        needs=option("executable_cache"),
    )
    executable_cache_size: int = local(
        1000,
        "limit the cache of compiled programs to N megabytes; the least recently used programs are deleted",
        check=at_least(1),
        needs=option("executable_cache"),
    )
    memory_check: bool = opt(
        True,
        "if a run needs more memory than the host has, print a warning instead of rejecting the run",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    disable_variable_offloading: bool = opt(False, "keep optimiser state on the chip", kind=HINT)
    rts: bool = training_only(False, "shard the optimiser state over the replicas", kind=HINT)
    min_remote_tensor_size: int = opt(
        128, "offload tensors of optimiser state that have at least N bytes", kind=HINT, check=at_least(0)
    )
    available_memory_proportion: tuple[float, ...] = opt(
        (),
        "use this fraction of the tile memory for temporary data: one value for all IPUs, or two per shard",
        kind=HINT,
        check=between(0, 1),
    )
    enable_half_partials: bool = opt(
        False, "use half-precision partial sums on an IPU; the emulation always uses FP32", kind=HINT, needs=half_precision
    )
    gather_conv_output: bool = opt(False, "combine small reductions in convolutions", kind=HINT)
    enable_conv_dithering: bool = opt(False, "spread convolutions over the tiles", kind=HINT)
    internal_exchange_optimisation_target: str | None = opt(
        None,
        "choose what the compiler optimises: memory, cycles, or a balance of memory and cycles",
        choices=("balanced", "cycles", "memory"),
        kind=HINT,
    )
    max_cross_replica_buffer_size: int = opt(
        10485760,
        "all-reduce up to N bytes of gradients at once between processes; 0 means one tensor at a time",
        check=at_least(0),
        needs=several_processes,
    )
    all_reduce_format: str = opt(
        "fp32",
        "set the number format of gradients in the all-reduce between processes",
        choices=ALL_REDUCE_FORMATS,
        needs=several_processes,
    )
    max_reduce_many_buffer_size: int = opt(0, "merge reductions of up to N bytes", kind=HINT, check=at_least(0))
    scheduling_algorithm: str = opt(
        "choose-best",
        "choose the scheduling algorithm of the compiler",
        kind=HINT,
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
    )
    on_demand: bool = opt(True, "attach to devices at the start of the run, instead of when they are needed", kind=HINT)
    prefetch_depth: int | None = opt(
        None, "fetch N micro-batches in advance, from 1 to 255", kind=HINT, check=between(1, 255)
    )
    num_io_tiles: int = opt(
        0,
        "reserve N tiles of each IPU for host input and output",
        kind=HINT,
        check=between(0, 1471),  # a Mk2 IPU has 1472 tiles, and one must compute.
    )
    gcl_method: str | None = opt(None, "choose the method of collective operations", kind=HINT)
    gcl_max_broadcast_size: int | None = opt(
        None, "broadcast at most N bytes at once between replicas", kind=HINT, check=at_least(0)
    )
    poplar_sync_configuration: str | None = opt(None, "choose the synchronisation of the devices", kind=HINT)
    gradient_mean_reduce_re: tuple[str, ...] = opt(
        (),
        "average gradients over replicas instead of adding them, if their names match one of these regular expressions",
        kind=HINT,
    )
    only_use_slic_vmac_16: bool = opt(False, "use only the SLIC and VMAC methods for convolutions", kind=HINT)
    force_weight_to_fp16: tuple[str, ...] = opt((), "store weights in FP16 if their names contain one of these words")
    force_weight_to_fp32: tuple[str, ...] = halves((), "store weights in FP32 if their names contain one of these words")
    force_unstable_norm: bool = opt(
        False, "compute the mean and variance of norms in one pass, even if the model asks for two"
    )
    analyse_nans: bool = opt(
        False, "stop at the first NaN or infinity, and report its layer; values that saturate on overflow do not count"
    )
    profile: str | None = opt(
        None,
        "record the timing of one update in TEXT.svg and TEXT.json (default: profile.svg and profile.json in the run "
        "directory)",
        bare="auto",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    gc_profile: str | None = opt(
        None,
        "record one update as with --profile, and also write execution.json and stdout.txt (console output); files "
        "are in the run directory, or in the directory given to gc-profile -d",
        bare="IPU_PROFILE",
        off="NO_PROFILE",
        choices=("DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE", "NO_PROFILE"),
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    profile_compilation: bool = opt(
        False,
        "print a table of the time before the first update, and write it to compilation.json in the run directory",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )

    @property
    def local_span(self) -> int:
        """The number of replicas in one process that share batch-norm statistics."""
        return min(self.BN_span, self.replicas)
