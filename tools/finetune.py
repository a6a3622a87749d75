"""Fine-tunes published weights on a folder of pictures: a look at the folder, the classifier, the whole network, the best.

cnn finetune pictures                      pictures/<class>/*.jpg
cnn finetune pictures --logs-path logs/pets --epochs 20 --image-size 192
"""

from __future__ import annotations

if not __package__:  # called by its path
    import begin  # noqa: F401

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import train
from base import bounds
from base.errors import Answered, OptionError
from base.fields import escaped
from base.process import command_line
from base.process.signals import StopRequest
from Datasets.sources import locate
from harness.checkpoints import run_record
from harness.cluster import membership
from harness.commands import answers, cli, entry, hints
from harness.finetuning import stages, survey
from harness.finetuning.stages import CLASSIFIER, NETWORK, Best, TrainingStage
from harness.options.sections import flag
from harness.report_page import page
from harness.run import data
from harness.run.resolve import prepare
from harness.training.start import FreshStart
from tools import report


def main(argv: list[str]) -> int:
    """survey -> classifier -> network -> the best of both. Repeat a call to resume a fine-tuning that was stopped."""
    options, given = _parse(argv)
    if membership.under_poprun(os.environ):
        raise OptionError("cnn finetune trains in one process: start it without poprun; train.py trains in several")
    folder, top = Path(options.folder), Path(options.logs_path or f"logs/finetune_{Path(options.folder).resolve().name}")
    chosen = [stage for stage in (CLASSIFIER, NETWORK) if not (stage is CLASSIFIER and options.no_classifier_first)]
    _check_place(top)
    asks = False
    for stage in chosen:  # before the survey, which may take a while
        parsed = cli.parse(stages.words(stage, given, folder, top / stage.name, None), "train").options
        asks = entry.only_asks(parsed)
    places = {flag(name): getattr(parsed.dataset, name) for name in data.SPLIT_FOLDERS}
    pictures = survey.scan_folder(
        folder, *(locate.split_folder(place, str(folder), word) if place else None for word, place in places.items())
    )
    for line in pictures.lines:
        print(line)
    given = _for_these_pictures(given, pictures)
    for stage in chosen[1:]:  # before the first one has trained for it
        _check_options(stage, given, folder, top / stage.name)
    try:
        return _tune(chosen, given, folder, top, asks)
    except StopRequest:
        print(f"Resume the whole with: {hints.command('finetune', *argv)}")
        raise


def _tune(chosen: Sequence[TrainingStage], given: Sequence[str], folder: Path, top: Path, asks: bool) -> int:
    """Train the stages and report the best of them; return the exit code. `asks`: they only answer a question."""
    reached: Best | None = None
    for stage in chosen:
        print(f"\n{stage.title}:", flush=True)
        words = stages.words(stage, given, folder, top / stage.name, reached.checkpoint if reached else None)
        code = 0
        with suppress(Answered):  # by each stage
            code = train.main(words, extended_by_restore=stage is CLASSIFIER)  # the call's length is the network's
        if code:
            return code
        reached = _better(reached, stages.best(top / stage.name))
    if reached and not asks:
        _report(top, reached)
        _finished(top, reached)
    return 0


def _check_place(top: Path) -> None:
    """OptionError for a folder with another program's file in the place of the page."""
    begun = any(run_record.arguments_file(top / stage.name).exists() for stage in (CLASSIFIER, NETWORK))
    if os.path.lexists(top / page.FILE) and not begun:
        raise OptionError(
            f"--logs-path {top} holds {page.FILE}, which is of no fine-tuning and would be replaced; give another folder, "
            "or move the file away"
        )


def _check_options(stage: TrainingStage, given: Sequence[str], folder: Path, place: Path) -> None:
    """OptionError, DataError or CheckpointError for options with which the stage cannot begin; a run that is there is
    resumed anyway."""
    if not run_record.arguments_file(place).exists():
        options = cli.parse(stages.words(stage, given, folder, place, None), "train").options
        FreshStart().check_source(options)
        prepare(options, os.environ)


def _better(before: Best | None, now: Best | None) -> Best | None:
    """The better one of two; of equals the later one, which has seen the pictures for longer."""
    return now if before is None or (now and now.accuracy >= before.accuracy) else before


def _report(top: Path, best: Best) -> None:
    """Write the page on the best weights, with the pictures that they get wrong; a line where that fails."""
    print("\nThe report:", flush=True)
    words = [command_line.as_value(Path(best.checkpoint.prefix)), "--html", command_line.as_value(top / page.FILE)]
    try:
        report.main(words)
    except Exception as error:  # the weights are there, whatever is wrong with it
        print(f"warning: {top / page.FILE} is not written: {bounds.reason(error)}")


def _finished(top: Path, best: Best) -> None:
    """Print where the best weights are, and the commands that use them."""
    path = command_line.as_value(Path(best.checkpoint.prefix))
    print(f"\nThe best weights: {escaped(path)}, {best.accuracy:.2f}% of {best.pictures} validation pictures")
    print(f"Name photographs: {hints.command('validation', '--restore-path', path, '--predict', 'PHOTO.jpg')}")
    print(f"Validate again:   {hints.command('validation', '--restore-path', path)}")
    print(f"Use it elsewhere: {hints.command('export', path, '--to', 'savedmodel,tflite')}")
    print(f"The stages are in {escaped(str(top))}")


def _for_these_pictures(given: Sequence[str], pictures: survey.Survey) -> list[str]:
    """The options, after those that the folder asks for: damaged files, which are listed, are skipped, and a folder with
    pictures for validation is not split."""
    for bad in pictures.bad:
        print(f"left out: {escaped(str(bad.file))} {bad.reason}")
    own = ["--skip-bad-records", str(len(pictures.bad))] * bool(pictures.bad)
    own += ["--validation-split", "0"] * bool(pictures.listing.validation)
    return [*own, *given]


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The call's own options, and the words that are options of train.py."""
    parser = command_line.Parser(
        prog="cnn finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every option of train.py may be given besides (train.py --help) and wins over configurations "
        "finetune_classifier and\nfinetune_network of configs.yml; lengths and rates are those of the whole network. "
        "--dry-run and --explain show them.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="of pictures, one folder for each class in it")
    parser.add_argument("--logs-path", metavar="DIR", help="of the two runs (default: logs/finetune_<name of FOLDER>)")
    parser.add_argument(
        "--no-classifier-first", action="store_true", help="train the whole network at once, from the published weights"
    )
    if (argv and argv[0] and not argv[0].startswith("-")) or answers.asks(argv, "train"):
        return parser.parse_known_args(argv)
    raise OptionError("the folder of pictures is needed, as the first word: cnn finetune pictures")


if __name__ == "__main__":
    sys.exit(answers.run_command("finetune", main, None))
