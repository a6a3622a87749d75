"""`--precision auto` and the processor's BF16 units: what a run takes, records and says on processors with and without them."""

from __future__ import annotations

import pytest
from commands import arguments, assert_same_bits, run, succeed, variables

from cnn_harness.base.errors import OptionError
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.harness.run import cli, processor
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import Prepared, prepare
from cnn_harness.harness.run.run import Run

PLAIN, AMX, ARM = (
    "flags\t: fma avx512f",
    "flags\t: fma avx512f amx_bf16",
    "Features\t: asimd bf16",
)
DENSE = "--dataset imagenet --generated-data --model resnet --model-size 50"  # many multiply-adds for each value
SPARSE = "--dataset imagenet --generated-data --model efficientnet --model-size B0"


def checked(words: str, here: bool = True, recorded: dict[str, object] | None = None) -> Prepared:
    """Return the run of these options of train.py; `recorded` has the options of an earlier run."""
    return prepare(cli.parse(words.split(), "train", recorded, environ={}).options, {}, here=here)


def prepared(words: str, here: bool = True, recorded: dict[str, object] | None = None) -> Run:
    """Return only the run."""
    return checked(words, here, recorded).run


def on(monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    """Let the processor have these features."""
    monkeypatch.setattr(library, "features", lambda: features)


@pytest.mark.parametrize(
    ("features", "words", "taken"),
    [
        (PLAIN, DENSE, "32.32"),
        (AMX, DENSE, "bf16.32"),
        (ARM, DENSE, "bf16.32"),
        (AMX, SPARSE, "32.32"),
        (AMX, f"{DENSE} --no-native-arithmetic", "32.32"),
        (AMX, f"{DENSE} --stochastic-rounding all", "32.32"),
    ],
)
def test_auto_takes_fastest_and_says_why(features, words, taken, monkeypatch):
    on(monkeypatch, features)
    found, _, notes = checked(f"{words} --precision auto")
    assert found.plan.precision.name == found.options.device.precision == taken
    assert found.name == prepared(f"{words} --precision {taken}").name
    assert found.plan.precision.native_arithmetic == (taken == "bf16.32")
    assert sum(note.startswith(f"--precision auto takes {taken}: ") for note in notes) == 1


def test_auto_stays_in_fp32_on_gpu(monkeypatch):
    on(monkeypatch, AMX)
    monkeypatch.setattr(processor, "this_machine", lambda: Machine(2, 1))
    assert prepared(f"{DENSE} --precision auto").plan.precision.name == "32.32"
    assert prepared(f"{DENSE} --precision auto --device cpu").plan.precision.name == "bf16.32"


@pytest.mark.parametrize(
    ("features", "words", "native"),
    [
        (PLAIN, "bf16.32", False),
        (AMX, "bf16.32", True),
        (AMX, "bf16.32 --no-native-arithmetic", False),
        (AMX, "bf16.32 --stochastic-rounding all", None),  # the units round to the nearest
        (AMX, "16.16", None),
        (PLAIN, "bf16.32 --native-arithmetic", True),
    ],
)
def test_bf16_uses_units_of_processor_by_default(features, words, native, monkeypatch):
    on(monkeypatch, features)
    found, _, notes = checked(f"{DENSE} --precision {words}")
    assert found.options.device.native_arithmetic is found.plan.options.native_arithmetic is native
    assert found.plan.precision.native_arithmetic is bool(native)
    said = [*notes, *found.summary(Execution(seed=0)).splitlines()]
    assert any("BF16 units" in line for line in said) == (native is True or features == PLAIN)
    assert any(line.startswith("warning: --native-arithmetic") for line in said) == (native is True and features == PLAIN)


def test_plan_depends_on_no_processor(monkeypatch):
    """Without `here`, as for plans on IPUs, auto is refused, and BF16 is described alike on every processor."""
    found = []
    for features in (PLAIN, AMX):
        on(monkeypatch, features)
        with pytest.raises(OptionError, match="--precision auto"):
            prepared(f"{DENSE} --precision auto", here=False)
        found.append(prepared(f"{DENSE} --precision bf16.32", here=False).plan)
    assert found[0] == found[1]
    assert run("plan", *DENSE.split(), "--precision", "auto").code == 2


def test_recorded_choice_holds_for_recorded_format_only(monkeypatch):
    record = {"model": "resnet", "precision": "bf16.32", "native_arithmetic": True}
    on(monkeypatch, PLAIN)
    for more in ("", "--precision auto"):  # the run keeps its precision
        kept = prepared(f"{DENSE} {more}", recorded=record)
        assert kept.plan.precision.name == "bf16.32" and kept.plan.precision.native_arithmetic
    assert not prepared(f"{DENSE} --precision 32.32", recorded=record).plan.precision.native_arithmetic
    on(monkeypatch, AMX)
    assert not prepared(DENSE, recorded={**record, "native_arithmetic": False}).plan.precision.native_arithmetic


@pytest.mark.slow
def test_resumed_run_keeps_and_reports_its_bf16(tmp_path, monkeypatch):
    """A run that began on a processor with BF16 units continues with the same bits, and says that the units are missing."""
    words = (
        "--dataset fashion-mnist --model-size 8 --batch-size 4 --iterations 2 --no-validation --seed 3 --precision bf16.32"
    )
    monkeypatch.setattr(library, "identity", lambda: "")  # the name of the kernels depends on the features, too
    on(monkeypatch, PLAIN)
    succeed("train", *words.split(), "--logs-path", tmp_path / "emulated")
    assert arguments(tmp_path / "emulated")["native_arithmetic"] is False
    on(monkeypatch, AMX)
    succeed("train", *words.split(), "--logs-path", tmp_path / "whole")
    succeed("train", *words.split(), "--logs-path", tmp_path / "run", "--stop-after", 1)
    assert arguments(tmp_path / "run")["native_arithmetic"] is True
    resumed = "restore", "--restore-path", tmp_path / "run"
    assert "was computed with" not in succeed(*resumed, "--dry-run").out
    on(monkeypatch, PLAIN)
    assert "was computed with the processor's BF16 units, but" in succeed(*resumed).out
    assert_same_bits(variables(tmp_path / "whole", 2), variables(tmp_path / "run", 2))
    whole, emulated = (variables(tmp_path / name, 2)["all/fc1/dense/kernel"] for name in ("whole", "emulated"))
    assert (whole != emulated).any()
