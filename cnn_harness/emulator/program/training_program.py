"""The training program. One session call runs one host step: the loops over weight updates and micro-batches are in the
graph. A queue delivers the metrics of each update while the call runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.draws import Seed
from cnn_harness.base.process import printed
from cnn_harness.emulator.plan.checkpoint_tensors import LOSS_SCALE
from cnn_harness.emulator.plan.schedules import KINDS, Action
from cnn_harness.emulator.plan.timings import CellTiming
from cnn_harness.emulator.program.accumulation import RUN, STOP_AT_PASS, STOP_AT_UPDATE
from cnn_harness.emulator.program.cells import StageOrder
from cnn_harness.emulator.program.fingerprints import decoded
from cnn_harness.emulator.program.gradient_noise import estimates
from cnn_harness.emulator.program.optimised_graph import CacheEntry
from cnn_harness.emulator.program.runtime import (
    NextFeatures,
    Program,
    ProgramGraph,
    Stream,
    most_alive,
    named_faults,
    operation_events,
)
from cnn_harness.emulator.program.training_spec import TrainingSpec
from cnn_harness.emulator.program.update import HostStep
from cnn_harness.emulator.program.variables import STEP, ProgramVariables

OutfeedRow = tuple[Any, ...]
Report = Callable[[float, float], None]  # the arguments are loss and accuracy of a weight update.
OUTFEED_DEPTH = 100_000


@dataclass(frozen=True)
class Metrics:
    """Metrics of the weight updates of one host step.

    * `loss` and `accuracy` are float32 [updates].
    * `lost` [updates, layers, 2] has the fractions of gradients that underflowed and overflowed in narrow formats.
    * `instance_seconds` [updates, instances] has the seconds that each instance (process) of a group needed for the passes
      of an update, including data but without waiting for other instances.
    * `waited` [updates] has the seconds for which the device could start a pass, but waited for its batch. In a group, this
      is the mean of the instances.
    * `gradient_noise` float64 [updates, 2] has estimates of S and |G|^2 (`gradient_noise.estimates`), or is [0, 2].
    * `fingerprints` has, for each update, the hashes and the norms of gradients and weights (`fingerprints.decoded`), or is
      empty.
    * `stopping_instances` has the numbers of the instances that dropped the next update because they must end at once.
    """

    loss: np.ndarray
    accuracy: np.ndarray
    lost: np.ndarray
    instance_seconds: np.ndarray
    waited: np.ndarray
    gradient_noise: np.ndarray
    fingerprints: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    stopping_instances: tuple[int, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A recorded weight update: its metrics and the times of its cells. If requested, it also has the operations as events
    of a Chrome trace, and the peak bytes of all tensors except the weights."""

    metrics: Metrics
    cells: tuple[CellTiming, ...]
    operations: tuple[Mapping[str, Any], ...] = ()
    most_alive: int | None = None


class TrainingProgram(Program):
    """A compiled training program in its own graph."""

    def __init__(self, training: TrainingSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> None:
        """`stream` delivers the training batches. `cache_entry` is the entry in the program cache."""
        self._ended = threading.Event()
        group = training.group
        self._instances, self._plan = group.size if group else 0, training.plan
        super().__init__(
            partial(_write, training), stream, training.plan.stage_devices, training.seed,
            place=group.device if group else None, group=group, cache_entry=cache_entry,
        )  # fmt: skip
        self.watched, self.trained = (tuple(self._metadata[name]) for name in ("watched", "trained"))
        self._call_options = group.begin_call_sequence() if group else None

    def compile(self) -> None:
        """Run a host step without updates, so that TensorFlow optimises the graph and sets up executors."""
        self.session.run(self._names["step"], self._feeds([]), self._call_options)
        self._mark_compiled()

    def step(
        self,
        learning_rates: Sequence[float],
        report: Report | None = None,
        *,
        recording: bool = False,
        trace: tf.RunMetadata | None = None,
    ) -> Metrics:
        """Run a host step with one weight update for each learning rate, or fewer after `stop`.

        `report` is called in another thread with the loss and accuracy of each update. If `report` raises an error, the step
        ends after the current update and raises the same error. `recording` records the times of cells. `trace` receives
        TensorFlow's record of the session call.
        """
        feeds = self._feeds(learning_rates, recording)
        options = self._call_options
        if trace is not None:
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            options.MergeFrom(self._call_options or tf.RunOptions())
        outfeed: list[OutfeedRow] = []
        failed: list[Exception] = []
        drain = printed.for_thread(self._drain)
        reader = threading.Thread(target=drain, args=(len(learning_rates), outfeed, report, failed), daemon=True)
        reader.start()
        try:
            with named_faults(lambda: f"update {self.updates() + 1}"):
                # the main thread must be free to handle signals.
                done, stop_requests = self._device.submit(
                    self.session.run, self._names["step"], feeds, options, trace
                ).result()
        finally:
            self._ended.set()
            reader.join()
            self._ended.clear()
        if failed:
            raise failed[0]
        if done and self._cache_entry is not None:
            self._cache_entry.ran()
        rows = outfeed[:done]
        loss, accuracy, lost, seconds, waited, norms, *fingerprints = zip(*rows) if rows else ((),) * 6
        return Metrics(
            np.asarray(loss, np.float32), np.asarray(accuracy, np.float32),
            np.asarray(lost, np.float32).reshape(len(rows), len(self.watched), 2),
            np.asarray(seconds, np.float32).reshape(len(rows), self._instances),
            np.asarray(waited, np.float32), estimates(norms, self._plan),
            [decoded(table) for tables in fingerprints for table in tables],
            tuple(int(k) for k in np.flatnonzero(stop_requests == STOP_AT_PASS)),
        )  # fmt: skip

    def profile(self, learning_rate: float, operations: bool, report: Report | None = None) -> Profile:
        """Run one weight update. Return its metrics and the times of its cells. With `operations`, also return the times of
        all operations.

        Raise ValueError if the program was built without recording.
        """
        if not self._names["recorded"]:
            raise ValueError("the program was built without recording")
        trace = tf.RunMetadata() if operations else None
        metrics = self.step([learning_rate], report, recording=True, trace=trace)
        rows = zip(*self.session.run(self._names["recorded"]))
        cells = tuple(
            CellTiming(Action(int(j), KINDS[kind], int(i)), float(begin), float(end)) for j, kind, i, begin, end in rows
        )
        return Profile(metrics, cells, operation_events(trace), most_alive(trace)) if trace else Profile(metrics, cells)

    def _feeds(self, learning_rates: Sequence[float], recording: bool = False) -> dict[str, Any]:
        """Return the feeds of a host step. The fed tensors are always the same, because TensorFlow optimises the graph again
        if they change."""
        return dict(zip(self._names["fed"], (np.asarray(learning_rates, np.float32), recording)))

    def stop(self, drop_update: bool) -> None:
        """End the host step after the current update, or drop the current update and end at once. Any thread may call this.
        The request is valid until `resume`."""
        self.session.run(self._names["drop" if drop_update else "stop"])

    def resume(self) -> None:
        """Cancel a request to stop after the current update. A request that drops the update cannot be cancelled."""
        self.session.run(self._names["resume"])

    def _drain(
        self, updates: int, outfeed: list[OutfeedRow], report: Report | None, failed: list[Exception]
    ) -> None:  # fmt: skip
        """Move metrics from the queue to `outfeed` until the step has ended and the queue is empty. If `report` raises an
        error, add the error to `failed` and do not call `report` again. Read all rows, because their number is the number of
        updates."""
        while len(outfeed) < updates:
            ended = self._ended.wait(0.02)
            rows = list(zip(*self.session.run(self._names["outfeed"])))
            outfeed += rows
            try:
                for loss, accuracy, *_ in rows if report and not failed else ():
                    report(float(loss), float(accuracy))
            except Exception as error:  # `report` may fail, for example if the log cannot be written.
                failed.append(error)
                self.stop(drop_update=False)
            if ended:
                return

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Load the values of a checkpoint: model, slots and number of updates."""
        self.state.assign(self.session, values, self.state.saved)

    def load_initial(self, values: Mapping[str, np.ndarray]) -> None:
        """Load all values of the model and its slots that `values` has. Keep the number of updates."""
        self.state.assign(self.session, values, [name for name in self.state.saved if name in values and name != STEP])

    def updates(self) -> int:
        """Return the number of updates that the weights have had."""
        return int(self.session.run(self.state.saved[STEP].read)[0])

    def loss_scale(self) -> tuple[float, int] | None:
        """Return the current loss scale and the number of skipped updates, or None without automatic loss scaling."""
        if LOSS_SCALE not in self.state.saved:
            return None
        scale, _, skipped = self.session.run(self.state.saved[LOSS_SCALE].read)
        return float(scale), int(skipped)

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of all variables that are saved in checkpoints, by name."""
        return self.state.values(self.session)


def _write(training: TrainingSpec, seed: Seed, next_features: NextFeatures) -> ProgramGraph:
    """Write a training program into the current graph."""
    variables = ProgramVariables(
        training.variables, seed, training.optimiser.slots, training.trained, training.dtype,
        training.plan.precision, training.loss_scale.first_state if training.loss_scale.rule else None, bool(training.ema),
    )  # fmt: skip
    order = StageOrder(training.plan, training.recording)
    learning_rates = tf.placeholder(tf.float32, [None], "learning_rates")
    watched = tuple(training.watched_layers.formats)
    instances = training.group.size if training.group else 0
    shapes = [[], [], [len(watched), 2], [instances], [], [2 * training.gradient_noise]]
    dtypes = [tf.float32] * len(shapes)
    trained = tuple(v.name for v in training.updated_variables if v.trainable)
    if training.fingerprints:
        shapes, dtypes = [*shapes, [max(1, instances), 2, len(trained), 2]], [*dtypes, tf.int64]
    outfeed = tf.FIFOQueue(OUTFEED_DEPTH, dtypes, shapes, name="outfeed")
    stop = tf.get_variable("stop", initializer=RUN, trainable=False, use_resource=True)
    step = HostStep(training, training.policy(seed), next_features, variables, order, outfeed, stop).run(learning_rates)
    at_pass = stop.assign(STOP_AT_PASS, read_value=False)
    with tf.control_dependencies([at_pass]):
        release = order.release_all()
    names = {
        "fed": [learning_rates, order.recorded_step],
        "step": step,
        "outfeed": outfeed.dequeue_many(outfeed.size()),
        "recorded": order.recorded,
        "resume": [stop.assign(RUN, read_value=False)],
        "stop": [stop.assign(STOP_AT_UPDATE, read_value=False)],
        "drop": [at_pass, *release],
        "initialise": [tf.global_variables_initializer()],
    }
    return ProgramGraph.of(names, {"watched": watched, "trained": trained}, variables)
