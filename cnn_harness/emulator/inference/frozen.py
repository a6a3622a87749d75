"""Graphs that contain their weights: files for the inference server, and graphs of plain operations for other runtimes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

from cnn_harness.emulator.inference.inference_program import logits_of
from cnn_harness.emulator.lowering import portable
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.emulator.program.runtime import named_faults, new_graph, session_config
from cnn_harness.emulator.program.variables import ProgramVariables, VariableHandles
from cnn_harness.Models._layers import Variable

# These names do not conflict with those of the network's operations.
_IMAGES, _LOGITS, _LOGIT, _CLASS = "frozen_images", "frozen_logits", "frozen_max_logit", "frozen_class"
_IDENTITY = "frozen_identity"
IMAGE, PROBABILITIES = "image", "probabilities"  # a portable graph has tensors with these names.


def freeze(
    network: Network, *, shape: tuple[int, int, int, int], prepare: Callable[[tf.Tensor], tf.Tensor],
    values: Mapping[str, np.ndarray] | None, seed: int, precision: Precision, identity: str,
) -> bytes:  # fmt: skip
    """Return a program as bytes. The program maps uint8 images of `shape` to the largest logit and the class of each image.

    `prepare` maps the images to the network's input. `values` has the weights by name; None means the initial weights of
    `seed`. `identity` describes the source of the program.
    """
    constants = _weights(network.variables, values, seed, precision)
    with new_graph().as_default() as graph:
        images = tf.placeholder(tf.uint8, shape, _IMAGES)
        read = {name: tf.constant(value) for name, value in constants.items()}
        logits = tf.identity(logits_of(network, read, prepare(images), precision), _LOGITS)
        tf.reduce_max(logits, axis=1, name=_LOGIT)
        tf.argmax(logits, 1, name=_CLASS)
        tf.constant(identity, name=_IDENTITY)
    return _sealed(graph.as_graph_def().SerializeToString())


def portable_graph(
    network: Network, *, side: int, prepare: Callable[[tf.Tensor], tf.Tensor], values: Mapping[str, np.ndarray]
) -> tf.GraphDef:
    """Return a graph that maps uint8 IMAGE [batch, side, side, 3] to float32 PROBABILITIES [batch, classes], for any batch.

    The graph computes in FP32 with plain TensorFlow operations. `prepare` and `values` are the same as in `freeze`.
    """
    constants = _weights(network.variables, values, 0, SINGLE)
    with tf.Graph().as_default() as graph:
        images = tf.placeholder(tf.uint8, [None, side, side, 3], IMAGE)
        read = {name: tf.constant(value, name=name) for name, value in constants.items()}
        tf.nn.softmax(portable.logits(network, read, prepare(images)), name=PROBABILITIES)
    return graph.as_graph_def()


def _weights(
    variables: tuple[Variable, ...], values: Mapping[str, np.ndarray] | None, seed: int, precision: Precision
) -> dict[str, np.ndarray]:
    """Return the weights in the formats that layers use."""
    with new_graph().as_default() as graph:
        weights = ProgramVariables(variables, seed, {}, precision=precision)
        read, state, initialise = weights.read(), VariableHandles.of(weights), tf.global_variables_initializer()
        with tf.Session(graph=graph, config=session_config()) as session:
            session.run(initialise)
            if values is not None:
                state.assign(session, values, state.model)
            return session.run(read)


def _sealed(program: bytes) -> bytes:
    """Return the program with one more node, whose name is the digest of the program. The joined bytes are a valid graph,
    because protocol buffers merge joined messages."""
    seal = tf.GraphDef()
    seal.node.add(name=f"frozen_digest_{hashlib.sha256(program).hexdigest()}", op="NoOp")
    return program + seal.SerializeToString()


def _unsealed(program: bytes) -> bytes:
    """Return a sealed program without the node that holds the digest. Raise ValueError if the digest does not match."""
    content = program[: -len(_sealed(b""))]
    if _sealed(content) != program:
        raise ValueError("it is damaged, or was built by another program")
    return content


class FrozenProgram:
    """A loaded program. Several threads may call it at once."""

    def __init__(self, program: bytes) -> None:
        """Raise ValueError if the bytes are no program of `freeze`."""
        definition = tf.GraphDef()
        try:
            definition.ParseFromString(_unsealed(program))
            with new_graph().as_default() as graph:
                tf.import_graph_def(definition, name="")
            outputs = [graph.get_tensor_by_name(f"{name}:0") for name in (_LOGIT, _CLASS)]
            images, identity, logits = (graph.get_tensor_by_name(f"{name}:0") for name in (_IMAGES, _IDENTITY, _LOGITS))
        except (DecodeError, KeyError, ValueError, tf.errors.OpError) as error:
            raise ValueError(str(error).splitlines()[0]) from None
        self.session = tf.Session(graph=graph, config=session_config())
        self.identity: str = self.session.run(identity).decode()
        self._infer = self.session.make_callable(outputs, [images])
        self._logits = self.session.make_callable(logits, [images])

    def infer(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest logit and the class of each image, both [batch]. Images are uint8 [batch, side, side, 3]."""
        with named_faults(lambda: "inference"):
            return self._infer(images)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return all logits [batch, classes] for uint8 images [batch, side, side, 3]."""
        with named_faults(lambda: "inference"):
            return self._logits(images)

    def close(self) -> None:
        """Free the session's memory."""
        self.session.close()
