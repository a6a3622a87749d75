"""The network of an export: a run as validation has it, its newest whole weights, and the names of its classes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import DataError, OptionError
from base.fields import HALVES
from base.storage import run_files
from Datasets.formats import class_names, preprocessing
from harness.checkpoints import compatibility, find, read
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.cluster import membership
from harness.commands import answers, cli, entry
from harness.commands.cli import NORMALISATION
from harness.evaluation import inference_record
from harness.export.export_options import SCRIPT
from harness.options.sections import COMMAND_LINE, RunOptions, flag, with_trait
from harness.run.recorded_arguments import option_values
from harness.run.resolve import prepare
from harness.run.run import Run

if TYPE_CHECKING:
    import numpy as np

LABELS, PREPROCESSING = run_files.EXPORT
_OWN = ("main", "dataset", "model")  # sections whose options an export follows


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """Weights with all that an export needs. `values`: arrays by variable name. `names`: of what is put out, in order; never
    empty. `without_data`: why the data set's pictures are not at hand, where they are not. `notes`: lines for the user."""

    run: Run
    checkpoint: Checkpoint
    values: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    without_data: str
    notes: tuple[str, ...]

    @property
    def has_data(self) -> bool:
        """True if the data set's pictures are at hand."""
        return not self.without_data

    def title(self) -> str:
        """The line that names the exported network."""
        run = self.run
        size = f"{run.image_size}x{run.image_size} pixels, {len(self.names)} classes, {run.trace.parameters:,} parameters"
        return f"Exporting {self.checkpoint.prefix}: {run.name.split('_bs')[0]}, {size}"

    def texts(self, side: int) -> dict[str, str]:
        """Return the files that describe the network, by name; `side`: of the images that it takes."""
        described = preprocessing.described(self.run.data_source.spec, self.run.request(1))
        about = {
            "network": self.run.name.split("_bs")[0],
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
        """Return the options that a file of these weights holds: of the network, its numbers and its images."""
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


def open_network(path: str, words: Sequence[str]) -> TrainedNetwork:
    """The network at a path, as `words` for validation.py describe it beside what was recorded. No data are needed."""
    selected, folder = find.select(Path(path), by_prefix=False), find.run_folder(Path(path))
    recorded = entry.recorded_options(folder, list(words), SCRIPT)
    parsed = answers.parse(list(words), SCRIPT, recorded, folder)
    _check_given(parsed)
    run, without_data = _prepared(parsed.options)
    checkpoint, values, left_out = read.load_network(selected, f"--restore-path {path}")
    expected = compatibility.expected_model_tensors(run)
    compatibility.check_shapes(compatibility.shapes_of_values(values), expected, checkpoint)
    for fault in compatibility.invalid_tensor(values, expected):
        raise CheckpointError(f"weights {checkpoint.prefix}: {fault}; export another checkpoint")
    names = inference_record.names(run, checkpoint)
    notes = [without_data] * bool(without_data)
    notes += [] if names else ["the names of the classes are not known: labels.txt numbers them"]
    outputs = run.trace.operations[-1].result.channels  # SqueezeNet has more than there are classes
    return TrainedNetwork(
        run=run,
        checkpoint=checkpoint,
        values=compatibility.model_tensors(run, values, checkpoint),
        names=(*names, *(f"class {k}" for k in range(len(names), outputs))),
        without_data=without_data,
        notes=(*parsed.notes, *left_out, *notes),
    )


def _check_given(parsed: cli.Parsed) -> None:
    """OptionError for options of validation.py that an export does not follow."""
    for name, source in parsed.options.sources.items():
        if source.startswith(COMMAND_LINE) and parsed.catalogue.options[name].section not in _OWN:
            raise OptionError(
                f"{flag(name)} is not an option of cnn export, which computes in FP32 and takes the options of data set and "
                "model alone; leave it out"
            )


def _prepared(options: RunOptions) -> tuple[Run, str]:
    """The run with its data and "", or with made-up data where those are not at hand, and why they are not."""
    environ = membership.without_others(os.environ)  # an export is of one process
    try:
        made_up = "the data are generated ones" if options.dataset.random_data else ""
        return prepare(options, environ, training=False), made_up
    except DataError as error:
        if options.given("data_dir"):
            raise
        reason = str(error).splitlines()[0]
    without = replace(options, dataset=replace(options.dataset, generated_data=True, data_dir=None))
    return prepare(without, environ, training=False), f"the data are not at hand ({reason})"
