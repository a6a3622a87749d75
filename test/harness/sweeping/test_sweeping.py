"""Sweeps: their blocks, trials and refusals; and one that is killed, and goes on by the same call."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Result, assert_same_bits, run, succeed, timeless, variables

from base import plugins
from base.process import orphans, progress
from base.storage import locks
from harness.commands import cli
from harness.options.sections import with_trait
from harness.sweeping import block, output_files, results, trial_runs, trials, workers
from harness.sweeping.block import Range
from harness.sweeping.trials import Trial

ROOT = plugins.ROOT
HEAD = "s:\n  config: quickstart\n"
GRID = HEAD + "  grid:\n    momentum: [0.8, 0.90]\n    base_learning_rate_exponent: [-6, -7, -8]\n"


def file(folder: Path, text: str) -> Path:
    (folder / "s.yml").write_text(text)
    return folder / "s.yml"


def drawn(folder: Path, text: str) -> list[Trial]:
    return trials.of(block.read(str(file(folder, text)), None))


def values(trial: Trial) -> dict[str, object]:
    return {setting.name: setting.value for setting in trial.settings}


def swept(folder: Path, text: str, *words: object) -> Result:
    """Run a sweep that lies in a folder; relative paths are in messages."""
    return run("sweep", file(folder, text), *words, "--logs-path", folder / "logs", "--dry-run")


def test_the_check_of_many_trials_is_seen_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    result = swept(tmp_path, GRID)
    assert result.code == 0 and "5 of 6 trials checked" in result.err


# --- Trials ----------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_by_names_that_tell_what_varies(tmp_path):
    made = drawn(tmp_path, GRID)
    assert [trial.name for trial in made] == [
        f"base-learning-rate-exponent={rate},momentum={momentum}" for momentum in ("0.8", "0.9") for rate in (-6, -7, -8)
    ]
    assert made[5].texts == ("0.9", "-8")


def test_a_trials_name_is_a_function_of_its_own_options(tmp_path):
    """So that more values, in any order and however they are written, leave finished trials where they are."""
    before = {trial.name for trial in drawn(tmp_path, GRID)}
    more = HEAD + "  grid:\n    base-learning-rate-exponent: [-9, -8.0, -7, -6]\n    momentum: [0.7, 9e-1, 0.80]\n"
    after = {trial.name for trial in drawn(tmp_path, more)}
    assert before < after and len(after) == 12


def test_more_random_trials_options_and_orders_leave_the_earlier_draws_alone(tmp_path):
    spans = "    momentum: [0.8, 0.9, 0.95]\n    abs-learning-rate: {low: 0.01, high: 1, scale: log}\n"

    def text(count: int, seed: int) -> str:
        return f"{HEAD}  random:\n    trials: {count}\n    seed: {seed}\n{spans}"

    few, many, other = (drawn(tmp_path, text(*each)) for each in ((5, 3), (40, 3), (5, 4)))
    assert many[:5] == few and not {trial.name for trial in few} & {trial.name for trial in other}
    with_more = drawn(tmp_path, text(5, 3).replace("    momentum", "    weight-decay: {low: 0, high: 1e-4}\n    momentum"))
    assert [values(trial) | values(first) for trial, first in zip(with_more, few)] == [values(trial) for trial in with_more]
    assert {values(trial)["momentum"] for trial in many} == {0.8, 0.9, 0.95}
    both = {(values(trial)["momentum"], float(values(trial)["abs_learning_rate"]) < 0.1) for trial in many}
    assert len(both) == 6  # one option's draw tells nothing of another's
    rates = sorted(float(values(trial)["abs_learning_rate"]) for trial in many)
    assert rates[0] >= 0.01 and rates[-1] <= 1 and 10 < sum(rate < 0.1 for rate in rates) < 30


def test_whole_numbers_stay_whole_and_others_short(tmp_path):
    text = HEAD + "  random:\n    trials: 200\n    micro-batch-size: {low: 3, high: 6}\n    epochs: {low: 1, high: 2}\n"
    made = drawn(tmp_path, text)
    assert {values(trial)["micro_batch_size"] for trial in made} == {3, 4, 5, 6}
    assert all(re.fullmatch(r"epochs=[12](\.\d{1,3})?,micro-batch-size=[3-6]", trial.name) for trial in made)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(1, 2), (1, 7), (3, 1000)])
def test_both_ends_of_a_range_of_whole_numbers_come(low, high, log):
    span = Range(low=low, high=high, log=log, whole=True)
    drawn = [trials.whole_at(span, fraction) for fraction in (*(k / 5000 for k in range(5000)), 1 - 2**-53)]
    assert drawn == sorted(drawn) and (drawn[0], drawn[-1]) == (low, high)


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0.1, 0.3, False), (1e-7, 1e3, True), (1, 1.0001, True), (-1e30, 1e30, False)]
)
def test_draws_stay_within_their_range_and_tell_a_thousandth_of_it(low, high, log):
    span = Range(low=low, high=high, log=log, whole=False)
    drawn = [trials.number_at(span, k / 1000) for k in range(1000)]
    assert drawn == sorted(drawn) and drawn[0] == low and low <= drawn[-1] <= high and len(set(drawn)) > 900


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0.1, 0.1 + 2**-56, True), (0.1, 0.1 + 2**-56, False), (0, 5e-324, False), (5e-324, 1e-323, True)],
)
def test_a_range_may_end_at_the_next_number(low, high, log):
    span = Range(low=low, high=high, log=log, whole=False)
    assert {trials.number_at(span, k / 10) for k in range(10)} <= {low, high}


def test_the_same_draw_twice_is_one_trial(tmp_path):
    told = swept(tmp_path, HEAD + "  random:\n    trials: 9\n    momentum: [0.8, 0.9]\n").out
    assert "9 draws give 2 trials: the others are the same again" in told and "[2/2]" in told
    told = swept(tmp_path, HEAD + "  random:\n    trials: 9\n    optimiser: [SGD, sgd]\n").out
    assert "9 draws give 1 trial: the others are the same again" in told


def test_lists_switches_and_long_values_make_folders_and_words(tmp_path):
    text = (
        HEAD
        + "  grid:\n    variable-filter: [[Top], [Top, b1/0], []]\n    validation: [true, false]\n    stochastic_rounding: [ON]\n"
    )
    made = drawn(tmp_path, text)
    assert [trial.name for trial in made[:3]] == [
        "stochastic-rounding=on,validation=on,variable-filter=Top",
        "stochastic-rounding=on,validation=off,variable-filter=Top",
        made[2].name,
    ]
    assert re.fullmatch(r"stochastic-rounding=on,validation=on,variable-filter=Top\+b1_0-[0-9a-f]{8}", made[2].name)
    assert trials.words(made[5].settings) == ["--no-variable-filter", "--no-validation", "--stochastic-rounding"]
    assert trials.words(made[2].settings)[:3] == ["--variable-filter", "Top", "b1/0"]
    long = drawn(tmp_path, HEAD + f"  grid:\n    data-dir: [{'a' * 400}, {'a' * 399}b]\n")
    assert len({trial.name for trial in long}) == 2 and all(len(trial.name) <= 120 for trial in long)
    assert trials.words(long[1].settings) == ["--data-dir=" + "a" * 399 + "b"]


# --- Refusals --------------------------------------------------------------------------------------------------

REFUSED = [  # what follows the block's head, and what is said
    ("  grid:\n    momentun: [1]\n", "s.yml:4: s: unknown key 'momentun'; did you mean momentum?"),
    ("  momentun: 1\n  grid:\n    momentum: [1]\n", "s.yml:3: s: unknown key 'momentun'; did you mean momentum?"),
    ("  random:\n    trails: 2\n    momentum: [1]\n", "s.yml:4: s: unknown key 'trails'; did you mean trials"),
    ("  random:\n    momentum: [1]\n", "s.yml:3: random needs trials"),
    ("  random:\n    trials: 2.5\n    momentum: [1]\n", "s.yml:4: trials is '2.5' but must be a whole number from 1 to 1000"),
    ("  random:\n    trials: 2\n", "s.yml:3: random varies no option"),
    ("  epochs: 1\n", "s has neither grid nor random"),
    ("  grid: {momentum: [1]}\n  random: {trials: 1}\n", "s.yml:4: s has both grid and random"),
    ("  grid: [1]\n", "s.yml:3: grid must be a mapping"),
    ("  grid:\n    momentum: 0.9\n", "s.yml:4: momentum is '0.9' but grid needs a list of values"),
    ("  grid:\n    momentum: []\n", "s.yml:4: momentum is empty but grid needs a list of values"),
    ("  grid:\n    momentum: [null, 0.9]\n", "s.yml:4: momentum has null in its list"),
    ("  grid:\n    pipeline: [true, 'yes']\n", "s.yml:4: pipeline takes no value, but was given yes (trial pipeline=yes)"),
    ("  grid:\n    momentum: {low: 0, high: 1}\n", "s.yml:4: momentum is a mapping but grid needs a list of values"),
    ("  grid:\n    momentum: [0.9, 0.90]\n", "s.yml:4: momentum has 0.9 twice"),
    ("  grid:\n    optimiser: [SGD, momentum, sgd]\n", "s.yml:4: optimiser has sgd twice"),
    ("  grid:\n    label-smoothing: [0, -0.0]\n", "s.yml:4: label-smoothing has 0 twice"),
    ("  grid:\n    lr-schedule: [cosine, Cosine]\n", "s.yml:4: lr-schedule has Cosine twice"),
    ("  momentum: 1\n  grid:\n    momentum: [1]\n", "s.yml:5: momentum is given twice, first at"),
    ("  grid:\n    batch-size: [1]\n    micro_batch_size: [2]\n", "s.yml:5: micro-batch-size is given twice, first at"),
    ("  epochs: {low: 1}\n  grid: {momentum: [1]}\n", "s.yml:3: epochs is a mapping: an option that all trials share has a value"),
    ("  epochs:\n  grid: {momentum: [1]}\n", "s.yml:3: epochs is empty: an option that all trials share has a value"),
    ("  logs-path: x\n  grid: {momentum: [1]}\n", "s.yml:3: logs-path is not for sweep.py: give --logs-path to sweep.py"),
    ("  grid: {restore_path: [x]}\n", "s.yml:3: restore_path is not for sweep.py: the same call goes on"),
    ("  grid: {seed: [" + ", ".join(map(str, range(40))) + "], epochs: [" + ", ".join(map(str, range(1, 31))) + "]}\n",
     "s.yml:3: the grid has 40 x 30 = 1,200 trials, and 1,000 at most are made"),
    ("  random:\n    trials: 2\n    momentum: {low: 1, high: 0.5}\n", "s.yml:5: momentum: low is 1, and high 0.5"),
    ("  random:\n    trials: 2\n    momentum: {low: 0, high: 1, scale: log}\n", "momentum: low is 0 but must be above 0 where scale is log"),
    ("  random:\n    trials: 2\n    momentum: {low: 0, high: 1, scale: lin}\n", "scale is 'lin' but must be linear or log"),
    ("  random:\n    trials: 2\n    momentum: {low: 0, hihg: 1}\n", "momentum: a range has low, high and scale, not 'hihg'"),
    ("  random:\n    trials: 2\n    momentum: {low: 0}\n", "s.yml:5: momentum: a range needs high"),
    ("  random:\n    trials: 2\n    epochs: {low: 0, high: many}\n", "s.yml:5: epochs: high is 'many' but must be a number"),
    ("  random:\n    trials: 2\n    abs-learning-rate: {low: 1, high: 1e300}\n", "high is '1e300' but must be a number up to 3.403e+38"),
    ("  random:\n    trials: 2\n    micro-batch-size: {low: 0.5, high: 4}\n", "low is '0.5' but must be a whole number"),
    ("  random:\n    trials: 2\n    optimiser: {low: 0, high: 1}\n", "s.yml:5: optimiser is not one number, which a range is for"),
    # of the options' values, in any trial
    ("  grid:\n    weight-decay: [0]\n    momentum: [0.8, 0.9, fast]\n",
     "s.yml:5: momentum is 'fast' but must be a finite number (trial momentum=fast,weight-decay=0)"),
    ("  momentum: fast\n  grid:\n    seed: [1]\n", "s.yml:3: momentum is 'fast' but must be a finite number\n"),
    ("  grid:\n    model-size: [14, 15]\n", "s.yml:4: no model size 15 for cifar-sized data; did you mean"),
    ("  grid:\n    proxy-norm: [true]\n", "s.yml:4: proxy-norm is an option of --model efficientnet only (trial proxy-norm=on)"),
    ("  grid:\n    micro-batch-size: [64, 400000]\n", "s.yml:3: trial micro-batch-size=400000: "),
    ("  grid:\n    init-path: [nowhere]\n", "s.yml:3: trial init-path=nowhere: --init-path nowhere: no checkpoint there"),
    ("  grid:\n    validation: [true, false]\n", "s.yml:3: trial validation=off: nothing is validated: --metric training-loss"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_a_block_that_cannot_be_meant_is_refused_with_its_line(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = swept(Path(), HEAD + text)
    assert refused.code == 2 and not refused.out and not (tmp_path / "logs").exists()
    assert said in f"{refused.err}", refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--momentum", 0.5), "command line: --momentum: momentum varies in s ("),
        (("--epoch-count", 3), "command line: unknown option --epoch-count; did you mean"),
        (("--autoresume",), "command line: --autoresume is not for sweep.py: the same call goes on"),
        (("--summary",), "command line: --summary is not for sweep.py: that is a question to train.py"),
        (("--jobs", 999), "--jobs 999: each trial has cores of its own, and there are"),
        (("--jobs", 0), "argument --jobs: 0 is not a whole number from 1 on"),
        (("--metric", "speed"), "argument --metric: invalid choice: 'speed'"),
        (("--epochs", "many"), "command line: --epochs: epochs is 'many'"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(words, said, tmp_path):
    refused = swept(tmp_path, GRID, *words)
    assert refused.code == 2 and said in refused.err and not (tmp_path / "logs").exists()


def test_which_sweep_is_said_where_there_are_several(tmp_path, monkeypatch):
    two = GRID + GRID.replace("s:", "other:") + "shared:\n  epochs: 1\n"
    for words, said in (
        ((), "holds 2 sweeps, s, other: name one of them"),
        (("othr",), "no sweep 'othr'; did you mean other?"),
    ):
        refused = run("sweep", file(tmp_path, two), *words)
        assert refused.code == 2 and said in refused.err
    for nothing in ((), ("--jobs", 2)):
        assert "give a file of sweeps first" in run("sweep", *nothing).err
    for name in ("../s:", "-s:"):  # which no command line could name
        assert "names a folder" in run("sweep", file(tmp_path, GRID.replace("s:", name, 1))).err
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    assert "start it without poprun" in run("sweep", file(tmp_path, GRID)).err


def test_memory_for_one_trial_need_not_be_enough_for_several(tmp_path, monkeypatch):
    one = trial_runs.prepare(cli.parse(["--config", "quickstart"], "train").options, {})
    limit = trial_runs.host_limits.Limit(
        trial_runs.host_limits.RESIDENT, int(1.2 * one.memory.of_kind("resident")), "RAM has", True
    )
    monkeypatch.setattr(trial_runs.host_limits, "limits", lambda: (limit,))
    trial_runs._check_memory(one, 1)
    with pytest.raises(trial_runs.OptionError, match=r"--jobs 8 takes about .* GB each, and RAM has"):
        trial_runs._check_memory(one, 8)


# --- A look before the first trial -----------------------------------------------------------------------------


def test_a_dry_run_lists_the_trials_and_what_is_to_be_known_of_them(tmp_path):
    text = "s:\n  dataset: fashion-mnist\n  epochs: 1\n  base-learning-rate-exponent: -8\n  grid:\n    momentum: [0.8, 0.9]\n    seed: [3]\n"
    told = swept(tmp_path, text, "--epochs", 2, "--weight_decay", 0, "--batch-size", 100)
    assert told.code == 0 and not (tmp_path / "logs").exists()
    assert "2 trials into" in told.out and told.out.count("new; 200 updates") == 2 and "no seed is given" not in told.out
    assert "--momentum changes nothing: --optimiser is SGD" in told.out
    assert (
        "no seed is given: the trials have --seed 1"
        in swept(tmp_path, text.replace("seed", "label-smoothing").replace("3", "0")).out
    )
    far = swept(tmp_path, HEAD + "  grid:\n    abs-learning-rate: [0.1, 5000]\n").out
    assert re.search(r"warning: the learning rate goes up to 4810,.* \(abs-learning-rate=5000\)\n", far)


def test_a_file_of_something_else_in_a_sweeps_folder_is_left(tmp_path):
    mine = tmp_path / "logs" / "s" / "best.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused = swept(tmp_path, GRID)
    assert refused.code == 2 and f"{mine.parent} holds best.yml, which is of no sweep and would be replaced" in refused.err
    (mine.parent / "output").mkdir()
    assert swept(tmp_path, GRID).code == 2
    (mine.parent / ".lock").write_text("pid 1\n")  # as every sweep writes first
    assert swept(tmp_path, GRID).code == 0 and mine.read_text() == "mine"


def test_a_trial_that_is_to_save_nothing_is_complete_by_its_rows(tmp_path):
    record = {"run_id": "x", "total_iterations": 3, "ckpts_per_epoch": 0, "epochs_per_ckpt": 0}
    (tmp_path / "arguments.json").write_text(json.dumps(record))
    columns = "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,total_time"

    def end_at(updates: int) -> None:
        (tmp_path / "training.csv").write_text(f"{columns}\n1,{updates},0.1,0.1,2.0,2.0,9.0,9.0,0.1,9.0,0.1\n")

    def is_complete(updates: int) -> bool:
        run = SimpleNamespace(length=SimpleNamespace(iterations=updates))
        return trial_runs.Planned(trial=None, folder=tmp_path, words=(), run=run, seeded=False).is_complete

    end_at(3)
    assert is_complete(3) and not is_complete(4)
    end_at(2)
    assert not is_complete(3)


def test_looking_at_a_sweep_imports_no_tensorflow(tmp_path):
    words = [str(file(tmp_path, GRID)), "--dry-run"]
    code = (
        "import sys; import sweep; from harness.commands import entry; "
        f"assert entry.run_command('sweep', sweep.main, {words}) == 0; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("page", ["docs/sweeps.md", "sweep.py"])
def test_the_printed_sweeps_are_sweeps(page, tmp_path):
    text = (ROOT / page).read_text()
    printed = (
        re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S) or re.findall(r"^rates:.*?(?=^\S)", text, re.M | re.S)[-1:]
    )
    assert printed
    for each in printed:
        written = file(tmp_path, each)
        for name in re.findall(r"^(\w+):", each, re.M):
            sweep = block.read(str(written), name)
            for trial in trials.of(sweep):
                cli.parse([*trials.words(sweep.shared), *trials.words(trial.settings)], "train", None, {})


def test_cores_are_divided_evenly():
    assert workers.shares(1, [0, 1]) == [(0, 1)]
    assert workers.shares(3, [2, 3, 4, 5, 7]) == [(2, 3), (4, 5), (7,)]


# --- The comparison --------------------------------------------------------------------------------------------

VALIDATION = "name,iteration,epoch,val_acc,raw_acc,val_time,val_size,img_per_sec,latency,top5_acc,loss\n"
TRAINING = "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,total_time\n"


def finished(top: Path, name: str, losses: list[float], *validated: tuple[float, float], state: str = results.COMPLETE):
    """The result of a trial whose rows are written: the losses of its training, accuracy and loss of its validations."""
    folder = top / name
    folder.mkdir()
    (folder / "training.csv").write_text(
        TRAINING + "".join(f"{k},{k},{k / 2},0.1,{loss},{loss},50,50,0.1,100,{60 * k}\n" for k, loss in enumerate(losses, 1))
    )
    (folder / "validation.csv").write_text(
        VALIDATION + "".join(f"ckpt-{k},{k},{k / 2},{a},0,1,100,9,0,90,{b}\n" for k, (a, b) in enumerate(validated, 1))
    )
    trial = Trial(name=name, settings=(), texts=())
    return lambda metric: results.read(trial, folder, state, results.METRICS[metric], "it fell" * (state == results.FAILED))


def test_trials_are_compared_by_the_measure_that_is_asked_for(tmp_path):
    made = [
        finished(tmp_path, "fast", [0.9, 0.8], (80, 0.7), (70, 0.9)),
        finished(tmp_path, "failed", [0.1], (99, 0.1), state=results.FAILED),
        finished(tmp_path, "long", [0.9, 0.5], (60, 0.8), (80, 0.6)),
        finished(tmp_path, "even", [0.9, 0.7], (70, 0.4), (50, 0.9)),
        finished(tmp_path, "unseen", [0.9, 0.6]),
    ]
    order = {
        "validation-accuracy": ["long", "fast", "even", "failed", "unseen"],  # of two at 80 % that of the lower loss
        "validation-loss": ["even", "long", "fast", "failed", "unseen"],
        "training-loss": ["long", "unseen", "even", "fast", "failed"],
    }
    for metric, names in order.items():
        ranked = results.ordered([each(metric) for each in made], results.METRICS[metric])
        assert [result.trial.name for result in ranked] == names
        lines = results.table(ranked, ()).splitlines()
        assert lines[1].startswith("1 ") and next(line for line in lines if "failed: it fell" in line).startswith("-")
    assert results.line(made[2]("validation-accuracy")) == "accuracy 80.00 %, loss 0.6 at epoch 1, 2.0 minutes"
    short = Trial(name="short", settings=(), texts=())
    stopped = results.read(short, tmp_path / "none", results.COMPLETE, results.METRICS["training-loss"])
    assert results.line(stopped, 4) == "no row yet: --stop-after 4 ended before the first"
    accuracy = results.METRICS["validation-accuracy"]
    assert results.why_unranked([stopped], accuracy) == "none that is complete has a row yet"
    assert results.why_unranked([made[4]("validation-accuracy")], accuracy).startswith(
        "none that is complete has a validation "
    )
    assert results.why_unranked([made[1]("validation-accuracy")], accuracy) == "none is complete"


def test_the_reason_of_a_failure_is_its_line(tmp_path):
    output = tmp_path / "o.txt"
    output.write_text("step: 1\ntrain.py: error: the loss of update 3 is nan: be gentle\nmore\n")
    assert workers.reason(output, 1) == "the loss of update 3 is nan: be gentle"
    output.write_text("step: 1\n")
    assert workers.reason(output, 128 + signal.SIGKILL) == "ended by SIGKILL"
    assert workers.reason(output, 1) == "step: 1" and workers.reason(tmp_path / "none", 1) == "exit code 1"


def test_the_best_trial_is_trained_again_from_any_folder(tmp_path, monkeypatch):
    """A folder whose name begins with a dash is no option of the command that is printed."""
    monkeypatch.chdir(tmp_path)
    words = ("--config", "quickstart", "--momentum", "0.8")
    run_of = SimpleNamespace(options=cli.parse([*words], "train").options)
    trial = SimpleNamespace(trial=SimpleNamespace(name="t"), words=words, run=run_of)
    found = finished(tmp_path, "t", [0.5], (80, 0.7))("validation-loss")
    board = SimpleNamespace(best=(trial, found), count="1 trial", sweep=SimpleNamespace(name="s"))
    Path("-top").mkdir()
    block_line, again, *doubts = output_files.best(Path("-top"), board, results.METRICS["validation-loss"])
    assert again.endswith("train.py --config-path ./-top/best.yml --config s_best") and not doubts
    assert block_line.endswith("-top/best.yml")


def test_the_best_block_has_the_trials_options(tmp_path):
    """A configuration's values, lists, switches and what the command line gives, as train.py reads them again."""
    words = "--config finetune_network --variable-filter Top b1 --no-validation --precision 16.16 --momentum 1e-5 --seed 3"
    asked = cli.parse([*words.split(), "--init-path", "efficientnet-lite0"], "train", None, {}).options
    (tmp_path / "best.yml").write_text(output_files.block("b", asked))
    read = cli.parse(["--config", "b", "--config-path", str(tmp_path / "best.yml")], "train", None, {}).options
    calls_own = with_trait("one call")
    assert {k: v for k, v in read.values().items() if k not in calls_own} == {
        k: v for k, v in asked.values().items() if k not in calls_own
    }


# --- Processes -------------------------------------------------------------------------------------------------

TRIAL = """
import os, pathlib, sys, time
sys.path.insert(0, {root!r})
from base.process import command_line, signals
place = pathlib.Path(sys.argv[1])
def main(words):
    try:
        place.with_suffix(".tmp").write_text(f"{{os.getpid()}} {{sorted(os.sched_getaffinity(0))}}")
        place.with_suffix(".tmp").rename(place.with_suffix(".here"))
        time.sleep(90)
    except signals.StopRequest:
        place.with_suffix(".saved").touch()
        raise
sys.exit(command_line.run("trial", main, None, ()))
"""
SWEEPER = """
import pathlib, sys
sys.path.insert(0, {root!r})
from base import plugins
from base.process import command_line
from harness.sweeping import workers
top = plugins.ROOT = pathlib.Path({top!r})
def main(words):
    works = [workers.Work(str(k), top / str(k), (str(top / str(k)),), top / f"{{k}}.txt") for k in range(3)]
    ended = lambda work, code, stopping: print(work.name, code, stopping, flush=True)
    workers.Workers([workers.cores()[:1]] * 2, print).run(works, lambda work: None, ended)
sys.exit(command_line.run("sweeper", main, None, ()))
"""


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_trials_save_and_end_with_their_sweep(number, tmp_path):
    """Those that run, on their share of the cores; another one is not begun any more."""
    (tmp_path / "train.py").write_text(TRIAL.format(root=str(ROOT)))
    code = SWEEPER.format(root=str(ROOT), top=str(tmp_path))
    sweeper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: all((tmp_path / f"{k}.here").exists() for k in range(2)))
    told = [(tmp_path / f"{k}.here").read_text().split(" ", 1) for k in range(2)]
    assert {cores for _, cores in told} == {str(workers.cores()[:1])}
    sweeper.send_signal(number)
    until(lambda: not any(orphans.began(int(pid)) for pid, _ in told))
    out, _ = sweeper.communicate(timeout=60)
    assert all((tmp_path / f"{k}.saved").exists() for k in range(2)) and not (tmp_path / "2.here").exists()
    if number == signal.SIGKILL:
        assert sweeper.returncode == -number and not out
    else:
        assert sweeper.returncode == 128 + number and sorted(out.splitlines()) == ["0 143 True", "1 143 True"]


def test_a_trial_that_an_earlier_call_still_writes_is_waited_for(tmp_path):
    said: list[str] = []
    waiting, work = workers.Workers([(0,)], said.append), workers.Work("t", tmp_path, (), tmp_path / "o.txt")
    with locks.lock_folder(tmp_path):
        assert not waiting._is_ready(work) and not waiting._is_ready(work)
    assert said == ["t is still being written by another process; it is waited for"] and waiting._is_ready(work)


# --- A sweep that is killed ------------------------------------------------------------------------------------

SHARED = {
    "dataset": "fashion-mnist", "model_size": 8, "micro-batch-size": 50, "iterations": 24, "log-freq": 8, "batches-per-step": 8,
    "ckpts-per-epoch": 25, "optimiser": "momentum", "valid-batch-size": 200, "seed": 5,
}  # fmt: skip
KILLED = "s:\n" + "".join(f"  {key}: {value}\n" for key, value in SHARED.items()) + "  grid:\n    abs-learning-rate: [{}]\n"


def writer(folder: Path) -> int:
    return int((folder / ".lock").read_text().split()[1])


@pytest.mark.sampled(6, "commands")
def test_a_killed_sweep_leaves_nothing_running_and_ends_by_the_same_call(tmp_path):
    """One trial fails, and is a row; the other ends with the bits of a training that nobody killed."""
    call = [
        sys.executable,
        str(ROOT / "sweep.py"),
        str(file(tmp_path, KILLED.format("0.05, 0.1"))),
        "--logs-path",
        str(tmp_path / "logs"),
    ]
    top = tmp_path / "logs" / "s"
    good, bad = top / "abs-learning-rate=0.05", top / "abs-learning-rate=0.1"
    bad.mkdir(parents=True)
    (bad / "arguments.json").write_text('{"run_id": "x"}')  # as of a run that was killed before it saved
    (bad / ".lock").symlink_to("elsewhere")
    first = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (good / "ckpt-8.index").exists())
    second = run("sweep", *call[2:])
    assert second.code == 2 and f"the sweep in {top} is being written by another process" in second.err
    trial = writer(good)
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: orphans.began(trial) is None)
    assert not locks.is_locked(good)
    again = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 1, again.stdout + again.stderr
    assert again.stderr.endswith("sweep.py: error: 1 of 2 trials failed, as the table says\n")
    table = {row["trial"]: row for row in csv.DictReader((top / "sweep.csv").read_text().splitlines())}
    assert table[good.name]["rank"] == "1" and table[good.name]["state"] == "complete"
    assert table[bad.name]["rank"] == "" and "Is a link, which is not followed" in table[bad.name]["reason"]
    assert good.name in (top / "sweep.html").read_text()
    best = ("--config", "s_best", "--config-path", top / "best.yml")
    succeed("train", *best, "--logs-path", tmp_path / "unbroken")
    assert_same_bits(variables(tmp_path / "unbroken", 24), variables(good, 24))
    for name in ("training.csv", "validation.csv"):
        assert timeless(tmp_path / "unbroken" / name) == timeless(good / name)
    # complete trials are left, and none is taken for one with other options
    (tmp_path / "s.yml").write_text(KILLED.format("0.05"))
    done = run("sweep", *call[2:])
    assert done.code == 0 and "[1/1] abs-learning-rate=0.05  complete: accuracy " in done.out and "starts" not in done.out
    # nor is one ranked by other rows than its checkpoints keep, or by options that nothing tells
    (good / "training.csv").unlink()
    rows = (good / "validation.csv").read_text()
    (good / "validation.csv").write_text(re.sub(r"(?m)^(ckpt-8,8,[\d.]+),[\d.]+", r"\1,99.5", rows))
    assert "99.5" in (good / "validation.csv").read_text()
    with (good / "validation.csv").open("a") as added:
        added.write(rows.splitlines(keepends=True)[1].replace("ckpt-0,0,", "ckpt-9,9,"))
    mended = run("sweep", *call[2:])
    assert mended.code == 0 and "goes on from update 24" in mended.out and "99.50" not in mended.out
    for name in ("training.csv", "validation.csv"):
        assert timeless(tmp_path / "unbroken" / name) == timeless(good / name)
    record = (good / "arguments.json").read_bytes()
    for recorded in sorted(good.glob("arguments*.json")):
        recorded.unlink()
    unknown = run("sweep", *call[2:])
    assert (
        unknown.code == 2 and "arguments.json is missing or empty, and nothing else tells the trial's options" in unknown.err
    )
    (good / "arguments.json").write_bytes(record)
    refused = run("sweep", *call[2:], "--weight-decay", 0.5)
    assert refused.code == 2 and f"{good} is of a trial with --weight-decay 1e-06, not --weight-decay 0.5" in refused.err
