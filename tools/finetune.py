"""Fine-tunes published weights on a folder of pictures: survey, classifier, whole network, report.

cnn finetune pictures                      pictures/<class>/*.jpg
cnn finetune pictures --logs-path logs/pets --epochs 20 --image-size 192
"""

from __future__ import annotations

if not __package__:  # called by its path
    import bootstrap  # noqa: F401

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import train
from base import bounds
from base.errors import OptionError
from base.fields import escaped
from base.process import command_line
from base.process.signals import StopRequest
from Datasets.sources import locate
from harness.cluster import membership
from harness.commands import answers, cli, hints
from harness.finetuning import survey
from harness.options import sources
from harness.options.sections import RunOptions, flag
from harness.report_page import run_folder, run_page
from harness.run import data, validations
from tools import report

_NOT_HERE = {
    "restore_path": "the same call resumes a fine-tuning, and restore.py resumes any run",
    "distributed": "it trains in one process; train.py trains in several",
}


def main(argv: list[str]) -> int:
    """survey -> train.py --config finetune -> report. A call that is repeated resumes the run."""
    options, given = _parse(argv)
    if membership.under_poprun(os.environ):
        raise OptionError("cnn finetune trains in one process: start it without poprun; train.py trains in several")
    for name in sources.given_arguments(given, "train"):
        if name in _NOT_HERE:
            raise OptionError(f"command line: {flag(name)} is not for cnn finetune: {_NOT_HERE[name]}")
    folder, run = Path(options.folder), Path(options.logs_path or default_run(options.folder))
    pictures = _survey(folder, cli.parse(_words(folder, run, given), "train").options)
    for line in pictures.lines:
        print(line)
    try:
        code = train.main(_words(folder, run, [*_for_these_pictures(pictures), *given]))
    except StopRequest:
        print(f"Resume:           {hints.command('finetune', *argv)}")
        raise
    if code == 0:
        _report(run)
        _finished(run)
    return code


def default_run(folder: str | os.PathLike) -> str:
    """Return the run folder of a fine-tuning on a folder of pictures, unless the call names one."""
    return f"logs/finetune_{Path(folder).resolve().name}"


def _words(folder: Path, run: Path, given: Sequence[str]) -> list[str]:
    """The words of train.py; options of the call win."""
    place = ["--data-dir", command_line.as_value(folder), "--logs-path", command_line.as_value(run)]
    return ["--config", "finetune", *place, "--autoresume", *given]


def _survey(folder: Path, options: RunOptions) -> survey.Survey:
    places = {flag(name): getattr(options.dataset, name) for name in data.SPLIT_FOLDERS}
    split = (locate.split_folder(place, str(folder), word) if place else None for word, place in places.items())
    return survey.scan_folder(folder, *split)


def _for_these_pictures(pictures: survey.Survey) -> list[str]:
    """The options that the folder asks for: damaged files are skipped, classes of few pictures count as much as others, and
    a folder with pictures for validation is not split."""
    for bad in pictures.bad:
        print(f"left out: {escaped(str(bad.file))} {bad.reason}")
    skipped = ["--skip-bad-records", str(len(pictures.bad))] * bool(pictures.bad)
    whole = ["--validation-split", "0"] * bool(pictures.listing.validation)
    return [*skipped, "--class-weights", "balanced", *whole]


def _report(run: Path) -> None:
    """Write the page on the best weights, with the pictures that they get wrong; a line where that fails."""
    try:
        report.main([command_line.as_value(run), "--html", command_line.as_value(run / run_page.FILE)])
    except Exception as error:  # the weights are there, whatever is wrong with it
        print(f"warning: {run / run_page.FILE} is not written: {bounds.reason(error)}")


def _finished(run: Path) -> None:
    """Print the best validation, and the commands that use its weights."""
    rows, path = validations.of_run(run), command_line.as_value(run)
    if rows:
        best, first = run_folder.read(run).best, rows[0]
        alone = f"; the classifier alone: {_accuracy(first)}" if int(first["iteration"]) == 0 else ""
        print(f"Best:             {best['name']}, {_accuracy(best)} of {best['val_size']} validation pictures{alone}")
    print(f"Name photographs: {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")
    print(f"Use it elsewhere: {hints.command('export', path, '--to', 'savedmodel,tflite')}")


def _accuracy(row: validations.Row) -> str:
    loss = f" (loss {float(row['loss']):.3f})" if row["loss"] else ""
    return f"{float(row['val_acc']):.1f}%{loss}"


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The call's own options, and the words that are options of train.py."""
    parser = command_line.Parser(
        prog="cnn finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every option of train.py may be given too (train.py --help) and wins over configuration finetune of "
        "configs.yml;\n--dry-run and --explain show the values.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="of pictures, one folder for each class in it")
    parser.add_argument("--logs-path", metavar="DIR", help="the run folder (default: logs/finetune_<name of FOLDER>)")
    if (argv and argv[0] and not argv[0].startswith("-")) or answers.asks(argv, "train"):
        return parser.parse_known_args(argv)
    raise OptionError("the folder of pictures is needed, as the first word: cnn finetune pictures")


if __name__ == "__main__":
    sys.exit(answers.run_command("finetune", main, None))
