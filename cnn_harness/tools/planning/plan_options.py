"""Parse the command line of cnn plan, which also accepts options of train.py, and prepare the plans to predict."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import above, between, opt, short
from cnn_harness.emulator.cost_model import variants
from cnn_harness.emulator.cost_model.prediction import check_tiles
from cnn_harness.emulator.cost_model.systems import System, smallest_holding
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.harness.checkpoints import find
from cnn_harness.harness.commands import answers, entry
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import flag
from cnn_harness.harness.reports import output
from cnn_harness.harness.run import cli, membership, rules
from cnn_harness.harness.run.resolve import Prepared, prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.tools.planning import system_file
from cnn_harness.tools.planning.costs import CostOptions, Rates

MAX_PROCESSES = 65536
MAX_VARIED = 6
PRINTING = ("help", "version", "list_configs", "dry_run", "explain", "summary")
FOLDERS = "imagefolder"  # This data set is read, because the number of classes depends on the files.


class PlanCall(NamedTuple):
    """A call of train.py to plan, with its name. `changes` has the options that --vary added."""

    name: str
    call: Call
    changes: str


@dataclass(frozen=True, kw_only=True)
class PlanOptions(CostOptions):
    """The options of cnn plan that train.py does not have."""

    system: tuple[str, ...] = opt(
        (), "one or more systems: POD4 to POD256, BOW-POD4 to BOW-POD256, MK1-2 to MK1-16, GPUs and TPUs (cnn systems lists "
        "all), or your own systems in a YAML file. Several systems get the same global batch. Default: the smallest Mk2 POD "
        "with enough IPUs", metavar="NAME|FILE",
    )  # fmt: skip
    config: tuple[str, ...] = opt((), "one or more configurations to plan and compare", metavar="NAME")
    vary: tuple[str, ...] = opt(
        (), "also plan with other options, and with all combinations of them, as in --vary 'precision 16.32' "
        "'micro-batch-size 4'", metavar="OPTIONS",
    )  # fmt: skip
    calibrate: str | None = opt(
        None, "fit the system of --system to your measured rates. The YAML file has three or more blocks such as NAME: "
        "{rate: 2470, options: --model resnet}", metavar="FILE",
    )  # fmt: skip
    json: str | None = opt(None, "write the predictions to FILE as JSON; - is standard output", metavar="FILE")
    html: str | None = opt(None, "write the predictions to an HTML page with charts", metavar="FILE")
    chakra: str | None = opt(
        None, "write a weight update as Chakra execution traces for ASTRA-sim to this new folder, a file for each chip",
        metavar="DIR",
    )  # fmt: skip
    search: bool = opt(
        False, "search for the fastest plan that fits in memory, with the same network and global batch, and print the plan "
        "as a configuration for configs.yml",
    )  # fmt: skip
    schedules: bool = opt(False, "compare all pipeline schedules for the same stages or, with virtual stages, equal ones")
    noise_scale: float | None = opt(
        None, "compare the hours of several global batches to the same loss, for a gradient noise scale in images that "
        "train.py --gradient-noise measured", metavar="IMAGES", check=above(0),
    )  # fmt: skip
    inference: bool = opt(False, "predict a validation on one IPU instead of a training")
    processes: int | None = opt(
        None, "number of host processes that send images. Default: one for every two IPUs of the system",
        check=between(1, MAX_PROCESSES),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The parsed command line of cnn plan."""

    systems: tuple[System, ...]
    calibrate: str | None
    rates: Rates
    json: str | None
    html: str | None
    chakra: str | None
    search: bool
    schedules: bool
    noise_scale: float | None
    inference: bool
    processes: int | None
    calls: tuple[PlanCall, ...]


def parse(call: Call) -> PlanRequest:
    """Return the request of a call. Raise OptionError for invalid options, and Answered for --help."""
    known, words, call = answers.own_options(
        PlanOptions,
        call,
        "cnn plan [options]",
        "Predict memory, rate and time of a training on an IPU system, without running it.",
        more="cnn plan also accepts the options of train.py, except --dry-run, --explain, --summary and --list-configs.\n"
        "To list them, run python train.py --help.",
    )
    call = replace(call, bare=words)
    check_plans(call)
    for option, target, kind in (("--json", known.json, output.JSON), ("--html", known.html, output.PAGE)):
        if (option, target) == ("--html", "-"):
            raise OptionError("--html needs a file name; only --json can write to standard output (-)")
        if target and target != "-":
            output.check(target, kind)
    if known.json and known.html and Path(known.json).resolve() == Path(known.html).resolve():
        raise OptionError(f"--json and --html both name {known.json}; give two different files")
    if known.json == "-" and (known.schedules or known.noise_scale):
        raise OptionError("--json - prints no table of --schedules or --noise-scale; give --json FILE")
    if known.calibrate:
        _check_calibrates(known, call)
    if known.inference and known.search:
        raise OptionError("--search finds plans for training only; leave out --search or --inference")
    if known.chakra and (known.inference or max(len(known.config), len(known.system), 1 + len(known.vary)) > 1):
        raise OptionError(
            "--chakra writes one training; give one configuration and one system, and no --vary or --inference"
        )
    if known.budget and not known.search:
        raise OptionError("--budget limits the plans of --search, and the trials of cnn sweep; add --search")
    names = list(dict.fromkeys(known.config))
    named = [(name, Call.of_values({"config": name}, "train") + call) for name in names] or [("", call)]
    calls = [each for label, whole in named for each in _varied(label, whole, tuple(dict.fromkeys(known.vary)))]
    return PlanRequest(
        systems=system_file.chosen(known.system), calibrate=known.calibrate,
        rates=known.rates, json=known.json, html=known.html, chakra=known.chakra, search=known.search,
        schedules=known.schedules, noise_scale=known.noise_scale, inference=known.inference, processes=known.processes,
        calls=tuple(calls),
    )  # fmt: skip


def check_plans(call: Call, where: str = "") -> None:
    """Raise OptionError if a call has an option of train.py that prints something instead of training."""
    for word in (flag(name) for name in PRINTING if name in call):
        raise OptionError(f"{where}{word} is an option of train.py: run python train.py {word} with the other options")


def _check_calibrates(known: PlanOptions, call: Call) -> None:
    """Raise OptionError if --calibrate is given with options that it does not read, or without one system."""
    unread = [flag(each.name) for each in fields(PlanOptions) if each.name not in ("calibrate", "system")
              and getattr(known, each.name) != each.default]  # fmt: skip
    for word in (*unread, *call.bare, *(written for written, _ in call.given)):
        raise OptionError(f"--calibrate reads its trainings from its file and prints text only; leave out {short(word)}")
    if len(known.system) != 1:
        raise OptionError(
            f"--calibrate {short(known.calibrate)} fits one system; give it as --system NAME or --system FILE.yml"
        )


def _varied(label: str, call: Call, texts: Sequence[str]) -> Iterator[PlanCall]:
    """Yield the call with each combination of changes, first those with few changes."""
    if len(texts) > MAX_VARIED:
        raise OptionError(f"--vary has {len(texts)} texts; give at most {MAX_VARIED}, because all combinations are planned")
    changes = []
    for letter, text in zip(ascii_uppercase, texts):
        try:
            words = shlex.split(text if text.startswith("-") else f"--{text}")
        except ValueError as error:
            raise OptionError(f"--vary {short(text)}: {error}; give options as on a command line") from None
        check_plans(Call.of_words(words, "train"), f"--vary {short(text)}: ")
        changes.append((letter, words))
    for count in range(len(changes) + 1):
        for chosen in combinations(changes, count):
            letters = " ".join(f"+{letter}" for letter, _ in chosen)
            words = [word for _, words in chosen for word in words]
            whole = call + Call.of_words(words, "train") if words else call
            yield PlanCall(f"{label} {letters}".strip(), whole, " ".join(words))


def run_of(call: Call, environ: Mapping[str, str] = os.environ, *, training: bool = True) -> Prepared:
    """Return the run that a call of train.py starts or resumes, or validation.py if `training` is false.

    No data are read. If the call has no data set, or too few replicas for --BN-span, a note says what is assumed.
    """
    alone, assumed, values = membership.without_others(environ), [], {}
    recorded = _recorded(call)
    parsed = answers.resolve(call, recorded, dataset="imagenet")
    options = parsed.options
    if options.given("dataset") and "dataset" not in call:
        assumed.append("no data set given; assuming ImageNet")
    folder = options.dataset.data_dir or environ.get("DATA_DIR")
    generates = not options.dataset.random_data and (options.dataset.dataset != FOLDERS or not folder)
    if generates and options.dataset.dataset == FOLDERS:
        assumed.append("no --data-dir given; assuming the numbers of images and classes of ImageNet")
    span = options.device.BN_span if getattr(options.model, "batch_norm", True) else 1
    if training and span > options.device.replicas and "replicas" not in options.sources:
        values["replicas"] = span
        assumed.append(f"--BN-span {span} needs {span} replicas; assuming --replicas {span}")
    rates = options.training.abs_learning_rate, options.training.base_learning_rate_exponent
    if rates == (None, None):  # Any rate will do, because neither time nor memory depends on it.
        values["abs_learning_rate"] = 0.1
    if options.training.distributed:
        values["distributed"] = False
        assumed.append("--distributed is ignored: give the total number of replicas of all processes as --replicas")
    options = options.with_values(values)
    if generates:  # Plans use generated data, so that they read no files.
        options = options.with_values({"generated_data": True}, "plans read no data")
    run, cluster, _ = prepare(options, alone, training=training, total_replicas=recorded.get("total_replicas"))
    if training and generates:  # Generated data skip this check, but the planned training will not.
        rules.check_mixable(run.options.dataset, run.plan.micro_batch_size)
    if narrow := run.plan.precision.narrow_operands:
        assumed.append(
            f"the plan counts {', '.join(narrow)} as {run.plan.precision.compute.name}: no time or memory is saved"
        )
    notes = [note for note in parsed.notes if not note.startswith(cli.WITHOUT_EFFECT)]
    return Prepared(run, cluster, (*notes, *assumed))


def _recorded(call: Call) -> Mapping[str, Any]:
    """Return the recorded options of the run in --restore-path, or {} without --restore-path."""
    path = call.argument("restore_path")
    if not path:
        return {}
    find.check_run_folder(Path(path))
    return entry.recorded_options(Path(path), call)


class Case(NamedTuple):
    """A plan to predict."""

    name: str
    run: Run
    notes: tuple[str, ...]
    workload: Workload
    system: System
    changes: str


def cases(request: PlanRequest) -> Iterator[Case]:
    """Yield each configuration on each system, in the order of the command line. Raise OptionError for a system with too
    few IPUs.

    If there are several systems, each plan uses as many replicas as its system has room for, with the same global batch.
    """
    for label, call, changes in request.calls:
        run, _, notes = run_of(call, training=not request.inference)
        work = run.workload(request.processes)
        for asked in request.systems or (None,):
            system = asked if len(request.systems) > 1 else smallest_holding(asked, work.plan.ipus)
            check_tiles(work, system)
            scaled = variants.scaled(work, system) if len(request.systems) > 1 else work
            if scaled is None:
                raise _too_small(system, work)
            named = label if label and not label.startswith("+") else f"{run.name} {label}".strip()
            yield Case(named, run, notes, scaled, system, changes)


def _too_small(system: System, work: Workload) -> OptionError:
    shards, span = work.plan.options.shards, work.plan.options.BN_span
    least = f"{shards} (--shards)" if span == 1 else f"{shards * span} (--shards x --BN-span)"
    return OptionError(
        f"--system {system.name} has {system.devices} {system.device.kind}s, but the plan needs {least}; leave this system "
        "out"
    )
