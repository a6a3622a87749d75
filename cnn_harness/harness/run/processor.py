"""Choose what is fastest on the processor of this machine: `--precision auto`, and BF16 products in the processor's units.

A run records the choices, so that a resumed run has the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import HALVES
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan.machine import this_machine
from cnn_harness.emulator.plan.options import FASTEST
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.options.sections import COMMAND_LINE, CONFIGURATION, RunOptions, flag, with_trait

# BF16 units pay for networks with many multiply-adds for each value that a layer stores. With AMX, bf16.32 is 1.4 times as
# fast as 32.32 for ResNet-50 (109 multiply-adds), but 0.8 times for EfficientNet-B0 with groups of 16 (39) and 0.5 times for
# EfficientNet-B0 (17).
LEAST_MULTIPLY_ADDS = 100
TAKES = f"--precision {FASTEST} takes"  # begins a line that brief logs show, too


def with_precision(options: RunOptions, network: Network, here: bool) -> tuple[RunOptions, tuple[str, ...]]:
    """Return options with --precision auto resolved, and a line that says which precision was taken and why.

    Raise OptionError for auto if another machine will compute, such as an IPU. `here` is True if this machine will.
    """
    if options.device.precision != FASTEST:
        return options, ()
    if not here:
        raise OptionError(
            f"--precision {FASTEST} depends on the processor that trains, which is not known here; give another precision, "
            "such as 16.16"
        )
    name, why = _fastest(options, network)
    return replace(options, device=replace(options.device, precision=name)), (f"{TAKES} {name}: {why}",)


def _fastest(options: RunOptions, network: Network) -> tuple[str, str]:
    """Return the fastest precision on this machine with the accuracy of FP32, and the reason."""
    device, per_value = options.device, network.multiply_adds / network.activation_bytes(1)
    other = next((name for name in with_trait(HALVES) if options.sources.get(name) and name != "native_arithmetic"), None)
    if device.device != "cpu" and this_machine().gpus:
        return "32.32", "a GPU trains, and its BF16 was not measured"
    if not library.has_bf16():
        return "32.32", "this processor has no BF16 units"
    if other or device.native_arithmetic is False:
        return "32.32", f"{flag(other or 'no_native_arithmetic')} is given"
    pays = per_value >= LEAST_MULTIPLY_ADDS
    return "bf16.32" if pays else "32.32", (
        f"this processor's BF16 units are {'' if pays else 'not '}faster for this network, which has {per_value:.0f} "
        f"multiply-adds for each stored value (they are from {LEAST_MULTIPLY_ADDS})"
    )


def with_bf16_units(options: RunOptions, plan: ExecutionPlan, here: bool) -> tuple[RunOptions, ExecutionPlan]:
    """Return options and plan with --native-arithmetic resolved. By default, BF16 products use the units of the processor if
    it has any. `here` is True if this machine will compute; otherwise the default stays open.

    A recorded value does not count if the call asks for another format.
    """
    native, source = options.device.native_arithmetic, options.sources.get("native_arithmetic", "")
    if not plan.precision.multiplies_bf16:
        native = native if source.startswith((COMMAND_LINE, CONFIGURATION)) else None
    elif native is None and here:
        native = plan.stage_devices[0].startswith("/cpu") and library.has_bf16()
    options = replace(options, device=replace(options.device, native_arithmetic=native))
    own = replace(plan.options, native_arithmetic=native)
    return options, replace(plan, options=own, precision=replace(plan.precision, native_arithmetic=bool(native)))
