"""Find the instances (processes) of a run under Slurm, from the environment variables that srun sets in each task."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.run.cluster import SLURM, Cluster, check_addresses, number

JOB, STEP, RANK = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"
NODE, LOCAL = "SLURM_NODEID", "SLURM_LOCALID"
DISTRIBUTION, RESERVED = "SLURM_DISTRIBUTION", "SLURM_STEP_RESV_PORTS"
# The first variable describes the step. If it is not set, the second one is used, which describes the whole job.
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_LAST_STEP = 0xFFFFFFF0  # Slurm gives batch scripts and shells of salloc higher step numbers than this one.
_RANGES = r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*"
_NODE = rf"(?:\[{_RANGES}\]|[A-Za-z0-9._-])+"
_COUNT = r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?"
_CALL = "srun python train.py ... --distributed"
# If srun reserved no ports, use these. They are above Slurm's own ports and below 32768, where Linux's range for outgoing
# connections begins.
_FIRST_PORT, _BLOCK, _BLOCKS = 10_240, 16, 1_376
_STRIDE = 851  # The ports of successive jobs are so many blocks apart: the golden ratio spreads jobs evenly over the blocks.


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process as one of its tasks. False for a batch script."""
    step = environ.get(STEP, "")
    return bool(environ.get(JOB)) and step.isdecimal() and int(step) < _LAST_STEP


def cluster(environ: Mapping[str, str]) -> Cluster:
    """Return the instances of this Slurm step.

    Raise OptionError if srun did not start this process, or if Slurm's variables contradict each other.
    """
    if not in_step(environ):
        raise OptionError(f"--distributed: this process runs under Slurm, but not as a task of srun. Start `{_CALL}`")
    rank, size = number(environ, RANK, "srun"), number(environ, _name(environ, TASKS), "srun")
    nodes, counts = expanded(environ.get(_name(environ, NODES), "")), per_node(environ.get(_name(environ, PER_NODE), ""))
    if len(counts) != len(nodes) or sum(counts) != size or rank >= size:
        raise OptionError(
            f"Slurm's variables contradict each other: {_name(environ, NODES)} has {len(nodes)} nodes, "
            f"{_name(environ, PER_NODE)} has {sum(counts)} tasks on {len(counts)} nodes, {_name(environ, TASKS)} is {size} "
            f"and {RANK} is {rank}. Start with `{_CALL}`, or set TF_CONFIG"
        )
    if size == 1:
        return Cluster(source=SLURM)
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    if environ.get(DISTRIBUTION, "").startswith("cyclic"):
        places.sort(key=lambda place: place[::-1])
    if (number(environ, NODE, "srun"), number(environ, LOCAL, "srun")) != places[rank]:
        raise OptionError(
            f"{DISTRIBUTION} '{short(environ.get(DISTRIBUTION, ''))}' is not supported: it places task {rank} on another "
            "node than expected. Start with srun --distribution=block, or set TF_CONFIG"
        )
    ports = _ports(environ, max(counts))
    addresses = [f"{nodes[node]}:{ports[local]}" for node, local in places]
    return Cluster(check_addresses(addresses, f"the nodes and ports of job {short(environ[JOB])}"), rank, source=SLURM)


def _name(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return next((name for name in names if environ.get(name)), names[0])


def expanded(text: str) -> list[str]:
    """Return the host names in a node list of Slurm, such as node[01-03,07],gpu1 or a[1-2]b[3-4]."""
    if not re.fullmatch(f"{_NODE}(?:,{_NODE})*", text):
        raise OptionError(
            f"{NODES[0]} '{short(text)}' is not a list of nodes such as node[01-03,07],gpu1. Start with `{_CALL}`"
        )
    names: list[str] = []
    for node in re.findall(_NODE, text):
        pieces = re.findall(r"\[(.*?)\]|([^\[]+)", node)
        names += map("".join, itertools.product(*(list(_numbers(ranges)) if ranges else [name] for ranges, name in pieces)))
    return names


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers in a list of ranges, with leading zeros: 01-03,07 gives 01, 02, 03, 07."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from (f"{each:0{len(low)}}" for each in range(int(low), int(high or low) + 1))


def per_node(text: str) -> list[int]:
    """Return the number of tasks on each node: 2(x3),1 gives 2, 2, 2, 1."""
    if not re.fullmatch(f"{_COUNT}(?:,{_COUNT})*", text):
        raise OptionError(f"{PER_NODE[0]} '{short(text)}' is not a list of tasks such as 2(x3),1. Start with `{_CALL}`")
    return [int(count) for count, times in re.findall(_COUNT, text) for _ in range(int(times or 1))]


def _ports(environ: Mapping[str, str], most: int) -> Sequence[int]:
    """Return at least `most` ports for the tasks of a node: ports that srun reserved, or ports derived from the job id."""
    text = environ.get(RESERVED)
    if not text:
        return shared_ports(number(environ, JOB, "srun"), int(environ[STEP]), most)
    ports = [int(each) for each in _numbers(text)] if re.fullmatch(_RANGES, text) else []
    if len(ports) < most:
        raise OptionError(
            f"{RESERVED} '{short(text)}' has too few ports ({len(ports)}) for {most} tasks per node. Start with srun "
            f"--resv-ports={most}"
        )
    return ports


def shared_ports(job: int, step: int, count: int) -> tuple[int, ...]:
    """Return `count` ports for a step. Other steps on the same nodes are unlikely to use the same ports."""
    first = (job * _STRIDE + step) % _BLOCKS * _BLOCK
    return tuple(_FIRST_PORT + (first + k) % (_BLOCK * _BLOCKS) for k in range(count))
