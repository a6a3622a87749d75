"""Fine-tune published weights on a folder of images (FOLDER/<class>/*.jpg), and report the result.

cnn finetune photos
cnn finetune photos --logs-path logs/pets --epochs 20 --image-size 192

The command first checks the folder. Then it fits the classifier. A trial on a part of the training images decides whether it
also trains the whole network; with --epochs N, it does.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cnn_harness.train as train
from cnn_harness.base import bounds
from cnn_harness.base.errors import Leave, OptionError
from cnn_harness.base.fields import escaped, opt, short
from cnn_harness.base.process import command_line
from cnn_harness.base.process.signals import StopRequest
from cnn_harness.Datasets.sources import locate
from cnn_harness.harness.commands import answers, hints
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import RunOptions, flag
from cnn_harness.harness.reports import run_folder, run_page
from cnn_harness.harness.run import data, membership, validations
from cnn_harness.tools import report, survey

_INVALID = {
    "restore_path": "to resume, repeat the call without it, or use restore.py",
    "distributed": "to train in several processes, use train.py",
}


FOLDER = {"FOLDER": "folder that contains a folder of images for each class"}


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(answers.OwnOptions):
    """The options of cnn finetune itself."""

    logs_path: str | None = opt(None, "run directory (default: logs/finetune_<name of FOLDER>)", metavar="DIR")


def main(given: Call) -> int:
    """Check the folder, train, and write the report; return the exit code. A repeated call resumes the run."""
    folder, logs_path, call = _parsed(given)
    if membership.under_poprun(os.environ):
        raise OptionError("cnn finetune runs in one process: start it without poprun, or use train.py")
    for name in filter(call.__contains__, _INVALID):
        raise OptionError(f"command line: cnn finetune does not accept {flag(name)}: {_INVALID[name]}")
    run = Path(logs_path or default_run(folder))
    usual = {"config": "finetune", "data_dir": folder, "logs_path": run, "autoresume": True}
    call = Call.of_values(usual, "train") + call
    parsed = answers.resolve(call)
    surveyed = _survey(folder, parsed.options)
    for line in surveyed.lines:
        print(line)
    try:
        code = train.main(replace(call, parsed=parsed).under(_data_options(surveyed)))
    except (StopRequest, Leave):
        print(f"Resume:           {hints.command('finetune', *given.words)}")
        raise
    if code == 0:
        _report(run)
        _finished(run)
    return code


def default_run(folder: str | os.PathLike) -> str:
    """Return the default run directory for a folder of images."""
    return f"logs/finetune_{Path(folder).resolve().name}"


def _survey(folder: Path, options: RunOptions) -> survey.Survey:
    places = {flag(name): getattr(options.dataset, name) for name in data.SPLIT_FOLDERS}
    split = (locate.split_folder(place, str(folder), word) if place else None for word, place in places.items())
    return survey.scan_folder(folder, *split)


def _data_options(surveyed: survey.Survey) -> dict[str, Any]:
    """Return the training options for this folder: skip damaged files, weight all classes equally, and split off a
    validation set only if the folder has none."""
    for bad in surveyed.bad:
        print(f"skipped: {escaped(str(bad.file))} {bad.reason}")
    skipped = {"skip_bad_records": len(surveyed.bad)} if surveyed.bad else {}
    return {**skipped, "class_weights": "balanced", **({"validation_split": 0.0} if surveyed.listing.validation else {})}


def _report(run: Path) -> None:
    """Write the report with the validation results of the best weights; warn if that fails."""
    try:
        report.main(replace(Call.of_values({"html": run / run_page.FILE}, ""), bare=(str(run),)))
    except Exception as error:  # training succeeded, so an error in the report must not fail the command
        print(f"warning: {run / run_page.FILE} was not written: {bounds.reason(error)}")


def _finished(run: Path) -> None:
    """Print the best validation result and the commands that use its weights."""
    rows, path = validations.of_run(run), command_line.as_value(run)
    if rows:
        best, first = run_folder.read(run).best, rows[0]
        alone = f"; with only the classifier fitted: {_accuracy(first)}" if int(first["iteration"]) == 0 else ""
        if best["name"] == first["name"]:
            alone = "; training did not improve on it" if len(rows) > 1 else ", with only the classifier fitted"
        print(f"Best:             {best['name']}, {_accuracy(best)} of {best['val_size']} validation images{alone}")
    print(f"Classify photos:  {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")
    print(f"Use it elsewhere: {hints.command('export', path, '--to', 'savedmodel,tflite')}")


def _accuracy(row: validations.Row) -> str:
    loss = f" (loss {float(row['loss']):.3f})" if row["loss"] else ""
    return f"{float(row['val_acc']):.1f}%{loss}"


def _parsed(call: Call) -> tuple[Path, str | None, Call]:
    """Return the folder of images, the value of --logs-path, and the options of train.py."""
    first = next(iter(call.bare), "")
    if "=" in first and not os.path.exists(first):
        raise OptionError(f"{short(first)} is no folder; give the folder, then options: cnn finetune photos --epochs 5")
    own, words, options = answers.own_options(
        FinetuneOptions, call, "cnn finetune FOLDER [options]", __doc__, FOLDER,
        "All options of train.py are accepted, too (see train.py --help). They override configuration finetune of\n"
        "configs.yml. --dry-run and --explain show the values.",
    )  # fmt: skip
    if not first:
        raise OptionError("give a folder of images first, for example: cnn finetune photos")
    return Path(words[0]), own.logs_path, replace(options, bare=words[1:])


if __name__ == "__main__":
    sys.exit(answers.run_command("finetune", main, None))
