"""The order of the cells on every stage, held inside the device loop, and the times at which they ran.

A cell is one stage's forward or backward work on one pass. Passes are iterations of one loop and overlap as far as their
data lets them; the schedule's order beyond that is waiting. The forwards of a stage, and its backwards, come in the order
of the passes: a token that the loop carries. A forward also waits for as many backwards, and a backward for as many
forwards, as stand before it in the timeline since the last one of its kind (`schedules.waits`): queues count them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from emulator.plan import schedules
from emulator.plan.plan import ExecutionPlan
from emulator.plan.schedules import BACKWARD, FORWARD

KINDS = (FORWARD, BACKWARD)
HOST = "/cpu:0"
UNLIMITED = -1  # capacity of a queue
RECORDED = 1 << 24  # cells of one recorded host step, at most

Token = tf.Tensor
Tokens = tuple[tuple[Token, ...], ...]  # per stage: of its last backward and of its last forward


class CellCounter:
    """The number of cells of one kind that a stage has done in the present update, as far as its cells of the other kind
    have not waited for them yet."""

    def __init__(self, name: str, waits: Sequence[int], most: int) -> None:
        """`waits`: by pass, how many more a cell of the other kind waits for; `most`: that are ahead of it at once."""
        self._waits, self._awaited, self._most = np.asarray(waits, np.int32), sum(waits), most
        self._queue = tf.FIFOQueue(UNLIMITED, [tf.int32], [[]], name=name)

    def add(self, i: tf.Tensor) -> tf.Operation:
        """The cell of pass i is done. The last ones that nothing waits for are not counted: they would be in the way of the
        next update."""
        return self._queue.enqueue_many([tf.zeros([tf.cast(i < self._awaited, tf.int32)], tf.int32)])

    def wait(self, i: tf.Tensor) -> tf.Tensor:
        """Wait until a cell of the other kind of pass i may run."""
        return self._queue.dequeue_many(tf.gather(self._waits, i))

    def release(self) -> tf.Operation:
        """Lets every cell go that waits, when those that it waits for will not come any more."""
        return self._queue.enqueue_many([np.zeros(self._most, np.int32)])


class StageOrder:
    """The data that outlives a pass: the counts of cells done, and the record of cells, if one is kept."""

    def __init__(self, plan: ExecutionPlan, recording: bool) -> None:
        self.plan = plan
        self._counters: list[dict[str, CellCounter]] = [{} for _ in plan.stages]
        if plan.overlapped:
            timeline = schedules.build(plan.schedule, len(plan.stages), plan.passes_per_update)
            self._counters = [
                self._stage_counters(stage, schedules.waits(timeline, stage)) for stage in range(len(plan.stages))
            ]
        with tf.device(HOST):
            types, shapes = [tf.int32, tf.int32, tf.int32, tf.float64, tf.float64], [[]] * 5
            self._record = tf.FIFOQueue(RECORDED, types, shapes, name="cells") if recording else None
            self.recorded = [] if self._record is None else self._record.dequeue_many(self._record.size())
            self.recorded_step = tf.placeholder(tf.bool, [], "recording")  # in this host step

    def _stage_counters(self, stage: int, waits: schedules.Waits) -> dict[str, CellCounter]:
        """The counts of a stage that its cells wait for. A backward follows the forward of its own pass anyway."""
        most, device = self.plan.max_in_flight[stage], self.plan.stage_devices[stage]
        with tf.device(device if device.startswith("/cpu") else HOST):
            counts = {BACKWARD: CellCounter(f"backwards_{stage}", waits.forward, most)}
            if any(more != 1 for more in waits.backward):
                counts[FORWARD] = CellCounter(f"forwards_{stage}", waits.backward, most)
        return counts

    def first_tokens(self) -> Tokens:
        """Return the tokens for the loop's first pass. Stages that take one pass at a time need none; the loop does."""
        return tuple((tf.constant(0), tf.constant(0)) if self.plan.overlapped else () for _ in self.plan.stages)

    def release(self) -> list[tf.Operation]:
        """Lets every waiting cell go, when those that it waits for will not come any more."""
        return [count.release() for counts in self._counters for count in counts.values()]

    def counter_of(self, stage: int, kind: str) -> CellCounter | None:
        """Return the count of the stage's cells of a kind, or None if no others wait for them beyond their data."""
        return self._counters[stage].get(kind)

    @property
    def recording(self) -> bool:
        """True if cells are recorded."""
        return self._record is not None

    def record(self, cell: Sequence[tf.Tensor | int]) -> tf.Tensor:
        """Keeps stage, kind, pass, begin and end of a cell."""

        def keep() -> tf.Tensor:
            with tf.control_dependencies([self._record.enqueue(cell)]):
                return tf.constant(True)

        with tf.device(HOST):
            return tf.cond(self.recorded_step, keep, lambda: tf.constant(False))


class Cells:
    """The cells of one pass: `begin` holds a tensor back until the cell may run, `end` says that its results exist."""

    def __init__(self, order: StageOrder, i: tf.Tensor, tokens: Tokens) -> None:
        self._order = order
        self._pass = i
        self._before = tokens
        self._began: dict[tuple[int, str], tf.Tensor] = {}
        self._ended: dict[tuple[int, str], Token] = {}
        # counts and records, which the results of the pass must wait for: the backward of a stage that trains nothing
        # would be left out of the graph otherwise, and with it its count
        self.side_effects: list[tf.Tensor | tf.Operation] = []

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
            self.side_effects.append(self._order.record(words))
            with tf.control_dependencies([ended]):
                x = tf.identity(x)
            results = [ended]
        if self._before[stage]:
            count = self._order.counter_of(stage, kind)
            if count:
                with tf.control_dependencies(results):
                    results = [count.add(self._pass)]
                self.side_effects += results
            with tf.control_dependencies(results):
                self._ended[stage, kind] = tf.constant(0)
        return x

    @property
    def tokens(self) -> Tokens:
        """The tokens for the next pass."""
        return tuple(
            (self._ended[stage, BACKWARD], self._ended[stage, FORWARD]) if before else ()
            for stage, before in enumerate(self._before)
        )

    def _gates(self, stage: int, kind: str, x: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors that the cell waits for besides its input."""
        if not self._before[stage]:
            return []
        backward, forward = self._before[stage]
        before = forward if kind == FORWARD else backward
        awaited = self._order.counter_of(stage, BACKWARD if kind == FORWARD else FORWARD)
        if awaited is None:
            return [before]
        with tf.control_dependencies([x, before]):  # in the order of the passes, or one would take another's count
            return [awaited.wait(self._pass)]
