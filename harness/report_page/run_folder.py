"""Read a run directory for a report: rows, and options that differ from the defaults or from those of other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import OptionError
from base.fields import ONE_CALL, PER_INSTANCE
from base.storage.run_files import ARGUMENTS
from base.storage.tables import TABLES, run_table
from harness.checkpoints import find, run_record
from harness.commands import cli
from harness.options.catalogue import every_option
from harness.options.sections import flag, with_trait
from harness.reports import training_chart
from harness.run import validations

Row = Mapping[str, str]
_DECIDING = ("model", "dataset", "lr_schedule", "optimiser")  # defaults of other options depend on these
_OF_THE_DATA = "num_classes"  # a property of the data set, although every run records it
_SHOWN = ("config", "data_dir", "init_path")  # shown although they belong to one call or one host


@dataclass(frozen=True)
class RunFolder:
    """The content of a run directory. `arguments`: its newest arguments file; empty if missing. `options`: the options
    among them. `notes`: messages about missing files."""

    path: Path
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    training: Sequence[Row]
    validation: Sequence[Row]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.resolve().name

    @property
    def network(self) -> str:
        """Model, size and data set for people; the directory's name if they were not recorded."""
        return training_chart.run_title(self.options) or self.name

    @property
    def best(self) -> Row | None:
        """The row of the best validation, or None."""
        return next(iter(validations.ranked_for(self.options, self.validation)), None)

    @property
    def done(self) -> int:
        """The number of completed updates."""
        return max(0, *(int(row["iteration"]) for row in (*self.training, *self.validation)))

    @property
    def out_of_patience(self) -> bool:
        """Whether --patience ended the run, because the last validations did not improve."""
        return validations.patience_is_over(validations.by_update(self.validation), self.arguments.get("patience") or 0)


def read(path: Path) -> RunFolder:
    """Return the run in a directory. Raise OptionError if it is no run directory or has no complete row, CheckpointError
    if its arguments file is damaged."""
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise OptionError(f"{path} {what}; give a run directory, such as logs/<run>{find.existing_checkpoints(path)}")
    if not any((path / name).exists() for name in (*TABLES, *ARGUMENTS)):
        raise OptionError(
            f"{path} is not a run directory: it has no training.csv, validation.csv or arguments.json{find.runs_in(path)}"
        )
    training, validation = (run_table(path, name).read() for name in TABLES)
    if not training and not validation:
        raise OptionError(f"{path} has no rows yet: a report needs at least one row in training.csv or validation.csv")
    arguments = run_record.arguments(path)
    missing = "arguments.json is missing, so the run's options, plan and environment are unknown"
    return RunFolder(path, arguments, run_record.options(path), training, validation, () if arguments else (missing,))


def changed_options(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return (option, value, default) of the options that differ from the defaults of the run's model, data set, schedule
    and optimiser; OptionError if these are unknown."""
    options = run.options
    if not options:
        raise OptionError("arguments.json is missing")
    words = [word for name in _DECIDING if options.get(name) for word in (flag(name), str(options[name]))]
    known = cli.parse(words, "train", environ={})
    defaults = known.options.values() | {name: known.catalogue.options[name].default for name in _DECIDING}
    changed = []
    for name in (*_DECIDING, *sorted(set(defaults) - set(_DECIDING))):
        drawn = name == "seed" and not run.arguments.get("seed_specified")
        if name in options and _counts(name) and not drawn and formatted(options[name]) != formatted(defaults[name]):
            changed.append((flag(name), formatted(options[name]), formatted(defaults[name])))
    return changed


def different_options(runs: Sequence[RunFolder]) -> list[tuple[str, list[str]]]:
    """Return each option in which runs differ, with its value in each run; "-" if a run did not record it."""
    known = {option.name for option in every_option(None)}
    names = dict.fromkeys((*_DECIDING, *sorted({name for run in runs for name in run.options})))
    rows = []
    for name in names:
        values = [formatted(run.options[name]) if name in run.options else "-" for run in runs]
        if name in known and _counts(name) and len(set(values)) > 1:
            rows.append((flag(name), values))
    return rows


def formatted(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(formatted, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _counts(name: str) -> bool:
    """Return whether an option describes the run, not a call or a host."""
    return name in _SHOWN or name not in {_OF_THE_DATA} | with_trait(ONE_CALL) | with_trait(PER_INSTANCE)
