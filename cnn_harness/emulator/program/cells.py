"""Run the cells of every stage in the order of the schedule, inside the device loop, and record when each cell ran.

A cell is one `Action` of the schedule: the forward or backward work of a stage on one pass. Passes are iterations of one
loop and overlap as far as their data allows. Forwards of a stage run in the order of the passes, because each waits for a
token from the previous forward; backwards do the same. A pair of semaphores orders forwards and backwards of a stage. A
forward acquires one permit for each backward that the schedule places between this forward and the previous forward, and
vice versa (`schedules.waits`).

For example, stage 0 of 2 in 1F1B with four passes runs 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3. In the table, "." means nothing:

    cell  waits for tokens and data  acquires permits of  releases a permit to
    0F0   .                          .                    0B0
    0F1   0F0                        .                    0B0
    0B0   1B0                        0F0, 0F1             0F2
    0F2   0F1                        0B0                  0B1
    0B1   0B0, 1B1                   0F2                  0F3
    0F3   0F2                        0B1                  0B2
    0B2   0B1, 1B2                   0F3                  .
    0B3   0B2, 1B3                   .                    .
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import BACKWARD, FORWARD

KINDS = (FORWARD, BACKWARD)
HOST = "/cpu:0"
UNLIMITED = -1  # a TensorFlow queue with capacity -1 has no limit.
MAX_RECORDED = 1 << 24  # a recorded host step has at most 2^24 cells.

Token = tf.Tensor
Tokens = tuple[tuple[Token, ...], ...]  # each stage has the tokens of its last backward and its last forward.


class CellSemaphore:
    """A counting semaphore between the forwards and backwards of a stage. Cells of one kind release a permit when they end;
    cells of the other kind acquire permits before they begin."""

    def __init__(self, name: str, waits: Sequence[int], max_in_flight: int) -> None:
        """`waits` has for each pass the number of permits that its cell acquires. `max_in_flight` is the largest number of
        passes in flight in the stage; an abort releases this number of permits."""
        self._permits_needed, self._permits_in_total = np.asarray(waits, np.int32), sum(waits)
        self._max_in_flight = max_in_flight
        self._queue = tf.FIFOQueue(UNLIMITED, [tf.int32], [[]], name=name)

    def release(self, pass_index: tf.Tensor) -> tf.Operation:
        """Release one permit after the cell of a pass. Permits that no cell of this update acquires are not released,
        because a cell of the next update would acquire them."""
        return self._queue.enqueue_many([tf.zeros([tf.cast(pass_index < self._permits_in_total, tf.int32)], tf.int32)])

    def acquire(self, pass_index: tf.Tensor) -> tf.Tensor:
        """Acquire the permits that the cell of a pass needs."""
        return self._queue.dequeue_many(tf.gather(self._permits_needed, pass_index))

    def release_all(self) -> tf.Operation:
        """Let every waiting cell run, after an abort."""
        return self._queue.enqueue_many([np.zeros(self._max_in_flight, np.int32)])


class StageOrder:
    """The order of cells in all stages and passes. Holds the semaphores and, if recording is on, the record of cells."""

    def __init__(self, plan: ExecutionPlan, recording: bool) -> None:
        self.plan = plan
        self._semaphores: list[dict[str, CellSemaphore]] = [{} for _ in plan.stages]
        if plan.overlapped:
            timeline = schedules.build(plan.schedule, len(plan.stages), plan.passes_per_update)
            self._semaphores = [
                self._stage_semaphores(stage, schedules.waits(timeline, stage)) for stage in range(len(plan.stages))
            ]
        with tf.device(HOST):
            types, shapes = [tf.int32, tf.int32, tf.int32, tf.float64, tf.float64], [[]] * 5
            self._record = tf.FIFOQueue(MAX_RECORDED, types, shapes, name="cells") if recording else None
            self.recorded = [] if self._record is None else self._record.dequeue_many(self._record.size())
            self.recorded_step = tf.placeholder(tf.bool, [], "recording")  # True if this host step is recorded.

    def _stage_semaphores(self, stage: int, waits: schedules.Waits) -> dict[str, CellSemaphore]:
        """Return the semaphores of a stage by the kind of cell that releases permits. If backwards and forwards alternate,
        the data dependency already orders backwards after forwards, so one semaphore is enough."""
        max_in_flight, device = self.plan.max_in_flight[stage], self.plan.stage_devices[stage]
        with tf.device(device if device.startswith("/cpu") else HOST):
            semaphores = {BACKWARD: CellSemaphore(f"backwards_{stage}", waits.forward, max_in_flight)}
            if any(count != 1 for count in waits.backward):
                semaphores[FORWARD] = CellSemaphore(f"forwards_{stage}", waits.backward, max_in_flight)
        return semaphores

    def first_tokens(self) -> Tokens:
        """Return the tokens for the first pass of the loop. Plans in which passes do not overlap need no tokens."""
        return tuple((tf.constant(0), tf.constant(0)) if self.plan.overlapped else () for _ in self.plan.stages)

    def release_all(self) -> list[tf.Operation]:
        """Let every waiting cell run, after an abort."""
        return [each.release_all() for semaphores in self._semaphores for each in semaphores.values()]

    def semaphore_of(self, stage: int, kind: str) -> CellSemaphore | None:
        """Return the semaphore that a stage's cells of this kind release. Return None if data dependencies give the
        order."""
        return self._semaphores[stage].get(kind)

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
            semaphore = self._order.semaphore_of(stage, kind)
            if semaphore:
                with tf.control_dependencies(results):
                    results = [semaphore.release(self._pass_index)]
                self.side_effects += results
            with tf.control_dependencies(results):
                self._ended[stage, kind] = tf.constant(0)
        return x

    @property
    def tokens(self) -> Tokens:
        """The tokens for the next pass."""
        return tuple(
            (self._ended[stage, BACKWARD], self._ended[stage, FORWARD]) if previous else ()
            for stage, previous in enumerate(self._previous)
        )

    def _gates(self, stage: int, kind: str, x: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors that the cell waits for in addition to its input."""
        if not self._previous[stage]:
            return []
        backward, forward = self._previous[stage]
        previous = forward if kind == FORWARD else backward
        awaited = self._order.semaphore_of(stage, BACKWARD if kind == FORWARD else FORWARD)
        if awaited is None:
            return [previous]
        with tf.control_dependencies([x, previous]):  # passes acquire permits in order.
            return [awaited.acquire(self._pass_index)]
