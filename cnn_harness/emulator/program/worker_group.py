"""The instances of one run: processes that train together through TensorFlow's runtime.

Each instance runs a gRPC server and a session on the server. Sums use TensorFlow's ring collectives. Each collective gets
the next key, so all instances must build the same graphs and call collectives in the same order. The first key depends on
the group, so processes of different groups do not interfere. Session calls with collectives form call sequences; all calls
of a sequence use the same options.

A collective waits for the other instances forever; another module checks whether they are alive. A timeout would be harmful,
because TensorFlow keeps a thread for each collective until the timeout has passed. Such threads would use up the limit on
threads.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import collective_ops

from cnn_harness.base.gradient_rules import with_gradient

JOB = "worker"
_STATUS, _WAITING, _BEGUN = "status", "waiting", "begun"  # all sessions of a server find texts by these names.
_DEVICE_TYPES = ("CPU", "GPU")
_WITHOUT_PROXY = "no_grpc_proxy"  # gRPC reads this list of hosts without proxy before no_proxy.
_REMOTE_TIMEOUT_MS = 5000  # a living instance accepts a message within 5000 milliseconds.


class WorkerGroup:
    """This process as an instance of a run."""

    def __init__(
        self, addresses: Sequence[str], instance: int, stage_devices: Sequence[str] = ("/cpu:0",), threads: int = 0
    ) -> None:
        """Start the server. `addresses` has host:port of each instance, and `stage_devices` the device of each stage. An
        operation uses up to `threads` threads; 0 means one for each core."""
        self.addresses, self.instance = tuple(addresses), instance
        config = tf.ConfigProto(intra_op_parallelism_threads=threads)
        cpus = [int(device.split(":")[1]) + 1 for device in stage_devices if device.startswith("/cpu")]
        config.device_count["CPU"] = max(cpus, default=1)
        config.inter_op_parallelism_threads = max(threads, len(set(stage_devices)) + 1) if len(set(stage_devices)) > 1 else 0
        _reach_directly(self.addresses)
        self._server = tf.distribute.Server(
            tf.train.ClusterSpec({JOB: self.addresses}), JOB, instance, config=self._local_config(config)
        )
        self.join("")

    def join(self, identity: str) -> None:
        """Exchange keys and messages only with instances that join with the same identity."""
        self._identity = identity
        digest = hashlib.blake2b(identity.encode(), digest_size=4).digest()
        self._first_key = int.from_bytes(digest, "big") >> 2 if identity else 0  # keys are int32 and increase.
        self._keys = itertools.count(self._first_key + 1)
        self._between_steps: tf.RunOptions | None = None  # all calls on the host use these options.
        self._calls = 0  # counts the calls on the host.
        self.waiting: tuple[int, float] | None = None  # holds number and start (seconds) of the current call.

    @property
    def size(self) -> int:
        """The number of instances."""
        return len(self.addresses)

    @property
    def device(self) -> str:
        """The device prefix of this instance. Graphs of the instance are built under this prefix."""
        return f"/job:{JOB}/task:{self.instance}"

    def session(self, graph: tf.Graph, config: tf.ConfigProto) -> tf.Session:
        """Return a session on this instance's server. Sessions do not share variables."""
        return tf.Session(self._server.target, graph=graph, config=self.collective_config(config))

    def collective_config(self, config: tf.ConfigProto) -> tf.ConfigProto:
        """Return a session configuration for collectives. Sessions do not share variables."""
        config.isolate_session_state = True
        return self._local_config(config)

    def _local_config(self, config: tf.ConfigProto) -> tf.ConfigProto:
        """Return a configuration that uses this instance's devices only."""
        config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
        config.device_filters.append(_task(self.instance))
        return config

    def begin_call_sequence(self) -> tf.RunOptions:
        """Return the options for a sequence of session calls with collectives. All instances must begin the sequence at the
        same point and make the calls in the same order.

        TensorFlow numbers the calls of a sequence. Instance 0 draws the first number in its first call. Other instances ask
        instance 0 for the number. If they ask before instance 0 has drawn it, instance 0 draws a second number, and all wait
        forever (TensorFlow 2.21, RefreshStepIdSequenceAsync). So the first call is a barrier, and other instances make it
        only while instance 0 is inside this call.
        """
        key = next(self._keys)
        options = tf.RunOptions(experimental=tf.RunOptions.Experimental(collective_graph_key=key))
        with tf.Graph().as_default() as graph, tf.device(f"{self.device}/cpu:0"):
            fetches = [self.barrier()]
            if self.instance == 0:
                fetches.append(tf.raw_ops.AssignVariableOp(resource=_text_variable(_BEGUN), value=str(key)))
            else:
                self._await_begun(key)
            with tf.Session(self._server.target, graph=graph, config=self._local_config(tf.ConfigProto())) as session:
                session.run(fetches, options=options)
        return options

    def _await_begun(self, key: int) -> None:
        """Wait until instance 0 has begun the call sequence of this key, or a later sequence."""
        # Instance 0 may have to build a program first. Pauses are in seconds.
        pauses = itertools.chain((0.002, 0.005, 0.01, 0.02), itertools.repeat(0.05))
        while int(self._found(_BEGUN, 0) or -1) < key:
            time.sleep(next(pauses))

    def all_reduce(self, x: tf.Tensor, among: range | None = None) -> tf.Tensor:
        """Return the sum of x over all instances, or over the range `among`. All instances get the same bits."""
        among = among or range(self.size)
        if len(among) == 1:
            return x
        x = tf.identity(x)  # tf.identity moves x to the current device.
        return collective_ops.all_reduce(x, len(among), self._key_of(among, x.device), next(self._keys), "Add", "Id")

    def all_reduce_bucket(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the sums of tensors over all instances, by name. The tensors have one dtype and share one buffer."""
        dtype = next(iter(values.values())).dtype
        flat = tf.concat([tf.reshape(tf.cast(x, dtype), [-1]) for x in values.values()], 0)
        parts = tf.split(self.all_reduce(flat), [elements(x) for x in values.values()])
        return {name: tf.reshape(part, x.shape) for (name, x), part in zip(values.items(), parts)}

    def barrier(self) -> tf.Tensor:
        """Return int32 0 after every instance has reached this call.

        Calls with collectives need this barrier, because other instances ask instance 0 for the number of the call. Instance
        0 must not finish the call before they have asked.
        """
        return self.all_reduce(tf.constant([0]))[0]

    def mean(self, x: tf.Tensor, among: range) -> tf.Tensor:
        """Return the mean of x over the instances in the range `among`. The gradient of x is the mean of the gradients of
        these instances."""

        @with_gradient
        def averaged(x: tf.Tensor) -> tuple[tf.Tensor, object]:
            return self.all_reduce(x, among) / len(among), lambda dy: self.all_reduce(dy, among) / len(among)

        return averaged(x)

    def _key_of(self, among: range, device: str) -> int:
        """Return the key of a ring of instances. In TensorFlow, a ring has only one device of each instance."""
        spec = tf.DeviceSpec.from_string(device)
        device_number = 2 * (spec.device_index or 0) + _DEVICE_TYPES.index(spec.device_type or "CPU")
        return self._first_key + 1 + (device_number * self.size + among.start) * (self.size + 1) + len(among)

    # Other instances need not call anything for the following methods, so they may be busy.

    def send_message(self, text: str, instances: Sequence[int]) -> None:
        """Send a text to all other instances that can be reached."""

        def leave(instance: int) -> None:
            with suppress(tf.errors.OpError), self._remote_session(instance) as session:
                session.run(self._message_queue().enqueue([text]))

        with ThreadPoolExecutor() as pool:
            list(pool.map(leave, instances))

    def received_messages(self) -> list[str]:
        """Return the texts that other instances have sent to this one."""
        with suppress(tf.errors.OpError), self._remote_session(self.instance) as session:
            queue = self._message_queue()
            return [text.decode() for text in session.run(queue.dequeue_many(session.run(queue.size())))]
        return []

    def _message_queue(self) -> tf.FIFOQueue:
        """Return the queue of texts on an instance's server. All sessions of the group share the queue."""
        return tf.FIFOQueue(2 * self.size, tf.string, [()], shared_name=f"messages{self._identity}")

    def set_status(self, text: str) -> None:
        """Publish a text on this instance's server. The text replaces the previous text."""
        self._put(_STATUS, text)

    def status_of(self, instance: int) -> str | None:
        """Return the text on an instance's server. Return None if there is no text or the instance cannot be reached."""
        return self._found(_STATUS, instance)

    def all_wait_in(self, call: int) -> bool:
        """Publish the number of the host call in which this instance waits. Return whether all other instances have
        published the same number."""
        with suppress(tf.errors.OpError):  # the server is busy. A later call will publish the number.
            self._put(_WAITING, str(call))
        return all(self._found(_WAITING, k) == str(call) for k in range(self.size) if k != self.instance)

    def _put(self, name: str, text: str) -> None:
        with self._remote_session(self.instance) as session:
            session.run(tf.raw_ops.AssignVariableOp(resource=_text_variable(name), value=text))

    def _found(self, name: str, instance: int) -> str | None:
        with suppress(tf.errors.OpError), self._remote_session(instance) as session:
            handle = _text_variable(name)
            if session.run(tf.raw_ops.VarIsInitializedOp(resource=handle)):
                return session.run(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)).decode()
        return None

    @contextmanager
    def _remote_session(self, instance: int) -> Iterator[tf.Session]:
        """Open a session on an instance's server, in its own graph."""
        target = self._server.target if instance == self.instance else f"grpc://{self.addresses[instance]}"
        config = tf.ConfigProto(device_filters=[_task(instance)], operation_timeout_in_ms=_REMOTE_TIMEOUT_MS)
        graph = tf.Graph()
        with graph.as_default(), tf.device(f"{_task(instance)}/cpu:0"), tf.Session(target, config=config) as session:
            yield session

    # The following calls run on the host, between the steps of programs. Call them from one thread, because their order
    # matters.

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all instances, in the order of the instances."""
        own = text.encode()
        lengths = self._all_gather_ints([len(own)])[:, 0]
        padded = np.zeros(max(1, *lengths), np.uint8)  # a ring needs at least one element.
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        rows = self._all_gather_ints(padded)
        return [bytes(row[:length].astype(np.uint8)).decode() for row, length in zip(rows, lengths)]

    def _all_gather_ints(self, row: Sequence[int]) -> np.ndarray:
        """Return the rows of integers of all instances, [instances, n]. All rows have the same length."""
        with tf.Graph().as_default() as graph, tf.device(f"{self.device}/cpu:0"):
            return self._run(graph, self._all_gather_op(tf.constant(np.asarray(row, np.int32)[None])))

    def _all_gather_op(self, own: tf.Tensor) -> tf.Tensor:
        return collective_ops.all_gather(own, self.size, self._key_of(range(self.size), own.device), next(self._keys))

    def all_gather_flag(self, flag: bool) -> list[int]:
        """Return the numbers of the instances whose flag is set. A call takes one or two milliseconds."""
        fed, rows, session = self._flags
        return np.flatnonzero(self._call(session, rows, {fed: [flag]})).tolist()

    @cached_property
    def _flags(self) -> tuple[tf.Tensor, tf.Tensor, tf.Session]:
        """The graph of `all_gather_flag`: the tensor to feed (this instance's flag), the tensor to fetch (all flags), and
        the session."""
        with tf.Graph().as_default() as graph, tf.device(f"{self.device}/cpu:0"):
            fed = tf.placeholder(tf.bool, [1])
            return fed, self._all_gather_op(tf.cast(fed, tf.int32)), self.session(graph, tf.ConfigProto())

    def all_reduce_sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums of values over all instances by name, in float64."""
        with tf.Graph().as_default() as graph, tf.device(f"{self.device}/cpu:0"):
            sums = self.all_reduce(tf.constant(list(values.values()), tf.float64))
            return dict(zip(values, map(float, self._run(graph, sums))))

    def broadcast(self, values: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Return the values of instance 0 in every instance. The `values` of other instances are ignored."""
        first = self.instance == 0
        words = np.frombuffer(_serialise(values or {}), np.int32) if first else np.zeros(0, np.int32)
        count = int(self._broadcast_words(np.asarray([len(words)], np.int32), 1)[0])
        return _deserialise(self._broadcast_words(words, count).tobytes())

    def _broadcast_words(self, words: np.ndarray, count: int) -> np.ndarray:
        """Broadcast int32 words from instance 0."""
        with tf.Graph().as_default() as graph, tf.device(f"{self.device}/cpu:0"):
            fed = tf.placeholder(tf.int32, [count])
            ring, key = self._key_of(range(self.size), fed.device), next(self._keys)
            if self.instance == 0:
                sent = collective_ops.broadcast_send(fed, [count], tf.int32, self.size, ring, key)
            else:
                sent = collective_ops.broadcast_recv([count], tf.int32, self.size, ring, key)
            with tf.control_dependencies([sent]):
                barrier = self.barrier()
            return self._run(graph, [sent, barrier], {fed: words} if self.instance == 0 else {})[0]

    def _run(self, graph: tf.Graph, fetches: Any, feeds: Mapping[tf.Tensor, np.ndarray] | None = None) -> Any:
        """Run a separate graph once, in all instances."""
        with self.session(graph, tf.ConfigProto()) as session:
            return self._call(session, fetches, feeds)

    def _call(self, session: tf.Session, fetches: Any, feeds: Mapping[tf.Tensor, Any] | None) -> Any:
        """Make a call on the host and set `waiting` during the call. The first call begins the call sequence."""
        self._calls += 1
        self.waiting = self._calls, time.monotonic()
        try:
            self._between_steps = self._between_steps or self.begin_call_sequence()
            return session.run(fetches, feeds, self._between_steps)
        finally:
            self.waiting = None


def elements(x: tf.Tensor) -> int:
    """Return the number of elements of a tensor. The shape must be known."""
    return int(np.prod(x.shape.as_list(), dtype=np.int64))


def buckets(names: Sequence[str], sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Return the names in as few buckets of at most `max_bytes` as possible, in order. A larger tensor has its own
    bucket."""
    filled: list[list[str]] = []
    bytes_filled = 0
    for name in names:
        if not filled or bytes_filled + sizes[name] > max_bytes:
            filled.append([])
            bytes_filled = 0
        filled[-1].append(name)
        bytes_filled += sizes[name]
    return filled


def _text_variable(name: str) -> tf.Tensor:
    """Return the handle of a text variable on the current device's server."""
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)


def _task(instance: int) -> str:
    return f"/job:{JOB}/replica:0/task:{instance}"


def _reach_directly(addresses: Sequence[str]) -> None:
    """Set the environment so that gRPC uses no proxy for the instances. TensorFlow's servers have no option for this."""
    others = os.environ.get(_WITHOUT_PROXY) or os.environ.get("no_proxy")
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    os.environ[_WITHOUT_PROXY] = ",".join([others, *hosts] if others else hosts)


def _serialise(values: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes, padded to 4-byte words. Dtypes are stored by name, because the file format of numpy does not
    support the dtypes of ml_dtypes."""
    file = io.BytesIO()
    arrays = {f"{i}": value.view(f"u{value.itemsize}") for i, value in enumerate(map(np.asarray, values.values()))}
    dtypes = np.asarray([np.asarray(value).dtype.name for value in values.values()])
    np.savez(file, **arrays, names=np.asarray(list(values)), dtypes=dtypes)
    return file.getvalue() + bytes(-file.tell() % 4)


def _deserialise(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        named = zip(file["names"], file["dtypes"])
        return {str(name): file[f"{i}"].view(np.dtype(str(dtype))) for i, (name, dtype) in enumerate(named)}
