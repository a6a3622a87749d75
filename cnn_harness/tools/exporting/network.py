"""Load the network to export: the weights of a checkpoint, the class names and the preprocessing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import DataError, OptionError
from cnn_harness.base.fields import HALVES
from cnn_harness.base.storage import run_files
from cnn_harness.Datasets.formats import class_names, preprocessing
from cnn_harness.harness.checkpoints import compatibility, find, read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.commands import answers, entry
from cnn_harness.harness.evaluation import inference_record
from cnn_harness.harness.options.call import Call, Parsed
from cnn_harness.harness.options.sections import COMMAND_LINE, RunOptions, flag, with_trait
from cnn_harness.harness.run import membership, recorded_arguments
from cnn_harness.harness.run.cli import NORMALISATION
from cnn_harness.harness.run.recorded_arguments import option_values
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.tools.exporting.export_options import SCRIPT

if TYPE_CHECKING:
    import numpy as np

LABELS, PREPROCESSING = run_files.EXPORT
NO_OPTIONS = Call(SCRIPT)
_OWN = ("main", "dataset", "model")  # sections of options that cnn export accepts


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A network to export. `values` are the weights by variable name. `names` contains a name for each output.
    `without_data` is the reason if the data set cannot be read, otherwise "". `notes` are messages for the user."""

    run: Run
    checkpoint: Checkpoint
    values: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    without_data: str
    notes: tuple[str, ...]

    @property
    def has_data(self) -> bool:
        """True if the data set can be read."""
        return not self.without_data

    def title(self) -> str:
        """Return the message that describes the exported network."""
        run = self.run
        size = f"{run.image_size}x{run.image_size} pixels, {len(self.names)} classes, {run.network.parameters:,} parameters"
        return f"Exporting {self.checkpoint.prefix}: {recorded_arguments.network_title(run.options.values())}, {size}"

    def texts(self, side: int) -> dict[str, str]:
        """Return the text files that describe the network, by name. `side` is the side of the input images in pixels."""
        described = preprocessing.described(self.run.data_source.spec, self.run.request(1))
        about = {
            "network": recorded_arguments.network_title(self.run.options.values()),
            "checkpoint": self.checkpoint.name,
            "weights": self._digest(),
            "input": {"name": "image", "dtype": "uint8", "shape": [None, side, side, 3], "channel_order": "RGB"},
            "output": {"name": "probabilities", "dtype": "float32", "shape": [None, len(self.names)], "labels": LABELS},
            "prepare": described.pop("resize"),
            "done_inside": described,
        }
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        return {LABELS: class_names.text(self.names), PREPROCESSING: text}

    def recorded(self) -> dict[str, Any]:
        """Return the options of model, precision and preprocessing, which are stored with the weights."""
        run, chosen = self.run, option_values(self.run)
        own = [each.name for each in fields(run.options.model)]
        names = inference_record.names(run, self.checkpoint)
        wanted = ("model", "dataset", *own, *NORMALISATION, *with_trait(HALVES))
        return {
            **{name: chosen[name] for name in wanted if chosen[name] not in (None, [])},
            "image_size": run.image_size,
            "num_classes": run.data_source.spec.num_classes,
            "precision": run.plan.precision.name,
            **({inference_record.NAMES: list(names)} if names else {}),
        }

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.values):
            digest.update(name.encode() + self.values[name].tobytes())
        return digest.hexdigest()[:16]


def open_network(path: str, options: Call = NO_OPTIONS) -> TrainedNetwork:
    """Return the network at a path, even if the data set cannot be read. `options` override the recorded
    options."""
    selected, folder = find.select(Path(path), by_prefix=False), find.run_folder(Path(path))
    call = Call.of_values({"restore_path": path}, SCRIPT) + options
    recorded = entry.recorded_options(folder, call)
    parsed = answers.parse(call, recorded, folder)
    _check_given(parsed)
    run, without_data = _prepared(parsed.options)
    checkpoint, values, left_out = read.load_network(selected, f"--restore-path {path}")
    expected = compatibility.expected_model_tensors(run)
    compatibility.check_shapes(compatibility.shapes_of_values(values), expected, checkpoint)
    for fault in compatibility.invalid_tensor(values, expected):
        raise CheckpointError(f"weights {checkpoint.prefix}: {fault}; export another checkpoint")
    names = inference_record.names(run, checkpoint)
    notes = [without_data] * bool(without_data)
    notes += [] if names else ["the class names are unknown; labels.txt contains class numbers instead"]
    outputs = run.network.nodes[-1].shape.channels  # SqueezeNet has more outputs than classes.
    return TrainedNetwork(
        run=run,
        checkpoint=checkpoint,
        values=compatibility.model_tensors(run, values, checkpoint),
        names=(*names, *(f"class {k}" for k in range(len(names), outputs))),
        without_data=without_data,
        notes=(*parsed.notes, *left_out, *notes),
    )


def _check_given(parsed: Parsed) -> None:
    """Raise OptionError for options of validation.py that cnn export does not accept."""
    for name, source in parsed.options.sources.items():
        if source.startswith(COMMAND_LINE) and parsed.catalogue.options[name].section not in _OWN:
            raise OptionError(
                f"{flag(name)} is not an option of cnn export. Leave it out: cnn export accepts only "
                "data set and model options, and always computes in FP32"
            )


def _prepared(options: RunOptions) -> tuple[Run, str]:
    """Return the run, and the reason if the data set cannot be read. The run then has generated data."""
    environ = membership.without_others(os.environ)  # An export is always one process.
    try:
        generated = "the run has generated data" if options.dataset.random_data else ""
        return prepare(options, environ, training=False).run, generated
    except DataError as error:
        if options.given("data_dir"):
            raise
        reason = str(error).splitlines()[0]
    without = replace(options, dataset=replace(options.dataset, generated_data=True, data_dir=None))
    return prepare(without, environ, training=False).run, f"the data cannot be read ({reason})"
