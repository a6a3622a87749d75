"""The releases of the original that did things otherwise than this project: with --release a run does them so."""

from __future__ import annotations

from dataclasses import dataclass

from harness.options.releases import shown, version


@dataclass(frozen=True, kw_only=True)
class Vintage:
    """The behaviours that differ; the defaults are those of this project."""

    warms_up_iterations: bool = True  # also where --iterations gives the length
    cutmix_version: int = 1
    saves_first_step: bool = False  # a checkpoint after the first host step and the last but one, too
    names_validations: bool = True  # validation.csv has the column `name`
    throughput: str = "top-1 accuracy: {train_acc_avg:6.3f}%, img/sec: {img_per_sec:6.2f}"  # in the lines of training
    latency: str = "Latencies - avg"  # in the line of inference_embedded.py
    compiled: str = "The {kind} graph was successfully compiled"  # by --compile-only


_OLDEST = Vintage(warms_up_iterations=False, saves_first_step=True, names_validations=False)
_COMPILED = {"compiled": "{Kind} graph successfully compiled"}
VINTAGES = {
    "1.3": _OLDEST,
    "1.4": _OLDEST,
    "2.0": Vintage(cutmix_version=2, **_COMPILED),
    **dict.fromkeys(("2.1", "2.2", "2.3", "2.4", "2.5", "2.6"), Vintage(**_COMPILED)),
    "3.0": Vintage(
        throughput="top-1 accuracy: {train_acc_avg:6.3f} %, throughput: {img_per_sec:6.2f} samples/sec",
        latency="latency avg",
        **_COMPILED,
    ),
}


def vintage(release: str | None) -> Vintage:
    """Return what a run does in a release; None, or a release of one's own file: as this project does it."""
    return VINTAGES.get(release, Vintage())


def read(text: str) -> str:
    """Return a release as VINTAGES has it; other text stays."""
    found = version(text)
    return shown(found) if found else text
