"""Fine-tune published weights on a folder of images (FOLDER/<class>/*.jpg), and report the result.

cnn finetune photos
cnn finetune photos --logs-path logs/pets --epochs 20 --image-size 192

The command first checks the folder. Then it fits the classifier, and finally trains the whole network.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cnn_harness.train as train
from cnn_harness.base import bounds
from cnn_harness.base.errors import Leave, OptionError
from cnn_harness.base.fields import escaped, short
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


def main(argv: list[str]) -> int:
    """Check the folder, train, and write the report; return the exit code. A repeated call resumes the run."""
    options, call = _parse(argv)
    if membership.under_poprun(os.environ):
        raise OptionError("cnn finetune runs in one process: start it without poprun, or use train.py")
    for name in filter(call.__contains__, _INVALID):
        raise OptionError(f"command line: cnn finetune does not accept {flag(name)}: {_INVALID[name]}")
    folder, run = Path(options.folder), Path(options.logs_path or default_run(options.folder))
    usual = {"config": "finetune", "data_dir": folder, "logs_path": run, "autoresume": True}
    call = Call.of_values(usual, "train") + call
    parsed = answers.resolve(call)
    surveyed = _survey(folder, parsed.options)
    for line in surveyed.lines:
        print(line)
    try:
        code = train.main(replace(call, parsed=parsed).under(_data_options(surveyed)))
    except (StopRequest, Leave):
        print(f"Resume:           {hints.command('finetune', *argv)}")
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
        report.main([command_line.as_value(run), "--html", command_line.as_value(run / run_page.FILE)])
    except Exception as error:  # training succeeded, so an error in the report must not fail the command
        print(f"warning: {run / run_page.FILE} was not written: {bounds.reason(error)}")


def _finished(run: Path) -> None:
    """Print the best validation result and the commands that use its weights."""
    rows, path = validations.of_run(run), command_line.as_value(run)
    if rows:
        best, first = run_folder.read(run).best, rows[0]
        alone = f"; with only the classifier fitted: {_accuracy(first)}" if int(first["iteration"]) == 0 else ""
        print(f"Best:             {best['name']}, {_accuracy(best)} of {best['val_size']} validation images{alone}")
    print(f"Classify photos:  {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")
    print(f"Use it elsewhere: {hints.command('export', path, '--to', 'savedmodel,tflite')}")


def _accuracy(row: validations.Row) -> str:
    loss = f" (loss {float(row['loss']):.3f})" if row["loss"] else ""
    return f"{float(row['val_acc']):.1f}%{loss}"


def _parse(argv: list[str]) -> tuple[argparse.Namespace, Call]:
    """Return the options of `cnn finetune` itself, and the options of train.py."""
    parser = command_line.Parser(
        prog="cnn finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="All options of train.py are accepted, too (see train.py --help). They override configuration finetune of\n"
        "configs.yml. --dry-run and --explain show the values.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder that contains a folder of images for each class")
    parser.add_argument("--logs-path", metavar="DIR", help="run directory (default: logs/finetune_<name of FOLDER>)")
    if argv and "=" in argv[0] and not argv[0].startswith("-") and not os.path.exists(argv[0]):
        raise OptionError(f"{short(argv[0])} is no folder; give the folder, then options: cnn finetune photos --epochs 5")
    if (argv and argv[0] and not argv[0].startswith("-")) or answers.asks(Call.of_words(argv, "train")):
        return answers.with_own_options(parser, argv, "train")
    raise OptionError("give a folder of images first, for example: cnn finetune photos")


if __name__ == "__main__":
    sys.exit(answers.run_command("finetune", main, None))
