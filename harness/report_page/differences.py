"""Options in which a run differs from the defaults, and in which runs differ from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from base.errors import OptionError
from base.fields import ONE_CALL, PER_INSTANCE
from harness.commands import cli
from harness.options.catalogue import every_option
from harness.options.sections import flag, with_trait
from harness.report_page.run_folder import RunFolder

_DECIDING = ("model", "dataset", "lr_schedule", "optimiser")  # options that decide on defaults of others
_OF_THE_DATA = "num_classes"  # recorded with every run
_SHOWN = ("config", "data_dir", "init_path")  # though they belong to one call, or to one host


def from_defaults(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return (option, value, default) where a value is not the default of the run's network, data, curve and update rule;
    OptionError where these are not known."""
    options = run.options
    if not options:
        raise OptionError("arguments.json is missing")
    words = [word for name in _DECIDING if options.get(name) for word in (flag(name), str(options[name]))]
    known = cli.parse(words, "train", environ={})
    defaults = known.options.values() | {name: known.catalogue.options[name].default for name in _DECIDING}
    changed = []
    for name in (*_DECIDING, *sorted(set(defaults) - set(_DECIDING))):
        drawn = name == "seed" and not run.arguments.get("seed_specified")
        if name in options and _counts(name) and not drawn and shown(options[name]) != shown(defaults[name]):
            changed.append((flag(name), shown(options[name]), shown(defaults[name])))
    return changed


def between(runs: Sequence[RunFolder]) -> list[tuple[str, list[str]]]:
    """Each option in which the runs differ, with its value in each run; - where a run's network has no such option, or its
    options are not known."""
    known = {option.name for option in every_option(None)}
    names = dict.fromkeys((*_DECIDING, *sorted({name for run in runs for name in run.options})))
    rows = []
    for name in names:
        values = [shown(run.options[name]) if name in run.options else "-" for run in runs]
        if name in known and _counts(name) and len(set(values)) > 1:
            rows.append((flag(name), values))
    return rows


def shown(value: Any) -> str:
    """A value as people write it."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(shown, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _counts(name: str) -> bool:
    """Return whether an option says something of the run, not of the call or the host."""
    return name in _SHOWN or name not in {_OF_THE_DATA} | with_trait(ONE_CALL) | with_trait(PER_INSTANCE)
