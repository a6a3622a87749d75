"""The values that a named configuration had in each release.

`releases` in a configuration file lists the names of each release, as `2.1 to 2.3: [NAME, ...]`. The block NAME holds the
values of the last release with that name; NAME@2.3 those up to 2.3, back to the next older block of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from base.errors import OptionError
from base.fields import short
from base.plugins import did_you_mean

TABLE = "releases"
SIGN = "@"
MARKS = ("gradient_accumulation", "xla_recompute")  # keys of the first release's file, which has some of its keys twice
Version = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """The first and the last release with a name."""

    first: Version
    last: Version

    @classmethod
    def read(cls, text: str) -> Span | None:
        """'2.1 to 2.3', or '2.5' alone; None for anything else."""
        ends = [version(end) for end in text.split(" to ")]
        if len(ends) > 2 or None in ends or ends[0] > ends[-1]:
            return None
        return cls(ends[0], ends[-1])

    def __str__(self) -> str:
        one = self.first == self.last
        return f"release {shown(self.first)}" if one else f"releases {shown(self.first)} to {shown(self.last)}"

    def __contains__(self, release: Version) -> bool:
        return self.first <= release <= self.last


@dataclass(frozen=True)
class Choice:
    """A configuration in one release: the block with its values, and a note on them."""

    block: str
    release: str | None  # None where the file says nothing of releases
    note: str = ""


def version(text: str) -> Version | None:
    """'2.1', 'v2.1' or '2.1.0' as numbers; None for anything else."""
    match = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(\.0)?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def shown(release: Version) -> str:
    """A version as people write it."""
    return f"{release[0]}.{release[1]}"


def divided(name: str) -> tuple[str, str | None]:
    """NAME@2.1 as the name and the release; other names whole."""
    plain, sign, release = name.rpartition(SIGN)
    return (plain, release) if sign and plain and version(release) else (name, None)


def choose(name: str, text: str | None, blocks: Iterable[str], spans: Mapping[str, Span]) -> Choice:
    """The block of `name` in the release that `text` names, in its last one if None. OptionError for a release that is not
    known, or had no such name."""
    older: dict[str, dict[Version, str]] = {}  # name: release: block
    for block in blocks:
        plain, suffix = divided(block)
        if suffix:
            older.setdefault(plain, {})[version(suffix)] = block
    own = dict(sorted(older.get(name, {}).items()))
    if text is None:
        return _newest(name, own, spans.get(name))
    if name not in spans and not own:  # its values are those of no release, and serve in any
        return Choice(name, None)
    ends = {end for span in spans.values() for end in (span.first, span.last)}
    release = _known(text, sorted(ends.union(*older.values())))
    if name in spans and release not in spans[name]:
        others = [other for other, span in spans.items() if release in span]
        raise OptionError(
            f"configuration '{short(name)}' exists in {spans[name]}, not in {shown(release)}{did_you_mean(name, others)}",
            f"Release {shown(release)} has: {', '.join(others)}",
        )
    block = next((block for last, block in own.items() if release <= last), name)
    return Choice(block, shown(release), f"configuration {short(name)} as release {shown(release)} has it")


def _newest(name: str, own: Mapping[Version, str], span: Span | None) -> Choice:
    if span is None:
        return Choice(name, None)
    last = shown(span.last)
    others = " and ".join(f"up to {shown(release)}" for release in own)
    note = f"configuration {short(name)} as release {last} has it; {others} it had other values, which --release gives"
    return Choice(name, last, note if own else "")


def _known(text: str, known: list[Version]) -> Version:
    release = version(text)
    if release not in known:
        listed = [shown(release) for release in known]
        if not listed:
            raise OptionError(f"the file says nothing of releases; leave out --release {short(text)}")
        raise OptionError(f"no release '{short(text)}'{did_you_mean(text, listed)}", f"There are: {', '.join(listed)}")
    return release
