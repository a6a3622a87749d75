"""The base of all programs: a session, and a graph with infeed and variables that is built or loaded from the program
cache."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.client.timeline import Timeline

from cnn_harness.base.draws import Keys, Seed
from cnn_harness.base.tracing import compiling_ahead
from cnn_harness.emulator.layers.watch import MARK
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import timings
from cnn_harness.emulator.plan.plan import PlanError
from cnn_harness.emulator.plan.timings import PhaseEnd
from cnn_harness.emulator.program.forward_backward import Features
from cnn_harness.emulator.program.optimised_graph import CacheEntry, OptimisedGraph, load, optimise
from cnn_harness.emulator.program.variables import ProgramVariables, VariableHandles
from cnn_harness.emulator.program.worker_group import WorkerGroup

if TYPE_CHECKING:
    from typing_extensions import Self

NextFeatures = Callable[[tf.Tensor, tf.Tensor], Features]  # arguments: number of the update, number of the pass
INFEED, ARRIVED = "infeed", "arrived"


@dataclass(frozen=True)
class Stream:
    """The source of a program's batches. A batch has the samples of a pass in training, and a micro-batch in validation.

    * `features` prepares the next batch on the device: {"image", "label", "position"} and other tensors for the loss. The
      arguments are the seed, the next element of the data set, the number of the update and the number of the pass. In
      validation, the last two arguments are 0 and the number of the micro-batch.
    * `dataset` creates the data set on the host, in the current graph. If it is None, the elements are empty.
    """

    features: Callable[[Seed, Features, tf.Tensor, tf.Tensor], Features]
    dataset: Callable[[], tf.data.Dataset] | None = None


class Infeed:
    """A stream in a graph: the data set and an iterator. Other graphs of the session find the iterator by its name."""

    def __init__(self, stream: Stream) -> None:
        """Create the data set in the current graph."""
        self._stream, self._graph = stream, tf.get_default_graph()
        self.rewind: list[tf.Operation] = []  # moves the iterator to the first element.
        if stream.dataset:
            # AutoGraph would take long to find out that these functions need no conversion.
            self._dataset = tf.autograph.experimental.do_not_convert(stream.dataset)()
            self._iterator = tf.data.make_initializable_iterator(self._dataset, shared_name=INFEED)
            self.rewind = [self._iterator.initializer]

    def features(self, seed: Seed) -> NextFeatures:
        """Return the function that produces the batches of a host step in the current graph. The feature `ARRIVED` is the
        time when the host delivered the batch, float64, in seconds."""
        iterator = None
        if self._stream.dataset:
            iterator = self._iterator
            if tf.get_default_graph() is not self._graph:
                structure = tf.data.get_output_types(self._dataset), tf.data.get_output_shapes(self._dataset)
                iterator = tf.data.Iterator.from_structure(*structure, shared_name=INFEED)

        def next_features(updates: tf.Tensor, pass_index: tf.Tensor) -> Features:
            element = iterator.get_next() if iterator else {}
            with tf.control_dependencies([pass_index, *tf.nest.flatten(element)]):
                arrived = tf.timestamp()
            return {**self._stream.features(seed, element, updates, pass_index), ARRIVED: arrived}

        return next_features


class ProgramGraph(NamedTuple):
    """A program in a graph: its variables, metadata, and the names of tensors to feed or fetch and operations to run."""

    names: Mapping[str, Sequence[str]]
    metadata: Mapping[str, Any]
    state: VariableHandles

    @classmethod
    def of(
        cls,
        named: Mapping[str, Iterable[tf.Tensor | tf.Operation]],
        metadata: Mapping[str, Any],
        variables: ProgramVariables,
    ) -> ProgramGraph:
        """Return the program with these tensors and operations by purpose."""
        names = {purpose: [each.name for each in several] for purpose, several in named.items()}
        return cls(names, metadata, VariableHandles.of(variables))


class Program:
    """A program in its own graph, and the session that runs it."""

    def __init__(
        self, write: Callable[[Seed, NextFeatures], ProgramGraph], stream: Stream, stage_devices: Sequence[str], seed: int,
        *, place: str | None = None, group: WorkerGroup | None = None, cache_entry: CacheEntry | None = None,
    ) -> None:  # fmt: skip
        """`write` writes the program into the current graph. `place` is the default device of operations. The optimised
        graph is loaded from `cache_entry` or saved there; without it, and in a group of processes, the graph is built every
        time."""
        check_devices(stage_devices)
        self.phase_ends: list[PhaseEnd] = []
        self._device = ThreadPoolExecutor(1)
        self._cache_entry, self._stage_devices, self._place = cache_entry, stage_devices, place
        self._in_group = group is not None
        set_up = partial(self._set_up, write, stream, seed, group)
        cached = cache_entry.load() if cache_entry else None
        try:
            set_up(cached)
        except Exception as error:
            if cached is None:
                raise
            cache_entry.reject(error)  # the program can be built without the cache.
            set_up(None)

    def _set_up(
        self, write: Callable[[Seed, NextFeatures], ProgramGraph], stream: Stream, seed: int, group: WorkerGroup | None,
        cached: OptimisedGraph | None,
    ) -> None:  # fmt: skip
        self.graph = new_graph()
        with self.graph.as_default(), tf.device(self._place):
            infeed = Infeed(stream)

            def placed(seed: Seed) -> ProgramGraph:
                with tf.device(self._place):
                    return write(seed, infeed.features(seed))

            if self._cache_entry is None:
                self._names, self._metadata, self.state = placed(seed)
            else:
                cached = cached or self._build(placed)
                load(cached, seed)
                self._names, self._metadata = cached.names, cached.metadata
                self.state = VariableHandles.from_optimised_graph(cached)
        self._mark(timings.GRAPH if self._cache_entry is None else timings.LOADED, _size(self.graph))
        self._rewind = infeed.rewind
        self.session = new_session(self.graph, self._stage_devices, group, optimised=self._cache_entry is not None)
        self.session.run([*self._names["initialise"], *self._rewind])
        self._mark(timings.SESSION)

    def _build(self, write: Callable[[Keys], ProgramGraph]) -> OptimisedGraph:
        """Build and optimise the program in its own graph, and save it in the cache."""
        keys = Keys()
        with compiling_ahead(self._cache_entry.keeps_kernels):
            with new_graph().as_default() as graph:
                names, metadata, state = write(keys)
            self._mark(timings.GRAPH, _size(graph))
            names, metadata = {**names, **state.names()}, {**metadata, **state.metadata()}
            built = optimise(graph, session_config(self._stage_devices), names, metadata, keys.names)
        self._mark(timings.OPTIMISED)
        self._cache_entry.save(built)
        return built

    def _mark(self, phase: str, note: str = "") -> None:
        self.phase_ends.append(PhaseEnd(phase, time.perf_counter(), note))

    def _mark_compiled(self) -> None:
        self._mark(timings.OPTIMISED if self._cache_entry is None else timings.READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close a program that runs in this process alone. A session on a group's server stays open until the process ends,
        because closing it would wait for processes that may be lost."""
        if not self._in_group:
            self.close()

    def close(self) -> None:
        """Free the session's memory and cancel a running host step.

        Call this explicitly. Python's garbage collector may run in a callback of the session's own data pipeline, and
        closing the session there would wait forever.
        """
        self.session.close()
        self._device.shutdown()


def _size(graph: tf.Graph) -> str:
    return f"{len(graph.get_operations()):,} operations"


def new_session(
    graph: tf.Graph, stage_devices: Sequence[str], group: WorkerGroup | None = None, *, optimised: bool = False
) -> tf.Session:
    """Return a session in this process or on the group's server. `optimised` means that the graph is already optimised."""
    config = session_config(stage_devices)
    config.graph_options.rewrite_options.disable_meta_optimizer = optimised
    return group.session(graph, config) if group else tf.Session(graph=graph, config=config)


def new_graph() -> tf.Graph:
    """Return an empty graph with control flow v1, whose loops have the `parallel_iterations` that a pipeline needs. Load the
    native kernels first, because a cached graph may use them."""
    tf.disable_control_flow_v2()
    library.load()
    return tf.Graph()


def session_config(stage_devices: Sequence[str] = ("/cpu:0",)) -> tf.ConfigProto:
    """Return a session configuration with the logical devices of the stages, and enough threads for all stages at once.

    Two of Grappler's optimisations are off, because with them results would depend on the plan. Remapping fuses operations
    only within a device, and arithmetic optimisation merges additions only within a cell.
    """
    cpus = len({device for device in stage_devices if device.startswith("/cpu")})
    config = tf.ConfigProto(device_count={"CPU": max(1, cpus)})
    if len(set(stage_devices)) > 1:
        config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(set(stage_devices)) + 1)
    # Operations without a GPU kernel, such as queues and iterators, then run on the CPU.
    config.allow_soft_placement = any(device.startswith("/gpu") for device in stage_devices)
    rewriter = config.graph_options.rewrite_options
    rewriter.remapping = rewriter_config_pb2.RewriterConfig.OFF
    rewriter.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    return config


def check_devices(stage_devices: Sequence[str]) -> None:
    """Raise PlanError if the plan needs more GPUs than TensorFlow finds."""
    needed = len({device for device in stage_devices if device.startswith("/gpu")})
    available = len(tf.config.list_physical_devices("GPU")) if needed else 0
    if available < needed:
        raise PlanError(
            f"the plan places stages on {needed} GPU{'s' if needed > 1 else ''}, but TensorFlow can use {available} "
            "(see its messages for the reason); give --device cpu"
        )


@contextmanager
def named_faults(when: Callable[[], str]) -> Iterator[None]:
    """Raise FloatingPointError if a check of the arithmetic failed. The message says what happened, where, and `when`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = re.search(rf"\[{MARK}\] \[(.*?)\] \[(.*?)\]", error.message)
        if not match:
            raise
        raise FloatingPointError(f"{match[1]} in {match[2]}, in {when()}") from None


def most_alive(trace: tf.RunMetadata) -> int:
    """Return the peak bytes of all tensors in a traced session call. Temporary memory of operations and free memory of the
    allocator do not count."""
    nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
    records = [record for node in nodes for used in node.memory for record in used.allocation_records]
    changes = sorted((record.alloc_micros, record.alloc_bytes) for record in records)
    return max(accumulate((size for _, size in changes), initial=0))


def operation_events(trace: tf.RunMetadata) -> tuple[Mapping[str, Any], ...]:
    """Return the operations of a traced session call as events of a Chrome trace, with times in microseconds."""
    text = Timeline(trace.step_stats).generate_chrome_trace_format(show_dataflow=False, show_memory=False)
    return tuple(json.loads(text)["traceEvents"])
