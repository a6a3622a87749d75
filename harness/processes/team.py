"""Coordinate the instances of a run: start together, compare options, communicate, and end together. A run in one process
is a team of one, without overhead."""

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

from base.bounds import json_value
from base.errors import OptionError
from base.process import commands, tf_runtime
from base.process.signals import Signals, StopRequest, for_others
from emulator.plan import machine
from harness.cluster.cluster import ALONE, SLURM, Cluster
from harness.cluster.membership import OPENMPI
from harness.run.run import Run

if TYPE_CHECKING:
    import numpy as np

    from harness.processes.heartbeat import Heartbeat
    from ipu_utils import WorkerGroup

_STATUS_SECONDS = 20.0  # Time for another instance, on a busy host, to read this one's status.
_FAILED = re.compile(r"([0-9]{1,6}): (.*)", re.DOTALL)  # A message: an instance, and why it must end.
_STALLED = 10  # Number of timeouts. A collective call takes only seconds once all instances are in it.
_LAST_FETCH = 0.2  # Seconds for the others to fetch the last values from this instance.
_PEER_ERRORS = ("Aborted", "Cancelled", "DeadlineExceeded", "FailedPrecondition", "Internal", "Unavailable")


class Team:
    """This process as one of the instances of a run, inside `with`.

    `before_exit`: function to call, with a reason, if another instance is lost and this one must end.
    """

    def __init__(self, cluster: Cluster = ALONE, timeout: float = 60.0, prog: str = "train.py") -> None:
        self.cluster, self.size, self.instance = cluster, cluster.size, cluster.instance
        self.group: WorkerGroup | None = None
        self.before_exit: Callable[[str], None] | None = None
        self._exit_lock = threading.Lock()  # held after the first call of `before_exit`
        self.configs: list[dict[str, Any]] = []  # `consistency.config` of each instance
        self.agreed_to_stop = False  # whether all instances know that the run ends here
        self._prog, self._timeout = commands.prog(prog), timeout
        self._heartbeat: Heartbeat | None = None
        self._leaving = threading.Event()

    @property
    def is_first(self) -> bool:
        """True if this instance logs and saves for all of them."""
        return self.instance == 0

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._heartbeat is None:
            return
        try:
            self._leave(error)
        except StopRequest as request:  # an instance is lost, and the launcher's signal came before the heartbeat noticed
            request.hinted = request.hinted or self._call_before_exit(str(request))
            request.ends_process = 0
            raise

    def _leave(self, error: BaseException | None) -> None:
        """End together with the other instances that are still running."""
        if self.agreed_to_stop and error is not None:
            try:
                self.shut_down()
            except Exception as late:  # the error on which all agreed is reported already
                if not self.is_peer_failure(late):
                    raise
        elif isinstance(error, StopRequest):  # the others may not be in a host step, which would inform them
            self.group.send_message(f"{self.instance} {error.number}", self._heartbeat.responsive())
        elif tf_runtime.data_error(error) is not None:
            self.group.send_message(f"{self.instance}: {tf_runtime.data_error(error)}", self._heartbeat.responsive())
        if self.is_of_runtime(error):
            # most likely an instance is lost. Wait for the heartbeat to name it and end this process. Instance 0, which
            # saves, waits less, so that the others are still running then
            self._leaving.wait((1 if self.is_first else 2) * min(15.0, self._timeout))
        if self._leaving.is_set():
            time.sleep(self._timeout)
        self._heartbeat.stop()
        if error is not None and not self.agreed_to_stop:
            # exit without closing the session, which would wait for instances that wait for this one
            error.ends_process = self._pause_at_end()
            time.sleep(_LAST_FETCH)
        if self.is_peer_failure(error):
            from harness.processes import heartbeat

            reason = self._why_lost(error)
            self._call_before_exit(reason)
            lost = heartbeat.PeerError(reason)
            lost.ends_process = 0
            raise lost from error

    def _pause_at_end(self) -> float:
        """Return the seconds to wait until the others have noticed this failure, saved and ended. Under mpirun, the exit of
        this instance would kill them."""
        return 0.25 * self._timeout if any(name in os.environ for name in OPENMPI) else 0

    def is_of_runtime(self, error: BaseException | None) -> bool:
        """Return whether the error comes from TensorFlow's runtime between instances. Most likely an instance is lost."""
        of_session = tf_runtime.is_of_tensorflow(error) and tf_runtime.data_error(error) is None
        return self.group is not None and of_session

    def is_peer_failure(self, error: BaseException | None) -> bool:
        """Return whether the error is one that TensorFlow raises if a peer is lost."""
        return self.is_of_runtime(error) and type(error).__name__.removesuffix("Error") in _PEER_ERRORS

    def _why_lost(self, error: BaseException) -> str:
        """Return a line that describes an error of the runtime and the instances that do not answer."""
        responsive = self._heartbeat.responsive()
        silent = [self.cluster.name_of(k) for k in range(self.size) if k not in (self.instance, *responsive)]
        others = (
            f"{' and '.join(silent)} {'do' if len(silent) > 1 else 'does'} not answer" if silent else "all others answer"
        )
        own = self.cluster.name_of(self.instance)
        return f"{own} lost the connection to the other instances ({others}): {tf_runtime.device_error(error)}"

    def rendezvous(self, run: Run) -> int:
        """Start the server, wait for all instances and compare their options; return the common seed."""
        if self.size == 1:
            return run.seed
        from harness.processes import bind_address, consistency, heartbeat, job_token

        check_port(self.cluster)
        addresses = bind_address.listening_addresses(run.options.training.bind, self.cluster)
        job_token.check(os.environ)
        tf_runtime.import_tensorflow("3")  # hide long messages of its servers: the heartbeat reports the same in a line
        from ipu_utils import WorkerGroup

        threads = max(1, machine.cores() // self.cluster.neighbours)
        try:
            self.group = WorkerGroup(self.cluster.addresses, self.instance, run.plan.stage_devices, threads)
        except Exception:
            check_port(self.cluster)  # another process may have taken the port meanwhile
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
        """Wait until all instances have found the same ones. OptionError for an instance of another run, which is not
        affected."""
        from harness.processes import heartbeat, job_token

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
                others = f"its instances: {', '.join(status.get('addresses', ())) or 'unknown'}"
                if status.get("met", identity) != identity:
                    raise heartbeat.foreign_run_error(self.cluster, k, others)
                if "met" not in status and time.monotonic() > end:
                    raise heartbeat.PeerError(
                        f"{self.cluster.name_of(k)} did not find this instance within {self._timeout:g} s "
                        f"(--worker-timeout; {others}). Give all instances the same addresses"
                    )
                refused = "met" in status and job_token.refusal(os.environ, identity, k, status.get("proof", ""))
                if refused:
                    self._wait_for_refusal(k, {**own, "met": identity, "proof": proof})
                    raise OptionError(f"{self.cluster.name_of(k)} {refused}. Give all instances the same one, or none")
            waiting = [k for k in waiting if "met" not in statuses[k]]
            time.sleep(0.05 if waiting else 0)

    def _status(self, instance: int) -> dict[str, Any]:
        """Return the status that an instance has set; empty if it is invalid, because other programs may write there."""
        try:
            status = json_value(self.group.status_of(instance) or "{}")
        except ValueError:
            return {}
        return status if isinstance(status, dict) else {}

    def _wait_for_refusal(self, instance: int, own: Mapping[str, Any]) -> None:
        """Wait until another instance has rejected this one too, or has ended, and no longer needs this one's status."""
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
        """Raise StopRequest in all instances if one of them got a signal. All instances must call this at the same points.

        A signal that arrives while an instance waits here counts at the next call, because the others do not know it yet.
        """
        if self.group is None:
            signals.raise_if_received()
            return
        stopping = self.group.all_gather_flag(signals.received is not None)
        if stopping:
            self.agree_to_stop(signals, stopping[0])
            signals.raise_if_received()

    def agree_to_stop(self, signals: Signals, instance: int) -> None:
        """Make all instances stop as `instance`, which got a signal, does. All instances must call this."""
        self.agreed_to_stop = True
        numbers = self.group.all_gather(str(signals.received or 0))
        signals.agree_to_stop(instance, int(numbers[instance]))

    def shut_down(self) -> None:
        """Wait until all instances have finished."""
        if self.group:
            self.group.all_gather("done")
            self._heartbeat.stop()
            time.sleep(_LAST_FETCH)

    def _call_before_exit(self, reason: str) -> bool:
        """Call `before_exit`, if set, but only once. Return whether it is set."""
        if self.before_exit and self._exit_lock.acquire(blocking=False):
            self.before_exit(reason)
        return self.before_exit is not None

    def _end_if_stalled(self) -> None:
        """End the process if all instances have waited too long in the same collective call: TensorFlow must have lost a
        message. An instance that saves or builds a program is in no such call. Called in the heartbeat's thread."""
        number, since = self.group.waiting or (0, math.inf)
        seconds = time.monotonic() - since
        if seconds > _STALLED * self._timeout and self.group.all_wait_in(number):
            self._end_process(f"all {self.size} instances have waited for each other for {seconds:.0f} s", "")

    def _end_process(self, reason: str, consequence: str = ": the run cannot continue without it") -> None:
        """End the process; its main thread may wait for the lost instance forever. Called in the heartbeat's thread."""
        self._leaving.set()
        messages = self.group.received_messages()
        matches = (re.fullmatch(r"([0-9]{1,6}) ([0-9]{1,2})", text) for text in messages)
        stopped = next((match for match in matches if match), None)  # an instance, and the signal it got
        stop = StopRequest(for_others(int(stopped[2])), int(stopped[1])) if stopped else None
        failed = next((match for match in map(_FAILED.fullmatch, messages) if match), None)
        if failed:
            reason = f"{self.cluster.name_of(int(failed[1]))} failed: {failed[2]}"
        message = str(stop or f"{reason}{consequence}")
        worker = threading.Thread(target=self._call_before_exit, args=(message,), daemon=True)
        worker.start()
        worker.join(0.2 * self._timeout)
        print(f"{self._prog}: {f'stopped by {stop}' if stop else f'error: {message}'}", file=sys.stderr, flush=True)
        time.sleep(min(2.0, 0.05 * self._timeout))  # so that the others notice the loss of the same instance first
        sys.stdout.flush()
        os._exit(128 + stop.number if stop else 1)


def check_port(cluster: Cluster) -> None:
    """OptionError if another program uses this instance's port."""
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
                f"uses it, or {other}"
            ) from None


def port_of(cluster: Cluster) -> int:
    """Return the port on which this instance listens."""
    return int(cluster.addresses[cluster.instance].rsplit(":", 1)[1])


def introduction(cluster: Cluster, wire: str = "fp32", bind: str | None = None) -> list[str]:
    """Return the lines about the instances for the start of the log. `wire`: the format in which gradients are sent between
    instances. `bind`: the value of --bind."""
    if cluster.size == 1:
        return []
    from harness.processes import bind_address

    where = " and ".join(map(str, bind_address.listening_addresses(bind, cluster))) or "every network interface"
    return [
        f"{cluster.size} instances by {cluster.source}: {', '.join(cluster.addresses)}; this is instance {cluster.instance}",
        f"Listening on port {port_of(cluster)} of {where}, without authentication: use private networks only",
        *[f"Gradients are sent between instances, and added, in {wire}"] * (wire != "fp32"),
    ]
