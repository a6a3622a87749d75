"""Read a run directory for a report. Find the options that differ from the defaults, or between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import ONE_CALL, PER_INSTANCE
from cnn_harness.base.storage.run_files import ARGUMENTS
from cnn_harness.base.storage.tables import TABLES, run_table
from cnn_harness.harness.checkpoints import find, run_record
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.catalogue import every_option
from cnn_harness.harness.options.sections import flag, with_trait
from cnn_harness.harness.reports import training_chart
from cnn_harness.harness.run import cli, validations
from cnn_harness.harness.run.recorded_arguments import DECLINED

Row = Mapping[str, str]
_DECIDING = ("model", "dataset", "lr_schedule", "optimiser")  # The defaults of other options depend on these options.
_OF_THE_DATA = "num_classes"  # Every run records this, but it is a property of the data set.
_SHOWN = ("config", "data_dir", "init_path")  # These options are shown although they apply to one command or one host only.


@dataclass(frozen=True)
class RunFolder:
    """The content of a run directory.

    `arguments` is the content of arguments.json; it is empty if the file is missing. `options` are the options in it.
    `training` and `validation` are the rows of the CSV files. `notes` are messages about missing files.
    """

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
        """A title with model, size and data set; the directory's name if these were not recorded."""
        return training_chart.run_title(self.options) or self.name

    @property
    def best(self) -> Row | None:
        """The row of the best validation, or None."""
        return next(iter(validations.ranked_for(self.options, self.validation)), None)

    @property
    def done(self) -> int:
        """The number of completed updates."""
        return max([0, *(int(row["iteration"]) for row in (*self.training, *self.validation))])

    @property
    def untrained(self) -> bool:
        """Whether the run ended before its first update, because a trial found that training does not help."""
        return not self.done and bool(self.arguments.get(DECLINED))

    @property
    def out_of_patience(self) -> bool:
        """Whether --patience ended the run because the last validations did not improve."""
        return validations.patience_is_over(validations.by_update(self.validation), self.arguments.get("patience") or 0)


def read(path: Path) -> RunFolder:
    """Return the run in a directory. Raise OptionError if the directory contains no run, or a run that needs a complete row
    and has none. Raise CheckpointError if arguments.json is damaged."""
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise OptionError(f"{path} {what}; give a run directory, such as logs/<run>{find.existing_checkpoints(path)}")
    if not any((path / name).exists() for name in (*TABLES, *ARGUMENTS)):
        raise OptionError(
            f"{path} is not a run directory: it has no training.csv, validation.csv or arguments.json{find.runs_in(path)}"
        )
    training, validation = (run_table(path, name).read() for name in TABLES)
    arguments = run_record.arguments(path)
    if not training and not validation and not arguments.get(DECLINED):
        raise OptionError(
            f"{path} has no results yet: training.csv and validation.csv have no rows. Try again after the first row"
        )
    missing = "arguments.json is missing, so the run's options, plan and environment are unknown"
    return RunFolder(path, arguments, run_record.options(path), training, validation, () if arguments else (missing,))


def changed_options(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return (option, value, default) for each option that differs from its default. Raise OptionError if the options are
    unknown."""
    options = run.options
    if not options:
        raise OptionError("arguments.json is missing")
    deciding = Call.of_values({name: options[name] for name in _DECIDING if options.get(name)}, "train")
    known = cli.resolve(deciding, environ={})
    defaults = known.options.values() | {name: known.catalogue.options[name].default for name in _DECIDING}
    changed = []
    for name in (*_DECIDING, *sorted(set(defaults) - set(_DECIDING))):
        drawn = name == "seed" and not run.arguments.get("seed_specified")
        if name in options and _counts(name) and not drawn and formatted(options[name]) != formatted(defaults[name]):
            changed.append((flag(name), formatted(options[name]), formatted(defaults[name])))
    return changed


def different_options(runs: Sequence[RunFolder]) -> list[tuple[str, list[str]]]:
    """Return each option that differs between runs, with a value for each run. The value is "-" if it was not recorded."""
    known = {option.name for option in every_option(None)}
    names = dict.fromkeys((*_DECIDING, *sorted({name for run in runs for name in run.options})))
    rows = []
    for name in names:
        values = [formatted(run.options[name]) if name in run.options else "-" for run in runs]
        if name in known and _counts(name) and len(set(values)) > 1:
            rows.append((flag(name), values))
    return rows


def formatted(value: Any) -> str:
    """Return a value as text for people, such as "on" for True."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(formatted, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _counts(name: str) -> bool:
    """Return whether an option describes the whole run, not one command or one host."""
    return name in _SHOWN or name not in {_OF_THE_DATA} | with_trait(ONE_CALL) | with_trait(PER_INSTANCE)
