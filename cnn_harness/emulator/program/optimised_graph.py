"""The optimised graph of a program, with the names of the tensors to feed and fetch, and its entry in the program cache.

The graph has no values that differ between runs, so many runs can use it. Random keys that depend on the seed are
placeholders, which are set when the graph is loaded. Each run builds its data set; the graph finds the data set by the
infeed's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow.compat.v1 as tf
from tensorflow.python.grappler import tf_optimizer

from cnn_harness.base import draws

GRAPH, NAMES = "graph.pb", "names.json"  # a cache entry has these files.


@dataclass(frozen=True)
class OptimisedGraph:
    """An optimised graph.

    * `names` has the names of tensors and operations by purpose.
    * `metadata` has other data of the program in JSON types.
    * `keys` has the names of the placeholders for random keys by purpose.
    """

    graph: bytes
    names: Mapping[str, Sequence[str]]
    metadata: Mapping[str, Any]
    keys: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Return the files of the program's cache entry, by name."""
        return {
            GRAPH: self.graph,
            NAMES: json.dumps({"names": self.names, "metadata": self.metadata, "keys": self.keys}).encode(),
        }

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> OptimisedGraph:
        """Return the graph from the files that `files` returned."""
        texts = json.loads(files[NAMES])
        return cls(files[GRAPH], texts["names"], texts["metadata"], texts["keys"])


class CacheEntry(Protocol):
    """A program's entry in the program cache."""

    @property
    def keeps_kernels(self) -> bool:
        """True if XLA has compiled the program in this process before."""

    def load(self) -> OptimisedGraph | None:
        """Return the optimised graph, or None if the entry has no complete graph."""

    def reject(self, error: Exception) -> None:
        """Record that the loaded graph cannot be used."""

    def save(self, optimised: OptimisedGraph) -> None:
        """Write the entry."""

    def ran(self) -> None:
        """Record that the program has run, so XLA has compiled it."""


def optimise(
    graph: tf.Graph, config: tf.ConfigProto, names: Mapping[str, Sequence[str]], metadata: Mapping[str, Any],
    keys: Mapping[str, str],
) -> OptimisedGraph:  # fmt: skip
    """Return the graph as a session with this configuration optimises it. Operations that `names` does not need are
    removed."""
    needed = sorted({name for several in names.values() for name in several})
    meta = tf.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def())
    meta.collection_def["train_op"].node_list.value.extend([*needed, *keys.values()])
    definition = tf_optimizer.OptimizeGraph(config, meta)
    there = {node.name for node in definition.node}
    missing = [name for name in needed if name.split(":")[0] not in there]
    if missing:
        raise RuntimeError(f"TensorFlow's optimisation removed {missing[0]}, which is needed")
    keys = {purpose: name for purpose, name in keys.items() if name in there}
    return OptimisedGraph(definition.SerializeToString(), names, metadata, keys)


def load(optimised: OptimisedGraph, seed: int) -> None:
    """Import the graph into the current graph, which must not contain operations with the same names."""
    definition = tf.GraphDef()
    definition.ParseFromString(optimised.graph)
    purposes = {name: what for what, name in optimised.keys.items()}
    for node in definition.node:
        if node.name in purposes:
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = tf.uint64.as_datatype_enum
            value = tf.make_tensor_proto(draws.key(seed, purposes[node.name]), tf.uint64, [])
            node.attr["value"].tensor.CopyFrom(value)
    tf.import_graph_def(definition, name="")
