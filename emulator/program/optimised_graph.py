"""A program as TensorFlow runs it: its graph, optimised, and the names of the tensors that are fed and fetched.

Values that differ from run to run are not in it, so that one serves them all. A key that is drawn from the run's seed has a
placeholder, which gets the key when the graph is loaded; the data set is built beside it, and found by the infeed's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow.compat.v1 as tf
from tensorflow.python.grappler import tf_optimizer

from base import draws

GRAPH, NAMES = "graph.pb", "names.json"  # of its files


@dataclass(frozen=True)
class OptimisedGraph:
    """`names`: in the graph, by their purpose. `metadata`: what else belongs to the program, as JSON. `keys`: the
    names of the placeholders, by a key's purpose."""

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
        """Return the graph from the files that `files` gave."""
        texts = json.loads(files[NAMES])
        return cls(files[GRAPH], texts["names"], texts["metadata"], texts["keys"])


class CacheEntry(Protocol):
    """A program's place in the program cache."""

    @property
    def keeps_kernels(self) -> bool:
        """True if XLA finds a kernel that it has compiled once in this process."""

    def load(self) -> OptimisedGraph | None:
        """The optimised graph, if the entry has a whole one."""

    def reject(self, error: Exception) -> None:
        """Note that the graph that was loaded is of no use."""

    def save(self, optimised: OptimisedGraph) -> None:
        """Write the entry."""

    def ran(self) -> None:
        """The program has run: XLA has compiled its parts."""


def optimise(
    graph: tf.Graph, config: tf.ConfigProto, names: Mapping[str, Sequence[str]], metadata: Mapping[str, Any],
    keys: Mapping[str, str],
) -> OptimisedGraph:  # fmt: skip
    """The graph as a session of this configuration would optimise it, for all that `names` has; the rest is left out."""
    needed = sorted({name for several in names.values() for name in several})
    meta = tf.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def())
    meta.collection_def["train_op"].node_list.value.extend([*needed, *keys.values()])
    definition = tf_optimizer.OptimizeGraph(config, meta)
    there = {node.name for node in definition.node}
    missing = [name for name in needed if name.split(":")[0] not in there]
    if missing:
        raise RuntimeError(f"TensorFlow's optimisation left {missing[0]} out, which is asked for")
    keys = {purpose: name for purpose, name in keys.items() if name in there}
    return OptimisedGraph(definition.SerializeToString(), names, metadata, keys)


def load(optimised: OptimisedGraph, seed: int) -> None:
    """Put the graph into the present one, which has nothing of it yet."""
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
