"""The tasks of a step of Slurm as instances, from the variables that srun gives each of them. No other process is asked."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from base.errors import OptionError
from base.fields import short
from harness.cluster.cluster import SLURM, Cluster, check_addresses, number, several

JOB, STEP, RANK = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"
NODE, LOCAL = "SLURM_NODEID", "SLURM_LOCALID"
DISTRIBUTION, RESERVED = "SLURM_DISTRIBUTION", "SLURM_STEP_RESV_PORTS"
# the step's, and the variable that stands in for it
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_EQUAL = (TASKS, PER_NODE)  # srun sets both to the step's
_LAST_STEP = 0xFFFFFFF0  # beyond it are the numbers of batch scripts and of salloc's shells
_MAX_NODES = 65_536  # nodes of a step, tasks of a step: no list of names takes all the memory
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES = rf"{_RANGE}(?:,{_RANGE})*"
_NODE = re.compile(r"(?:\[[0-9,-]*\]|[A-Za-z0-9._-])+")
_PIECE = re.compile(rf"\[{_RANGES}\]|[A-Za-z0-9._-]+")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
_NODES_FORM = "node[01-03,07],gpu1"
_CALL = "srun python train.py ... --distributed"
_AS_GIVEN = f"start with `{_CALL}`, and leave srun's variables as they are, or give TF_CONFIG"
# ports of steps without reserved ones: above Slurm's own, and below 32768, where Linux begins to take ports for connections
_FIRST_PORT, _BLOCK, _BLOCKS = 10_240, 16, 1_376
_STRIDE = 851  # blocks from a job to the next: near the golden section, so that those of neighbouring jobs lie far apart


def in_job(environ: Mapping[str, str]) -> bool:
    """Return whether Slurm gave this process' job its nodes."""
    return bool(environ.get(JOB))


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process as one of its tasks. A batch script, number 0 of as many tasks itself, is
    none, nor is one that was submitted from inside a step and has that one's variables beside its own."""
    own = all(len({environ[name] for name in names if environ.get(name)}) < 2 for names in _EQUAL)
    return in_job(environ) and own and bool(environ.get(STEP)) and several(environ, STEP) < _LAST_STEP


def tasks(environ: Mapping[str, str]) -> int:
    """The tasks that srun started with this one, whether they can train together or not."""
    return several(environ, _name(environ, TASKS)) if in_step(environ) else 0


def cluster(environ: Mapping[str, str]) -> Cluster:
    """The instances of this step; OptionError outside of one, and for variables that do not fit together."""
    if not in_step(environ):
        raise OptionError(
            f"--distributed: this process is no task of srun, but the one process of a script or shell of Slurm's job "
            f"{short(environ[JOB])}; start it with srun, without --preserve-env, as in `{_CALL}`"
        )
    rank, size = _number(environ, RANK), _number(environ, _name(environ, TASKS))
    nodes = expanded(_text(environ, NODES), _name(environ, NODES))
    counts = per_node(_text(environ, PER_NODE), _name(environ, PER_NODE))
    if len(counts) != len(nodes) or sum(counts) != size or rank >= size:
        raise OptionError(
            f"{_name(environ, NODES)} has {len(nodes)} nodes, {_name(environ, PER_NODE)} {sum(counts)} tasks on "
            f"{len(counts)}, {_name(environ, TASKS)} is {size} and {RANK} {rank}: they do not fit together; {_AS_GIVEN}"
        )
    if size == 1:
        return Cluster(source=SLURM)
    places = placed(counts, environ.get(DISTRIBUTION, ""))
    _check_place(environ, rank, places[rank])
    ports = _ports(environ, max(counts))
    addresses = [f"{nodes[node]}:{ports[local]}" for node, local in places]
    return Cluster(
        check_addresses(addresses, f"the nodes and ports of Slurm's job {short(environ[JOB])}"), rank, source=SLURM
    )


def _name(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return next((name for name in names if environ.get(name)), names[0])


def _text(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return environ.get(_name(environ, names), "")


def _number(environ: Mapping[str, str], name: str) -> int:
    return number(environ, name, "srun", digits=10)


def expanded(text: str, name: str = NODES[0]) -> tuple[str, ...]:
    """The nodes of a list as Slurm shortens it: node[01-03,07],gpu1, or a[1-2]b[3-4]. `name`: of its variable."""
    hosts: list[str] = []
    parts = _NODE.findall(text)
    if not text or ",".join(parts) != text:
        raise _unreadable(name, text, _NODES_FORM)
    for part in parts:
        pieces = _PIECE.findall(part)
        if "".join(pieces) != part:
            raise _unreadable(name, text, _NODES_FORM)
        choices = [_choices(piece, name, text) for piece in pieces]
        if len(hosts) + math.prod(sum(len(each) for each, _ in ranges) for ranges in choices) > _MAX_NODES:
            raise OptionError(f"{name} '{short(text)}' has more than {_MAX_NODES} nodes; use fewer, or give TF_CONFIG")
        words = [[f"{each:0{width}}" if width else each for among, width in ranges for each in among] for ranges in choices]
        hosts += ["".join(chosen) for chosen in itertools.product(*words)]
    return tuple(hosts)


def _choices(piece: str, name: str, text: str) -> list[tuple[Sequence, int]]:
    """The choices for a piece of a name: ranges of numbers with their width, or the piece itself with none."""
    return _ranges(piece[1:-1], name, text) if piece.startswith("[") else [((piece,), 0)]


def _ranges(numbers: str, name: str, text: str) -> list[tuple[range, int]]:
    """The ranges of 01-03,07, each with the width of its numbers."""
    ranges = []
    for part in numbers.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise _unreadable(name, text, _NODES_FORM)
        ranges.append((range(int(low), int(high or low) + 1), len(low)))
    return ranges


def _unreadable(name: str, text: str, form: str) -> OptionError:
    return OptionError(f"{name} '{short(text)}' is no list as Slurm writes it ({form}); {_AS_GIVEN}")


def per_node(text: str, name: str = PER_NODE[0]) -> tuple[int, ...]:
    """The number of tasks on each node: 2(x3),1 is 2, 2, 2, 1."""
    matches = [_COUNT.fullmatch(part) for part in text.split(",")]
    if not all(matches):
        raise _unreadable(name, text, "2(x3),1")
    runs = [(int(match[1]), int(match[2] or 1)) for match in matches if match]
    if max(sum(times for _, times in runs), sum(count * times for count, times in runs)) > _MAX_NODES:
        raise OptionError(f"{name} '{short(text)}' has more than {_MAX_NODES} nodes or tasks; use fewer, or give TF_CONFIG")
    return tuple(count for count, times in runs for _ in range(times))


def placed(counts: Sequence[int], distribution: str) -> list[tuple[int, int]]:
    """The node of each task, and its number on it. `distribution`: SLURM_DISTRIBUTION; what follows its first word is about
    sockets and cores."""
    kind = re.split("[:,]", distribution)[0]
    if kind not in ("", "*", "block", "cyclic"):
        raise OptionError(
            f"{DISTRIBUTION} '{short(distribution)}': which task is on which node is known of block and cyclic only; start "
            "with srun --distribution=block, or give TF_CONFIG"
        )
    by_node = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    return sorted(by_node, key=lambda place: place[::-1]) if kind == "cyclic" else by_node


def _check_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    """OptionError if srun put this task elsewhere than it is looked for by the others."""
    node, local = _number(environ, NODE), _number(environ, LOCAL)
    if (node, local) != place:
        raise OptionError(
            f"task {rank} is number {local} on node {node} ({LOCAL}, {NODE}), but number {place[1]} on node {place[0]} by "
            f"{_name(environ, PER_NODE)} {short(_text(environ, PER_NODE))} and {DISTRIBUTION} "
            f"{short(environ.get(DISTRIBUTION) or 'block')}; start with srun --distribution=block, or give TF_CONFIG"
        )


def _ports(environ: Mapping[str, str], most: int) -> Sequence[int]:
    """A port for each task of a node: those that srun reserved, or the step's share of a range."""
    text = environ.get(RESERVED)
    if not text:
        return shared_ports(_number(environ, JOB), _number(environ, STEP), most)
    match = re.fullmatch(_RANGES, text)
    ports = [port for each, _ in _ranges(text, RESERVED, text) for port in each[:most]] if match else []
    if len(ports) < most:
        raise OptionError(
            f"{RESERVED} '{short(text)}' has {len(ports)} ports, but a node of this step has {most} tasks; start with srun "
            f"--resv-ports={most}"
        )
    return ports


def shared_ports(job: int, step: int, count: int) -> tuple[int, ...]:
    """Ports of a step that others on its nodes are unlikely to have."""
    first = (job * _STRIDE + step) % _BLOCKS * _BLOCK
    return tuple(_FIRST_PORT + (first + k) % (_BLOCK * _BLOCKS) for k in range(count))
