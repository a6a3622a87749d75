"""Frozen inference programs, graphs with their weights inside: the server's, which can be kept in a file and run from
threads, and one of TensorFlow's plain operations for other runtimes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

from emulator.inference.inference_program import logits_of
from emulator.layers.portable_layers import PortableLayers
from emulator.plan.precision import SINGLE, Precision
from emulator.program.runtime import named_faults, new_graph, session_config
from emulator.program.variables import ProgramVariables, VariableHandles
from Models import _segments
from Models._layers import Variable
from Models._segments import Segment

# not the usual words, which operations of the network may have taken
_IMAGES, _LOGITS, _LOGIT, _CLASS, _IDENTITY = (
    f"frozen_{name}" for name in ("images", "logits", "max_logit", "class", "identity")
)

IMAGE, PROBABILITIES = "image", "probabilities"  # of a portable graph


def freeze(
    segments: list[Segment],
    variables: tuple[Variable, ...],
    *,
    shape: tuple[int, int, int, int],
    prepare: Callable[[tf.Tensor], tf.Tensor],
    values: Mapping[str, np.ndarray] | None,
    seed: int,
    precision: Precision,
    identity: str,
) -> bytes:
    """The program as bytes: uint8 images of `shape` -> (largest logit, its class) of each.

    `prepare` makes the network's input of the bytes; `values`: the weights by name, or None for the initial ones of
    `seed`; `identity`: the description of the program's source, which `FrozenProgram` compares.
    """
    constants = _weights(variables, values, seed, precision)
    with new_graph().as_default() as graph:
        images = tf.placeholder(tf.uint8, shape, _IMAGES)
        read = {name: tf.constant(value) for name, value in constants.items()}
        logits = tf.identity(logits_of(segments, read, prepare(images), precision), _LOGITS)
        tf.reduce_max(logits, axis=1, name=_LOGIT)
        tf.argmax(logits, 1, name=_CLASS)
        tf.constant(identity, name=_IDENTITY)
    return _sealed(graph.as_graph_def().SerializeToString())


def portable_graph(
    segments: list[Segment],
    variables: tuple[Variable, ...],
    *,
    side: int,
    prepare: Callable[[tf.Tensor], tf.Tensor],
    values: Mapping[str, np.ndarray],
) -> tf.GraphDef:
    """The graph uint8 IMAGE [batch, side, side, 3] -> float32 PROBABILITIES [batch, classes], for batches of any size, in
    FP32 and TensorFlow's plain operations alone. `prepare` and `values` as for `freeze`."""
    constants = _weights(variables, values, 0, SINGLE)
    with tf.Graph().as_default() as graph:
        images = tf.placeholder(tf.uint8, [None, side, side, 3], IMAGE)
        layers = PortableLayers({name: tf.constant(value, name=name) for name, value in constants.items()}, training=False)
        tf.nn.softmax(_segments.run(segments, layers, prepare(images)), name=PROBABILITIES)
    return graph.as_graph_def()


def _weights(
    variables: tuple[Variable, ...], values: Mapping[str, np.ndarray] | None, seed: int, precision: Precision
) -> dict[str, np.ndarray]:
    """The weights as the layers use them."""
    with new_graph().as_default() as graph:
        weights = ProgramVariables(variables, seed, {}, precision=precision)
        read, state, initialise = weights.read(), VariableHandles.of(weights), tf.global_variables_initializer()
        with tf.Session(graph=graph, config=session_config()) as session:
            session.run(initialise)
            if values is not None:
                state.assign(session, values, state.model)
            return session.run(read)


def _sealed(program: bytes) -> bytes:
    """Return the program with a node at its end whose name is the digest of the rest: still one graph, as messages merge
    when joined."""
    seal = tf.GraphDef()
    seal.node.add(name=f"frozen_digest_{hashlib.sha256(program).hexdigest()}", op="NoOp")
    return program + seal.SerializeToString()


def _unsealed(program: bytes) -> bytes:
    """Return a sealed program without that node; ValueError if the rest is not the sealed program."""
    content = program[: -len(_sealed(b""))]
    if _sealed(content) != program:
        raise ValueError("it is damaged, or was not built here")
    return content


class FrozenProgram:
    """A program that runs. Several threads may call it at once."""

    def __init__(self, program: bytes) -> None:
        """ValueError for bytes that hold no such program."""
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
        """(largest logit, its class), [batch] each, of uint8 images [batch, side, side, 3]."""
        with named_faults(lambda: "inference"):
            return self._infer(images)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """All logits, [batch, classes], of such images."""
        with named_faults(lambda: "inference"):
            return self._logits(images)

    def close(self) -> None:
        """Free the session's memory."""
        self.session.close()
