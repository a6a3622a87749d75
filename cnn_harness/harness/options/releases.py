"""Describe the releases of the original harness: their behaviour, and the values of their configurations.

In a configuration file, `releases` lists the configurations of each release, as `2.1 to 2.3: [NAME, ...]`. The block NAME
has the values of the last release with this name. The block NAME@2.3 has the values of release 2.3 and of earlier releases
that have no older block, such as NAME@2.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean

TABLE = "releases"
Version = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Vintage:
    """The behaviour of a release. The defaults are the behaviour of this project."""

    warms_up_iterations: bool = True  # also warm up if --iterations sets the length of the run.
    cutmix_version: int = 1
    saves_first_step: bool = False  # also save after the first and the second-last host step.
    names_validations: bool = True  # validation.csv has the column `name`
    throughput: str = "top-1 accuracy: {train_acc_avg:6.3f}%, img/sec: {img_per_sec:6.2f}"  # in training log lines.
    latency: str = "Latencies - avg"  # the label of latencies in inference_embedded.py.
    profiles_one_step: bool = False  # --profile ends the call after one host step, and excludes --profile-compilation.
    compiled: str = "The {kind} graph was successfully compiled"  # the message of --compile-only


_UP_TO_2_0 = {"warms_up_iterations": False, "saves_first_step": True}
_COMPILED = {"compiled": "{Kind} graph successfully compiled"}
VINTAGES = {
    **dict.fromkeys(("1.3", "1.4"), Vintage(names_validations=False, **_UP_TO_2_0)),
    "2.0": Vintage(cutmix_version=2, **_UP_TO_2_0, **_COMPILED),
    **dict.fromkeys(("2.1", "2.2", "2.3", "2.4", "2.5", "2.6"), Vintage(**_COMPILED)),
    "3.0": Vintage(
        throughput="top-1 accuracy: {train_acc_avg:6.3f} %, throughput: {img_per_sec:6.2f} samples/sec",
        latency="latency avg",
        profiles_one_step=True,
        **_COMPILED,
    ),
}


def vintage(release: str | None) -> Vintage:
    """Return the behaviour of a release; for None or an unknown release, the behaviour of this project."""
    return VINTAGES.get(release, Vintage())


def version(text: str) -> Version | None:
    """Parse '2.1', 'v2.1' or '2.1.0'; return None for any other text."""
    match = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(\.0)?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def dotted(release: Version) -> str:
    """Return a version as text, such as 2.1."""
    return f"{release[0]}.{release[1]}"


def normalised(text: str) -> str:
    """Return a release as VINTAGES spells it, such as 2.1 for v2.1.0. Return other text unchanged."""
    found = version(text)
    return dotted(found) if found else text


@dataclass(frozen=True)
class Span:
    """The first and the last release that have a configuration."""

    first: Version
    last: Version

    @classmethod
    def read(cls, text: str) -> Span | None:
        """Parse '2.1 to 2.3' or '2.5'; return None for any other text."""
        ends = [version(end) for end in text.split(" to ")]
        if len(ends) > 2 or None in ends or ends[0] > ends[-1]:
            return None
        return cls(ends[0], ends[-1])

    def __str__(self) -> str:
        one = self.first == self.last
        return f"release {dotted(self.first)}" if one else f"releases {dotted(self.first)} to {dotted(self.last)}"

    def __contains__(self, release: Version) -> bool:
        return self.first <= release <= self.last


def split_name(name: str) -> tuple[str, str | None]:
    """Split NAME@2.1 into name and release; for other names the release is None."""
    plain, sign, release = name.rpartition("@")
    return (plain, release) if sign and plain and version(release) else (name, None)


def choose(name: str, text: str | None, blocks: Iterable[str], spans: Mapping[str, Span]) -> tuple[str, str | None, str]:
    """Return the block of configuration `name` in release `text`, the release, and a note for the user.

    If `text` is None, use the last release that has the configuration. The returned release is None if the file assigns
    the configuration to no release. Raise OptionError if the release is unknown or does not have the configuration.
    """
    older: dict[str, dict[Version, str]] = {}  # {name: {release: block}}
    for block in blocks:
        plain, suffix = split_name(block)
        if suffix:
            older.setdefault(plain, {})[version(suffix)] = block
    own, span = dict(sorted(older.get(name, {}).items())), spans.get(name)
    as_release = f"configuration {short(name)} has the values of release {{}}"
    if text is None:
        last = dotted(span.last) if span else None
        others = " and ".join(f"up to {dotted(release)}" for release in own)
        note = f"{as_release.format(last)}; for the other values ({others}), give --release"
        return name, last, note if span and own else ""
    if not span and not own:  # the file assigns the name to no release, so its values apply to all
        return name, None, ""
    ends = {end for each in spans.values() for end in (each.first, each.last)}
    known, release = sorted(ends.union(*older.values())), version(text)
    if release not in known:
        listed = [dotted(each) for each in known]
        raise OptionError(f"no release '{short(text)}'{did_you_mean(text, listed)}", f"Available: {', '.join(listed)}")
    if span and release not in span:
        others = [other for other, each in spans.items() if release in each]
        raise OptionError(
            f"configuration '{short(name)}' exists in {span}, not in {dotted(release)}{did_you_mean(name, others)}",
            f"Release {dotted(release)} has: {', '.join(others)}",
        )
    block = next((block for last, block in own.items() if release <= last), name)
    return block, dotted(release), as_release.format(dotted(release))
