"""The way from the words of a call to the planner's workload: options as for train.py, and those of cnn plan alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from base.errors import OptionError
from base.process import command_line
from emulator.cost_model import variants
from emulator.cost_model.prediction import check_tiles
from emulator.cost_model.systems import System, by_name, smallest_holding
from emulator.cost_model.workload import Workload
from harness.checkpoints import find
from harness.cluster import membership
from harness.commands import cli, entry
from harness.options import sources
from harness.options.sections import flag
from harness.reports import output
from harness.run import data, resolve, rules
from harness.run.run import Run

MAX_PROCESSES = 65536  # of the host
ASKED_OF_TRAINING = ("dry_run", "explain", "summary")
RANDOM = "--generated-data"  # a plan reads no data,
FOLDERS = "imagefolder"  # but where only the data tells how many classes there are


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The options of cnn plan, and the words for train.py's options of each configuration."""

    systems: tuple[System, ...]
    json: str | None
    html: str | None
    search: bool
    inference: bool
    processes: int | None
    help: bool
    calls: tuple[tuple[str, tuple[str, ...]], ...]  # (label, words)


def parser() -> argparse.ArgumentParser:
    """cnn plan's own options; all others are those of train.py."""
    own = command_line.Parser(
        prog="cnn plan", add_help=False, allow_abbrev=False,
        description="Plans a training on an IPU system before anything runs: memory of each IPU, rate, parts of the time.",
        epilog="All other options are those of train.py: python train.py --help lists them. It alone answers --dry-run, "
        "--explain, --summary and --list-configs.",
    )  # fmt: skip
    own.add_argument("--system", nargs="+", default=[], metavar="NAME", action="extend",
                     help="POD4 to POD256, BOW-POD4 to BOW-POD256, MK1-2 to MK1-16; several for the same global batch on "
                     "each (default: the smallest Mk2 system that holds the plan)")  # fmt: skip
    own.add_argument("--config", nargs="+", default=[], metavar="NAME", action="extend",
                     help="named configurations, planned side by side")  # fmt: skip
    own.add_argument("--json", metavar="FILE", help="write the predictions as JSON; - for standard output")
    own.add_argument("--html", metavar="FILE", help="write one self-contained page with pictures")
    own.add_argument("--search", action="store_true", help="look for the fastest plan that fits, for the same network and "
                     "global batch, and print it as a block for configs.yml")  # fmt: skip
    own.add_argument("--inference", action="store_true", help="the forward pass alone, on one IPU, as validation.py has it")
    own.add_argument("--processes", type=command_line.int_between(1, MAX_PROCESSES), metavar="N",
                     help="host processes that feed the replicas (default: one for two "
                     "IPUs of the system)")  # fmt: skip
    own.add_argument("-h", "--help", action="store_true", help="this text")
    return own


def parse(argv: Sequence[str]) -> PlanRequest:
    """The request; OptionError for what cannot be one."""
    known, rest = parser().parse_known_args(list(argv))
    _check_answered_elsewhere(rest)
    for option, target, kind in (("--json", known.json, output.JSON), ("--html", known.html, output.PAGE)):
        if (option, target) == ("--html", "-"):
            raise OptionError("--html needs the name of a file; standard output, -, is for --json")
        if target and target != "-":
            output.check(target, kind)
    if known.json and known.html and Path(known.json).resolve() == Path(known.html).resolve():
        raise OptionError(f"--json and --html both name {known.json}; give two files")
    if known.inference and known.search:
        raise OptionError("--search looks for plans of trainings, and --inference plans none; give one of them")
    names = list(dict.fromkeys(known.config))
    calls = [(name, ("--config", name, *rest)) for name in names] or [("", tuple(rest))]
    return PlanRequest(
        systems=tuple(dict.fromkeys(map(by_name, known.system))), json=known.json, html=known.html, search=known.search,
        inference=known.inference, processes=known.processes, calls=tuple(calls),
        help=known.help or "help" in sources.given_arguments(rest, "train"),  # shortened, as train.py takes it
    )  # fmt: skip


def _check_answered_elsewhere(words: list[str]) -> None:
    """OptionError for the questions about a call that train.py answers in place of a training."""
    given = sources.given_arguments(words, "train")
    for name in ASKED_OF_TRAINING:
        if name in given:
            word = flag(name)
            raise OptionError(f"{word} is a question to train.py: python train.py {word}, with the same other options")


def run_of(words: Sequence[str], environ: Mapping[str, str] = os.environ, *, training: bool = True) -> Run:
    """The run that train.py, or validation.py, would begin with these words, without its data; with --restore-path, the run
    that is resumed.

    Options that a configuration leaves out because it is only the base of others are assumed, as the notes say: ImageNet,
    and replicas enough for batch norm's span.
    """
    alone = membership.without_others(environ)
    given, words, assumed = list(words), list(words), []
    recorded = _recorded(given)
    try:
        parsed = cli.parse(words, "train", recorded)
    except data.NoDataSet:
        words += ["--dataset", "imagenet"]
        assumed.append("no data set is given: ImageNet is assumed")
        parsed = cli.parse(words, "train", recorded)
    options = parsed.options
    folder = options.dataset.data_dir or environ.get("DATA_DIR")
    generates = not options.dataset.random_data and (options.dataset.dataset != FOLDERS or not folder)
    if generates:
        words.append(RANDOM)
    if generates and options.dataset.dataset == FOLDERS:
        assumed.append("no --data-dir is given: as many pictures and classes as ImageNet's are assumed")
    span = options.device.BN_span if getattr(options.model, "batch_norm", True) else 1
    if training and span > options.device.replicas and "replicas" not in options.sources:
        words += ["--replicas", str(span)]
        assumed.append(f"--BN-span {span} needs as many replicas: {span} are assumed")
    rates = options.training.abs_learning_rate, options.training.base_learning_rate_exponent
    if rates == (None, None):  # of which no time and no memory depends
        words += ["--abs-learning-rate", "0.1"]
    if words != given:
        parsed = cli.parse(words, "train", recorded)
    options, notes = parsed.options, [note for note in parsed.notes if not note.startswith(cli.WITHOUT_EFFECT)]
    if generates:
        options = replace(options, sources={**options.sources, "generated_data": "a plan reads no data"})
    if options.training.distributed:
        options = replace(options, training=replace(options.training, distributed=False))
        assumed.append("--distributed: the replicas of one process are planned; give those of all as --replicas")
    run = resolve.prepare(options, alone, training=training, total_replicas=recorded.get("total_replicas"))
    if training and generates:  # which train.py will not
        rules.check_mixable(run.options.dataset, run.plan.micro_batch_size)
    return replace(run, notes=(*notes, *assumed))


def _recorded(words: list[str]) -> Mapping[str, Any]:
    """The options of the run that --restore-path names, if it is given."""
    path = sources.argument(words, "restore_path", "train")
    if not path:
        return {}
    find.check_run_folder(Path(path))
    return entry.recorded_options(Path(path), words, "train")


class Case(NamedTuple):
    """A plan that is asked for."""

    name: str
    run: Run
    workload: Workload
    system: System


def cases(request: PlanRequest) -> Iterator[Case]:
    """Each configuration on each system, in the order of the call: on one as it is, on each of several with as many replicas
    as the system holds, for the same global batch. OptionError for a system that does not hold the plan."""
    for label, words in request.calls:
        run = run_of(words, training=not request.inference)
        work = run.workload(request.processes)
        for asked in request.systems or (None,):
            system = asked if len(request.systems) > 1 else smallest_holding(asked, work.plan.ipus)
            check_tiles(work, system)
            scaled = variants.scaled(work, system) if len(request.systems) > 1 else work
            if scaled is None:
                raise _too_small(system, work)
            yield Case(label or run.name, run, scaled, system)


def _too_small(system: System, work: Workload) -> OptionError:
    shards, span = work.plan.options.shards, work.plan.options.BN_span
    least = f"{shards} (--shards)" if span == 1 else f"{shards * span} (--shards x --BN-span)"
    return OptionError(f"--system {system.name} has {system.ipus} IPUs and the plan takes at least {least}; leave it out")
