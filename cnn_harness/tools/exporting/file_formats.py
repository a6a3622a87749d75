"""Convert the frozen graph of a network to each export format, and open the exported files."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.checkpoints import weights_file

if TYPE_CHECKING:
    import numpy as np
    import tensorflow.compat.v1 as tf

    from cnn_harness.tools.exporting.predict import Runner

_OPSET = 17  # the newest ONNX opset in which tf2onnx can write all networks


@dataclass(frozen=True, kw_only=True)
class Content:
    """A network to convert.

    `values` are the weights by name, `recorded` the options of the network, and `labels` the class names. `texts` are the
    text files with labels and preprocessing, by file name; some formats store them. `calibration` are uint8 images [n, side,
    side, 3] for quantisation; with None, the network stays in FP32.
    """

    graph: tf.GraphDef
    values: Mapping[str, np.ndarray]
    recorded: Mapping[str, Any]
    labels: Sequence[str]
    texts: Mapping[str, str]
    calibration: np.ndarray | None = None


def _by_program(path: Path) -> Runner:
    """Open a file in the same way as predict.py, which is a part of every export."""
    from cnn_harness.tools.exporting import predict

    return predict.opened(path)


@dataclass(frozen=True, kw_only=True)
class Format:
    """An export format. `write` creates the file or folder at a path. `runner` opens the file in the usual runtime of the
    format."""

    file: str
    quantised: str = ""  # name of the file with --int8
    write: Callable[[Content, Path], None]
    runner: Callable[[Path], Runner] = _by_program
    packages: tuple[str, ...] = ()  # required packages in addition to TensorFlow


def check_packages(names: Sequence[str]) -> None:
    """Raise OptionError if a package for these formats is missing. The message shows how to install it."""
    wanted = [(package, name) for name in names for package in FORMATS[name].packages]
    missing = [(package, name) for package, name in wanted if importlib.util.find_spec(package) is None]
    if missing:
        packages = list(dict.fromkeys(package for package, _ in missing))
        raise OptionError(
            f"--to {missing[0][1]} needs {', '.join(packages)}. Install the extra `export`: {sys.executable} -m pip install "
            + " ".join(packages)
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and standard error, because converters and runtimes write a lot."""
    sys.stderr.flush()
    before, saved = logging.root.manager.disable, os.dup(2)
    logging.disable(logging.WARNING)
    with open(os.devnull, "wb") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            logging.disable(before)


# TensorFlow: SavedModel and frozen graph


def _imported(definition: tf.GraphDef) -> Any:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    return tf.Session(graph=graph)


def _write_saved_model(content: Content, path: Path) -> None:
    import tensorflow.compat.v1 as tf

    from cnn_harness.ipu_utils import IMAGE, PROBABILITIES

    with _imported(content.graph) as session:
        image, probabilities = (session.graph.get_tensor_by_name(f"{name}:0") for name in (IMAGE, PROBABILITIES))
        signature = tf.saved_model.predict_signature_def({IMAGE: image}, {PROBABILITIES: probabilities})
        builder = tf.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], {"serving_default": signature})
        builder.save()
    extra = path / "assets.extra"  # TensorFlow reserves this folder for additional files.
    extra.mkdir()
    for name, text in content.texts.items():
        (extra / name).write_text(text, encoding="utf-8")


def _write_frozen(content: Content, path: Path) -> None:
    path.write_bytes(content.graph.SerializeToString())


# TensorFlow Lite


def _write_tflite(content: Content, path: Path) -> None:
    """Write the model. TensorFlow Lite's tools expect labels and preprocessing in a zip archive at the end of the file."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(content, Path(folder, "model"))
        converter = tf.lite.TFLiteConverter.from_saved_model(str(Path(folder, "model")))
        model = converter.convert() if content.calibration is None else _quantised(converter, content.calibration)
    path.write_bytes(_described(model, [*content.texts]))
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in content.texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)


def _quantised(converter: Any, calibration: np.ndarray) -> bytes:
    """Return the model with 8-bit weights and activations. Their ranges come from the calibration images.

    The division of an image by its standard deviation stays in FP32, because a small deviation would become 0 in 8 bits.
    """
    import tensorflow as tf

    def images() -> Iterator[list[np.ndarray]]:
        return ([image[None]] for image in calibration)

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = images
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=["DIV"])
    tool = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_dataset=images, debug_options=options)
    return tool.get_nondebug_quantized_model()


def _described(model: bytes, files: Sequence[str]) -> bytes:
    """Return the model with metadata, and with the names of its signature for inputs and outputs instead of TensorFlow's
    internal names. `files` are the files in the archive."""
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    from cnn_harness.tools.exporting import tflite_metadata

    converted = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    (signature,) = converted.signatureDefs
    tensors = converted.subgraphs[signature.subgraphIndex].tensors
    for each in (*signature.inputs, *signature.outputs):
        tensors[each.tensorIndex].name = each.name
    (image,), (probabilities,) = signature.inputs, signature.outputs
    side = int(tensors[image.tensorIndex].shape[1])
    text = tflite_metadata.metadata(image.name, side, probabilities.name, files)
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer, buffer.data = tflite_metadata.BUFFER, len(converted.buffers), list(text)
    converted.buffers.append(buffer)
    converted.metadata = [*(converted.metadata or []), entry]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(converted))


# ONNX


def _write_onnx(content: Content, path: Path) -> None:
    """Write the model with labels and preprocessing in the metadata."""
    import onnx
    import tf2onnx

    from cnn_harness.ipu_utils import IMAGE, PROBABILITIES

    model, _ = tf2onnx.convert.from_graph_def(
        content.graph, input_names=[f"{IMAGE}:0"], output_names=[f"{PROBABILITIES}:0"], opset=_OPSET
    )
    own = {f"{name}:0": name for name in (IMAGE, PROBABILITIES)}  # maps TensorFlow's tensor names to the names in the export
    for each in (*model.graph.input, *model.graph.output):
        each.name = own[each.name]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [own.get(name, name) for name in names]
    if content.calibration is not None:
        model = _quantised_onnx(model, content.calibration)
    onnx.helper.set_model_props(model, {"labels": json.dumps(content.labels), **content.texts})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _quantised_onnx(model: Any, calibration: np.ndarray) -> Any:
    """Return the model with 8-bit weights and activations in additions, convolutions and matrix products. Each channel of
    the weights has its own range. The ranges of activations come from the calibration images. With Clip (ReLU6) and Relu in
    the list, a convolution's range is that of the result: without the values that become 0 or 6."""
    import onnx
    from onnxruntime import quantization

    from cnn_harness.ipu_utils import IMAGE

    feeds = ({IMAGE: image[None]} for image in calibration)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        exact, fused, coarse = (Path(folder, f"{name}.onnx") for name in ("exact", "fused", "coarse"))
        onnx.save(model, exact)
        quantization.quant_pre_process(exact, fused, skip_symbolic_shape=True)
        quantization.quantize_static(
            fused, coarse, Reader(), per_channel=True, op_types_to_quantize=["Add", "Clip", "Conv", "Gemm", "MatMul", "Relu"]
        )
        return onnx.load(coarse)


# safetensors: the weights only, for this project and other tools


def _write_safetensors(content: Content, path: Path) -> None:
    weights_file.write(path, dict(content.values), dict(content.recorded))


def _safetensors_runner(path: Path) -> Runner:
    from cnn_harness.tools.exporting import comparison, network

    read = network.open_network(str(path))
    return lambda images: comparison.own_answers(read, images)


FORMATS = {
    "savedmodel": Format(file="saved_model", write=_write_saved_model),
    "frozen": Format(file="frozen.pb", write=_write_frozen),
    "tflite": Format(file="model.tflite", quantised="model_int8.tflite", write=_write_tflite),
    "onnx": Format(
        file="model.onnx", quantised="model_int8.onnx", write=_write_onnx, packages=("tf2onnx", "onnx", "onnxruntime")
    ),
    "safetensors": Format(
        file="model.safetensors", write=_write_safetensors, runner=_safetensors_runner, packages=("safetensors",)
    ),
}
