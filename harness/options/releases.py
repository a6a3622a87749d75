"""The releases of the original harness: how each behaved, and which values a configuration had in it.

In a configuration file, `releases` lists the names of each release, as `2.1 to 2.3: [NAME, ...]`. The block NAME holds the
values of the last release with that name. The block NAME@2.3 holds the values up to 2.3, back to the next older block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from base.errors import OptionError
from base.fields import short
from base.plugins import did_you_mean

TABLE = "releases"
Version = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Vintage:
    """The behaviour of a release. The defaults are the behaviour of this project."""

    warms_up_iterations: bool = True  # also if --iterations gives the length
    cutmix_version: int = 1
    saves_first_step: bool = False  # also saves after the first and the last but one host step
    names_validations: bool = True  # validation.csv has the column `name`
    throughput: str = "top-1 accuracy: {train_acc_avg:6.3f}%, img/sec: {img_per_sec:6.2f}"  # in lines of training
    latency: str = "Latencies - avg"  # in inference_embedded.py
    compiled: str = "The {kind} graph was successfully compiled"  # with --compile-only


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
    """Return the behaviour of a release; for None or an unknown release, the behaviour of this project."""
    return VINTAGES.get(release, Vintage())


def version(text: str) -> Version | None:
    """Return '2.1', 'v2.1' or '2.1.0' as numbers; None for anything else."""
    match = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(\.0)?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def dotted(release: Version) -> str:
    """Return a version as text, such as 2.1."""
    return f"{release[0]}.{release[1]}"


def normalised(text: str) -> str:
    """Return a release as it is spelled in VINTAGES; other text unchanged."""
    found = version(text)
    return dotted(found) if found else text


@dataclass(frozen=True)
class Span:
    """The first and the last release with a name."""

    first: Version
    last: Version

    @classmethod
    def read(cls, text: str) -> Span | None:
        """Parse '2.1 to 2.3' or '2.5'; None for anything else."""
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
    """Return the block of configuration `name` in release `text` (None: its last), that release, and a note for the user.

    The release is None if the file does not assign `name` to releases. OptionError for an unknown release, or one without
    this name.
    """
    older: dict[str, dict[Version, str]] = {}  # name: release: block
    for block in blocks:
        plain, suffix = split_name(block)
        if suffix:
            older.setdefault(plain, {})[version(suffix)] = block
    own, span = dict(sorted(older.get(name, {}).items())), spans.get(name)
    as_release = f"configuration {short(name)} has the values of release {{}}"
    if text is None:
        last = dotted(span.last) if span else None
        others = " and ".join(f"up to {dotted(release)}" for release in own)
        note = f"{as_release.format(last)}; for its other values, {others}, give --release"
        return name, last, note if span and own else ""
    if not span and not own:  # its values belong to no release and are used for any
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
