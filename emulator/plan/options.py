"""The options of the device layer: the section that `emulator.plan.plan.resolve` takes as a whole.

The plan carries the section, and whatever a field concerns reads the field there, under the name of its flag.
"""

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
        return f"must be a number format, and {value} {error}{plugins.did_you_mean(value, number_formats.NAMES)}"
    return None


def _format_option(help: str, *traits: str, **more: str) -> Any:
    return opt(None, help, check=_format, read=str.lower, traits=(HALVES, *traits), **more)


def _layer_formats(values: tuple[str, ...]) -> str | None:
    for value in values:
        part, equals, name = value.rpartition("=")
        if not part or not equals:
            return f"must be a part of a layer's name, = and a number format, as Stem=fp16 or first=fp16, and {value} is not"
        if fault := _format(name):
            return fault
    return None


def _device_ids(values: tuple[str, ...]) -> str | None:
    fit = len(values) <= 2 and all(value == "AUTO" or (value.isascii() and value.isdigit()) for value in values)
    return None if fit else "must be AUTO or a device id, or one for training and one for validation"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Device layer"""

    shards: int = opt(1, "IPUs per replica", check=at_least(1), traits=(TRAINING_ONLY,))
    replicas: int = opt(1, "copies of the model that share each update", check=at_least(1), traits=(TRAINING_ONLY,))
    pipeline: bool = opt(False, "run the stages as a pipeline", traits=(TRAINING_ONLY,))
    pipeline_splits: tuple[str, ...] = opt(
        (),
        "segments that begin the 2nd, 3rd, ... stage; auto balances by cost",
        aliases=("pipeline_split",),
        traits=(TRAINING_ONLY,),
        needs="several stages",
    )
    pipeline_schedule: str = opt(
        "Interleaved", "order of the stages' work", choices=tuple(SCHEDULES), traits=(TRAINING_ONLY,), needs="several stages"
    )
    sharding_include_filter: tuple[str, ...] = opt(
        (), "cut only where a name contains one of these", traits=(TRAINING_ONLY,), needs="several stages"
    )
    sharding_exclude_filter: tuple[str, ...] = opt(
        (), "do not cut where a name contains one of these", traits=(TRAINING_ONLY,), needs="several stages"
    )
    enable_recomputation: bool = opt(
        False,
        "recompute activations in the backward pass",
        aliases=("xla_recompute", "enable_recompute"),
        traits=(TRAINING_ONLY,),
    )
    fold: str = opt(
        "auto",
        "micro-batches that share one pass of the network: a number, or auto",
        check=_fold,
        read=str.lower,
        traits=(TRAINING_ONLY,),
    )
    fold_memory: int = opt(
        1024, "megabytes of activations that auto may fill with one pass", check=at_least(1), needs="--fold auto"
    )
    batches_per_step: int = opt(
        1000,
        "weight updates per host step",
        aliases=("device_iterations",),
        check=at_least(1),
        traits=(NOT_IN_GRAPH, LENGTH),
    )
    precision: str = opt(
        "16.16", "compute.master (32.32 where the data are one's own, or Fashion-MNIST)",
        choices=("16.16", "16.32", "32.32", "8.16", "8.32", "bf16.16", "bf16.32"),
    )  # fmt: skip
    weight_format: str | None = _format_option(
        "of weights in convolutions and matrix products (default: that of --precision), as e4m3fnuz or e5m2b16"
    )
    activation_format: str | None = _format_option("of activations in convolutions and matrix products")
    gradient_format: str | None = _format_option("of gradients in convolutions and matrix products", TRAINING_ONLY)
    weight_bias: int | None = opt(None, "bias of the exponent in that format", traits=(HALVES,))
    activation_bias: int | None = opt(None, "bias of the exponent in that format", traits=(HALVES,))
    gradient_bias: int | None = opt(None, "bias of the exponent in that format", traits=(HALVES, TRAINING_ONLY))
    format_scaling: str = opt(
        "fixed", "range of the formats in products: as the bias has it (fixed), or moved for each tensor by a power of two "
        "that follows its largest number so far (maximum)", bare="maximum", choices=("fixed", "maximum"), traits=(HALVES,),
    )  # fmt: skip
    format_for: tuple[str, ...] = opt(
        (), "layers with another format in their products, as Stem=fp16 or last=fp32 (default with 8.16 and 8.32: "
        "first=fp16 last=fp16)", check=_layer_formats, traits=(HALVES,),
    )  # fmt: skip
    accumulator_format: str | None = _format_option(
        "of sums of gradients (default: that of results)", TRAINING_ONLY, needs="half precision"
    )
    master_format: str | None = _format_option("of the weights that updates move (default: that of --precision)")
    slot_format: str | None = _format_option("of the optimiser's slots (default: that of the weights)", TRAINING_ONLY)
    native_arithmetic: bool = opt(
        False, "with bf16.32 and bf16.16: convolutions and matrix products in the processor's own BF16, whose sums have "
        "another order", traits=(HALVES,),
    )  # fmt: skip
    stochastic_rounding: str = opt(
        "ON", "rounding of half-precision weights and slots when they are updated (ON, update), of every result (all; also "
        "ON given with 16.32, whose weights are FP32), or to nearest: --no-stochastic-rounding", bare="ON",
        choices=("ON", "ON_prng_stable", "RI_prng_stable", "OFF", "update", "all"), off="OFF", traits=(HALVES,),
    )  # fmt: skip
    fp32_accumulators: bool = opt(
        False, "add gradients up in FP32 where they are computed in half", traits=(HALVES,), needs="half precision"
    )
    saturate_on_overflow: bool = opt(
        False, "overflow saturates instead of becoming NaN", traits=(HALVES,), needs="half precision"
    )
    fp_exceptions: bool = opt(
        False, "stop at the first invalid operation, division by zero or overflow, and name layer and update"
    )
    seed: int | None = opt(
        None,
        "of everything random (default: drawn, printed and recorded)",
        check=between(0, 2**63 - 1),
        traits=(NOT_IN_GRAPH,),
    )
    identical_replica_seeding: bool = opt(
        False, "all replicas draw the same numbers on the device", traits=(TRAINING_ONLY,), needs="several replicas"
    )
    BN_span: int = opt(1, "replicas that share batch-norm statistics", check=at_least(1), traits=(TRAINING_ONLY,))
    device: str = opt("auto", "what does the arithmetic; auto takes the GPUs there are", choices=("auto", "cpu", "gpu"))
    select_ipu: tuple[str, ...] = opt(
        ("AUTO",), "emulated device: an id of gc-info -l for training and maybe one for validation, or AUTO",
        aliases=("select_ipus",), check=_device_ids, read=str.upper,
     traits=(PER_INSTANCE,))  # fmt: skip
    compile_only: bool = opt(False, "build the programs, report and stop", traits=(ONE_CALL, NOT_IN_GRAPH))
    executable_cache: bool = opt(
        True,
        "keep compiled programs for the next call; --no-executable-cache builds them anew",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
    )
    executable_cache_path: str | None = opt(
        None,
        "folder of compiled programs (default: that of TF_POPLAR_FLAGS, else executables in the user's cache)",
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    executable_cache_size: int = opt(
        1000,
        "megabytes that it may take; the longest unused are removed",
        check=at_least(1),
        traits=(NOT_IN_GRAPH, PER_INSTANCE),
        needs="--executable-cache",
    )
    memory_check: bool = opt(
        True,
        "refuse what needs more host memory than there is; --no-memory-check warns only and tries it all the same",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )
    disable_variable_offloading: bool = opt(False, "keep optimiser state on the chip", kind=HINT)
    rts: bool = opt(False, "divide optimiser state among replicas", kind=HINT, traits=(TRAINING_ONLY,))
    min_remote_tensor_size: int = opt(128, "bytes from which state is offloaded", kind=HINT, check=at_least(0))
    available_memory_proportion: tuple[float, ...] = opt(
        (), "part of tile memory for temporaries: one value, or two per shard", kind=HINT, check=between(0, 1)
    )
    enable_half_partials: bool = opt(
        False, "half-precision partial sums: sums inside an operation are FP32 here", kind=HINT, needs="half precision"
    )
    gather_conv_output: bool = opt(False, "gather small reductions of convolutions", kind=HINT)
    enable_conv_dithering: bool = opt(False, "spread convolutions over the tiles", kind=HINT)
    internal_exchange_optimisation_target: str | None = opt(
        None, "compiler target", choices=("balanced", "cycles", "memory"), kind=HINT
    )
    max_cross_replica_buffer_size: int = opt(
        10485760,
        "bytes of gradients that several processes add up at once; 0: each tensor by itself",
        check=at_least(0),
        needs="several processes",
    )
    all_reduce_format: str = opt(
        "fp32",
        "number format in which gradients go from one process to the others, and are added",
        choices=ALL_REDUCE_FORMATS,
        needs="several processes",
    )
    max_reduce_many_buffer_size: int = opt(0, "bytes of reductions merged", kind=HINT, check=at_least(0))
    scheduling_algorithm: str = opt(
        "choose-best", "compiler scheduling", kind=HINT,
        choices=("choose-best", "clustering", "post-order", "look-ahead", "shortest-path"),
    )  # fmt: skip
    on_demand: bool = opt(True, "attach to devices only when needed", kind=HINT)
    prefetch_depth: int | None = opt(None, "micro-batches fetched ahead: 1 to 255", kind=HINT, check=between(1, 255))
    num_io_tiles: int = opt(
        0,
        "tiles reserved for host input and output",
        kind=HINT,
        check=between(0, 1471),  # of a Mk2's 1472, one computes
    )
    gcl_method: str | None = opt(None, "collectives' method", kind=HINT)
    gcl_max_broadcast_size: int | None = opt(None, "bytes of one broadcast", kind=HINT, check=at_least(0))
    poplar_sync_configuration: str | None = opt(None, "synchronisation of the devices", kind=HINT)
    gradient_mean_reduce_re: tuple[str, ...] = opt((), "gradients reduced by their mean", kind=HINT)
    only_use_slic_vmac_16: bool = opt(False, "restrict the convolution methods", kind=HINT)
    force_weight_to_fp16: tuple[str, ...] = opt((), "weights whose names contain one of these are kept in FP16")
    force_weight_to_fp32: tuple[str, ...] = opt(
        (), "weights whose names contain one of these are kept in FP32", traits=(HALVES,)
    )
    force_unstable_norm: bool = opt(False, "one-pass statistics even where the model asks for two")
    analyse_nans: bool = opt(False, "stop at the first NaN or infinity and name its layer; overflow may saturate")
    profile: str | None = opt(
        None,
        "record one update: FILE.svg and FILE.json; alone or auto: profile.* in the run's folder",
        bare="auto",
        traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE),
    )
    gc_profile: str | None = opt(
        None, "the same in profile.* of the run's folder, or of gc-profile -d, with execution.json and stdout.txt (what was "
        "printed)", bare="IPU_PROFILE", off="NO_PROFILE",
        choices=("DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE", "NO_PROFILE"),
     traits=(ONE_CALL, NOT_IN_GRAPH, PER_INSTANCE))  # fmt: skip
    profile_compilation: bool = opt(
        False,
        "say where the time until the first update goes: a table, and compilation.json in the run's folder",
        traits=(ONE_CALL, NOT_IN_GRAPH),
    )

    @property
    def local_span(self) -> int:
        """Replicas of one instance that share batch-norm statistics."""
        return min(self.BN_span, self.replicas)
