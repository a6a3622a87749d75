"""The Python API (`import cnn_harness`): functions that do the same as the commands, for notebooks and programs.

Options of the commands are keyword arguments: `train("quickstart", micro_batch_size=16)` is equivalent to
`cnn train --config quickstart --micro-batch-size 16`. Give True or False for a switch, and a list for an option with
several values. Log lines go to standard output, unless `quiet` is true.

Invalid options raise OptionError, and invalid data raise DataError; both are subclasses of WrongInput. Failures at run
time raise Failure. An interrupted training run saves a checkpoint, then raises KeyboardInterrupt.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import train as training
import validation
from base.errors import Answered, DataError, Failure, OptionError, WrongInput  # noqa: F401
from base.process import commands, tf_runtime
from base.process.signals import StopRequest
from base.storage.tables import TABLES, run_table
from harness.checkpoints import compatibility, find
from harness.checkpoints.checkpoint import UNSAVED, Checkpoint
from harness.checkpoints.read import Tensors
from harness.commands import entry
from harness.evaluation import inference_record, photo_predictions
from harness.evaluation.photo_predictions import Predictor
from harness.evaluation.saved_weights import SavedWeights
from harness.options.sections import flag
from harness.planning import plan_options
from harness.reports import chart, training_chart
from harness.run.run import Run
from harness.training.run_dir import Listener
from tools import finetune as finetuning
from tools import plan as planning

if TYPE_CHECKING:
    import numpy as np
    import pandas

    Rows = pandas.DataFrame | list[dict[str, Any]]

if not commands.in_checkout():  # hints in messages then show the installed command `cnn`
    commands.begin(commands.Call(prog="cnn", command=""))
RunPath = str | PathLike  # the path of a run directory, checkpoint or .npz file, or the name of included weights
_WHOLE = ("step", "iteration", "val_size")  # CSV columns that hold whole numbers


class TrainedNetwork:
    """A network with the weights of a run or of a weight file.

    `path` is the path given by the user. `folder` is the run directory, or the weight file.
    """

    def __init__(self, path: RunPath) -> None:
        """Locate the run or file; the weights are read on first use."""
        self.path = Path(path)
        self.folder = find.run_folder(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names, in the order of the columns of `predict`; () if they are unknown."""
        run, checkpoint, _ = self._loaded
        return inference_record.names(run, checkpoint)

    @property
    def history(self) -> Rows:
        """Return the rows of training.csv."""
        return history(self)

    @property
    def accuracy(self) -> float | None:
        """Return the validation accuracy of these weights (top-1, in per cent); None if they were not validated."""
        name = self._loaded[1].name if find.numbered(self.folder) else UNSAVED
        return {row["name"]: row["val_acc"] for row in _rows(self.folder, "validation.csv")}.get(name)

    def predict(self, images: np.ndarray | RunPath | Sequence[RunPath]) -> np.ndarray:
        """Return the probability of each class for each image, float32 [n, classes].

        `images` is an array, uint8 [n, height, width, 3], or one or more image files of any size. Images are
        preprocessed as in validation.
        """
        import numpy as np

        if not isinstance(images, np.ndarray):
            images = [str(each) for each in ([images] if isinstance(images, RunPath) else images)]
        elif images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise DataError(
                f"images have the type {images.dtype} and the shape {[*images.shape]}; give an array of uint8 "
                "[n, height, width, 3], or image files"
            )
        try:
            with _errors():
                found = [*self._predictor.probabilities(self._predictor.prepare(images))] if len(images) else []
        except BaseException:
            self.close()  # an interrupted program cannot be used again
            raise
        if not found:
            return np.zeros([0, self._loaded[0].data_source.spec.num_classes], np.float32)
        return np.asarray(found, np.float32)

    def evaluate(self, data: RunPath | None = None, *, quiet: bool = False, **options: Any) -> dict[str, Any]:
        """Validate the weights; return a row of validation.csv as a dict.

        "val_acc" and "top5_acc" are in per cent; "val_size" is the number of images. `data` is a folder that contains one
        folder of images per class, or the files of the network's data set. None means the run's own validation set.
        `options` are the options of `cnn validate`.
        """
        run, checkpoint, _ = self._loaded
        if data is not None:
            options["data_dir"] = data
            if run.data_source.spec.name == "imagefolder":  # validate on all images of the folder
                options |= {"validation_dir": Path(data).resolve(), "validation_split": 0}
        rows: list[Mapping[str, Any]] = []
        with _errors(quiet):
            validation.main(["--restore-path", checkpoint.prefix, "--no-logs", *_words(options)], rows.append)
        return dict(rows[-1])

    def close(self) -> None:
        """Free the memory of the compiled network. The next call of `predict` compiles it again."""
        predictor = self.__dict__.pop("_predictor", None)
        if predictor:
            predictor.close()

    @cached_property
    def _loaded(self) -> tuple[Run, Checkpoint, Tensors]:
        """Return the run as `cnn predict` loads it, its checkpoint, and the checkpoint's tensors."""
        words = ["--restore-path", str(self.path), "--predict", "images"]
        with _errors():
            found = validation.saved_weights(words)
            run = entry.checked_run(
                words, "validation", _Weights(found.checkpoints, found.folder, found.recorded), training=False
            )
            checkpoint, values, warnings = photo_predictions.load_weights(run, found.checkpoints)
        for line in (*run.notes, *warnings):
            print(line)
        return run, checkpoint, values

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(*self._loaded)


class _Weights(SavedWeights):
    """Saved weights, checked without the images, which `predict` receives later."""

    def check_run(self, run: Run) -> list[str]:
        return compatibility.check_model(run, self.checkpoints)


def load(run: RunPath) -> TrainedNetwork:
    """Return the network in a run directory, a checkpoint or a .npz file, or the included efficientnet-lite0."""
    network = TrainedNetwork(run)
    network._loaded  # noqa: B018 - read the weights now, so that errors are raised here
    return network


def train(
    config: str | None = None,
    *,
    on_step: Callable[[Mapping[str, Any]], None] | None = None,
    on_validation: Callable[[Mapping[str, Any]], None] | None = None,
    quiet: bool = False,
    **options: Any,
) -> TrainedNetwork:
    """Train like `cnn train`, or resume the run in `restore_path`; return the trained network.

    `on_step` is called once for each weight update, with {"iteration": int, "epoch", "lr", "loss", "accuracy": float}. The
    accuracy is measured on the update's images, in per cent. The calls come in groups, because results arrive only after
    every `batches_per_step` updates. `on_validation` is called after each validation with the row of validation.csv.
    If a callback raises an error, the run saves a checkpoint and ends.
    """
    given = {"on_step": on_step, "on_validation": on_validation}
    listener = Listener(**{name: function for name, function in given.items() if function})
    with _errors(quiet):
        return TrainedNetwork(training.start_or_resume(_words({"config": config, **options}), listener=listener))


def finetune(folder: RunPath, *, quiet: bool = False, **options: Any) -> TrainedNetwork:
    """Fine-tune published weights on your photos; return the network with its best weights.

    `folder` contains one folder of images per class. `options` are the options of `cnn finetune`.
    """
    options = {"logs_path": finetuning.default_run(folder), **options}
    with _errors(quiet):
        finetuning.main([str(folder), *_words(options)])
        return load(options["logs_path"])


def plan(config: str | None = None, system: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the prediction for a training run on an IPU system, like `cnn plan --json`.

    `system` is the name of a system, for example POD16. The default is the smallest system that is large enough.
    """
    with _errors():
        request = plan_options.parse(_words({"config": config, "system": system, **options}))
        return planning.plan(request)[0].values(None)


def history(run: RunPath | TrainedNetwork, table: str = "training") -> Rows:
    """Return the rows of a run's training.csv or validation.csv, with numbers as int and float.

    `table` is "training" or "validation". The result is a pandas.DataFrame if pandas is installed, else a list of dicts.
    """
    if f"{table}.csv" not in TABLES:
        raise OptionError(f"table is {table!r} but must be one of {', '.join(name.removesuffix('.csv') for name in TABLES)}")
    rows = _rows(_folder(run), f"{table}.csv")
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=[*TABLES[f"{table}.csv"]])


class Svg(str):
    """A chart as SVG text, displayed by notebooks."""

    def __repr__(self) -> str:
        return f"<{len(self)} characters of SVG>"

    def _repr_svg_(self) -> str:
        return str(self)


def compare(runs: Mapping[str, RunPath | TrainedNetwork], title: str = "") -> Svg:
    """Draw loss, accuracy and learning rate of several runs in one chart, like `cnn compare`.

    `runs` maps the label of each curve to a run.
    """
    rows = [(label, *training_chart.tables(_folder(run))) for label, run in runs.items()]
    return Svg(chart.figure(training_chart.comparison_panels(rows), title))


def _folder(run: RunPath | TrainedNetwork) -> Path:
    folder = run.folder if isinstance(run, TrainedNetwork) else Path(run)
    find.check_run_folder(folder, "run")
    return folder


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    def value(column: str, cell: str) -> Any:
        return cell if column == "name" else int(cell) if column in _WHOLE else float(cell)

    rows = run_table(folder, table).read()
    return [{column: value(column, cell) for column, cell in row.items()} for row in rows]


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line arguments."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        elif isinstance(value, (list, tuple)):
            words += [flag(name), *map(str, value)]
        elif value is not None:
            words.append(f"{flag(name)}={value}")
    return words


@contextmanager
def _errors(quiet: bool = False) -> Iterator[None]:
    """Inside, replace TensorFlow's errors by the project's errors, and a stop request by KeyboardInterrupt."""
    try:
        with redirect_stdout(io.StringIO()) if quiet else nullcontext():
            yield
    except Answered:
        raise OptionError(
            "options that only print information, such as dry_run, need the command cnn; leave them out"
        ) from None
    except StopRequest as request:
        signal.raise_signal(request.number)  # the signal handlers of the calling program run too
        raise KeyboardInterrupt from None
    except Exception as error:
        if not tf_runtime.is_of_tensorflow(error):
            raise
        message = tf_runtime.data_error(error)
        raise (DataError(message) if message else Failure(tf_runtime.device_error(error))) from error
