"""Write a weight update of a plan as Chakra execution traces, a file for each chip, for simulators such as ASTRA-sim.

A file has a GlobalMetadata, then nodes, each after its length as a varint. The messages and their numbers are those of
et_def.proto of MLCommons Chakra, as far as they are needed. Computation has the predicted duration; a simulator finds the
duration of communication. Rank = replica x chips of a replica + chip. A JSON file has the process groups, one for each chip
of a replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import files
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.plan.schedules import BACKWARD, FORWARD, WEIGHTS, Action

SCHEMA = "0.0.4"
STEM, GROUPS = "plan", "groups.json"
COMPUTATION, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # values of NodeType
ALL_REDUCE = 0  # a value of CollectiveCommType
_FIELD = descriptor_pb2.FieldDescriptorProto
_ATTRIBUTE, _NODE, _METADATA = "AttributeProto", "Node", "GlobalMetadata"
# The fields of each message: number and type. A name is the type of a repeated message.
_VALUES: Mapping[str, tuple[int, Any]] = {
    "int32_val": (7, _FIELD.TYPE_INT32), "int64_val": (9, _FIELD.TYPE_INT64), "bool_val": (27, _FIELD.TYPE_BOOL),
    "string_val": (29, _FIELD.TYPE_STRING),
}  # fmt: skip
_MESSAGES: Mapping[str, Mapping[str, tuple[int, Any]]] = {
    _ATTRIBUTE: {"name": (1, _FIELD.TYPE_STRING), **_VALUES},
    _NODE: {
        "id": (1, _FIELD.TYPE_UINT64), "name": (2, _FIELD.TYPE_STRING), "type": (3, _FIELD.TYPE_INT32),
        "data_deps": (5, _FIELD.TYPE_UINT64), "duration_micros": (7, _FIELD.TYPE_UINT64), "attr": (10, _ATTRIBUTE),
    },
    _METADATA: {"version": (1, _FIELD.TYPE_STRING)},
}  # fmt: skip


@cache
def _classes() -> Mapping[str, Any]:
    """Return the class of each message. The enumerations are integers, which have the same bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="cnn_harness/et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, members in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in members.items():
            field = message.field.add(name=key, number=number, label=_FIELD.LABEL_OPTIONAL)
            if kind == _ATTRIBUTE:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                field.type = kind
            if key in ("data_deps", "attr"):
                field.label = _FIELD.LABEL_REPEATED
            if key in _VALUES:  # a value of 0 is written, too
                field.oneof_index = 0
        if name == _ATTRIBUTE:
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{file.package}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def write(prediction: Prediction, folder: Path) -> None:
    """Write the traces of a training, and the process groups. Raise OptionError if the folder has files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"--chakra {folder} already exists; give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    plan = prediction.workload.plan
    shards, placed = plan.options.shards, [action for action, _, _ in prediction.timing.placed(plan.accumulation)]
    for rank in range(plan.ipus):
        messages = [_classes()[_METADATA](version=SCHEMA), *_Trace(prediction, rank).of(placed)]
        packed = (message.SerializeToString() for message in messages)
        files.write_atomically(folder / f"{STEM}.{rank}.et", b"".join(_varint(len(each)) + each for each in packed))
    groups = {str(stage): list(range(stage, plan.ipus, shards)) for stage in range(shards)}
    files.write_atomically(folder / GROUPS, json.dumps(groups))


class _Trace:
    """The nodes of one chip."""

    def __init__(self, prediction: Prediction, rank: int) -> None:
        self._prediction, self._work, self._rank = prediction, prediction.workload, rank
        self._device, self._count = rank % self._work.plan.options.shards, 0
        self._stages = self._work.stages_by_ipu[self._device]

    def of(self, placed: list[Action]) -> Iterator[Any]:
        """Yield the nodes of an update whose actions begin in this order."""
        timing, work, last = self._prediction.timing, self._work, len(self._work.plan.stages) - 1
        before: list[int] = []
        if self._device == 0:
            yield self._node("images from the host", COMPUTATION, before, timing.transfers)
            before = [self._count - 1]
        for action in placed:
            if action.stage not in self._stages:
                continue
            step = {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[action.kind]
            source, target = action.stage - step, action.stage + step
            if 0 <= source <= last and source not in self._stages:
                yield self._transfer(RECEIVE, action, source, before)
                before = [self._count - 1]
            yield self._node(str(action), COMPUTATION, before, timing.cells[action.stage, action.kind].seconds)
            before = [self._count - 1]
            if 0 <= target <= last and target not in self._stages:
                yield self._transfer(SEND, action, target, before)
        if work.plan.total_replicas > 1:
            elements = sum(work.trained_elements[stage] for stage in self._stages)
            size = elements * work.plan.precision.accumulator.bytes
            yield self._node(
                "all-reduce", COLLECTIVE, before, comm_type=ALL_REDUCE, comm_size=size, pg_name=str(self._device)
            )
            before = [self._count - 1]
        yield self._node("update", COMPUTATION, before, timing.update)

    def _transfer(self, kind: int, action: Action, other: int, before: list[int]) -> Any:
        """Return the node that sends the result of an action to another stage, or receives what it needs from there."""
        near, far = self._rank, self._rank - self._device + other % self._work.plan.options.shards
        source, target = (near, far) if kind == SEND else (far, near)
        later = max(action.stage, other)
        size = (
            self._work.operations(later)[0].source.elements * self._work.plan.micro_batch_size * self._work.bytes_per_element
        )
        tag = 2 * (action.micro_batch * len(self._work.plan.stages) + later) + (action.kind == FORWARD)
        name = f"{'send' if kind == SEND else 'receive'} {action}"
        return self._node(name, kind, before, comm_src=source, comm_dst=target, comm_tag=tag, comm_size=size)

    def _node(self, name: str, kind: int, before: list[int], seconds: float = 0.0, **attributes: int | str) -> Any:
        node = _classes()[_NODE](
            id=self._count, name=name, type=kind, data_deps=before, duration_micros=round(1e6 * seconds)
        )
        node.attr.add(name="is_cpu_op", bool_val=False)
        for key, value in attributes.items():
            field = (
                "string_val" if isinstance(value, str) else "int64_val" if key in ("comm_type", "comm_size") else "int32_val"
            )
            node.attr.add(name=key, **{field: value})
        self._count += 1
        return node


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; all bytes but the last have the highest bit."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])
