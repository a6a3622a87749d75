"""Run the cells of every stage in the order of the schedule, inside the device loop, and record when each cell ran.

A cell is one `Action` of the schedule: the work of one kind of a stage on one pass. Passes are iterations of one loop and
overlap as far as their data allows. The cells of one kind in one stage are a stream. They run in the order of the passes,
because each waits for a token from the previous one. Where a device turns from one stream to another, the last cell
before the turn releases a permit, and the first cell after it acquires the permit (`schedules.handovers`).

For example, stage 0 of 2 in 1F1B with four passes runs 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3. In the table, "." means nothing:

    cell  waits for tokens and data  acquires a permit of  releases a permit to
    0F0   .                          .                     .
    0F1   0F0                        .                     0B0
    0B0   1B0                        0F1                   0F2
    0F2   0F1                        0B0                   0B1
    0B1   0B0, 1B1                   0F2                   0F3
    0F3   0F2                        0B1                   0B2
    0B2   0B1, 1B2                   0F3                   .
    0B3   0B2, 1B3                   .                     .
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import KINDS, Handover, Stream

HOST = "/cpu:0"
UNLIMITED = -1  # a TensorFlow queue with capacity -1 has no limit.
MAX_RECORDED = 1 << 24  # a recorded host step has at most 2^24 cells.

Token = tf.Tensor
Tokens = tuple[tuple[Token, ...], ...]  # each stage has the token of its last cell of each kind.


class CellSemaphore:
    """A semaphore between two streams of a device. Some cells of the first release a permit when they end; some cells of the
    second acquire a permit before they begin."""

    def __init__(self, name: str, handover: Handover, passes_in_flight: int) -> None:
        """An abort releases a permit for each pass in flight."""
        self._gives, self._takes = (np.asarray(each, np.int32) for each in handover)
        self._passes_in_flight = passes_in_flight
        self._queue = tf.FIFOQueue(UNLIMITED, [tf.int32], [[]], name=name)

    def release(self, pass_index: tf.Tensor) -> tf.Operation:
        """Release the permit after the cell of a pass, if there is one."""
        return self._queue.enqueue_many([tf.zeros([tf.gather(self._gives, pass_index)], tf.int32)])

    def acquire(self, pass_index: tf.Tensor) -> tf.Tensor:
        """Acquire the permit that the cell of a pass needs, if it needs one."""
        return self._queue.dequeue_many(tf.gather(self._takes, pass_index))

    def release_all(self) -> tf.Operation:
        """Let every waiting cell run, after an abort."""
        return self._queue.enqueue_many([np.zeros(self._passes_in_flight, np.int32)])


class StageOrder:
    """The order of cells in all stages and passes. Holds the semaphores and, if recording is on, the record of cells."""

    def __init__(self, plan: ExecutionPlan, recording: bool) -> None:
        self.plan = plan
        self.kinds = schedules.kinds(plan.schedule)
        self._semaphores: dict[tuple[Stream, Stream], CellSemaphore] = {}
        if plan.overlapped:
            timeline = schedules.build(plan.schedule, len(plan.stages), plan.passes_per_update)
            for device in range(len(timeline[0])):
                for streams, handover in schedules.handovers(timeline, device).items():
                    self._semaphores[streams] = self._semaphore(streams, handover)
        with tf.device(HOST):
            types, shapes = [tf.int32, tf.int32, tf.int32, tf.float64, tf.float64], [[]] * 5
            self._record = tf.FIFOQueue(MAX_RECORDED, types, shapes, name="cells") if recording else None
            self.recorded = [] if self._record is None else self._record.dequeue_many(self._record.size())
            self.recorded_step = tf.placeholder(tf.bool, [], "recording")  # True if this host step is recorded.

    def _semaphore(self, streams: tuple[Stream, Stream], handover: Handover) -> CellSemaphore:
        device = self.plan.stage_devices[streams[0][0]]
        with tf.device(device if device.startswith("/cpu") else HOST):
            name = "_to_".join(f"{stage}{kind}" for stage, kind in streams)
            return CellSemaphore(f"from_{name}", handover, self.plan.passes_in_flight)

    def first_tokens(self) -> Tokens:
        """Return the tokens for the first pass of the loop. Plans in which passes do not overlap need no tokens."""
        return tuple(tuple(tf.constant(0) for _ in self.kinds) if self.plan.overlapped else () for _ in self.plan.stages)

    def release_all(self) -> list[tf.Operation]:
        """Let every waiting cell run, after an abort."""
        return [each.release_all() for each in self._semaphores.values()]

    def released_by(self, stream: Stream) -> list[CellSemaphore]:
        """Return the semaphores that the cells of a stream release."""
        return [each for (first, _), each in self._semaphores.items() if first == stream]

    def acquired_by(self, stream: Stream) -> list[CellSemaphore]:
        """Return the semaphores that the cells of a stream acquire."""
        return [each for (_, second), each in self._semaphores.items() if second == stream]

    @property
    def recording(self) -> bool:
        """True if cells are recorded."""
        return self._record is not None

    def record(self, cell: Sequence[tf.Tensor | int]) -> tf.Tensor:
        """Record a cell: its stage, kind, pass, begin and end."""

        def keep() -> tf.Tensor:
            with tf.control_dependencies([self._record.enqueue(cell)]):
                return tf.constant(True)

        with tf.device(HOST):
            return tf.cond(self.recorded_step, keep, lambda: tf.constant(False))


class Cells:
    """The cells of one pass. `begin` delays the input of a cell until the cell may run; `end` marks the cell's output."""

    def __init__(self, order: StageOrder, pass_index: tf.Tensor, tokens: Tokens) -> None:
        self._order = order
        self._pass_index = pass_index
        self._previous = tokens
        self._began: dict[tuple[int, str], tf.Tensor] = {}
        self._ended: dict[tuple[int, str], Token] = {}
        # The results of the pass wait for these permits and records. Otherwise, TensorFlow would remove the backward of a
        # stage without trained variables from the graph, and the permit that it releases.
        self.side_effects: list[tf.Tensor | tf.Operation] = []

    def begin(self, stage: int, kind: str, x: tf.Tensor) -> tf.Tensor:
        """Return the cell's input x, available when the cell may begin."""
        gates = self._gates(stage, kind, x)
        if not gates and not self._order.recording:
            return x
        with tf.control_dependencies([x, *gates]):
            if self._order.recording:
                self._began[stage, kind] = tf.timestamp()
                gates.append(self._began[stage, kind])
        with tf.control_dependencies(gates):
            return tf.identity(x)

    def end(self, stage: int, kind: str, x: tf.Tensor, others: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Return the cell's output x. The cell ends when x and `others` are computed."""
        results = [x, *others]
        if self._order.recording:
            with tf.control_dependencies(results):
                ended = tf.timestamp()
            record = [stage, KINDS.index(kind), self._pass_index, self._began[stage, kind], ended]
            self.side_effects.append(self._order.record(record))
            with tf.control_dependencies([ended]):
                x = tf.identity(x)
            results = [ended]
        if self._previous[stage]:
            semaphores = self._order.released_by((stage, kind))
            if semaphores:
                with tf.control_dependencies(results):
                    results = [each.release(self._pass_index) for each in semaphores]
                self.side_effects += results
            with tf.control_dependencies(results):
                self._ended[stage, kind] = tf.constant(0)
        return x

    @property
    def tokens(self) -> Tokens:
        """The tokens for the next pass."""
        return tuple(
            tuple(self._ended[stage, kind] for kind in self._order.kinds) if previous else ()
            for stage, previous in enumerate(self._previous)
        )

    def _gates(self, stage: int, kind: str, x: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors that the cell waits for in addition to its input."""
        if not self._previous[stage]:
            return []
        previous = self._previous[stage][self._order.kinds.index(kind)]
        with tf.control_dependencies([x, previous]):  # passes acquire permits in order.
            return [each.acquire(self._pass_index) for each in self._order.acquired_by((stage, kind))] or [previous]
