"""The formats that a network is exported to: for each its file, the packages that it needs, its converter from one frozen
graph, and its own runtime."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import OptionError
from base.fields import brief
from base.storage import input_files
from harness.programs.embedded import MAX_BYTES

if TYPE_CHECKING:
    import numpy as np
    import tensorflow.compat.v1 as tf

# operations of a portable graph, none of which reads or writes a file; graphs with others are not run
PLAIN = frozenset(
    [
        "AddV2",
        "BiasAdd",
        "Cast",
        "ConcatV2",
        "Const",
        "Conv2D",
        "DepthwiseConv2dNative",
        "ExpandDims",
        "FusedBatchNormV3",
        "MatMul",
        "MaxPool",
        "Maximum",
        "Mean",
        "Mul",
        "Pack",
        "Pad",
        "Placeholder",
        "RealDiv",
        "Relu",
        "Relu6",
        "Reshape",
        "ResizeBilinear",
        "Rsqrt",
        "Shape",
        "Sigmoid",
        "Softmax",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "StridedSlice",
        "Sub",
        "Tile",
        "Unpack",
    ]
)
_NO_EXPORT = "it holds what no export does: {}"
_MAX_FILES = 100  # in the folder of a SavedModel
_MAX_NUMBERS = 1 << 28  # of a tensor, for each picture: 1 GB
_OPSET = 17  # of ONNX; the newest that tf2onnx writes all of these networks in
Runner = Callable[["np.ndarray"], "np.ndarray"]  # uint8 [batch, side, side, 3] -> float32 [batch, classes]


@dataclass(frozen=True, kw_only=True)
class Content:
    """A network to be converted. `labels`: the names of its classes. `texts`: labels and preprocessing by file name, for
    formats that have a place for them. `calibration`: uint8 pictures [n, side, side, 3] for quantisation; None: FP32."""

    graph: tf.GraphDef
    labels: Sequence[str]
    texts: Mapping[str, str]
    calibration: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format. `write` makes the file, or the folder, at a path; `runner` is what its own runtime makes of that;
    `is_fragile`: damage may end the process of that runtime."""

    file: str
    quantised: str = ""  # the same with --int8
    write: Callable[[Content, Path], None]
    runner: Callable[[Path], Runner]
    packages: tuple[str, ...] = ()  # beside TensorFlow
    is_fragile: bool = False


def check_packages(names: Sequence[str]) -> None:
    """Raise an OptionError, with the command that installs them, if packages of these formats are missing."""
    wanted = [(package, name) for name in names for package in FORMATS[name].packages]
    missing = [(package, name) for package, name in wanted if importlib.util.find_spec(package) is None]
    if missing:
        packages = list(dict.fromkeys(package for package, _ in missing))
        raise OptionError(
            f"--to {missing[0][1]} needs {', '.join(packages)}, the extra `export`: {sys.executable} -m pip install "
            + " ".join(packages)
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, converters and runtimes write nothing to standard error; what they raise is told anyway."""
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


# TensorFlow's own: a SavedModel, and the graph alone


def _imported(definition: tf.GraphDef) -> Any:
    """Return a session with the graph. ValueError for one that might take any memory."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    _check_tensors(graph)
    return tf.Session(graph=graph)


def _check_tensors(graph: tf.Graph) -> None:
    """ValueError for a graph with a tensor above the bound, as far as its shapes are known."""
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            _check_size(tensor.name, (tensor.shape.rank and tensor.shape.as_list()) or ())


def _check_size(name: str, shape: Sequence[int | None]) -> None:
    """ValueError for a tensor above the bound. A few bytes of a file may say that one is of any size."""
    numbers = math.prod(size or 1 for size in shape)
    if numbers > _MAX_NUMBERS:
        raise ValueError(_NO_EXPORT.format(f"a tensor of {numbers:,} numbers, {brief(name)}"))


def _session_runner(session: tf.Session) -> Runner:
    from ipu_utils import IMAGE, PROBABILITIES

    return session.make_callable(f"{PROBABILITIES}:0", [f"{IMAGE}:0"])


def _check_plain(definition: tf.GraphDef) -> None:
    """ValueError for a graph that is no export: its operations might do anything that this process may."""
    others = sorted({node.op for node in definition.node} - PLAIN)
    if others or definition.library.function:
        raise ValueError(_NO_EXPORT.format(", ".join(others[:3]) or "functions"))


def _write_saved_model(content: Content, path: Path) -> None:
    import tensorflow.compat.v1 as tf

    from ipu_utils import IMAGE, PROBABILITIES

    with _imported(content.graph) as session:
        image, probabilities = (session.graph.get_tensor_by_name(f"{name}:0") for name in (IMAGE, PROBABILITIES))
        signature = tf.saved_model.predict_signature_def({IMAGE: image}, {PROBABILITIES: probabilities})
        builder = tf.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], {"serving_default": signature})
        builder.save()
    extra = path / "assets.extra"  # which SavedModels have for files of others
    extra.mkdir()
    for name, text in content.texts.items():
        (extra / name).write_text(text, encoding="utf-8")


def _saved_model_runner(path: Path) -> Runner:
    import tensorflow.compat.v1 as tf
    from tensorflow.core.protobuf import saved_model_pb2

    _check_regular(path)
    content = input_files.content(path / "saved_model.pb", MAX_BYTES)
    for meta in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        _check_plain(meta.graph_def)
    with tf.Graph().as_default() as graph:
        session = tf.Session(graph=graph)
        tf.saved_model.load(session, [tf.saved_model.SERVING], str(path))
    _check_tensors(graph)
    return _session_runner(session)


def _check_regular(folder: Path) -> None:
    """ValueError for a SavedModel's folder with a file that a reader might wait for, as a pipe."""
    there = list(islice(folder.rglob("*"), _MAX_FILES + 1))
    if len(there) > _MAX_FILES:
        raise ValueError(_NO_EXPORT.format(f"more than {_MAX_FILES} files"))
    for path in there:
        reason = None if path.is_dir() else input_files.unfit_reason(path.stat().st_mode)
        if reason:
            raise ValueError(f"{path.name}: {reason}")


def _write_frozen(content: Content, path: Path) -> None:
    path.write_bytes(content.graph.SerializeToString())


def _frozen_runner(path: Path) -> Runner:
    import tensorflow.compat.v1 as tf

    definition = tf.GraphDef.FromString(input_files.content(path, MAX_BYTES))
    _check_plain(definition)
    return _session_runner(_imported(definition))


# TensorFlow Lite


def _write_tflite(content: Content, path: Path) -> None:
    """Labels and preprocessing follow the model as a zip archive does, which Lite's tools read there."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(content, Path(folder, "model"))
        converter = tf.lite.TFLiteConverter.from_saved_model(str(Path(folder, "model")))
        model = converter.convert() if content.calibration is None else _quantised(converter, content.calibration)
    path.write_bytes(_named(model))
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in content.texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)


def _quantised(converter: Any, calibration: np.ndarray) -> bytes:
    """Return the model with 8-bit weights and activations, in ranges that fit the pictures. Divisions, of pictures by their
    deviation, stay in FP32: in 8 bits a small deviation is 0."""
    import tensorflow as tf

    def pictures() -> Iterator[list[np.ndarray]]:
        return ([picture[None]] for picture in calibration)

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = pictures
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=["DIV"])
    tool = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_dataset=pictures, debug_options=options)
    return tool.get_nondebug_quantized_model()


def _named(model: bytes) -> bytes:
    """Return a model whose input and output have the names of its signature, in place of TensorFlow's for them."""
    from tensorflow.lite.tools import flatbuffer_utils

    converted = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    for signature in converted.signatureDefs:
        for each in (*signature.inputs, *signature.outputs):
            converted.subgraphs[signature.subgraphIndex].tensors[each.tensorIndex].name = each.name
    return bytes(flatbuffer_utils.convert_object_to_bytearray(converted))


def _tflite_runner(path: Path) -> Runner:
    import tensorflow as tf

    from ipu_utils import IMAGE, PROBABILITIES

    content = input_files.content(path, MAX_BYTES)
    _check_plain_tflite(content)
    run = tf.lite.Interpreter(model_content=content).get_signature_runner("serving_default")
    expected_shape = tuple(map(int, run.get_input_details()[IMAGE]["shape_signature"][1:]))

    def answers(images: np.ndarray) -> np.ndarray:
        if images.shape[1:] != expected_shape:  # a model can be made anew for any size, at any cost
            raise ValueError(f"it takes pictures of {expected_shape}, not of {images.shape[1:]}")
        return run(**{IMAGE: images})[PROBABILITIES]

    return answers


def _check_plain_tflite(content: bytes) -> None:
    """ValueError for a model with operations of others' making, with graphs inside of operations, as loops have them, or
    that might take any memory."""
    from tensorflow.lite.python.schema_py_generated import Model

    model = Model.GetRootAs(content, 0)
    if model.SubgraphsLength() != 1:
        raise ValueError(_NO_EXPORT.format(f"{model.SubgraphsLength()} graphs"))
    for k in range(model.OperatorCodesLength()):
        if model.OperatorCodes(k).CustomCode():
            raise ValueError(_NO_EXPORT.format(model.OperatorCodes(k).CustomCode().decode(errors="replace")))
    graph = model.Subgraphs(0)
    for k in range(graph.TensorsLength()):
        tensor = graph.Tensors(k)
        _check_size((tensor.Name() or b"").decode(errors="replace"), [tensor.Shape(i) for i in range(tensor.ShapeLength())])


# ONNX


def _write_onnx(content: Content, path: Path) -> None:
    import onnx
    import tf2onnx

    from ipu_utils import IMAGE, PROBABILITIES

    model, _ = tf2onnx.convert.from_graph_def(
        content.graph, input_names=[f"{IMAGE}:0"], output_names=[f"{PROBABILITIES}:0"], opset=_OPSET
    )
    own = {f"{name}:0": name for name in (IMAGE, PROBABILITIES)}  # TensorFlow's names of the tensors
    for each in (*model.graph.input, *model.graph.output):
        each.name = own[each.name]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [own.get(name, name) for name in names]
    onnx.helper.set_model_props(model, {"labels": json.dumps(content.labels), **content.texts})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _onnx_runner(path: Path) -> Runner:
    import onnxruntime

    from ipu_utils import IMAGE, PROBABILITIES

    content = input_files.content(path, MAX_BYTES)
    _check_plain_onnx(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: session.run([PROBABILITIES], {IMAGE: images})[0]


def _check_plain_onnx(content: bytes) -> None:
    """ValueError for a model with functions, graphs inside of operations, as loops have them, or data in other files."""
    import onnx

    model = onnx.ModelProto.FromString(content)
    if model.functions:
        raise ValueError(_NO_EXPORT.format("functions"))
    for node in model.graph.node:
        if any(each.HasField("g") or each.graphs for each in node.attribute):
            raise ValueError(_NO_EXPORT.format(node.op_type))
    tensors = [*model.graph.initializer, *(each.t for node in model.graph.node for each in node.attribute)]
    if any(tensor.external_data for tensor in tensors):
        raise ValueError(_NO_EXPORT.format("data in other files"))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    for value in (*inferred.value_info, *inferred.output):
        _check_size(value.name, [each.dim_value for each in value.type.tensor_type.shape.dim])


FORMATS = {
    "savedmodel": Format(file="saved_model", write=_write_saved_model, runner=_saved_model_runner),
    "frozen": Format(file="frozen.pb", write=_write_frozen, runner=_frozen_runner),
    "tflite": Format(
        file="model.tflite", quantised="model_int8.tflite", write=_write_tflite, runner=_tflite_runner, is_fragile=True
    ),
    "onnx": Format(
        file="model.onnx",
        write=_write_onnx,
        runner=_onnx_runner,
        packages=("tf2onnx", "onnx", "onnxruntime"),
        is_fragile=True,
    ),
}
