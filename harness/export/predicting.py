"""The classes that an exported file finds in photographs: validation.py --predict with a file of export.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from base import bounds
from base.errors import OptionError
from base.fields import brief
from base.process import tf_runtime
from base.storage import input_files
from Datasets._spec import DataSpec, ReadRequest
from Datasets.formats import class_names, preprocessing
from harness.checkpoints.checkpoint import CheckpointError
from harness.commands import entry
from harness.evaluation import predict_inputs, predictions, predictions_file
from harness.evaluation.predictions_file import ImagePrediction
from harness.export import digests, file_formats
from harness.export.network import LABELS, PREPROCESSING
from harness.options import sources
from harness.run.recorded_arguments import Rule, invalid_entry

_SUFFIXES = {Path(each.file).suffix: name for name, each in file_formats.FORMATS.items() if "." in each.file}
_SAVED_MODEL = "saved_model.pb"  # in the folder of one
_LONGEST = 8192  # pixels on a side of a picture
_SIDE: Rule = (lambda value: type(value) is int and 1 <= value <= _LONGEST, f"a whole number from 1 to {_LONGEST}")
_FRAME: Rule = (lambda value: type(value) is int and 0 <= value <= 64, "a whole number from 0 to 64")
_RULES = {"side": _SIDE, "square": _SIDE, "shorter_side": _SIDE, "frame_of_zeros": _FRAME}
_TAKEN = ("restore_path", "predict", "output")  # options of validation.py that a file is asked with


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of export.py, with the photographs or folders that are to be named, and the file for the answers, if any."""

    path: Path
    format: str
    photographs: tuple[str, ...]
    output: str | None = None


def _check_no_export(path: Path) -> None:
    """OptionError for the folder of an export, which is a file of several or a folder in it, and no run."""
    if not path.is_dir() or any(path.glob("ckpt-*.index")):
        return
    files = [
        each
        for one in file_formats.FORMATS.values()
        for each in (one.file, one.quantised)
        if each and os.path.exists(path / each)
    ]
    if files:
        raise OptionError(
            f"--restore-path {path} is the folder of an export; give a file in it: "
            + ", ".join(str(path / each) for each in files)
        )


def exported_file_given(argv: list[str]) -> ExportedFile | None:
    """The exported file that --restore-path names, or None for anything else. OptionError for options that it does not
    follow."""
    given = sources.value_of(argv, "restore_path", "validation")
    path = Path(given or "")
    name = "savedmodel" if os.path.isfile(path / _SAVED_MODEL) else _SUFFIXES.get(path.suffix)
    if not given or entry.wants_help(argv):
        return None
    if name is None:
        _check_no_export(path)
        return None
    flags, given_options = sources.all_options("validation").flags(), {}
    for flag, words in sources.tokens(argv, flags):
        if flags[flag].option.name not in _TAKEN:
            raise OptionError(f"{flag}: {path} is an exported file, of which --predict alone can be asked")
        given_options[flags[flag].option.name] = tuple(words)
    photographs, output = (
        given_options.get("predict", ()),
        given_options["output"][-1] if given_options.get("output") else None,
    )
    if not photographs:
        raise OptionError(f"{path} is an exported file: give --predict photographs; a checkpoint is what can be validated")
    predictions_file.check(output, photographs)
    return ExportedFile(path=path, format=name, photographs=photographs, output=output)


def predict(file: ExportedFile) -> int:
    """Print the classes that the file finds in the photographs, in its own runtime; the exit code."""
    _check_there(file.path)
    file_formats.check_packages([file.format])
    listed = predict_inputs.list_photographs(file.photographs)
    for warning in listed.warnings:
        print(warning)
    about, names = _about(file.path.absolute().parent), class_names.read(file.path.absolute().parent)
    if not _has_right_digests(file.path.absolute()) and file_formats.FORMATS[file.format].is_fragile:
        _try_apart(file, about["prepare"]["side"])
    tf_runtime.import_tensorflow("3")
    from Datasets.pipeline import image_files

    preparation, side = _preparation(about, len(names)), about["prepare"]["side"]
    with _running(file):
        run = file_formats.FORMATS[file.format].runner(file.path)

    def found() -> Iterator[tuple[str, Sequence[ImagePrediction]]]:
        for pictures in predictions.loaded(listed, lambda paths: image_files.load(paths, *preparation), print):
            if not pictures:
                continue
            with _running(file):
                probabilities = run(np.stack([*pictures.values()]))
            _check_names(file, probabilities.shape[-1], names)
            for path, row in zip(pictures, predictions.finite(probabilities, file.path, "export the network again")):
                yield path, predictions.best(row, names)

    predictions.tell(f"{brief(about.get('network'))} in {file.path}, {side}x{side} pixels", found(), file.output, print)
    return 0


def _check_there(path: Path) -> None:
    """CheckpointError for a path that is neither a file nor a folder."""
    if not os.path.lexists(path):
        raise CheckpointError(f"--restore-path {path}: no such file")
    try:
        if not path.is_dir():
            input_files.open_regular_file(path).close()
    except OSError as error:
        raise CheckpointError(f"--restore-path {path} cannot be read: {error.strerror}") from None


def _has_right_digests(path: Path) -> bool:
    """True for a file, and texts beside it, with the bytes that were written, False if nothing tells. CheckpointError for
    other bytes."""
    sums = path.parent / digests.FILE
    try:
        differing = digests.difference(path.parent, [path.name, LABELS, PREPROCESSING])
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or sums
        raise CheckpointError(f"{place} cannot be read: {bounds.reason(error)}; export the network again") from None
    if differing:
        raise CheckpointError(
            f"{path.parent / differing} is not as export.py wrote it, by {sums}: export the network again, or remove "
            f"{digests.FILE} if the change is meant"
        )
    return sums.exists()


def _try_apart(file: ExportedFile, side: int) -> None:
    """Run a file on one picture in another process: a damaged one may end the process of its runtime. CheckpointError if it
    does; other faults show when it is run here."""
    trial = multiprocessing.get_context("spawn").Process(target=_try, args=(file.format, file.path, side), daemon=True)
    trial.start()
    try:
        trial.join()
    finally:
        trial.kill()
    if trial.exitcode < 0:
        ended = signal.Signals(-trial.exitcode).name
        raise CheckpointError(f"{file.path} cannot be run: its runtime was ended by {ended}; export the network again")


def _try(name: str, path: Path, side: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that began it
    tf_runtime.import_tensorflow("3")
    with suppress(Exception), file_formats.quiet():
        file_formats.FORMATS[name].runner(path)(np.zeros((1, side, side, 3), np.uint8))


@contextmanager
def _running(file: ExportedFile) -> Iterator[None]:
    """Errors of a file's runtime as a CheckpointError that names the file."""
    try:
        with file_formats.quiet():
            yield
    except (OSError, MemoryError):
        raise
    except Exception as error:  # runtimes raise classes of their own
        reason = brief(tf_runtime.telling_line(error))
        raise CheckpointError(f"{file.path} cannot be run: {type(error).__name__}: {reason}") from None


def _check_names(file: ExportedFile, classes: int, names: Sequence[str]) -> None:
    if names and classes != len(names):
        raise CheckpointError(f"{file.path} has {classes} classes, and {LABELS} beside it names {len(names)}")


def _about(folder: Path) -> Mapping[str, Any]:
    """The content of the preprocessing.json beside a file: its "prepare" has the sizes of pictures, and "side" too."""
    path = folder / PREPROCESSING
    try:
        about = bounds.json_value(input_files.content(path, bounds.TEXT))
        prepare = {**about["prepare"], "side": about["input"]["shape"][1]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not what export.py writes"
        raise CheckpointError(f"{path} cannot be read ({reason}); it belongs beside the file, with {LABELS}") from None
    wrong = invalid_entry(prepare, _RULES) or _disagreement(prepare)
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong}; export the network again")
    return {**about, "prepare": prepare}


def _disagreement(prepare: Mapping[str, Any]) -> str | None:
    """The reason why these sizes cannot be of one preparation, as `preprocessing.described` tells of it."""
    side, shorter = prepare["side"], prepare.get("shorter_side")
    if "square" in prepare:
        square, frame = prepare["square"], prepare.get("frame_of_zeros", 0)
        return None if square + 2 * frame == side else f"a square of {square} in a frame of {frame} has not {side} pixels"
    whole = int(side * preprocessing.CENTRAL)
    return None if shorter == whole else f"shorter_side is {shorter} but must be {whole} for pictures of {side} pixels"


def _preparation(about: Mapping[str, Any], classes: int) -> tuple[DataSpec, ReadRequest]:
    """Return the set and the request that `image_files.load` prepares pictures for."""
    prepare = about["prepare"]
    small = "square" in prepare
    spec = DataSpec(
        name="exported", num_classes=classes, image_size=prepare["side"] if small else None, train_images=0,
        validation_images=0, frame=prepare.get("frame_of_zeros", 0), standardised=small,
    )  # fmt: skip
    return spec, ReadRequest(batch_size=1, image_size=prepare["side"], seed=0, eight_bit_io=True)
