"""Export a trained network for use without this project: SavedModel, frozen graph, TensorFlow Lite, ONNX, safetensors.

cnn export logs/<run> --to savedmodel,tflite,onnx
cnn export logs/<run>/ckpt-500 --to tflite --int8 --output phone
cnn export efficientnet-lite0 --to onnx
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base import bounds
from cnn_harness.base.fields import escaped
from cnn_harness.base.process import progress, tf_runtime
from cnn_harness.base.storage import files
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.programs import embedded
from cnn_harness.tools.exporting import comparison, export_folder, export_options, file_formats, network, readme
from cnn_harness.tools.exporting.comparison import ExportError
from cnn_harness.tools.exporting.export_options import ExportRequest
from cnn_harness.tools.exporting.file_formats import FORMATS, Content
from cnn_harness.tools.exporting.network import TrainedNetwork

if TYPE_CHECKING:
    import numpy as np
    import tensorflow.compat.v1 as tf


def main(call: Call) -> int:
    """Export a network in every requested format, and compare each file with the checkpoint; return the exit code."""
    request = export_options.parse(call)
    file_formats.check_packages(request.formats)
    exported = network.open_network(request.path, request.options)
    texts = exported.texts(embedded.shape(exported.run)[1])
    export_folder.check(request.output, texts, request.force)
    if request.int8:
        comparison.check_calibration(exported)
    for line in (*exported.notes, exported.title()):
        print(escaped(line))
    if not exported.run.options.main.dry_run:
        _export(request, exported, texts)
    return 0


def _export(request: ExportRequest, exported: TrainedNetwork, texts: Mapping[str, str]) -> None:
    """Write all files to a temporary folder; move them to the output folder if all agree with the checkpoint."""
    tf_runtime.import_tensorflow("3")
    from cnn_harness.harness.programs import build

    with export_folder.staged(request.output) as staging:
        with progress.waiting("Computing probabilities with the checkpoint"):
            checked = comparison.checking(exported)
            expected = comparison.own_answers(exported, checked.images)
        print(f"Compared with the checkpoint on {len(expected)} {checked.origin}:")
        graph = build.portable_graph(exported.run, exported.values)
        for name, file in request.files.items():
            quantised = file == FORMATS[name].quantised
            with progress.waiting(f"Writing and comparing {file}"), files.naming(request.output / file):
                content = _content(exported, graph, texts, quantised)
                answers = _answers(name, content, staging / file, checked.images)
            compared = comparison.compare(expected, answers)
            size_text = f"{file}, {export_folder.size(staging / file) / 1e6:.1f} MB"
            bound = comparison.bound(exported, quantised)
            if not compared.keeps(bound):
                raise ExportError(f"{size_text}: {compared}; {compared.rule(bound)}; no file was written")
            print(f"  {size_text}: {compared}")
        export_folder.put(staging, request.output, texts)
    print(f"Export written to {escaped(str(request.output))}, with {', '.join(texts)} and {readme.FILE}")


def _content(exported: TrainedNetwork, graph: tf.GraphDef, texts: Mapping[str, str], quantised: bool) -> Content:
    calibration = comparison.calibration(exported) if quantised else None
    return Content(
        graph=graph, values=exported.values, recorded=exported.recorded(), labels=exported.names, texts=texts,
        calibration=calibration,
    )  # fmt: skip


def _answers(name: str, content: Content, path: Path, images: np.ndarray) -> np.ndarray:
    """Write one format to `path`; return the probabilities that the format's own runtime computes for the images."""
    try:
        with file_formats.quiet():
            FORMATS[name].write(content, path)
            return comparison.answers(FORMATS[name].runner(path), images)
    except (OSError, MemoryError, ExportError):
        raise
    except Exception as error:  # converters and runtimes raise many classes of exceptions
        raise ExportError(f"--to {name}: {type(error).__name__}: {bounds.reason(error)}; no file was written") from None


if __name__ == "__main__":
    sys.exit(answers.run_command("export", main, None))
