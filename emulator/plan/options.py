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

    shards: int = opt(1, "IPUs per replica", check=at_least(1), traits=(TRAINING_ONLY,))
    replicas: int = opt(1, "data-parallel copies of the model", check=at_least(1), traits=(TRAINING_ONLY,))
    pipeline: bool = opt(False, "run the stages as a pipeline, on several micro-batches at once", traits=(TRAINING_ONLY,))
    pipeline_splits: tuple[str, ...] = opt(
        (),
        "first segments of the 2nd, 3rd, ... stage; auto: stages of about equal cost",
        aliases=("pipeline_split",),
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    pipeline_schedule: str = opt(
        "Interleaved",
        "order of the forward and backward passes in the pipeline",
        choices=tuple(SCHEDULES),
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    sharding_include_filter: tuple[str, ...] = opt(
        (),
        "automatic cuts: only before segments whose name contains one of these",
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    sharding_exclude_filter: tuple[str, ...] = opt(
        (),
        "automatic cuts: never before segments whose name contains one of these",
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
        "micro-batches computed together in one pass of the network: a number, or auto",
        check=_fold,
        read=str.lower,
        traits=(TRAINING_ONLY,),
    )
    fold_memory: int = opt(
        1024, "megabytes of activations that one pass may use with --fold auto", check=at_least(1), needs="--fold auto"
    )
    batches_per_step: int = opt(
        1000,
        "weight updates per host step",
        aliases=("device_iterations",),
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    precision: str = opt(
        "16.16",
        "COMPUTE.MASTER: number formats of layer results and of the weights (default for own data and Fashion-MNIST: 32.32)",
        choices=("16.16", "16.32", "32.32", "8.16", "8.32", "bf16.16", "bf16.32"),
    )
    weight_format: str | None = _format_option(
        "number format of weights in convolutions and matrix products, e.g. e4m3fnuz or e5m2b16 (default: from --precision)"
    )
    activation_format: str | None = _format_option(
        "number format of activations in convolutions and matrix products (default: from --precision)"
    )
    gradient_format: str | None = _format_option(
        "number format of gradients in convolutions and matrix products (default: from --precision)", TRAINING_ONLY
    )
    weight_bias: int | None = opt(
        None, "exponent bias of the format of weights in products (default: the format's own)", traits=(HALVES,)
    )
    activation_bias: int | None = opt(
        None, "exponent bias of the format of activations in products (default: the format's own)", traits=(HALVES,)
    )
    gradient_bias: int | None = opt(
        None,
        "exponent bias of the format of gradients in products (default: the format's own)",
        traits=(HALVES, TRAINING_ONLY),
    )
    format_scaling: str = opt(
        "fixed",
        "range of the formats in products: given by the bias (fixed), or shifted for each tensor by a power "
        "of two according to its largest value so far (maximum)",
        bare="maximum",
        choices=("fixed", "maximum"),
        traits=(HALVES,),
    )
    format_for: tuple[str, ...] = opt(
        (),
        "formats of single layers in products, e.g. Stem=fp16 or last=fp32 (default with 8.16 and 8.32: "
        "first=fp16 last=fp16)",
        check=_layer_formats,
        traits=(HALVES,),
    )
    accumulator_format: str | None = _format_option(
        "number format of accumulated gradients (default: that of layer results)", TRAINING_ONLY, needs="half precision"
    )
    master_format: str | None = _format_option(
        "number format of the weights that the optimiser updates (default: from --precision)"
    )
    slot_format: str | None = _format_option(
        "number format of the optimiser's slots (default: that of the weights)", TRAINING_ONLY
    )
    native_arithmetic: bool = opt(
        False,
        "with bf16.32 and bf16.16: compute products with the processor's BF16 instructions; sums are added in another order",
        traits=(HALVES,),
    )
    stochastic_rounding: str = opt(
        "ON",
        "stochastic rounding of half-precision weights and slots in updates (ON, update), or of every result "
        "(all; with 16.32 also an explicit ON); --no-stochastic-rounding rounds to nearest",
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
        False, "on overflow, use the largest finite number instead of NaN", traits=(HALVES,), needs="half precision"
    )
    fp_exceptions: bool = opt(
        False, "stop at the first invalid operation, division by zero or overflow; report layer and update"
    )
    seed: int | None = opt(
        None,
        "seed of all random numbers (default: drawn, printed and recorded)",
        check=between(0, 2**63 - 1),
        traits=(NOT_IN_GRAPH,),
    )
    identical_replica_seeding: bool = opt(
        False, "all replicas draw the same random numbers on the device", traits=(TRAINING_ONLY,), needs="several replicas"
    )
    BN_span: int = opt(1, "replicas that share batch-norm statistics", check=at_least(1), traits=(TRAINING_ONLY,))
    device: str = opt("auto", "processor that computes; auto uses GPUs if there are any", choices=("auto", "cpu", "gpu"))
    select_ipu: tuple[str, ...] = opt(
        ("AUTO",),
        "emulated device for training, optionally followed by one for validation: ids of gc-info -l, or AUTO",
        aliases=("select_ipus",),
        check=_device_ids,
        read=str.upper,
        traits=(PER_INSTANCE,),
    )
    compile_only: bool = opt(False, "build the programs, report and exit", traits=(ONE_CALL, NOT_IN_GRAPH))
    executable_cache: bool = opt(
        True,
        "keep compiled programs for later calls; --no-executable-cache always compiles",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
    )
    executable_cache_path: str | None = opt(
        None,
        "folder of the compiled programs (default: from TF_POPLAR_FLAGS, else executables in the user's cache)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    executable_cache_size: int = opt(
        1000,
        "limit of this folder in megabytes; the least recently used programs are removed",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    memory_check: bool = opt(
        True,
        "reject a run that needs more memory than the host has; --no-memory-check only warns",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    disable_variable_offloading: bool = opt(False, "keep optimiser state on the chip", kind=HINT)
    rts: bool = opt(False, "shard optimiser state over the replicas", kind=HINT, traits=(TRAINING_ONLY,))
    min_remote_tensor_size: int = opt(
        128, "smallest optimiser state that is offloaded, in bytes", kind=HINT, check=at_least(0)
    )
    available_memory_proportion: tuple[float, ...] = opt(
        (), "fraction of tile memory for temporaries: one value, or two per shard", kind=HINT, check=between(0, 1)
    )
    enable_half_partials: bool = opt(
        False,
        "half-precision partial sums; here, sums inside an operation are always FP32",
        kind=HINT,
        needs="half precision",
    )
    gather_conv_output: bool = opt(False, "combine small reductions of convolutions", kind=HINT)
    enable_conv_dithering: bool = opt(False, "spread convolutions over the tiles", kind=HINT)
    internal_exchange_optimisation_target: str | None = opt(
        None, "what the compiler optimises", choices=("balanced", "cycles", "memory"), kind=HINT
    )
    max_cross_replica_buffer_size: int = opt(
        10485760,
        "bytes of gradients in one all-reduce between processes; 0: one tensor at a time",
        check=at_least(0),
        needs="several processes",
    )
    all_reduce_format: str = opt(
        "fp32",
        "number format of gradients in the all-reduce between processes",
        choices=ALL_REDUCE_FORMATS,
        needs="several processes",
    )
    max_reduce_many_buffer_size: int = opt(0, "bytes of reductions that are merged", kind=HINT, check=at_least(0))
    scheduling_algorithm: str = opt(
        "choose-best",
        "the compiler's scheduling algorithm",
        kind=HINT,
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
    )
    on_demand: bool = opt(True, "attach to devices only when they are needed", kind=HINT)
    prefetch_depth: int | None = opt(None, "micro-batches fetched in advance, 1 to 255", kind=HINT, check=between(1, 255))
    num_io_tiles: int = opt(
        0,
        "tiles reserved for host input and output",
        kind=HINT,
        check=between(0, 1471),  # of a Mk2's 1472, one computes
    )
    gcl_method: str | None = opt(None, "method of the collective operations", kind=HINT)
    gcl_max_broadcast_size: int | None = opt(None, "largest broadcast in bytes", kind=HINT, check=at_least(0))
    poplar_sync_configuration: str | None = opt(None, "synchronisation of the devices", kind=HINT)
    gradient_mean_reduce_re: tuple[str, ...] = opt((), "gradients that are averaged instead of added", kind=HINT)
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
        "like --profile, in the run directory or that of gc-profile -d; also writes execution.json and "
        "stdout.txt (console output)",
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
