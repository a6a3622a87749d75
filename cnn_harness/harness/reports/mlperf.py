"""Write log lines for the compliance checker of MLPerf Training (`--mlperf-logging`).

Each event becomes a line `:::MLLOG {...}` in log.txt and in result_<seed>.txt. The keys come from MLCommons' package
mlperf-logging and follow the rules of the open division.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from cnn_harness.base.storage import files
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

POINT, START, STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


class Events:
    """Writes the events of a run. Writes nothing without --mlperf-logging."""

    def __init__(self, run: Run, seed: int, log: RunLog) -> None:
        self._run, self._seed, self._log = run, seed, log if run.options.logging.mlperf_logging else None
        self._results = log.folder / f"result_{seed}.txt" if self._log and log.folder else None
        self._block = -1  # This is the first weight update of the current block, or -1 outside of blocks.
        self._over = True  # This is False between run_start and run_stop.
        # The clock is read once, so that times never decrease if somebody sets it back.
        self._zero = time.time() - time.monotonic()

    def _event(self, key: str, value: Any = None, kind: str = POINT, **metadata: Any) -> None:
        if self._log is None:
            return
        now = round(1000 * (self._zero + time.monotonic()))
        event = {"namespace": "", "time_ms": now, "event_type": kind, "key": key, "value": value}
        line = ":::MLLOG " + json.dumps({**event, "metadata": {"file": "train.py", "lineno": 0, **metadata}})
        self._log.note(line)
        if self._results:
            try:
                with files.append(self._results) as results:
                    results.write(f"{line}\n".encode())
            except OSError as error:  # The run continues, because log.txt has the same lines.
                self._log.note(f"warning: writing {self._results} stops here ({error.strerror}); log.txt has all events")
                self._results = None

    def log_init_start(self) -> None:
        """Write the events at the start of initialisation, including the run's settings."""
        self._event("cache_clear", True)
        self._event("init_start", kind=START)
        for key, value in _settings(self._run, self._seed).items():
            self._event(key, value)

    def log_init_stop(self, update: int) -> None:
        """Write the end of initialisation, and the start of training at weight update `update`."""
        self._event("init_stop", kind=STOP)
        self._event("run_start", kind=START)
        self._over = False
        self.block_begins(update)

    def block_begins(self, update: int) -> None:
        """Write the start of a block: training from weight update `update` to the next checkpoint."""
        length = self._run.length
        period = length.iterations_per_ckpt or length.iterations
        self._block = update
        count = max(1, round(min(period, length.iterations - update) * length.global_batch / length.images))
        self._event("block_start", kind=START, first_epoch_num=self._epoch(update) + 1, epoch_count=count)

    def _epoch(self, update: int) -> int:
        """Return the number of completed epochs."""
        return round(self._run.length.epoch(update))

    def block_over(self) -> None:
        """Write the end of the current block, if there is one."""
        if self._block >= 0:
            self._event("block_stop", kind=STOP, first_epoch_num=self._epoch(self._block) + 1)
            self._block = -1

    def evaluated(self, update: int, score: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Call `score`, which validates a checkpoint, and write the events of the validation.

        Averaged weights have a negative `update`. No events are written for them, because they are validated after the run.
        """
        if update < 0:
            return score()
        epoch = self._epoch(update)
        self._event("eval_start", kind=START, epoch_num=epoch)
        row = score()
        self._event("eval_accuracy", float(row["val_acc"]) / 100, epoch_num=epoch)
        self._event("eval_stop", kind=STOP, epoch_num=epoch)
        return row

    def log_run_stop(self, status: str) -> None:
        """Write the end of the run. `status` is "success" or "aborted". Later calls do nothing."""
        if not self._over:
            self.block_over()
            self._event("run_stop", kind=STOP, status=status)
        self._over = True


def _settings(run: Run, seed: int) -> dict[str, Any]:
    """Return the settings that the MLPerf rules require in the log before training."""
    training, plan = run.options.training, run.plan
    lars = training.optimiser == "LARS"
    decay = training.lars_weight_decay if lars else training.weight_decay
    model = run.options.main.model
    return {
        "submission_benchmark": model,
        "submission_org": "none",
        "submission_division": "open",
        "submission_status": "research",
        "submission_platform": f"{plan.ipus} emulated IPUs",
        "seed": seed,
        "global_batch_size": plan.global_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "train_samples": run.data_source.spec.train_images,
        "eval_samples": run.data_source.spec.validation_images,
        "opt_name": training.optimiser.lower(),
        "lars_opt_base_learning_rate" if lars else "opt_base_learning_rate": run.peak_rate,
        "lars_opt_weight_decay" if lars else "opt_weight_decay": decay or 0.0,
        "opt_learning_rate_warmup_epochs": getattr(run.options.schedule, "warmup_epochs", 0) or 0,
        "model_bn_span": plan.options.BN_span * plan.micro_batch_size,
    }
