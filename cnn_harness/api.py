"""The Python API (`import cnn_harness`): functions that do the same as the commands, for notebooks and programs.

Options of the commands are keyword arguments: `train("quickstart", micro_batch_size=16)` is equivalent to
`cnn train --config quickstart --micro-batch-size 16`. Give True or False for a switch, and a list for an option with
several values. With `quiet`, nothing is printed. An option that only prints information, such as `dry_run`, returns the
text.

Wrong input raises WrongInput: OptionError, DataError or CheckpointError. Failures at run time raise Failure. Both have the
base HarnessError. An interrupted training run saves a checkpoint, then raises KeyboardInterrupt.

Threads can share a network, which answers one call after the other. A copied or pickled network has only the path, and reads
the weights again on first use.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from numbers import Number
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import cnn_harness.train as training
from cnn_harness import validation
from cnn_harness.base.errors import Answered, DataError, Failure, HarnessError, Leave, OptionError, UserError, WrongInput  # noqa: F401
from cnn_harness.base.fields import short
from cnn_harness.base.process import command_line, commands, printed, tf_runtime
from cnn_harness.base.process.signals import StopRequest
from cnn_harness.base.storage.run_files import ARGUMENTS
from cnn_harness.base.storage.tables import TABLES, run_table
from cnn_harness.harness.checkpoints import compatibility, find
from cnn_harness.harness.checkpoints.checkpoint import UNSAVED, Checkpoint, CheckpointError
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.commands import entry, run_list
from cnn_harness.harness.evaluation import inference_record, photo_predictions
from cnn_harness.harness.evaluation.photo_predictions import Predictor
from cnn_harness.harness.evaluation.saved_weights import SavedWeights
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.keyword_form import in_python
from cnn_harness.harness.reports import chart, run_page, training_chart
from cnn_harness.harness.run.cluster import Cluster, seed_of
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.run_dir import Listener
from cnn_harness.tools import export as exporting
from cnn_harness.tools import finetune as finetuning
from cnn_harness.tools import plan as planning
from cnn_harness.tools import report as reporting
from cnn_harness.tools.planning import plan_options, planned_config

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from typing_extensions import Unpack

    from cnn_harness.option_types import PlanOptions, TrainOptions, ValidateOptions

    Rows = pandas.DataFrame | list[dict[str, Any]]

if not commands.in_checkout():  # hints in messages then show the installed command `cnn`
    commands.begin(commands.Call(prog="cnn", command=""))
RunPath = str | PathLike  # the path of a run directory, checkpoint or .npz file, or the name of included weights
_WHOLE = ("step", "iteration", "val_size")  # CSV columns that hold whole numbers
_RUN = "the path of a run directory, a checkpoint or a weight file, or efficientnet-lite0"
_FOLDER = "the path of a folder that contains a folder of images for each class"


class _Weights(NamedTuple):
    """The run as `cnn predict` loads it, its checkpoint, and the checkpoint's tensors."""

    run: Run
    checkpoint: Checkpoint
    values: Tensors


class TrainedNetwork:
    """A network with the weights of a run or of a weight file.

    `path` is the path given by the user. `folder` is the run directory, or the weight file.
    """

    def __init__(self, path: RunPath) -> None:
        """Locate the run or file; the weights are read on first use."""
        self.path = Path(_path(path, "run", _RUN))
        self.folder = find.run_folder(self.path)
        self._weights: _Weights | None = None
        self._predictor: Predictor | None = None
        self._lock = threading.RLock()  # protects the weights and the predictor
        _NETWORKS.add(self)

    def __reduce__(self) -> tuple:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names, in the order of the columns of `predict`; () if they are unknown."""
        weights = self._loaded()
        return inference_record.names(weights.run, weights.checkpoint)

    @property
    def history(self) -> Rows:
        """Return the rows of training.csv."""
        return history(self)

    @property
    def accuracy(self) -> float | None:
        """Return the validation accuracy of these weights (top-1, in per cent); None if they were not validated."""
        name = self._loaded().checkpoint.name if find.numbered(self.folder) else UNSAVED
        return {row["name"]: row["val_acc"] for row in _rows(self.folder, "validation.csv")}.get(name)

    def predict(self, images: Any) -> np.ndarray:
        """Return the probability of each class for each image, float32 [n, classes].

        `images` is an image file, a folder, a PIL image, an array of uint8 [height, width, 3] or [n, height, width, 3], or
        a list of these. Objects with `__array__` are arrays. Images are preprocessed as in validation. A folder means all
        images below it, sorted by path.
        """
        import numpy as np

        from cnn_harness.harness.evaluation import given_images

        found: list[np.ndarray] = []
        with _errors(), _tensorflow():
            sources = given_images.sources(images)
            while together := [*islice(sources, photo_predictions.TOGETHER)]:
                found += self._probabilities(together, len(found))
            if not found:
                return np.zeros([0, self._loaded().run.data_source.spec.num_classes], np.float32)
        return np.asarray(found, np.float32)

    def _probabilities(self, images: list, first: int) -> list[np.ndarray]:
        with self._lock:
            if not self._predictor:
                weights = self._loaded()
                self._predictor = Predictor(weights.run, seed_of(weights.run.options), weights.checkpoint, weights.values)
            prepared = self._predictor.prepare(images, first)  # a wrong image leaves the predictor intact
            try:
                return [*self._predictor.probabilities(prepared)]
            except BaseException:
                self.close()  # an interrupted program cannot be used again
                raise

    def evaluate(
        self, data: RunPath | None = None, *, quiet: bool = False, **options: Unpack[ValidateOptions]
    ) -> dict[str, Any]:
        """Validate the weights; return a row of validation.csv as a dict.

        "val_acc" and "top5_acc" are in per cent; "val_size" is the number of images. `data` is a folder that contains one
        folder of images per class, or the files of the network's data set. None means the run's own validation set.
        `options` are the options of `cnn validate`.
        """
        weights = self._loaded()
        if data is not None:
            options["data_dir"] = folder = _path(data, "data", _FOLDER)
            if weights.run.data_source.spec.name == "imagefolder":  # validate on all images of the folder
                options |= {"validation_dir": Path(folder).resolve(), "validation_split": 0}
        rows: list[Mapping[str, Any]] = []
        call = _call("validation", {"restore_path": weights.checkpoint.prefix, "no_logs": True, **options})

        def validated() -> dict[str, Any]:
            with self._lock:
                validation.main(call, rows.append)
            return dict(rows[-1])

        return _result(validated, quiet)

    def export(
        self, output: RunPath, to: str | Sequence[str] = "savedmodel", *, int8: bool = False, force: bool = False,
        quiet: bool = False,
    ) -> Path:  # fmt: skip
        """Export the network like `cnn export`, compare every file with these weights, and return the folder `output`.

        `to` names one format or several, such as ["tflite", "onnx"]. `int8` also quantises the TensorFlow Lite file, and
        `force` replaces files of an earlier export.
        """
        formats = to if isinstance(to, str) else ",".join(to)
        target = Path(_path(output, "output", "the path of a folder"))
        values = {"restore_path": self.path, "to": formats, "output": target, "int8": int8, "force": force}
        _result(lambda: exporting.main(Call.of_values(values, "validation")), quiet)
        return target

    def report(self, html: RunPath | None = None, *, evaluation: bool = True, quiet: bool = False) -> Path:
        """Write the report of the run like `cnn report`, and return its path: `html`, or report.html in the run directory.

        Without `evaluation`, the page shows only the logged tables.
        """
        target = Path(_path(html, "html", "the path of a file") if html else self.folder / run_page.FILE)
        values = Call.of_values({"html": target, "evaluation": evaluation}, "")
        _result(lambda: reporting.main(replace(values, bare=(str(self.path),))), quiet)
        return target

    def close(self) -> None:
        """Free the memory of the compiled network. The next call of `predict` compiles it again."""
        with self._lock:
            predictor, self._predictor = self._predictor, None
            if predictor:
                predictor.close()

    def _loaded(self) -> _Weights:
        with self._lock:
            if not self._weights:
                self._weights = self._load()
            return self._weights

    def _load(self) -> _Weights:
        call = _call("validation", {"restore_path": self.path, "predict": ["images"]})
        with _errors(unnamed="--restore-path "):
            found = validation.saved_weights(call)
            origin = _Saved(found.checkpoints, found.folder, found.recorded)
            run, _, notes = entry.checked_run(call, origin, training=False)
            checkpoint, values, warnings = photo_predictions.load_weights(run, found.checkpoints)
        for line in (*notes, *warnings):
            print(line)
        return _Weights(run, checkpoint, values)

    def _after_fork(self) -> None:
        """Forget what belongs to the parent process: a lock that another thread may hold, and the predictor."""
        self._lock = threading.RLock()
        if self._predictor:  # freeing its session would crash, because the threads of the session are missing
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._predictor))
            self._predictor = None


class _Saved(SavedWeights):
    """Saved weights, checked without the images, which `predict` receives later."""

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        return compatibility.check_model(run, self.checkpoints)


_NETWORKS: WeakSet[TrainedNetwork] = WeakSet()
os.register_at_fork(after_in_child=lambda: [network._after_fork() for network in _NETWORKS])


def load(run: RunPath) -> TrainedNetwork:
    """Return the network in a run directory, a checkpoint or a .npz file, or the included efficientnet-lite0."""
    network = TrainedNetwork(run)
    network._loaded()  # read the weights now, so that errors are raised here
    return network


def train(
    config: str | None = None,
    *,
    on_step: Callable[[Mapping[str, Any]], None] | None = None,
    on_validation: Callable[[Mapping[str, Any]], None] | None = None,
    quiet: bool = False,
    **options: Unpack[TrainOptions],
) -> TrainedNetwork:
    """Train like `cnn train`, or resume the run in `restore_path`; return the trained network.

    `on_step` is called once for each weight update, with {"iteration": int, "epoch", "lr", "loss", "accuracy": float}. The
    accuracy is measured on the update's images, in per cent. The calls come in groups, because results arrive only after
    every `batches_per_step` updates. `on_validation` is called after each validation with the row of validation.csv.
    If a callback raises an error, the run saves a checkpoint and ends.
    """
    given = {"on_step": on_step, "on_validation": on_validation}
    raised: list[Exception] = []
    listener = Listener(**{name: _callback(name, each, raised) for name, each in given.items() if each is not None})
    call = _call("train", {"config": config, **options})
    return _result(lambda: TrainedNetwork(training.start_or_resume(call, listener)), quiet, raised)


def finetune(folder: RunPath, *, quiet: bool = False, **options: Unpack[TrainOptions]) -> TrainedNetwork:
    """Fine-tune published weights on your photos; return the network with its best weights.

    `folder` contains one folder of images per class. `options` are the options of `cnn finetune`.
    """
    place = _path(folder, "folder", _FOLDER)
    options = {"logs_path": finetuning.default_run(place), **options}
    call = _call("train", options)
    call = replace(call, words=(command_line.as_value(Path(place)), *call.words), bare=(place,))

    def finetuned() -> TrainedNetwork:
        finetuning.main(call)
        return load(options["logs_path"])

    return _result(finetuned, quiet)


def plan(config: str | None = None, system: str | None = None, **options: Unpack[PlanOptions]) -> dict[str, Any]:
    """Return the prediction for a training run on an IPU system, like `cnn plan --json`.

    `system` is the name of a system, for example POD16. The default is the smallest system that is large enough.
    """
    with _errors():
        if options.keys() & {"json", "html", "help"}:
            raise OptionError("plan returns the prediction as a dictionary; leave out json, html and help")
        request = plan_options.parse(_call("train", {"config": config, "system": system, **options}))
        found = planned_config.fastest(request) if request.search else planning.plan(request)
        if len(found) > 1:
            raise OptionError(f"plan returns one prediction, but {len(found)} are asked for; call it once for each")
        return found[0].values(None)


def history(run: RunPath | TrainedNetwork, table: str = "training") -> Rows:
    """Return the rows of a run's training.csv or validation.csv, with numbers as int and float.

    `table` is "training" or "validation". The result is a pandas.DataFrame if pandas is installed, else a list of dicts.
    """
    if f"{table}.csv" not in TABLES:
        raise OptionError(f"table is {table!r} but must be one of {', '.join(name.removesuffix('.csv') for name in TABLES)}")
    with _errors():
        rows = _rows(_folder(run), f"{table}.csv")
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=[*TABLES[f"{table}.csv"]])


def runs(folder: RunPath = run_list.LOGS, sort: str = "time") -> list[dict[str, Any]]:
    """Return the runs in a folder at any depth, like `cnn runs --json`: a dict for each run.

    `sort` is the order: "time" (newest first), "accuracy" (best first) or "name".
    """
    if sort not in run_list.ORDERS:
        raise OptionError(f"sort is {short(repr(sort))} but must be one of {', '.join(run_list.ORDERS)}")
    with _errors():
        found = run_list.find_runs(Path(_path(folder, "folder", "the path of a folder with runs")))
        return [run_list.as_json(run) for run in run_list.ordered(found, sort)]


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
    if not isinstance(runs, Mapping):
        raise OptionError(f"runs is {short(repr(runs))} but must be a dictionary {{label: run}}")
    with _errors():
        rows = [(str(label), *training_chart.tables(_folder(run))) for label, run in runs.items()]
    return Svg(chart.figure(training_chart.comparison_panels(rows), str(title)))


def _folder(run: RunPath | TrainedNetwork) -> Path:
    folder = run.folder if isinstance(run, TrainedNetwork) else Path(_path(run, "run", _RUN))
    find.check_run_folder(folder, "run")
    if not any((folder / name).exists() for name in (*TABLES, *ARGUMENTS)):
        raise CheckpointError(f"run {folder} has no training.csv; give a run directory{find.runs_in(folder)}")
    return folder


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    def value(column: str, cell: str) -> Any:
        return cell if column == "name" else int(cell) if column in _WHOLE else float(cell)

    rows = run_table(folder, table).read()
    return [{column: value(column, cell) for column, cell in row.items()} for row in rows]


def _path(value: Any, name: str, meaning: str) -> str:
    """Return a path as text. Raise OptionError for an object that is no path."""
    if isinstance(value, TrainedNetwork):
        value = value.path
    if not isinstance(value, (str, PathLike)) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        raise OptionError(f"{name} is {short(repr(value))} but must be {meaning}")
    return os.fspath(value)


def _callback(name: str, function: Any, raised: list[Exception]) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that prints as usual, and that adds its errors to `raised`."""
    if not callable(function):
        raise OptionError(f"{name} is {short(repr(function))} but must be a function of one argument")

    def call(values: Mapping[str, Any]) -> None:
        try:
            printed.aloud(function)(values)
        except Exception as error:
            raised.append(error)
            raise

    return call


def _call(script: str, options: Mapping[str, Any]) -> Call:
    """Return the call of a script with these options."""
    return Call.of_values({name: _plain(name, value) for name, value in options.items()}, script)


def _plain(name: str, value: Any) -> Any:
    """Return the value of an option as text, True, False, None or a list of texts."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numbers and arrays of NumPy
    if isinstance(value, (list, tuple)):
        return [_word(name, each) for each in value]
    return value if value is None or isinstance(value, bool) else _word(name, value)


def _word(name: str, value: Any) -> str:
    if isinstance(value, TrainedNetwork):
        return str(value.path)
    if not isinstance(value, (str, PathLike, Number)):
        raise OptionError(f"{name} is {short(repr(value))} but must be text, a number, True, False or a list of these")
    return str(value)


def _result(call: Callable[[], Any], quiet: bool, raised: Sequence[Exception] = ()) -> Any:
    """Return the result of a call, or the text that it prints if that is all it does. `raised` are errors of callbacks."""
    with printed.heard(quiet) as text, _errors(raised=raised), _tensorflow():
        try:
            return call()
        except Answered:
            return text.getvalue()


@contextmanager
def _tensorflow() -> Iterator[None]:
    """Inside, TensorFlow may run. Raise WrongInput at once if it cannot run in this process."""
    tf_runtime.check_not_forked()
    tf_runtime.mark_used()
    try:
        yield
    finally:
        tf_runtime.mark_used()  # the first call has imported it


@contextmanager
def _errors(unnamed: str = "", raised: Sequence[Exception] = ()) -> Iterator[None]:
    """Inside, replace errors by those of the package, with messages for Python. A stop request raises KeyboardInterrupt.

    Messages do not begin with `unnamed`. Errors in `raised` are unchanged.
    """
    try:
        try:
            yield
        except Leave as leave:
            raise leave.error from leave.error.__cause__
    except StopRequest as request:
        signal.raise_signal(request.number)  # the signal handlers of the calling program run too
        raise KeyboardInterrupt from None
    except Exception as error:
        if any(error is each for each in raised):
            raise
        if isinstance(error, HarnessError):
            error.args = tuple(in_python(each.removeprefix(unnamed)) for each in error.args)
            if isinstance(error, UserError):
                error.message, error.listed = (*error.args, "")[:2]
            raise
        replaced = _replaced(error)
        if replaced is None:
            raise
        raise replaced from error


def _replaced(error: Exception) -> HarnessError | None:
    """Return the package's error for an error of another package; None for an unexpected error."""
    if tf_runtime.is_of_tensorflow(error):
        message = tf_runtime.data_error(error)
        return DataError(in_python(message)) if message else Failure(in_python(tf_runtime.device_error(error)))
    if isinstance(error, OSError):
        return Failure(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    message = str(error) if isinstance(error, FloatingPointError) else tf_runtime.starved_message(error)
    return Failure(in_python(message)) if message else None
