"""The instances of a run at work: they meet, compare their calls, and run together until the end. A run in one process is a
team of one, which costs nothing."""

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

_STATUS_SECONDS = 20.0  # seconds in which another instance reads the status of this one, however busy its host
_FAILED = re.compile(r"([0-9]{1,6}): (.*)", re.DOTALL)  # a message: an instance, and why it cannot go on
_STALLED = 10  # times the timeout: a call between host steps takes seconds once all instances are in it
_LAST_FETCH = 0.2  # seconds for values that the others have yet to fetch from here
_PEER_ERRORS = ("Aborted", "Cancelled", "DeadlineExceeded", "FailedPrecondition", "Internal", "Unavailable")


class Team:
    """This process among the instances of a run, between `with`. `before_exit`: the function that is called, with a
    reason, when another instance is lost and this one must end."""

    def __init__(self, cluster: Cluster = ALONE, timeout: float = 60.0, prog: str = "train.py") -> None:
        self.cluster, self.size, self.instance = cluster, cluster.size, cluster.instance
        self.group: WorkerGroup | None = None
        self.before_exit: Callable[[str], None] | None = None
        self._exit_lock = threading.Lock()  # held from the first call of `before_exit` on
        self.configs: list[dict[str, Any]] = []  # each instance's name of the run, and the folder that it is to write into
        self.agreed_to_stop = False  # all instances know that the run is to end here
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
        except StopRequest as request:  # an instance is lost, and the launcher ends the others before the heartbeat reports
            request.hinted = request.hinted or self._call_before_exit(str(request))
            request.ends_process = 0
            raise

    def _leave(self, error: BaseException | None) -> None:
        """End together with the other instances, as far as they are still there."""
        if self.agreed_to_stop and error is not None:
            try:
                self.shut_down()
            except Exception as late:  # the error that all agreed to end with is reported already
                if not self.is_peer_failure(late):
                    raise
        elif isinstance(error, StopRequest):  # the others may be anywhere, and learn nothing from a host step
            self.group.send_message(f"{self.instance} {error.number}", self._heartbeat.responsive())
        elif tf_runtime.data_error(error) is not None:
            self.group.send_message(f"{self.instance}: {tf_runtime.data_error(error)}", self._heartbeat.responsive())
        if self.is_of_runtime(error):
            # most likely because an instance is lost: then the heartbeat names it, and ends this process; instance 0, which
            # saves first, is to find the others there still
            self._leaving.wait((1 if self.is_first else 2) * min(15.0, self._timeout))
        if self._leaving.is_set():
            time.sleep(self._timeout)
        self._heartbeat.stop()
        if error is not None and not self.agreed_to_stop:
            # Python would close the session, which would wait for instances that wait for this one: its server still answers
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
        """Return the seconds in which the others may notice this failure, save and end. The exit code of this instance makes
        mpirun kill them."""
        return 0.25 * self._timeout if any(name in os.environ for name in OPENMPI) else 0

    def is_of_runtime(self, error: BaseException | None) -> bool:
        """Return whether the error is one of the runtime between instances: most likely one of them is lost."""
        of_session = tf_runtime.is_of_tensorflow(error) and tf_runtime.data_error(error) is None
        return self.group is not None and of_session

    def is_peer_failure(self, error: BaseException | None) -> bool:
        """Return whether the error is TensorFlow's of a peer that is lost."""
        return self.is_of_runtime(error) and type(error).__name__.removesuffix("Error") in _PEER_ERRORS

    def _why_lost(self, error: BaseException) -> str:
        """Return a line on an error of the runtime between the instances, and on those that are not there."""
        there = self._heartbeat.responsive()
        silent = [self.cluster.name_of(k) for k in range(self.size) if k not in (self.instance, *there)]
        others = f"{' and '.join(silent)} {'do' if len(silent) > 1 else 'does'} not answer" if silent else "all answer"
        own = self.cluster.name_of(self.instance)
        return f"{own} cannot go on with the others, of which {others}: {tf_runtime.device_error(error)}"

    def rendezvous(self, run: Run) -> int:
        """Start the server, wait for all instances and compare their calls; return the seed that all use."""
        if self.size == 1:
            return run.seed
        from harness.processes import bind_address, consistency, heartbeat, job_token

        check_port(self.cluster)
        addresses = bind_address.listening_addresses(run.options.training.bind, self.cluster)
        job_token.check(os.environ)
        tf_runtime.import_tensorflow("3")  # its servers say at length what the heartbeat says in a line
        from ipu_utils import WorkerGroup

        threads = max(1, machine.cores() // self.cluster.neighbours)
        try:
            self.group = WorkerGroup(self.cluster.addresses, self.instance, run.plan.stage_devices, threads)
        except Exception:
            check_port(self.cluster)  # which another process may have taken meanwhile
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
        """Wait until every instance has met the same ones. OptionError for an instance of another run, which is left
        undisturbed."""
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
                others = f"its instances are {', '.join(status.get('addresses', ())) or 'not known'}"
                if status.get("met", identity) != identity:
                    raise heartbeat.foreign_run_error(self.cluster, k, others)
                if "met" not in status and time.monotonic() > end:
                    raise heartbeat.PeerError(
                        f"{self.cluster.name_of(k)} met another process than this one, or none, within {self._timeout:g} s "
                        f"(--worker-timeout): {others}; give all instances the same addresses"
                    )
                refused = "met" in status and job_token.refusal(os.environ, identity, k, status.get("proof", ""))
                if refused:
                    self._wait_for_refusal(k, {**own, "met": identity, "proof": proof})
                    raise OptionError(f"{self.cluster.name_of(k)} {refused}; give all instances of a job the same, or none")
            waiting = [k for k in waiting if "met" not in statuses[k]]
            time.sleep(0.05 if waiting else 0)

    def _status(self, instance: int) -> dict[str, Any]:
        """Return the status that an instance has set; empty for something else, which a stranger may leave there."""
        try:
            status = json_value(self.group.status_of(instance) or "{}")
        except ValueError:
            return {}
        return status if isinstance(status, dict) else {}

    def _wait_for_refusal(self, instance: int, own: Mapping[str, Any]) -> None:
        """Wait until another instance has refused this one as well, or has gone, and needs this one's status no more."""
        self.group.set_status(json.dumps({**own, "refused": instance}))
        end = time.monotonic() + min(_STATUS_SECONDS, self._timeout)
        while time.monotonic() < end:
            if self.group.status_of(instance) is None or "refused" in self._status(instance):
                return
            time.sleep(0.05)

    def broadcast_text(self, text: str = "") -> str:
        """Return instance 0's text, in every instance."""
        return self.group.all_gather(text if self.is_first else "")[0] if self.group else text

    def broadcast_json(self, value: Any = None) -> Any:
        """Return instance 0's value of JSON, in every instance."""
        return json.loads(self.broadcast_text(json.dumps(value)))

    def broadcast(self, values: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Return instance 0's values, in every instance."""
        return self.group.broadcast(values if self.is_first else None) if self.group else dict(values or {})

    def all_reduce_sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over all instances."""
        return self.group.all_reduce_sum(values) if self.group else dict(values)

    def all_reduce_max(self, value: float) -> float:
        """Return the largest of all instances' values."""
        return max(map(float, self.group.all_gather(repr(value)))) if self.group else value

    def stop_together(self, signals: Signals) -> None:
        """StopRequest in every instance as soon as one was asked to stop: all call this at the same places. A signal
        that comes while an instance waits here for the others counts at the next place: they do not know of it yet."""
        if self.group is None:
            signals.raise_if_received()
            return
        stopping = self.group.all_gather_flag(signals.received is not None)
        if stopping:
            self.agree_to_stop(signals, stopping[0])
            signals.raise_if_received()

    def agree_to_stop(self, signals: Signals, instance: int) -> None:
        """End every instance as this one, which got a signal, ends: all call this when they know of it."""
        self.agreed_to_stop = True
        numbers = self.group.all_gather(str(signals.received or 0))
        signals.agree_to_stop(instance, int(numbers[instance]))

    def shut_down(self) -> None:
        """Wait until all instances have come to the end."""
        if self.group:
            self.group.all_gather("done")
            self._heartbeat.stop()
            time.sleep(_LAST_FETCH)

    def _call_before_exit(self, reason: str) -> bool:
        """Call `before_exit`, once; return whether there was anything to do."""
        if self.before_exit and self._exit_lock.acquire(blocking=False):
            self.before_exit(reason)
        return self.before_exit is not None

    def _end_if_stalled(self) -> None:
        """End the process if all instances have waited in the same call for so long that TensorFlow must have lost something
        between them. One that saves or builds a program meanwhile is in no call. Called in the heartbeat's thread."""
        number, since = self.group.waiting or (0, math.inf)
        seconds = time.monotonic() - since
        if seconds > _STALLED * self._timeout and self.group.all_wait_in(number):
            self._end_process(f"all {self.size} instances answer, and have waited for each other for {seconds:.0f} s", "")

    def _end_process(self, reason: str, consequence: str = ": no instance can go on without it") -> None:
        """End the process, whose main thread may be waiting for the lost one for good; called in the heartbeat's thread."""
        self._leaving.set()
        messages = self.group.received_messages()
        matches = (re.fullmatch(r"([0-9]{1,6}) ([0-9]{1,2})", text) for text in messages)
        stopped = next((match for match in matches if match), None)  # an instance, and the signal that it got
        stop = StopRequest(for_others(int(stopped[2])), int(stopped[1])) if stopped else None
        failed = next((match for match in map(_FAILED.fullmatch, messages) if match), None)
        if failed:
            reason = f"{self.cluster.name_of(int(failed[1]))} cannot go on: {failed[2]}"
        message = str(stop or f"{reason}{consequence}")
        worker = threading.Thread(target=self._call_before_exit, args=(message,), daemon=True)
        worker.start()
        worker.join(0.2 * self._timeout)
        print(f"{self._prog}: {f'stopped by {stop}' if stop else f'error: {message}'}", file=sys.stderr, flush=True)
        time.sleep(min(2.0, 0.05 * self._timeout))  # so that the others notice the same one first
        sys.stdout.flush()
        os._exit(128 + stop.number if stop else 1)


def check_port(cluster: Cluster) -> None:
    """OptionError if another program listens where this instance is to."""
    port = port_of(cluster)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            other = "choose another port for this instance"
            if cluster.source == SLURM:
                other = f"have Slurm reserve some: srun --resv-ports={cluster.neighbours}"
            raise OptionError(
                f"{cluster.name_of(cluster.instance)} cannot listen on port {port}: {error.strerror}; end what uses it, "
                f"or {other}"
            ) from None


def port_of(cluster: Cluster) -> int:
    """Return the port on which this instance listens."""
    return int(cluster.addresses[cluster.instance].rsplit(":", 1)[1])


def introduction(cluster: Cluster, wire: str = "fp32", bind: str | None = None) -> list[str]:
    """Return lines for the head of the log. `wire`: the format in which gradients go between the instances; `bind`: as the
    option."""
    if cluster.size == 1:
        return []
    from harness.processes import bind_address

    where = " and ".join(map(str, bind_address.listening_addresses(bind, cluster))) or "every network interface"
    return [
        f"{cluster.size} instances by {cluster.source}: {', '.join(cluster.addresses)}; this is instance {cluster.instance}",
        f"listening on port {port_of(cluster)} of {where}, without authentication: for private networks only",
        *[f"gradients go between the instances, and are added, in {wire}"] * (wire != "fp32"),
    ]
