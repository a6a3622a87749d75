"""Define `Call`: the options that a user gives to a script, before the model, and so the set of options, is known.

A call is made once, from words or from a mapping. `sources.from_call` converts its values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.base.process import commands
from cnn_harness.base.storage import run_files
from cnn_harness.harness.options import releases
from cnn_harness.harness.options.catalogue import Catalogue, Spelling, all_options, plugins_with, shared_options
from cnn_harness.harness.options.other_names import OTHER_NAMES
from cnn_harness.harness.options.sections import COMMAND_LINE, RunOptions, flag

DEFAULT_CONFIG_PATH = plugins.ROOT / "configs.yml"
Given = tuple[str, tuple[str, ...]]  # a flag as written, such as --micro-batch, and its arguments


@dataclass(frozen=True)
class Parsed:
    """The options of a call, and notes for the user."""

    options: RunOptions
    notes: tuple[str, ...]
    catalogue: Catalogue


@dataclass(frozen=True)
class Call:
    """The options that a call of a script gives.

    script: the script that has the options: "train", "validation", "restore" or "inference_embedded"
    words: the call as words, for commands that the user can paste
    bare: the words before the first option
    given: the options in their order
    parsed: the options of a call that inherits none from a run, if they are already parsed
    """

    script: str
    words: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    given: tuple[Given, ...] = ()
    parsed: Parsed | None = None

    @classmethod
    def of_words(cls, words: Sequence[str], script: str) -> Call:
        """Cut the words of a command line into options.

        Negative numbers are arguments, and so are words with spaces, such as '--micro-batch-size 4', after an option.
        """
        bare = tuple(takewhile(_is_argument, words))
        given: list[tuple[str, list[str]]] = []
        for word in words[len(bare) :]:
            written, equals, value = word.partition("=")
            if _is_argument(word) or (given and " " in written):
                given[-1][1].append(word)
            else:
                given.append((written.replace("_", "-"), [value] if equals else []))
        return cls(script, tuple(words), bare, tuple(_given(*each) for each in given))

    @classmethod
    def of_values(cls, values: Mapping[str, Any], script: str) -> Call:
        """Return the call with these values: True or False for a switch, a list for several values; None is no value."""
        words, given = [], []
        for name, value in values.items():
            if value is None:
                continue
            written, several = flag(name), isinstance(value, list)
            if value is False or value == []:
                written = written.replace("--no-", "--", 1) if written.startswith("--no-") else f"--no-{written[2:]}"
            arguments = [] if isinstance(value, bool) else list(map(str, value if several else [value]))
            words += [written, *arguments] if several else ["=".join([written, *arguments])]
            given.append(_given(written, arguments))
        return cls(script, tuple(words), (), tuple(given))

    def __add__(self, later: Call) -> Call:
        """Return one call with the options of both; the later call wins."""
        return Call(self.script, self.words + later.words, self.bare + later.bare, self.given + later.given)

    def under(self, values: Mapping[str, Any]) -> Call:
        """Return the call with more values, for options that it does not give."""
        missing = {name: value for name, value in values.items() if name not in self._named}
        parsed = self.parsed and replace(self.parsed, options=self.parsed.options.with_values(missing))
        return replace(Call.of_values(missing, self.script) + self, parsed=parsed)

    def parted(self, own: Catalogue) -> tuple[Call, tuple[str, ...], Call]:
        """Return a call with the options of `own`, the words that belong to no option, and a call with all other options.

        The values of a flag with several values add up if the flag is repeated. Raise OptionError for an unknown flag.
        """
        flags, bare, mine, others = own.flags(), list(self.bare), {}, []
        of_script = all_options(self.script).flags() if self.script else {}
        assigned = {word.partition("=")[0].replace("_", "-") for word in self.words if "=" in word}
        for written, arguments in self.given:
            is_abbreviated = not any(each.startswith(written) for each in of_script)
            full = full_flag(written, flags) if is_abbreviated else written
            if full is None:
                known = [*(option.flag for option in own.options.values()), *of_script]
                raise OptionError(f"{COMMAND_LINE}: {unknown_flag(written, known)}")
            if full not in flags:
                others.append((written, arguments))
                continue
            if "" in arguments:
                raise OptionError(f"{written} needs a value, but the given value is empty")
            count = flags[full].most(len(arguments)) or int(written in assigned)  # --dry-run=yes is an error of its own
            before = mine.pop(full, ()) if flags[full].takes == "several" else ()
            mine[full] = (*before, *arguments[:count])
            bare += arguments[count:]
        return replace(self, words=(), bare=(), given=tuple(mine.items())), tuple(bare), Call.of_given(others, self.script)

    @classmethod
    def of_given(cls, given: Sequence[Given], script: str) -> Call:
        """Return the call with these flags and arguments."""
        joined = (
            [f"{written}={arguments[0]}"] if len(arguments) == 1 and arguments[0].startswith("-") else [written, *arguments]
            for written, arguments in given
        )
        return cls(script, tuple(word for words in joined for word in words), (), tuple(given))

    def __contains__(self, name: str) -> bool:
        """Return whether the call gives an option, and does not turn it off."""
        return self._named.get(name) is not None

    def arguments(self, name: str) -> tuple[str, ...]:
        """Return the arguments of an option, as written; () if it is not given."""
        return self._named.get(name) or ()

    def argument(self, name: str) -> str | None:
        """Return the first argument of an option, as written."""
        return next(iter(self.arguments(name)), None)

    @cached_property
    def _named(self) -> Mapping[str, tuple[str, ...] | None]:
        """The arguments of each option by name, before the model is known. None turns a switch off. The last flag wins."""
        everything, found = all_options(self.script).flags(), {}
        # --lr abbreviates --lr-schedule, unless another option of the chosen schedule begins with --lr
        shared = shared_options(self.script).flags()
        for written, arguments in self.given:
            full = full_flag(written, everything) or full_flag(written, shared)
            if full:
                option = everything[full].option
                off = full.startswith("--no-") or (option.base is bool and [each.lower() for each in arguments] == ["false"])
                found[option.name] = None if off else arguments
        return found

    def with_option(self) -> Call:
        """Return the call with an option for its bare word: `train.py photos` means `train.py --data-dir photos`.

        Raise OptionError for several such words, or for a word that is neither a folder nor a configuration.
        """
        row = commands.COMMANDS.get(commands.command_name(self.script) or "")
        if not self.bare or not row:
            return self
        check_assignments(self.bare, all_options(self.script).flags())
        if len(self.bare) > 1:
            usage, count = f"{self.script}.py {row.usage}[options]", len(self.bare)
            raise OptionError(
                f"{short(' '.join(self.bare))}: {count} words before the options, but only one is allowed: {usage}"
            )
        name = self._meaning(self.bare[0]) if self.script == "train" else "restore_path"
        if name in self:
            raise OptionError(f"{short(self.bare[0])} means {flag(name)}, which is also given; leave one of them out")
        return replace(self, words=(flag(name), *self.words), bare=(), given=((flag(name), self.bare), *self.given))

    def _meaning(self, word: str) -> str:
        """Return the option that a bare word of train.py means: --data-dir for a folder, otherwise --config."""
        if os.path.isdir(word):
            if run_files.is_in_run(Path(word) / run_files.ARGUMENTS[0]):
                raise OptionError(
                    f"{short(word)} is a run directory; resume it with restore.py, or validate it with validation.py"
                )
            return "data_dir"
        from cnn_harness.harness.options import configs  # late, because it imports yaml

        names = configs.ConfigFile(self.argument("config_path") or str(DEFAULT_CONFIG_PATH)).names
        if not {word, releases.split_name(word)[0]} & {*names}:
            near = did_you_mean(word, names)
            raise OptionError(
                f"'{short(word)}' is neither a folder (--data-dir) nor a configuration (--config, --list-configs){near}"
            )
        return "config"


def _given(written: str, arguments: Sequence[str]) -> Given:
    """Return an option as given. --lr RATE means --abs-learning-rate, and --lr NAME means --lr-schedule."""
    rate = written == "--lr" and arguments and _is_number(arguments[0])
    return "--abs-learning-rate" if rate else written, tuple(arguments)


def _is_argument(word: str) -> bool:
    return not word.startswith("-") or word == "-" or _is_number(word)


def _is_number(word: str) -> bool:
    """Return whether a word, such as -1e3, is a number and not a flag."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def check_assignments(words: Sequence[str], flags: Mapping[str, Spelling]) -> None:
    """Raise OptionError for words such as epochs=5, if they are the options of a call without the dashes."""
    pairs = [word.partition("=") for word in words if "=" in word and not os.path.exists(word)]
    meant = []
    for name, _, value in pairs:
        written = f"--{name.replace('_', '-')}"
        elsewhere = OTHER_NAMES.get(written[2:])
        if full_flag(written, flags) or written == "--lr":
            meant.append(f"{written} {short(value)}")
        elif elsewhere:
            meant.append(elsewhere if " " in elsewhere else f"{elsewhere} {short(value)}")
    if meant and len(meant) == len(pairs):
        given = short(" ".join(map("".join, pairs)))
        raise OptionError(f"{given}: options begin with --; write {' '.join(meant)}")


def full_flag(written: str, flags: Mapping[str, Spelling]) -> str | None:
    """Return the full flag for a flag or an abbreviation of it.

    Return None if no flag or several flags match, or if other tools use the abbreviation for something else.
    """
    matches = [written] if written in flags else _beginning_with(written, flags)
    elsewhere = OTHER_NAMES.get(written[2:], "")
    if elsewhere and written not in flags and not any(flag in elsewhere for flag in matches):
        return None
    return matches[0] if len({(flags[flag].option.name, flag.startswith("--no-")) for flag in matches}) == 1 else None


def _beginning_with(written: str, flags: Collection[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []


def unknown_flag(written: str, flags: Collection[str]) -> str:
    """Return the error message for an unknown or ambiguous flag, with the model that has it or the nearest flags."""
    matches, name = _beginning_with(written, flags), written.lstrip("-")
    elsewhere = OTHER_NAMES.get(name)
    if matches:
        instead = f", or use {elsewhere}" if elsewhere else ""
        return f"{short(written)} is ambiguous: {', '.join(sorted(matches)[:6])}; write one of them in full{instead}"
    if elsewhere:
        return f"unknown option {written}; use {elsewhere}"
    owners = plugins_with(name.replace("-", "_"))
    owners = owners or [f"{script}.py" for script in ("validation", "restore") if written in shared_options(script).flags()]
    if owners:
        return f"{short(written)} is an option of {' and '.join(owners)} only"
    return f"unknown option {short(written)}{plugins.did_you_mean(written, list(flags))}"
