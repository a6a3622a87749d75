"""Carries out a plan in TensorFlow: one session call is one host step, the loops over weight updates and
micro-batches run inside the graph, and the metrics of every update leave through a queue while they run.

Weights are read once per update and handed to the model as tensors; a micro-batch's gradients and statistics
are added in the order of the global micro-batches, scaled once, decayed once.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.client.timeline import Timeline

from base.draws import Keys, Seed
from base.tracing import compiling_ahead
from emulator.layers import proxy_norm
from emulator.layers.checks import MARK
from emulator.layers.policy import PrecisionPolicy
from emulator.layers.watch import GradientWatch
from emulator.plan import record
from emulator.plan.plan import ExecutionPlan, PlanError
from emulator.plan.record import CellTiming, PhaseEnd
from emulator.plan.schedules import Action
from emulator.plan.trace import Operation, Trace
from emulator.program.cells import KINDS, Cells, StageOrder, Tokens
from emulator.program.group import WorkerGroup
from emulator.program.optimised_graph import OptimisedGraph, Store, load, optimise
from emulator.program.stages import ACCURACY, LOSS, LOST, Features, Network, chunks, run_pass
from emulator.program.weights import STEP, State, Weights
from Models._layers import Variable
from Models._segments import Segment

Row = tuple[np.float32, np.float32, np.ndarray]  # of the outfeed
Report = Callable[[float, float], None]  # (loss, accuracy) of a weight update
NextFeatures = Callable[[tf.Tensor, tf.Tensor], Features]  # (updates done, micro-batch of the update)
RUN, STOP_AT_UPDATE, STOP_AT_PASS = 0, 1, 2  # of the stop flag
OUTFEED_DEPTH = 100_000
INFEED = "infeed"


class UpdateRule(Protocol):
    """What the executor needs of an optimiser."""

    slots: Mapping[str, float]

    def step(
        self, name: str, w: tf.Tensor, slots: dict[str, tf.Tensor], g: tf.Tensor, rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]: ...


class Scale(Protocol):
    """What the executor needs of a loss scale."""

    scale: float

    def scaled(self, loss: tf.Tensor) -> tf.Tensor: ...
    def rate(self, rate: tf.Tensor) -> tf.Tensor: ...
    def gradient(self, gradient: tf.Tensor) -> tf.Tensor: ...


@dataclass(frozen=True)
class Stream:
    """Where micro-batches come from.

    `features`: (seed, next element of the data set, updates done, micro-batch of the update) -> what is left to do on the
    device: {"image", "label", "position"} of the next micro-batch, beside what the loss needs more. `dataset`: makes the
    data set on the host, in the present graph; without it the elements are empty.
    """

    features: Callable[[Seed, Features, tf.Tensor, tf.Tensor], Features]
    dataset: Callable[[], tf.data.Dataset] | None = None


class Infeed:
    """A stream in a graph: the data set, and an iterator over it, found by its name from other graphs of the session."""

    def __init__(self, stream: Stream) -> None:
        """Makes the data set in the present graph."""
        self._stream, self._graph = stream, tf.get_default_graph()
        self.rewind: list[tf.Operation] = []  # puts the iterator at the data set's first element, if there is one
        if stream.dataset:
            # AutoGraph takes long to find that there is nothing to be rewritten in what a data set is mapped by
            self._dataset = tf.autograph.experimental.do_not_convert(stream.dataset)()
            self._iterator = tf.data.make_initializable_iterator(self._dataset, shared_name=INFEED)
            self.rewind = [self._iterator.initializer]

    def features(self, seed: Seed) -> NextFeatures:
        """What a step takes its micro-batches from, in the present graph."""
        iterator = None
        if self._stream.dataset:
            iterator = self._iterator
            if tf.get_default_graph() is not self._graph:
                kinds = tf.data.get_output_types(self._dataset), tf.data.get_output_shapes(self._dataset)
                iterator = tf.data.Iterator.from_structure(*kinds, shared_name=INFEED)

        def following(step: tf.Tensor, m: tf.Tensor) -> Features:
            return self._stream.features(seed, iterator.get_next() if iterator else {}, step, m)

        return following


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides the numbers of a training program.

    `loss`: (logits, features) -> [batch]; `hits`: (logits, labels) -> [batch]. `decayed`, `trained`: whether weight decay
    applies to a variable of that name, and whether updates move it at all.
    """

    segments: list[Segment]
    trace: Trace
    plan: ExecutionPlan
    seed: Seed
    features: NextFeatures
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    hits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    optimiser: UpdateRule
    scale: Scale
    weight_decay: float
    decayed: Callable[[str], bool]
    trained: Callable[[str], bool] = lambda name: True
    recording: bool = False  # of the cells' times
    group: WorkerGroup | None = None  # the instances that train together
    dtype: tf.DType = tf.float32  # of weights and arithmetic; half precision is emulated in FP32

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable of the model."""
        return self.trace.variables

    @property
    def moved(self) -> tuple[Variable, ...]:
        """The variables that an update moves, moving statistics among them."""
        return tuple(variable for variable in self.variables if self.trained(variable.name))

    @property
    def watched(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """The layers whose arriving gradients are counted in half precision, and those of them where a gradient of exactly 0
        can come of underflow only: behind a norm, and at the end."""
        if not self.plan.precision.rounds_results:
            return (), frozenset()
        following = [operation.kind for operation in self.trace.operations[1:]] + ["norm"]
        kinds = {_layer_name(o): after for o, after in zip(self.trace.operations, following) if o.kind in ("conv", "dense")}
        return tuple(kinds), frozenset(name for name, after in kinds.items() if after == "norm")

    def trained_by_segment(self) -> dict[str, tuple[str, ...]]:
        """The names of each segment's variables that gradients move."""
        found: dict[str, tuple[str, ...]] = {}
        for operation in self.trace.operations:
            names = tuple(v.name for v in operation.variables if v.trainable and self.trained(v.name))
            found[operation.segment] = found.get(operation.segment, ()) + names
        return found


def _layer_name(operation: Operation) -> str:
    """Where a convolution or dense layer lies, as in all/b1/0/1/conv."""
    return operation.variables[0].name.removesuffix("/kernel").removesuffix("/conv2d")


@dataclass(frozen=True)
class Metrics:
    """Loss and accuracy of every weight update of one host step, float32 [updates]; with half precision also the shares of
    the gradients that underflowed and that overflowed, [updates, layers, 2]. `leaving`: the instances that dropped the next
    update, because they are to end at once."""

    loss: np.ndarray
    accuracy: np.ndarray
    lost: np.ndarray
    leaving: tuple[int, ...] = ()


@dataclass(frozen=True)
class Profile:
    """One recorded weight update: its metrics and its cells; if asked for, its operations as events of a Chrome trace
    and the bytes of tensors that were alive at once, at most (the weights not counted)."""

    metrics: Metrics
    cells: tuple[CellTiming, ...]
    operations: tuple[Mapping[str, Any], ...] = ()
    most_alive: int | None = None


def most_alive(trace: tf.RunMetadata) -> int:
    """The bytes of tensors that were alive at once, at most, in a traced session call. What operations hold while they run,
    and what the allocator keeps for later, is not in it."""
    nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
    records = [record for node in nodes for used in node.memory for record in used.allocation_records]
    changes = sorted((record.alloc_micros, record.alloc_bytes) for record in records)
    return max(accumulate((size for _, size in changes), initial=0))


def operation_events(trace: tf.RunMetadata) -> tuple[Mapping[str, Any], ...]:
    """Every operation of a traced session call as an event of a Chrome trace, times in microseconds."""
    text = Timeline(trace.step_stats).generate_chrome_trace_format(show_dataflow=False, show_memory=False)
    return tuple(json.loads(text)["traceEvents"])


def session_config(stage_devices: Sequence[str] = ("/cpu:0",)) -> tf.ConfigProto:
    """Logical CPUs, or the GPUs, that the stages live on, and threads enough for all of them to be busy.

    Two of Grappler's passes are off, because they would make bits depend on the plan: remapping fuses operations within
    a device only, and arithmetic optimisation merges additions only where no cell begins or ends between them.
    """
    cpus = len({device for device in stage_devices if device.startswith("/cpu")})
    config = tf.ConfigProto(device_count={"CPU": max(1, cpus)})
    if len(set(stage_devices)) > 1:
        config.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(set(stage_devices)) + 1)
    # what has no kernel for a GPU, as queues and the data's iterator, goes to the CPU then
    config.allow_soft_placement = any(device.startswith("/gpu") for device in stage_devices)
    rewriter = config.graph_options.rewrite_options
    rewriter.remapping = rewriter_config_pb2.RewriterConfig.OFF
    rewriter.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    return config


def refuse_missing_devices(stage_devices: Sequence[str]) -> None:
    """PlanError if the plan counts on more GPUs than TensorFlow finds."""
    wanted = len({device for device in stage_devices if device.startswith("/gpu")})
    there = len(tf.config.list_physical_devices("GPU")) if wanted else 0
    if there < wanted:
        raise PlanError(
            f"the plan places stages on {wanted} GPU{'s' if wanted > 1 else ''}, but TensorFlow can drive {there} here (its "
            "own messages say why); give --device cpu"
        )


@contextmanager
def named_faults(when: Callable[[], str]) -> Iterator[None]:
    """What a check found, as a FloatingPointError that says what happened, where, and `when`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(rf"\[{MARK}\] \[(.*?)\] \[(.*?)\]", error.message)
        if not found:
            raise
        raise FloatingPointError(f"{found[1]} in {found[2]}, in {when()}") from None


@contextmanager
def placed(group: WorkerGroup | None) -> Iterator[None]:
    """Operations live on the instance of the group, if there is one."""
    with tf.device(group.device) if group else nullcontext():
        yield


def new_session(
    graph: tf.Graph, stage_devices: Sequence[str], group: WorkerGroup | None = None, *, optimised: bool = False
) -> tf.Session:
    """A session in this process, or on the group's server; `optimised`: the graph is already."""
    config = session_config(stage_devices)
    config.graph_options.rewrite_options.disable_meta_optimizer = optimised
    return group.session(graph, config) if group else tf.Session(graph=graph, config=config)


def new_graph() -> tf.Graph:
    """An empty graph whose loops are the old kind: their `parallel_iterations` is what a pipeline needs."""
    tf.disable_control_flow_v2()
    return tf.Graph()


Build = Callable[[Seed, NextFeatures], Training]


class TrainingProgram:
    """A compiled training program in a graph of its own."""

    def __init__(
        self, build: Build, stream: Stream, plan: ExecutionPlan, seed: int, *, group: WorkerGroup | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        """`build` is called with the seed and the stream's features, and inside of the graph that the step belongs to.
        `store`: where the executable is looked for and kept; a group's is built in each process anew."""
        refuse_missing_devices(plan.stage_devices)
        self._ended = threading.Event()
        self._device = ThreadPoolExecutor(1)
        self._store = store
        self.phase_ends: list[PhaseEnd] = []

        def set_up(found: OptimisedGraph | None) -> None:
            self.graph = new_graph()
            with self.graph.as_default(), placed(group):
                infeed = Infeed(stream)

                def written(seed: Seed) -> Written:
                    return _written(build(seed, infeed.features(seed)))

                if store is None:
                    self._names, about, self.weights = written(seed)
                else:
                    found = found or built_for(store, written, session_config(plan.stage_devices), self._mark)
                    load(found, seed)
                    self._names, about, self.weights = found.names, found.about, State.loaded(found)
                initialise = [*self._names["initialise"], *infeed.rewind]
            self.watched = tuple(about["watched"])
            self._mark(record.GRAPH if store is None else record.LOADED, f"{len(self.graph.get_operations()):,} operations")
            self.session = new_session(self.graph, plan.stage_devices, group, optimised=store is not None)
            self.session.run(initialise)
            self._mark(record.SESSION)

        with_what_is_kept(store, set_up)

    def _mark(self, phase: str, note: str = "") -> None:
        self.phase_ends.append(PhaseEnd(phase, time.perf_counter(), note))

    def compile(self) -> None:
        """Optimises the graph and sets the executors up, with a host step of no updates: no state moves."""
        self.session.run(self._names["step"], self._feeds([]))
        self._mark(record.OPTIMISED if self._store is None else record.READY)

    def step(self, rates: Sequence[float], report: Report | None = None) -> Metrics:
        """One host step of len(rates) weight updates, each with its own learning rate; fewer after `stop`.

        `report` is called in another thread with the loss and accuracy of each update as soon as it is done.
        """
        return self._run(rates, report)

    def profile(self, rate: float, operations: bool, report: Report | None = None) -> Profile:
        """One weight update, and when its cells ran; with `operations` also when each operation did."""
        if not self._names["recorded"]:
            raise ValueError("the program was built without recording")
        trace = tf.RunMetadata() if operations else None
        metrics = self._run([rate], report, recording=True, trace=trace)
        rows = zip(*self.session.run(self._names["recorded"]))
        cells = tuple(
            CellTiming(Action(int(j), KINDS[kind], int(i)), float(begin), float(end)) for j, kind, i, begin, end in rows
        )
        return Profile(metrics, cells, operation_events(trace), most_alive(trace)) if trace else Profile(metrics, cells)

    def _feeds(self, rates: Sequence[float], recording: bool = False) -> dict[str, Any]:
        """What a host step is fed; the same tensors always, as TensorFlow optimises the graph anew for others."""
        return dict(zip(self._names["fed"], (np.asarray(rates, np.float32), recording)))

    def _run(
        self,
        rates: Sequence[float],
        report: Report | None,
        recording: bool = False,
        trace: tf.RunMetadata | None = None,
    ) -> Metrics:
        """One host step."""
        feeds = self._feeds(rates, recording)
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE) if trace is not None else None
        found: list[Row] = []
        reader = threading.Thread(target=self._drain, args=(len(rates), found, report), daemon=True)
        reader.start()
        try:
            with named_faults(lambda: f"update {int(self.session.run(self.weights.saved[STEP].read)) + 1}"):
                # the calling thread stays free for signals, which would wait for the end of the session call otherwise
                done, stop_requests = self._device.submit(
                    self.session.run, self._names["step"], feeds, options, trace
                ).result()
        finally:
            self._ended.set()
            reader.join()
            self._ended.clear()
        if done and self._store is not None:
            self._store.ran()
        rows = found[:done]
        loss, accuracy, lost = zip(*rows) if rows else ((), (), ())
        return Metrics(
            np.asarray(loss, np.float32), np.asarray(accuracy, np.float32),
            np.asarray(lost, np.float32).reshape(len(rows), len(self.watched), 2),
            tuple(int(k) for k in np.flatnonzero(stop_requests == STOP_AT_PASS)),
        )  # fmt: skip

    def stop(self, drop_update: bool) -> None:
        """From any thread: end the host step after the present update, or at once, dropping it. Until `resume`."""
        self.session.run(self._names["drop" if drop_update else "stop"])

    def resume(self) -> None:
        """Takes a stop after an update back; one that dropped its update is for good."""
        self.session.run(self._names["resume"])

    def _drain(self, updates: int, found: list[Row], report: Report | None) -> None:
        """Takes metrics out of the queue until the step has ended and the queue is empty."""
        while len(found) < updates:
            ended = self._ended.wait(0.02)
            rows = list(zip(*self.session.run(self._names["outfeed"])))
            found += rows
            for loss, accuracy, _ in rows if report else ():
                report(float(loss), float(accuracy))
            if ended:
                return

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over a checkpoint: model, slots and the count of updates."""
        self.weights.put(self.session, values, self.weights.saved)

    def begin_with(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over what `values` has of the model and its slots; the count of updates stays."""
        self.weights.put(self.session, values, [name for name in self.weights.saved if name in values and name != STEP])

    def values(self) -> dict[str, np.ndarray]:
        """Every saved variable."""
        return self.weights.values(self.session)

    def close(self) -> None:
        """Frees the session's memory."""
        self._device.shutdown()
        self.session.close()


class Written(NamedTuple):
    """A program in a graph: the names of what is fed, fetched and run, what else is to be known of it, its variables."""

    names: dict[str, Sequence[str]]
    about: dict[str, Any]
    state: State


def with_what_is_kept(store: Store | None, set_up: Callable[[OptimisedGraph | None], None]) -> None:
    """Sets a program up from what the store has; without that, or if it turns out to be of no use, from the beginning."""
    found = store.load() if store else None
    if found is not None:
        try:
            return set_up(found)
        except Exception as error:  # whatever is wrong with it, a program can be built without it
            store.refuse(error)
    return set_up(None)


def built_for(
    store: Store, written: Callable[[Keys], Written], config: tf.ConfigProto, mark: Callable[[str, str], None]
) -> OptimisedGraph:
    """A program's executable, written in a graph of its own, and kept in the store."""
    keys = Keys()
    with compiling_ahead(store.keeps_passes):
        with new_graph().as_default() as graph:
            program = written(keys)
        mark(record.GRAPH, f"{len(graph.get_operations()):,} operations")
        names, about = {**program.names, **program.state.names()}, {**program.about, **program.state.about()}
        made = optimise(graph, config, names, about, keys.names)
    mark(record.OPTIMISED, "")
    store.keep(made)
    return made


def _written(training: Training) -> Written:
    """Writes a training program into the present graph."""
    weights = Weights(
        training.variables, training.seed, training.optimiser.slots, training.trained, training.dtype,
        training.plan.precision,
    )  # fmt: skip
    order = StageOrder(training.plan, training.recording)
    rates = tf.placeholder(tf.float32, [None], "learning_rates")
    watched = training.watched[0]
    outfeed = tf.FIFOQueue(OUTFEED_DEPTH, [tf.float32] * 3, [[], [], [len(watched), 2]], name="outfeed")
    stop = tf.get_variable("stop", initializer=RUN, trainable=False, use_resource=True)
    step = _HostStep(training, weights, order, outfeed, stop).run(rates)
    at_pass = stop.assign(STOP_AT_PASS, read_value=False)
    with tf.control_dependencies([at_pass]):
        release = order.release()
    names = {
        "fed": [rates, order.wanted],
        "step": step,
        "outfeed": outfeed.dequeue_many(outfeed.size()),
        "recorded": order.recorded,
        "resume": [stop.assign(RUN, read_value=False)],
        "stop": [stop.assign(STOP_AT_UPDATE, read_value=False)],
        "drop": [at_pass, *release],
        "initialise": [tf.global_variables_initializer()],
    }
    named = {what: [each.name for each in several] for what, several in names.items()}
    return Written(named, {"watched": watched}, State.of(weights))


def _elements(x: tf.Tensor) -> int:
    return int(np.prod(x.shape.as_list(), dtype=np.int64))


def _buckets(names: Sequence[str], sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """The names in their order, in as few parts of at most so many bytes as that allows."""
    parts: list[list[str]] = []
    filled = 0
    for name in names:
        if not parts or filled + sizes[name] > most:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += sizes[name]
    return parts


def _summed(group: WorkerGroup, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The sums of all instances' tensors of one dtype, by name, through one buffer."""
    kind = next(iter(values.values())).dtype
    flat = tf.concat([tf.reshape(tf.cast(x, kind), [-1]) for x in values.values()], 0)
    parts = tf.split(group.all_reduce(flat), [_elements(x) for x in values.values()])
    return {name: tf.reshape(part, x.shape) for (name, x), part in zip(values.items(), parts)}


@dataclass(frozen=True)
class _HostStep:
    """The graph of one host step."""

    training: Training
    weights: Weights
    order: StageOrder
    outfeed: tf.QueueBase
    stop: tf.Variable

    def run(self, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The device loop over weight updates; the number of updates done, and what each instance of a group
        requested at the end. Loss and accuracy of each update go into the outfeed while the loop runs."""
        updates, group = tf.size(rates), self.training.group

        def body(i: tf.Tensor, done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([i]):
                finished, stop_requests = self._update(tf.cast(rates[i], self.training.dtype))
            return i + 1, done + tf.cast(finished, tf.int32), stop_requests

        def goes_on(i: tf.Tensor, done: tf.Tensor, stop_requests: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([done]):
                # instances end together, so each of them goes by what all requested in the update before
                stop = tf.reduce_max(stop_requests) if group else self.stop.read_value()
                return tf.logical_and(i < updates, tf.equal(stop, RUN))

        start = (
            group.barrier() if group else tf.constant(0),
            tf.constant(0),
            tf.zeros([group.size if group else 0], tf.int32),
        )
        _, done, stop_requests = tf.while_loop(goes_on, body, start, parallel_iterations=1, back_prop=False)
        return done, stop_requests

    def _update(self, rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One weight update, all of it or, when it was told to stop in between, nothing; whether it was done, and what each
        instance of a group requests."""
        values = self.weights.read()
        step = self.weights.step.read_value()
        passes, means = self._means(values, step)
        whole, stop_requests = tf.equal(passes, self.training.plan.passes_per_update), tf.zeros([0], tf.int32)
        if self.training.group:
            stop_requests, means = self._reduced(passes, means, step)
            whole = tf.reduce_max(stop_requests) < STOP_AT_PASS

        def move() -> tf.Tensor:
            with tf.control_dependencies(self._moves(values, means, rate, step)):
                counted = self.weights.step.assign_add(1, read_value=False)
            metrics = [tf.cast(means[name], tf.float32) for name in (LOSS, ACCURACY)]
            metrics.append(means.get(LOST, tf.zeros([0, 2])))
            with tf.control_dependencies([counted, self.outfeed.enqueue(metrics)]):
                return tf.constant(True)

        return tf.cond(whole, move, lambda: tf.constant(False)), stop_requests

    def _reduced(
        self, passes: tf.Tensor, means: dict[str, tf.Tensor], step: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """What each instance requests, and the means over all of them: gradients in as few sums as the buckets allow, those
        that the backward pass finds first in the first, so that it need not be over; the rest, which is small, in one."""
        training, group = self.training, self.training.group
        with tf.control_dependencies([passes]):
            stop = self.stop.read_value()
        stop_request = tf.where_v2(tf.equal(passes, training.plan.passes_per_update), stop, STOP_AT_PASS)
        stop_requests = tf.cast(tf.one_hot(group.instance, group.size, dtype=tf.int32) * stop_request, training.dtype)
        moved = [variable.name for variable in reversed(training.moved) if variable.trainable]
        small = [name for name in means if name not in moved]
        found: dict[str, tf.Tensor] = {}
        with tf.device(training.plan.stage_devices[0]):
            for names in _buckets(moved, {name: means[name].dtype.size * _elements(means[name]) for name in moved},
                                  training.plan.options.max_cross_replica_buffer_size):  # fmt: skip
                found |= _summed(group, {name: means[name] for name in names})
            found |= _summed(group, {**{name: means[name] for name in small}, "": stop_requests})
        agreed = tf.cast(tf.round(found.pop("")), tf.int32)
        means = {name: total / group.size for name, total in found.items()}
        cast = self.policy.cast_instances_mean
        return agreed, {name: cast(name, x, step) if name in self._trainable else x for name, x in means.items()}

    def _moves(
        self, values: dict[str, tf.Tensor], means: dict[str, tf.Tensor], rate: tf.Tensor, step: tf.Tensor
    ) -> list[tf.Operation]:
        """The operations that move every variable and slot."""
        training, weights = self.training, self.weights
        rate, decay = training.scale.rate(rate), training.weight_decay * training.scale.scale
        moves = []
        for variable in training.moved:
            name, mean = variable.name, means[variable.name]
            if not variable.trainable:
                difference = (values[name] - mean) * (1 - variable.decay)
                moves.append(weights.model[name].assign_sub(difference, read_value=False))
                continue
            master, slots = weights.state(name)
            if variable.proxy:
                mean = proxy_norm.chained(variable.proxy, master, mean)
                mean += proxy_norm.decayed_rows(master) * decay
            elif decay and training.decayed(name):
                mean += master * decay
            value, slots = training.optimiser.step(name, master, slots, training.scale.gradient(mean), rate, step)
            moves += weights.put(name, self.policy.checked(value, f"the update of {name}"), slots, step)
        return moves

    def _means(self, values: dict[str, tf.Tensor], step: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The number of passes made, and loss, accuracy, gradients and batch statistics by name, averaged over them;
        they are added one after another however many are in flight."""
        training, plan = self.training, self.training.plan
        network = Network(
            stages=chunks(plan, training.segments, training.trained_by_segment()),
            plan=plan,
            policy=self.policy,
            loss=training.loss,
            hits=training.hits,
            scaled=training.scale.scaled,
            across=self._across,
        )

        def run(m: tf.Tensor, tokens: Tokens) -> tuple[tf.Tensor, dict[str, tf.Tensor], Tokens]:
            with tf.control_dependencies([m]):
                features = dict(training.features(step, m))
                features["image"] = self.policy.cast_input(features["image"])
            # the next pass's counter waits for this fetch: passes in flight would fetch in any order otherwise
            with tf.control_dependencies([features["label"]]):
                following = m + 1
            cells = Cells(self.order, m, tokens)
            found = run_pass(network, values, features, cells, GradientWatch(*training.watched))
            return following, {n: self.policy.checked(x, self._what(n)) for n, x in found.items()}, cells.tokens

        if plan.passes_per_update == 1:
            found = run(tf.constant(0), tuple(() for _ in plan.stages))[1]
            return tf.constant(1), {name: self._gradient(name, value, step) for name, value in found.items()}
        shapes = {LOSS: (), ACCURACY: (), **{variable.name: variable.shape for variable in training.moved}}
        shapes |= {LOST: (len(training.watched[0]), 2)} if training.watched[0] else {}

        def body(m: tf.Tensor, tokens: Tokens, sums: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
            following, found, moved = run(m, tokens)
            return following, moved, tuple(self._added(n, total, found[n], step, m) for n, total in zip(shapes, sums))

        def goes_on(m: tf.Tensor, *_: Any) -> tf.Tensor:
            with tf.control_dependencies([m]):
                if self._across:  # every pass waits for those of other instances: none may be left out here alone
                    return m < plan.passes_per_update
                return tf.logical_and(m < plan.passes_per_update, self.stop.read_value() < STOP_AT_PASS)

        start = (tf.constant(0), self.order.first_tokens(), tuple(tf.zeros(s, training.dtype) for s in shapes.values()))
        passes, _, totals = tf.while_loop(goes_on, body, start, parallel_iterations=plan.passes_in_flight, back_prop=False)
        return passes, {name: self._mean(name, total) for name, total in zip(shapes, totals)}

    @property
    def _across(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """The mean over the instances that share batch-norm statistics; None if each has its own."""
        training = self.training
        if training.group is None or len(training.plan.sharing) == 1:
            return None
        return lambda x: training.group.mean(x, training.plan.sharing)

    def _what(self, name: str) -> str:
        """What a pass finds under a name, in words."""
        if name in (LOSS, ACCURACY, LOST):
            return f"the {name}"
        return f"the {'gradient' if name in self._trainable else 'batch statistics'} of {name}"

    @cached_property
    def _trainable(self) -> frozenset[str]:
        return frozenset(variable.name for variable in self.training.moved if variable.trainable)

    @cached_property
    def policy(self) -> PrecisionPolicy:
        """How each kind of value comes into its format."""
        return PrecisionPolicy(self.training.plan.precision, self.training.seed, self.training.dtype)

    def _gradient(self, name: str, found: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """What one pass gives under a name; loss, accuracy and statistics stay as they are."""
        return self.policy.cast_gradient(name, found, *counters) if name in self._trainable else found

    def _added(self, name: str, total: tf.Tensor, found: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """The sum over the passes so far."""
        if name not in self._trainable:
            return total + tf.cast(found, total.dtype)
        return self.policy.add_gradient(name, total, found, self.training.plan.passes_per_update, *counters)

    def _mean(self, name: str, total: tf.Tensor) -> tf.Tensor:
        """Over the passes of an update."""
        passes = self.training.plan.passes_per_update
        return self.policy.mean_gradient(total, passes) if name in self._trainable else total / passes
