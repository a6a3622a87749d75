"""The parts that all programs share: a graph with its infeed and variables, built or taken from the program cache, and the
session."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.client.timeline import Timeline

from base.draws import Keys, Seed
from base.tracing import compiling_ahead
from emulator.layers.checks import MARK
from emulator.native import library
from emulator.plan import timings
from emulator.plan.plan import PlanError
from emulator.plan.timings import PhaseEnd
from emulator.program.forward_backward import Features
from emulator.program.optimised_graph import CacheEntry, OptimisedGraph, load, optimise
from emulator.program.variables import VariableHandles
from emulator.program.worker_group import WorkerGroup

if TYPE_CHECKING:
    from typing_extensions import Self

NextFeatures = Callable[[tf.Tensor, tf.Tensor], Features]  # (updates done, pass of the update)
INFEED = "infeed"


@dataclass(frozen=True)
class Stream:
    """The source of the batches that a program takes: the samples of a pass in training, a micro-batch in validation.

    `features`: (seed, next element of the data set, updates done, pass of the update; in validation 0 and the number of the
    micro-batch) -> {"image", "label", "position"} of the next batch, prepared on the device, beside whatever else the
    loss needs. `dataset`: makes the data set on the host, in the present graph; without it the elements are empty.
    """

    features: Callable[[Seed, Features, tf.Tensor, tf.Tensor], Features]
    dataset: Callable[[], tf.data.Dataset] | None = None


class Infeed:
    """A stream in a graph: the data set, and an iterator over it, found by its name from other graphs of the session."""

    def __init__(self, stream: Stream) -> None:
        """Make the data set in the present graph."""
        self._stream, self._graph = stream, tf.get_default_graph()
        self.rewind: list[tf.Operation] = []  # puts the iterator at the data set's first element, if there is one
        if stream.dataset:
            # AutoGraph takes long to find that there is nothing to be rewritten in the functions of a data set
            self._dataset = tf.autograph.experimental.do_not_convert(stream.dataset)()
            self._iterator = tf.data.make_initializable_iterator(self._dataset, shared_name=INFEED)
            self.rewind = [self._iterator.initializer]

    def features(self, seed: Seed) -> NextFeatures:
        """Return the function that a host step takes its batches from, in the present graph."""
        iterator = None
        if self._stream.dataset:
            iterator = self._iterator
            if tf.get_default_graph() is not self._graph:
                structure = tf.data.get_output_types(self._dataset), tf.data.get_output_shapes(self._dataset)
                iterator = tf.data.Iterator.from_structure(*structure, shared_name=INFEED)

        def next_features(updates: tf.Tensor, pass_index: tf.Tensor) -> Features:
            return self._stream.features(seed, iterator.get_next() if iterator else {}, updates, pass_index)

        return next_features


class ProgramGraph(NamedTuple):
    """A program in a graph: the names of tensors and operations that are fed, fetched and run, metadata, and its
    variables."""

    names: Mapping[str, Sequence[str]]
    metadata: Mapping[str, Any]
    state: VariableHandles


class Program:
    """A program in a graph of its own, and the session that runs it."""

    def __init__(
        self, write: Callable[[Seed, NextFeatures], ProgramGraph], stream: Stream, stage_devices: Sequence[str], seed: int,
        *, place: str | None = None, group: WorkerGroup | None = None, cache_entry: CacheEntry | None = None,
    ) -> None:  # fmt: skip
        """`write` writes the program into the present graph. `place`: the device of all that `write` places nowhere else.
        `cache_entry`: where the optimised graph is looked for and saved; a group's is built in each process anew."""
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
            cache_entry.reject(error)  # whatever is wrong with it, a program can be built without it
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
                self._names, self._metadata, self.state = (
                    cached.names,
                    cached.metadata,
                    VariableHandles.from_optimised_graph(cached),
                )
        self._mark(timings.GRAPH if self._cache_entry is None else timings.LOADED, _size(self.graph))
        self._rewind = infeed.rewind
        self.session = new_session(self.graph, self._stage_devices, group, optimised=self._cache_entry is not None)
        self.session.run([*self._names["initialise"], *self._rewind])
        self._mark(timings.SESSION)

    def _build(self, write: Callable[[Keys], ProgramGraph]) -> OptimisedGraph:
        """Write and optimise the program in a graph of its own, and save it in the cache."""
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
        """Close a program of this process alone; a session on a group's server ends with the process, as its end would wait
        for instances that may be lost."""
        if not self._in_group:
            self.close()

    def close(self) -> None:
        """Free the session's memory; a host step that is running still is cancelled.

        Python's collector must not be what closes a session: a callback of its own data pipeline may be the one to collect,
        and would wait for itself.
        """
        self.session.close()
        self._device.shutdown()


def _size(graph: tf.Graph) -> str:
    return f"{len(graph.get_operations()):,} operations"


def new_session(
    graph: tf.Graph, stage_devices: Sequence[str], group: WorkerGroup | None = None, *, optimised: bool = False
) -> tf.Session:
    """A session in this process, or on the group's server; `optimised`: the graph is already."""
    config = session_config(stage_devices)
    config.graph_options.rewrite_options.disable_meta_optimizer = optimised
    return group.session(graph, config) if group else tf.Session(graph=graph, config=config)


def new_graph() -> tf.Graph:
    """An empty graph whose loops are the old kind: a pipeline needs their `parallel_iterations`. TensorFlow knows
    the native kernels by then, which a cached graph may have."""
    tf.disable_control_flow_v2()
    library.load()
    return tf.Graph()


def session_config(stage_devices: Sequence[str] = ("/cpu:0",)) -> tf.ConfigProto:
    """Logical CPUs, or the GPUs, that the stages live on, and threads enough for all of them to be busy.

    Two of Grappler's passes are off, because they would make bits depend on the plan: remapping fuses operations within
    a device only, and arithmetic optimisation merges additions only where no cell begins or ends between them.
    """
    cpus = len({device for device in stage_devices if device.startswith("/cpu")})
    config = tf.ConfigProto(device_count={"CPU": max(1, cpus)})
    if len(set(stage_devices)) > 1:
        config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(set(stage_devices)) + 1)
    # an operation without a kernel for a GPU, as queues and the data's iterator, goes to the CPU then
    config.allow_soft_placement = any(device.startswith("/gpu") for device in stage_devices)
    rewriter = config.graph_options.rewrite_options
    rewriter.remapping = rewriter_config_pb2.RewriterConfig.OFF
    rewriter.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    return config


def check_devices(stage_devices: Sequence[str]) -> None:
    """PlanError if the plan counts on more GPUs than TensorFlow finds."""
    needed = len({device for device in stage_devices if device.startswith("/gpu")})
    available = len(tf.config.list_physical_devices("GPU")) if needed else 0
    if available < needed:
        raise PlanError(
            f"the plan places stages on {needed} GPU{'s' if needed > 1 else ''}, but TensorFlow can drive {available} here "
            "(its own messages say why); give --device cpu"
        )


@contextmanager
def named_faults(when: Callable[[], str]) -> Iterator[None]:
    """Raise a check's finding as a FloatingPointError that says what happened, where, and `when`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = re.search(rf"\[{MARK}\] \[(.*?)\] \[(.*?)\]", error.message)
        if not match:
            raise
        raise FloatingPointError(f"{match[1]} in {match[2]}, in {when()}") from None


def most_alive(trace: tf.RunMetadata) -> int:
    """The bytes of tensors that were alive at once, at most, in a traced session call. Memory that operations hold while
    they run, or that the allocator keeps for later, is not in it."""
    nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
    records = [record for node in nodes for used in node.memory for record in used.allocation_records]
    changes = sorted((record.alloc_micros, record.alloc_bytes) for record in records)
    return max(accumulate((size for _, size in changes), initial=0))


def operation_events(trace: tf.RunMetadata) -> tuple[Mapping[str, Any], ...]:
    """Every operation of a traced session call as an event of a Chrome trace, times in microseconds."""
    text = Timeline(trace.step_stats).generate_chrome_trace_format(show_dataflow=False, show_memory=False)
    return tuple(json.loads(text)["traceEvents"])
