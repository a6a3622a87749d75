"""Coordinate the instances (processes) of a run: start together, compare options, exchange values, and end together.

A run in a single process also uses `Team`, but starts no server and sends nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cnn_harness.base.bounds import json_value
from cnn_harness.base.errors import Leave, OptionError
from cnn_harness.base.process import commands, tf_runtime
from cnn_harness.base.process.signals import Signals, StopRequest, for_others
from cnn_harness.emulator.plan import machine
from cnn_harness.harness.run.cluster import ALONE, SLURM, Cluster, seed_of
from cnn_harness.harness.run.membership import OPENMPI
from cnn_harness.harness.run.run import Run

if TYPE_CHECKING:
    import numpy as np

    from cnn_harness.harness.distributed.heartbeat import Heartbeat
    from cnn_harness.ipu_utils import WorkerGroup

_STATUS_SECONDS = 20.0  # Wait at most this long for another instance to read the status of this one. A host may be busy.
_FAILED = re.compile(r"([0-9]{1,6}): (.*)", re.DOTALL)  # A message contains the index of a failed instance and the reason.
# If all instances wait in the same collective call for this many timeouts, end the run. A call normally takes only seconds.
_STALLED = 10
_LAST_FETCH = 0.2  # Before it ends, this instance waits so many seconds for others to fetch the last values from it.
_PEER_ERRORS = ("Aborted", "Cancelled", "DeadlineExceeded", "FailedPrecondition", "Internal", "Unavailable")


class Team:
    """This process as one of the instances of a run, used in a `with` statement.

    If another instance is lost and this process must end, `before_exit` is called first, with the reason.
    """

    def __init__(self, cluster: Cluster = ALONE, timeout: float = 60.0, prog: str = "train.py") -> None:
        self.cluster, self.size, self.instance = cluster, cluster.size, cluster.instance
        self.group: WorkerGroup | None = None
        self.before_exit: Callable[[str], None] | None = None
        self._exit_lock = threading.Lock()  # The lock is taken at the first call of `before_exit` and never released.
        self.configs: list[dict[str, Any]] = []  # The result of `consistency.config` in every instance.
        self.agreed_to_stop = False  # True after all instances have agreed to end the run.
        self._prog, self._timeout = commands.prog(prog), timeout
        self._heartbeat: Heartbeat | None = None
        self._leaving = threading.Event()

    @property
    def is_first(self) -> bool:
        """True if this is instance 0, which writes the log and the checkpoints of the run."""
        return self.instance == 0

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._heartbeat is None:
            return
        try:
            self._leave(error)
        except StopRequest as request:  # The launcher noticed a lost instance before the heartbeat, and sent a signal.
            raise Leave(request, hinted=self._call_before_exit(str(request)), seconds=0) from None

    def _leave(self, ending: BaseException | None) -> None:
        """End this instance: inform the other running instances, and wait for them if necessary."""
        error = ending.error if isinstance(ending, Leave) else ending
        if self.agreed_to_stop and error is not None:
            try:
                self.shut_down()
            except Exception as late:  # All instances have reported `error` already, so a lost instance is no news.
                if not self.is_peer_failure(late):
                    raise
        elif isinstance(error, StopRequest):  # A host step would inform the other instances, but they may not be in one.
            self.group.send_message(f"{self.instance} {error.number}", self._heartbeat.responsive())
        elif tf_runtime.data_error(error) is not None:
            self.group.send_message(f"{self.instance}: {tf_runtime.data_error(error)}", self._heartbeat.responsive())
        if self.is_of_runtime(error):
            # Most likely an instance is lost. Wait until the heartbeat finds the lost instance and ends this process.
            # Instance 0 waits for a shorter time: it saves a checkpoint and needs the other running instances for that.
            self._leaving.wait((1 if self.is_first else 2) * min(15.0, self._timeout))
        if self._leaving.is_set():
            time.sleep(self._timeout)
        self._heartbeat.stop()
        if error is not None and not self.agreed_to_stop:
            # End without closing the session. Closing would wait for other instances, and these wait for this one.
            time.sleep(_LAST_FETCH)
        if self.is_peer_failure(error):
            from cnn_harness.harness.distributed import heartbeat

            reason = self._why_lost(error)
            self._call_before_exit(reason)
            raise Leave(heartbeat.PeerError(reason), seconds=0) from error
        if error is not None and not self.agreed_to_stop:
            raise Leave(ending, seconds=self._pause_at_end()) from error

    def _pause_at_end(self) -> float:
        """Return how many seconds to wait before this failed instance ends.

        mpirun kills all instances when one ends, so wait until the other instances have noticed the failure and saved.
        """
        return 0.25 * self._timeout if any(name in os.environ for name in OPENMPI) else 0

    def is_of_runtime(self, error: BaseException | None) -> bool:
        """Return whether TensorFlow raised the error in a run of several instances. Then most likely an instance is lost."""
        of_session = tf_runtime.is_of_tensorflow(error) and tf_runtime.data_error(error) is None
        return self.group is not None and of_session

    def is_peer_failure(self, error: BaseException | None) -> bool:
        """Return whether this is an error that TensorFlow raises if another instance is lost."""
        return self.is_of_runtime(error) and type(error).__name__.removesuffix("Error") in _PEER_ERRORS

    def _why_lost(self, error: BaseException) -> str:
        """Return a line that describes TensorFlow's error and names the instances that do not answer."""
        responsive = self._heartbeat.responsive()
        silent = [self.cluster.name_of(k) for k in range(self.size) if k not in (self.instance, *responsive)]
        others = (
            f"{' and '.join(silent)} {'do' if len(silent) > 1 else 'does'} not answer"
            if silent
            else "all other instances answer"
        )
        own = self.cluster.name_of(self.instance)
        return f"{own} lost the connection to the other instances ({others}): {tf_runtime.device_error(error)}"

    def rendezvous(self, run: Run) -> int:
        """Start TensorFlow's server, wait for all instances and compare their options. Return the seed of instance 0."""
        if self.size == 1:
            return seed_of(run.options)
        from cnn_harness.harness.distributed import bind_address, consistency, heartbeat, job_token

        check_port(self.cluster)
        addresses = bind_address.listening_addresses(run.options.training.bind, self.cluster)
        job_token.check(os.environ)
        # Hide the long messages of TensorFlow's servers, because the heartbeat reports a lost instance in one line.
        tf_runtime.import_tensorflow("3")
        from cnn_harness.ipu_utils import WorkerGroup

        threads = max(1, machine.cores() // self.cluster.neighbours)
        try:
            self.group = WorkerGroup(self.cluster.addresses, self.instance, run.plan.stage_devices, threads)
        except Exception:
            check_port(self.cluster)  # Another process may have taken the port since the first check.
            raise
        if addresses:
            bind_address.restrict_listeners(port_of(self.cluster), addresses)
        self._heartbeat = heartbeat.Heartbeat(self.cluster, self._timeout, self._end_process, self._end_if_stalled)
        self._meet()
        self._heartbeat.watch()
        self.configs = [json.loads(text) for text in self.group.all_gather(json.dumps(consistency.config(run)))]
        consistency.compare(self.configs, self.cluster)
        return self.configs[0]["seed"]

    def _meet(self) -> None:
        """Wait until all instances have found each other and have proved that they know the job token.

        Raise OptionError if an address belongs to another run, which is not affected.
        """
        from cnn_harness.harness.distributed import heartbeat, job_token

        own = {"addresses": self.cluster.addresses}
        self.group.set_status(json.dumps(own))
        identity = self._heartbeat.wait_for_all()
        self.group.join(identity)
        proof = job_token.proof(os.environ, identity, self.instance)
        self.group.set_status(json.dumps({**own, "met": identity, "proof": proof}))
        waiting = [k for k in range(self.size) if k != self.instance]
        end = time.monotonic() + self._timeout
        while waiting:
            statuses = {k: self._status(k) for k in waiting}
            for k, status in statuses.items():
                others = f"it uses the addresses {', '.join(status.get('addresses', ())) or '(unknown)'}"
                if status.get("met", identity) != identity:
                    raise heartbeat.foreign_run_error(self.cluster, k, others)
                if "met" not in status and time.monotonic() > end:
                    raise heartbeat.PeerError(
                        f"{self.cluster.name_of(k)} did not find this instance within {self._timeout:g} s "
                        f"(--worker-timeout): {others}. Give all instances the same addresses"
                    )
                refused = "met" in status and job_token.refusal(os.environ, identity, k, status.get("proof", ""))
                if refused:
                    self._wait_for_refusal(k, {**own, "met": identity, "proof": proof})
                    raise OptionError(
                        f"{self.cluster.name_of(k)} {refused}. Give all instances the same {job_token.VARIABLE}, or none"
                    )
            waiting = [k for k in waiting if "met" not in statuses[k]]
            time.sleep(0.05 if waiting else 0)

    def _status(self, instance: int) -> dict[str, Any]:
        """Return the status that an instance has set, or {} if another program has set an invalid text."""
        try:
            status = json_value(self.group.status_of(instance) or "{}")
        except ValueError:
            return {}
        return status if isinstance(status, dict) else {}

    def _wait_for_refusal(self, instance: int, own: Mapping[str, Any]) -> None:
        """Wait until `instance` has rejected this instance too, or has ended. Until then it reads this one's status."""
        self.group.set_status(json.dumps({**own, "refused": instance}))
        end = time.monotonic() + min(_STATUS_SECONDS, self._timeout)
        while time.monotonic() < end:
            if self.group.status_of(instance) is None or "refused" in self._status(instance):
                return
            time.sleep(0.05)

    def broadcast_text(self, text: str = "") -> str:
        """Return instance 0's text in all instances."""
        return self.group.all_gather(text if self.is_first else "")[0] if self.group else text

    def broadcast_json(self, value: Any = None) -> Any:
        """Return instance 0's JSON value in all instances."""
        return json.loads(self.broadcast_text(json.dumps(value)))

    def broadcast(self, values: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Return instance 0's values in all instances."""
        return self.group.broadcast(values if self.is_first else None) if self.group else dict(values or {})

    def all_reduce_sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over all instances."""
        return self.group.all_reduce_sum(values) if self.group else dict(values)

    def all_reduce_max(self, value: float) -> float:
        """Return the largest value of all instances."""
        return max(map(float, self.group.all_gather(repr(value)))) if self.group else value

    def stop_together(self, signals: Signals) -> None:
        """Raise StopRequest in all instances if one of them received a signal. All instances must call this method together.

        If a signal arrives during this call, the next call raises StopRequest, because the other instances do not know about
        the signal yet.
        """
        if self.group is None:
            signals.raise_if_received()
            return
        stopping = self.group.all_gather_flag(signals.received is not None)
        if stopping:
            self.agree_to_stop(signals, stopping[0])
            signals.raise_if_received()

    def agree_to_stop(self, signals: Signals, instance: int) -> None:
        """Make all instances stop because `instance` received a signal. All instances must call this method together."""
        self.agreed_to_stop = True
        numbers = self.group.all_gather(str(signals.received or 0))
        signals.agree_to_stop(instance, int(numbers[instance]))

    def shut_down(self) -> None:
        """Wait until all instances have finished, then stop the heartbeat."""
        if self.group:
            self.group.all_gather("done")
            self._heartbeat.stop()
            time.sleep(_LAST_FETCH)

    def _call_before_exit(self, reason: str) -> bool:
        """Call `before_exit` if it is set and has not been called yet. Return whether it is set."""
        if self.before_exit and self._exit_lock.acquire(blocking=False):
            self.before_exit(reason)
        return self.before_exit is not None

    def _end_if_stalled(self) -> None:
        """End the process if all instances have waited too long in the same collective call. TensorFlow then lost a message.

        An instance that saves a checkpoint or builds a program does not wait in a collective call, so it is not ended. The
        heartbeat's thread calls this method.
        """
        number, since = self.group.waiting or (0, math.inf)
        seconds = time.monotonic() - since
        if seconds > _STALLED * self._timeout and self.group.all_wait_in(number):
            self._end_process(f"all {self.size} instances have waited for each other for {seconds:.0f} s", "")

    def _end_process(self, reason: str, consequence: str = ": the run cannot continue without it") -> None:
        """End the process, because its main thread may wait forever for the lost instance. The heartbeat's thread calls this
        method."""
        self._leaving.set()
        messages = self.group.received_messages()
        matches = (re.fullmatch(r"([0-9]{1,6}) ([0-9]{1,2})", text) for text in messages)
        stopped = next((match for match in matches if match), None)  # The groups are an instance and the signal it received.
        stop = StopRequest(for_others(int(stopped[2])), int(stopped[1])) if stopped else None
        failed = next((match for match in map(_FAILED.fullmatch, messages) if match), None)
        if failed:
            reason = f"{self.cluster.name_of(int(failed[1]))} failed: {failed[2]}"
        message = str(stop or f"{reason}{consequence}")
        worker = threading.Thread(target=self._call_before_exit, args=(message,), daemon=True)
        worker.start()
        worker.join(0.2 * self._timeout)
        print(f"{self._prog}: {f'stopped by {stop}' if stop else f'error: {message}'}", file=sys.stderr, flush=True)
        # Other instances must notice the lost instance before they miss this one, so wait before this process ends.
        time.sleep(min(2.0, 0.05 * self._timeout))
        sys.stdout.flush()
        os._exit(128 + stop.number if stop else 1)


def check_port(cluster: Cluster) -> None:
    """Raise OptionError if another program uses the port of this instance."""
    port = port_of(cluster)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            other = "choose another port for this instance"
            if cluster.source == SLURM:
                other = f"let Slurm reserve ports: srun --resv-ports={cluster.neighbours}"
            raise OptionError(
                f"{cluster.name_of(cluster.instance)} cannot listen on port {port}: {error.strerror}. End the program that "
                f"uses this port, or {other}"
            ) from None


def port_of(cluster: Cluster) -> int:
    """Return the port on which this instance listens."""
    return int(cluster.addresses[cluster.instance].rsplit(":", 1)[1])


def introduction(cluster: Cluster, wire: str = "fp32", bind: str | None = None) -> list[str]:
    """Return log lines about the instances of the run, or nothing for a single process.

    `wire` is the number format in which instances send gradients. `bind` is the value of --bind.
    """
    if cluster.size == 1:
        return []
    from cnn_harness.harness.distributed import bind_address

    where = " and ".join(map(str, bind_address.listening_addresses(bind, cluster))) or "every network interface"
    return [
        f"{cluster.size} instances by {cluster.source}: {', '.join(cluster.addresses)}; this is instance {cluster.instance}",
        f"Listening on port {port_of(cluster)} of {where}, without authentication. Use only private networks",
        *[f"Instances send and add gradients in {wire}"] * (wire != "fp32"),
    ]
