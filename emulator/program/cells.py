"""The order of the cells on every stage, held inside the device loop, and the times at which they ran.

A cell is one stage's forward or backward work on one pass. Passes are iterations of one loop and overlap as far as their
data lets them; what the schedule asks beyond that is waiting, with m the `max_in_flight` of the stage:

- stage j's forward of pass i waits for its backward of pass i - m: a token that the loop carries,
- its backward of pass i waits for its forward of pass i + m - 1: a later iteration, so a queue counts forwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from emulator.plan.plan import ExecutionPlan
from emulator.plan.schedules import BACKWARD, FORWARD

KINDS = (FORWARD, BACKWARD)
HOST = "/cpu:0"
RECORDED = 1 << 24  # cells of one recorded host step, at most

Token = tf.Tensor
Tokens = tuple[tuple[Token, ...], ...]  # per stage: of its last backwards, oldest first, then of its last forward


class StageOrder:
    """What outlives a pass: the counters of forwards done, and the record of cells, if one is kept."""

    def __init__(self, plan: ExecutionPlan, recording: bool) -> None:
        self.plan = plan
        self._forwards: list[tf.QueueBase | None] = []
        for stage, limit in enumerate(plan.max_in_flight):
            with tf.device(plan.stage_devices[stage] if plan.stage_devices[stage].startswith("/cpu") else HOST):
                # the last stage's backward follows its own forward anyway
                queue = tf.FIFOQueue(4 * limit + 8, [tf.int32], [[]], name=f"forwards_{stage}") if limit > 1 else None
                self._forwards.append(queue)
        with tf.device(HOST):
            types, shapes = [tf.int32, tf.int32, tf.int32, tf.float64, tf.float64], [[]] * 5
            self._record = tf.FIFOQueue(RECORDED, types, shapes, name="cells") if recording else None
            self.recorded = [] if self._record is None else self._record.dequeue_many(self._record.size())
            self.recorded_step = tf.placeholder(tf.bool, [], "recording")  # in this host step

    def first_tokens(self) -> Tokens:
        """For the loop's first pass. Stages that take one pass at a time need none: the loop itself does."""
        if not self.plan.overlapped:
            return tuple(() for _ in self.plan.max_in_flight)
        return tuple(tuple(tf.constant(0) for _ in range(limit + 1)) for limit in self.plan.max_in_flight)

    def release(self) -> list[tf.Operation]:
        """Lets every waiting backward go, when the forwards that they wait for will not come any more."""
        waiting = [(queue, limit) for queue, limit in zip(self._forwards, self.plan.max_in_flight) if queue is not None]
        return [queue.enqueue_many([np.zeros(limit, np.int32)]) for queue, limit in waiting]

    def count_forward(self, stage: int) -> tf.Operation | None:
        """A forward of this stage is done."""
        queue = self._forwards[stage]
        return None if queue is None else queue.enqueue([0])

    def await_forward(self, stage: int, i: tf.Tensor) -> tf.Tensor | None:
        """Until the forward that goes before this pass's backward is done."""
        queue, limit = self._forwards[stage], self.plan.max_in_flight[stage]
        if queue is None:
            return None
        left = tf.cast(i <= self.plan.passes_per_update - limit, tf.int32)  # none comes any more after the last forwards
        return queue.dequeue_many(tf.where_v2(tf.equal(i, 0), limit, left))

    @property
    def recording(self) -> bool:
        """Whether cells are recorded."""
        return self._record is not None

    def record(self, cell: Sequence[tf.Tensor | int]) -> tf.Tensor:
        """Keeps stage, kind, pass, begin and end of a cell."""

        def keep() -> tf.Tensor:
            with tf.control_dependencies([self._record.enqueue(cell)]):
                return tf.constant(True)

        with tf.device(HOST):
            return tf.cond(self.recorded_step, keep, lambda: tf.constant(False))


class Cells:
    """One pass's cells: `begin` holds a tensor back until the cell may run, `end` says that its results exist."""

    def __init__(self, order: StageOrder, i: tf.Tensor, tokens: Tokens) -> None:
        self._order = order
        self._pass = i
        self._before = tokens
        self._began: dict[tuple[int, str], tf.Tensor] = {}
        self._ended: dict[tuple[int, str], Token] = {}
        self.records: list[tf.Tensor] = []  # must be waited for by what the pass gives back

    def begin(self, stage: int, kind: str, x: tf.Tensor) -> tf.Tensor:
        """x, as soon as the stage's cell may begin."""
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
        """x, which the cell hands on; the cell is over when `others` exist too."""
        results = [x, *others]
        if self._order.recording:
            with tf.control_dependencies(results):
                ended = tf.timestamp()
            words = [stage, KINDS.index(kind), self._pass, self._began[stage, kind], ended]
            self.records.append(self._order.record(words))
            with tf.control_dependencies([ended]):
                x = tf.identity(x)
            results = [ended]
        if self._before[stage]:
            with tf.control_dependencies(results):
                counted = self._order.count_forward(stage) if kind == FORWARD else None
            with tf.control_dependencies(results if counted is None else [counted]):
                self._ended[stage, kind] = tf.constant(0)
        return x

    @property
    def tokens(self) -> Tokens:
        """For the next pass."""
        return tuple(
            (*before[1:-1], self._ended[stage, BACKWARD], self._ended[stage, FORWARD]) if before else ()
            for stage, before in enumerate(self._before)
        )

    def _gates(self, stage: int, kind: str, x: tf.Tensor) -> list[tf.Tensor]:
        """What the cell waits for besides its input."""
        before = self._before[stage]
        if not before:
            return []
        if kind == FORWARD:
            return [before[0], before[-1]]
        with tf.control_dependencies([x, before[-2]]):  # in the order of the passes, or one would take another's count
            forward = self._order.await_forward(stage, self._pass)
        return [before[-2]] if forward is None else [forward]
