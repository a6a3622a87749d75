"""Run folders, CSV files, the meter and the choice of checkpoints, without TensorFlow."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import succeed

import log
from base import plugins
from base.storage import locks, run_tables, tables
from base.storage.tables import ExpectedRows, Kept
from harness.checkpoints import find, manifest, pruning, state_file
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.options.vintages import vintage
from harness.processes import folders
from harness.processes.team import Team
from harness.reports import trackers
from harness.run.length import TrainingLength
from harness.training import initial_state
from harness.training.context import TrainingContext
from harness.training.meter import Meter, state_of_rows

ROOT = plugins.ROOT
LENGTH = TrainingLength.of(images=100, global_batch=10, iterations=40, log_freq=5, batches_per_step=5)


def collect(pieces: list[tuple[int, int]], interrupt_after: int | None = None) -> list[dict[str, float]]:
    """The rows of a run done in these pieces, with a save and a reload after one of them."""
    meter = Meter(LENGTH, 1, float, {})
    rows = []
    for number, (first, end) in enumerate(pieces):
        meter.add([1.0 / (i + 1) for i in range(first, end)], [0.1] * (end - first), seconds=0.5)
        if end == LENGTH.host_step_end(first):
            meter.end_host_step()
            rows.append(meter.row(end))
        if number == interrupt_after:
            meter = Meter(LENGTH, 1, float, json.loads(json.dumps(meter.state())))
    return rows


def test_rows_do_not_depend_on_where_a_run_was_stopped():
    whole = collect([(0, 5), (5, 10), (10, 15), (15, 20)])
    pieced = collect([(0, 5), (5, 7), (7, 10), (10, 15), (15, 20)], interrupt_after=1)
    keys = ("step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg")
    assert [[row[key] for key in keys] for row in whole] == [[row[key] for key in keys] for row in pieced]
    # ten updates an epoch in host steps of five: the window is two steps
    assert whole[2]["loss_avg"] == pytest.approx(sum(1 / i for i in range(6, 16)) / 10)
    assert whole[2]["loss_batch"] == pytest.approx(sum(1 / i for i in range(11, 16)) / 5)
    assert whole[2]["train_acc_batch"] == pytest.approx(10)
    assert whole[2]["lr"] == 14  # of the last update
    early = replace(LENGTH, logs_first_rate=True)  # as the first releases had it
    assert [early.logged_update(end) for end in (5, 7, 15)] == [0, 5, 10]
    assert pieced[-1]["total_time"] == 2.5


def test_speed_leaves_the_first_call_of_a_process_out():
    meter = Meter(LENGTH, 1, float, {})
    meter.add([1.0] * 5, [0.0] * 5, seconds=100.0)
    meter.end_host_step()
    assert meter.row(5)["it_time"] == 20
    meter.add([1.0] * 5, [0.0] * 5, seconds=1.0)
    meter.end_host_step()
    row = meter.row(10)
    assert row["it_time"] == pytest.approx(0.2)
    assert row["img_per_sec"] == pytest.approx(50)
    assert row["total_time"] == 101


def test_run_folders_are_never_shared(tmp_path):
    names = {folders.new_run_folder("RN8", str(tmp_path), None, True).name for _ in range(20)}
    assert len(names) == 20
    assert all(len(name) == len("RN8_") + 3 for name in names)


def test_a_run_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(folders.FolderError, match="cannot make a run folder"):
        folders.new_run_folder("RN8", str(tmp_path / "file"), None, True)


def row(iteration: int) -> dict[str, object]:
    return {**dict.fromkeys(run_tables.TRAINING_COLUMNS, iteration / 7), "step": iteration // 10, "iteration": iteration}


def written(folder: Path) -> tuple[log.RunLog, list[tuple[int, dict[str, object]]]]:
    """A log with rows at 10, 20, 30, 40, and the states of the checkpoints at 20, 30 (a rolling one) and 40."""
    run_log, states = log.RunLog(folder), []
    for iteration in (10, 20, 30, 40):
        run_log.training_row(row(iteration))
        if iteration > 10:
            kept = run_log.rows_for_state(iteration, permanent=iteration != 30)
            states.append((iteration, json.loads(json.dumps(kept))))
    run_log.close()
    return run_log, states


def test_rows_that_will_come_again_are_forgotten(tmp_path):
    _, states = written(tmp_path)
    run_log = log.RunLog(tmp_path)
    run_log.resume_after(20, states[:1], permanent=True)
    assert [row["iteration"] for row in run_log.rows("training.csv")] == ["10", "20"]
    run_log.training_row(row(30))
    assert (tmp_path / "training.csv").read_text().count("iteration") == 1
    assert run_log.rows_for_state(30, permanent=True)["training.csv"]["before"] == 2
    assert "warning" not in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("damage", ["gone", "cut", "last rows gone", "flipped", "no text", "header gone", "doubled"])
def test_rows_are_made_anew_from_the_checkpoints(damage, rolling, tmp_path):
    """Also where the run goes on from a checkpoint that the next one replaces; what follows is kept by that one."""
    _, states = written(tmp_path)
    states = states[:2] if rolling else [states[0], states[2]]
    last = states[-1][0]
    path = tmp_path / "training.csv"
    content, lines = path.read_bytes(), path.read_text().splitlines(keepends=True)
    spoilt = {
        "gone": None, "cut": content[:90], "last rows gone": "".join(lines[:2]).encode(),
        "flipped": content.replace(b"1.4", b"1.5"), "no text": bytes(reversed(range(256))),
        "header gone": "".join(lines[1:]).encode(), "doubled": content + content[100:],
    }[damage]  # fmt: skip
    path.unlink()
    if spoilt is not None:
        path.write_bytes(spoilt)
    run_log = log.RunLog(tmp_path)
    run_log.resume_after(last, states, permanent=not rolling)
    for iteration in range(last + 10, 60, 10):
        run_log.training_row(row(iteration))
    assert path.read_text().splitlines()[: len(lines)] == [line.rstrip() for line in lines]
    kept = run_log.rows_for_state(50, permanent=True)["training.csv"]
    assert [cells[1] for cells in kept["rows"]] == [str(n) for n in range(30 if rolling else 50, 60, 10)]
    assert kept["before"] == (2 if rolling else 4)


def test_what_is_left_to_say_is_said_where_the_log_cannot_be_written(tmp_path, capsys, monkeypatch):
    """As when the disk is full, which is why the run ends."""

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for ending in (False, True):
        run_log = log.RunLog(tmp_path)
        monkeypatch.setattr(run_log._text, "write", full)
        with nullcontext() if ending else pytest.raises(OSError, match="No space left on device: .*log.txt"):
            run_log.ending() if ending else None
            run_log.note("Stopped")
        run_log.note("Go on")
        assert capsys.readouterr().out == "Stopped\nGo on\n"


def test_no_value_that_a_line_quotes_reaches_the_terminal(tmp_path, capsys):
    log.RunLog(tmp_path).note("warning: a\x1b[2J\x9bb\tc\nof 2\u3000x")
    told = "warning: a\\x1b[2J\\x9bb\tc\nof 2\u3000x\n"
    assert capsys.readouterr().out == (tmp_path / "log.txt").read_text() == told


def test_rows_of_averages_that_are_not_made_anew_are_told_of(tmp_path, capsys):
    run_log = log.RunLog(tmp_path)
    for name, iteration in (("ckpt-4", 4), ("weight_avg_N_1", -1), ("weight_avg_exp_0.9", -1)):
        run_log.validation_row({**dict.fromkeys(run_tables.VALIDATION_COLUMNS, 1), "name": name, "iteration": iteration})
    told = "validation.csv loses the rows of averages that this call does not validate: "
    for remade, lost in ((["weight_avg_N_1"], "weight_avg_exp_0.9"), ([], "weight_avg_N_1, weight_avg_exp_0.9"), (
        ["weight_avg_N_1", "weight_avg_exp_0.9", "weight_avg_exp_0.5"], None
    )):  # fmt: skip
        capsys.readouterr()
        run_log.tell_of_averages(remade)
        assert capsys.readouterr().out == (f"{told}{lost}\n" if lost else "")


def test_rows_of_which_nothing_is_left_are_told_of(tmp_path, capsys):
    _, states = written(tmp_path)
    (tmp_path / "training.csv").unlink()
    run_log = log.RunLog(tmp_path)
    run_log.resume_after(40, states[-1:], permanent=True)
    assert "training.csv lacks 2 rows of updates 1 to 20, of which no checkpoint is left" in capsys.readouterr().out
    assert [row["iteration"] for row in run_log.rows("training.csv")] == ["30", "40"]


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("rows_left", [0, 3])
def test_rows_that_only_lost_states_told_of_are_counted(kept, rows_left, tmp_path, capsys):
    """The newest checkpoint's state is lost, and with it what tells of the rows before it."""
    _, states = written(tmp_path)
    path = tmp_path / "training.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + rows_left]))
    capsys.readouterr()
    expected_rows = {
        "training.csv": lambda: ExpectedRows(range(10, 100, 10)),
        "validation.csv": lambda: ExpectedRows([20, 30, 40], (10, 20)),
    }
    log.RunLog(tmp_path).resume_after(40, states[:kept], permanent=True, expected_rows=expected_rows)
    told = {
        (0, 0): "4 rows of updates 10 to 40",
        (0, 3): "1 row of update 40",
        (1, 0): "2 rows of updates 30 to 40",
    }
    out = capsys.readouterr().out
    assert f"training.csv lacks {told.get((kept, rows_left), told[0, 3])}, of which" in out
    assert "validation.csv lacks at least 2 rows of updates 20 to 30, of which" in out  # that of 40 comes again


def test_a_state_that_nothing_vouches_for_fills_in_only_what_the_file_lacks(tmp_path, capsys):
    _, states = written(tmp_path)
    path = tmp_path / "training.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    for _, state in states:
        changed = [["7", *cells[1:]] if cells[1] == "20" else cells for cells in state["training.csv"]["rows"]]
        state |= {"training.csv": {**state["training.csv"], "rows": changed}, tables.UNVERIFIED: True}
    capsys.readouterr()
    log.RunLog(tmp_path).resume_after(40, states, permanent=True)
    assert path.read_text() == "".join(lines)
    out = capsys.readouterr().out
    assert "training.csv and the state of ckpt-20 differ, and nothing vouches for the state: the file's rows stay" in out
    assert "had 1 missing or damaged row: made anew" in out and out.count("warning") == 2


def test_what_vouches_for_a_state(tmp_path):
    """Its digest, or a manifest that is of it."""
    state = {"iteration": 1, "host_steps": 700, "training.csv": {}}
    for name in ("digest", "manifest", "neither"):
        found = Checkpoint.at(tmp_path / name, 1)
        touch(tmp_path / name, "ckpt-1.index")
        digest = {"digest": state_file.digest_of(state)} if name == "digest" else {}
        found.state_path.write_text(json.dumps({**state, **digest}))
        if name != "digest":
            manifest.write(Path(found.prefix))
        if name == "neither":
            found.state_path.write_text(json.dumps(state, indent=1))
        assert state_file.lineage(tmp_path / name, found) == [
            (1, state | {tables.UNVERIFIED: True} if name == "neither" else state)
        ]
        length = TrainingLength.of(images=50, global_batch=1, iterations=9, batches_per_step=1)
        run, own = SimpleNamespace(length=length, step_increment=1), log.RunLog(tmp_path / name, console=False)
        context = TrainingContext(run, Team(), tmp_path, own, writer=None, signals=None, mlperf=None, profile=None)
        steps = initial_state.meter_state(context, found, state)["host_steps"]
        assert steps == (1 if name == "neither" else 700)
        assert ("without anything that vouches for its" in (tmp_path / name / "log.txt").read_text()) == (name == "neither")


def test_rows_that_are_lost_are_those_that_the_call_before_was_to_write(tmp_path):
    """Whatever this one is to write."""
    found = {"iterations": 40, "logs_per_epoch": 10, "batches_per_step": 5, "ckpts_per_epoch": 2, "epochs_per_ckpt": 0}
    data = SimpleNamespace(spec=SimpleNamespace(train_images=100, validation_images=10))
    asked = SimpleNamespace(checkpoint=SimpleNamespace(validation=True))
    now = TrainingLength.of(images=100, global_batch=2, iterations=60, log_freq=1)
    call = SimpleNamespace(data_source=data, plan=SimpleNamespace(global_batch=2), options=asked, length=now)
    for validated in (True, False):
        (tmp_path / "arguments.json").write_text(json.dumps({**found, "validation": validated}))
        expected_rows = {name: rows().points for name, rows in initial_state.expected_rows(call, tmp_path).items()}
        assert expected_rows == {"training.csv": [5, 10, 15, 20, 25, 30, 35, 40], "validation.csv": [25, 40] * validated}
    later, calls = {**found, "logs_per_epoch": 5, "validation": True}, [["ab", 0], ["cd", 20], ["ef", 20], ["gh", 30]]
    for made in (2, 3, 4):
        (tmp_path / "arguments_restore.json").write_text(json.dumps({**later, "calls": calls[:made]}))
        expected_rows = {name: rows() for name, rows in initial_state.expected_rows(call, tmp_path).items()}
        unknown, since = (20, calls[made - 1][1]), slice(made == 4, None)
        assert expected_rows["training.csv"] == ExpectedRows([5, 10, 15, 20, *[30, 35, 40][since]], unknown)
        assert expected_rows["validation.csv"] == ExpectedRows([25, 40][since], unknown)  # the first call had none
    (tmp_path / "arguments.json").unlink()
    assert initial_state.expected_rows(call, tmp_path)["training.csv"]() == ExpectedRows([35, 40], (0, 30))
    (tmp_path / "arguments_restore.json").unlink()  # nothing else tells it
    assert initial_state.expected_rows(call, tmp_path)["training.csv"]() == ExpectedRows(now.log_points())


def test_a_state_keeps_the_last_rows_of_very_many(tmp_path, monkeypatch):
    """A checkpoint has at most MAX_KEPT rows, as readers have a bound."""
    monkeypatch.setattr(tables, "MAX_KEPT", 1)
    run_log, states = written(tmp_path)
    assert [state["training.csv"] | {"rows": 1} for _, state in states[::2]] == [
        {"since": 10, "before": 1, "rows": 1}, {"since": 30, "before": 3, "rows": 1},
    ]  # fmt: skip
    before = (tmp_path / "training.csv").read_bytes()
    run_log = log.RunLog(tmp_path)
    run_log.resume_after(40, [states[0], states[2]], permanent=True)
    assert (tmp_path / "training.csv").read_bytes() == before and "lacks" not in (tmp_path / "log.txt").read_text()
    run_log = log.RunLog(tmp_path)
    for iteration in range(10, 60, 10):  # and no checkpoint meanwhile
        run_log.training_row(row(iteration))
    assert len(run_log._tables["training.csv"]._recent) < 3
    assert run_log.rows_for_state(50, permanent=True)["training.csv"] | {"rows": 1} == {"since": 40, "before": 4, "rows": 1}


def test_a_run_folder_of_an_older_version_keeps_its_rows(tmp_path, capsys):
    """Its checkpoints' states hold none. Lines that cannot be rows are told of besides."""
    _, states = written(tmp_path)
    before = (tmp_path / "training.csv").read_bytes()
    capsys.readouterr()
    run_log = log.RunLog(tmp_path)
    run_log.resume_after(40, [(20, {}), (40, {"iteration": 40})], permanent=True)
    assert (tmp_path / "training.csv").read_bytes() == before and capsys.readouterr().out == ""
    assert len(run_log.rows_for_state(50, permanent=True)["training.csv"]["rows"]) == 4
    sound, late = (state["training.csv"] for _, state in states[1:])
    for strange in (7, [], {"since": "x"}, {**sound, "since": -1}, {**sound, "rows": [["x"] * len(run_tables.TRAINING_COLUMNS)]},
                    {**sound, "rows": [["40"]]}, {**sound, "since": 10**15, "rows": []}, {**sound, "before": 10**15},
                    {**sound, "since": 30}, late):  # fmt: skip
        run_log.resume_after(40, [(30, {"training.csv": strange})], permanent=True)
        assert (tmp_path / "training.csv").read_bytes() == before
        told = "warning: the state of ckpt-30 holds what cannot be rows of training.csv: left out\n"
        assert capsys.readouterr().out == told


@pytest.mark.parametrize("ends_after, told", [(40, "had 1 damaged row, left out"), (30, "")])
def test_a_last_row_that_was_cut_short_is_told_of_unless_it_comes_again(ends_after, told, tmp_path, capsys):
    """Only rows of an older version are lost; a row of this one is made anew."""
    written(tmp_path)
    path = tmp_path / "training.csv"
    path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    log.RunLog(tmp_path).resume_after(ends_after, [], permanent=True)
    assert told in capsys.readouterr().out and path.read_text().count("\n") == 4


def test_the_meter_goes_on_from_the_rows_where_the_state_is_lost():
    whole = Meter(LENGTH, 2, float, {})
    rows = []
    for first, end in [(0, 5), (5, 10), (10, 15)]:
        whole.add([1.0 / (i + 1) for i in range(first, end)], [0.1] * 5, seconds=0.5)
        whole.end_host_step()
        rows.append({name: str(value) for name, value in whole.row(end).items()})
    rebuilt, state = state_of_rows(rows, LENGTH, 2, 15), whole.state()
    np.testing.assert_allclose(rebuilt.pop("window"), state.pop("window"), rtol=1e-15)
    assert rebuilt == state
    assert state_of_rows(rows, LENGTH, 2, 25)["host_steps"] == 5 and state_of_rows([], LENGTH, 2, 25)["host_steps"] == 5


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_checkpoints_of_a_folder(tmp_path):
    touch(tmp_path, "ckpt-5.index", "ckpt-40.index", "ckpt-100.index", "ckpt-100.data-00000-of-00001", "ckpt-x.index",
          "ckpt/weight_avg_exp_0.97.index")  # fmt: skip
    assert [found.updates for found in find.select(tmp_path)] == [5, 40, 100, -1]
    assert [found.name for found in find.select(tmp_path)][-1] == "weight_avg_exp_0.97"
    assert find.numbered(tmp_path)[-1].updates == 100
    assert [found.updates for found in find.select(tmp_path / "ckpt-40")] == [40]
    assert [found.updates for found in find.select(tmp_path / "ckpt-40.index")] == [40]
    assert [found.updates for found in find.select(tmp_path / "ckpt-")] == [-1, 5, 40, 100]
    assert find.select(tmp_path / "ckpt" / "weight_avg_exp_0.97")[0].updates == -1
    assert find.run_folder(tmp_path / "ckpt" / "weight_avg_exp_0.97") == tmp_path
    assert find.run_folder(tmp_path / "ckpt-40") == tmp_path
    assert find.select(tmp_path / "ckpt") == find.select(tmp_path)  # the run's checkpoint_path, and where averages are
    assert find.run_folder(tmp_path / "ckpt") == tmp_path
    touch(tmp_path / "ckpt", "ckpt-7.index")  # a run's own folder may be called so
    assert [found.updates for found in find.select(tmp_path / "ckpt")] == [7]
    assert find.run_folder(tmp_path / "ckpt") == tmp_path / "ckpt"


def test_keeping_the_newest(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.{end}" for n in (1, 2, 30, 4) for end in ("index", "meta", "state.json")))
    pruning.prune(tmp_path, Checkpoint.at(tmp_path, 30), 2, lambda iteration: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"ckpt-{n}.{end}" for n in (30, 4) for end in ("index", "meta", "state.json")
    )


def test_checkpoints_of_another_run_stay(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.index" for n in (1, 2, 3, 4)))
    for n, run_id, rolling in ((1, "other", False), (2, "own", False), (3, "other", True), (4, "own", False)):
        (tmp_path / f"ckpt-{n}.state.json").write_text(json.dumps({"run_id": run_id, "rolling": rolling}))
    pruning.prune(tmp_path, Checkpoint.at(tmp_path, 4), 1, lambda iteration: iteration != 3)
    assert [checkpoint.updates for checkpoint in find.numbered(tmp_path)] == [1, 3, 4]


def test_the_next_checkpoint_replaces_safety_checkpoints_only(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.index" for n in (0, 3, 10, 13, 17, 20)))
    for n, rolling in ((3, True), (10, True), (13, False), (17, True), (20, False)):  # 10 would have been saved anyway
        (tmp_path / f"ckpt-{n}.state.json").write_text(json.dumps({"rolling": rolling}))
    (tmp_path / "ckpt-17.state.json").write_text("{")
    pruning.prune(tmp_path, Checkpoint.at(tmp_path, 20), None, lambda iteration: iteration % 10 == 0)
    assert [checkpoint.updates for checkpoint in find.numbered(tmp_path)] == [0, 10, 13, 17, 20]
    assert not (tmp_path / "ckpt-3.state.json").exists()


@pytest.mark.parametrize("name", ["", "ckpt-7", "nowhere/ckpt"])
def test_no_checkpoint_says_what_was_looked_for(tmp_path, name):
    with pytest.raises(CheckpointError, match="--restore-path .* (no checkpoint|no such folder)"):
        find.select(tmp_path / name if name else tmp_path)


def test_standard_error_stays_empty_while_tensorflow_starts():
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = (
        "from base.process import tf_runtime; tf_runtime.import_tensorflow(); import sys; assert 'tensorflow' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_mlperf_s_checker_is_content(tmp_path):
    """Rules of the open division, for the network whose rules there are."""
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance", reason="pip install mlperf-logging")
    words = "--dataset fashion-mnist --model-size 8 --precision 32.32 --iterations 6 --batch-size 8 --seed 3 --mlperf-logging --weight-avg-exp 0.5"
    out = succeed("train", *words.split(), "--logs-path", tmp_path / "run").out
    (tmp_path / "lines").write_text(out)
    told = [line for line in out.splitlines() if line.startswith(":::MLLOG ")]
    assert (tmp_path / "run/result_3.txt").read_text().splitlines() == told
    for file in ("lines", "run/result_3.txt"):
        found = checker.make_checker("training", "3.1.0", quiet=True, werror=True)
        assert checker.main(str(tmp_path / file), "training_3.1.0/common.yaml", found)[0]
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in told]
    told = {event["key"]: event["value"] for event in events}
    assert (told["seed"], told["global_batch_size"], told["train_samples"], told["opt_name"]) == (3, 8, 10_000, "sgd")
    assert [e["key"] for e in events][-4:] == ["eval_start", "eval_accuracy", "eval_stop", "run_stop"]
    assert ":::MLLOG" not in succeed("train", *words.replace("--mlperf-logging", "--no-logs").split()).out


def test_whole_rows_are_counted_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_LINES", 1000)
    path = tmp_path / "training.csv"
    row = ",".join("1" for _ in run_tables.TRAINING_COLUMNS) + "\n"
    path.write_text(",".join(run_tables.TRAINING_COLUMNS) + "\n" + row * 1000)
    table = run_tables.run_table(tmp_path, "training.csv")
    assert len(table.read()) == 1000
    path.write_text(path.read_text() + row)
    with pytest.raises(OSError, match="Has more than 1,000 lines; move it elsewhere"):
        table.read()


@pytest.mark.parametrize(
    ("content", "size", "most"),
    [(b"", tables.MAX_BYTES + 1, "the 268,435,456 bytes"), (b"\n" * 200_000, None, "100,000 lines that are no rows")],
)
def test_a_file_of_rows_that_is_none_is_refused_before_it_fills_the_memory(tmp_path, content, size, most):
    path = tmp_path / "training.csv"
    path.write_bytes(content)
    os.truncate(path, size or len(content))
    with pytest.raises(
        OSError, match=f"Has more than {most}.*; move it elsewhere, and the rows that the checkpoints keep are"
    ):
        tables.Table(path, ("epoch", "iteration"), 0).read()


@pytest.mark.parametrize(
    ("column", "cell", "sound"),
    [
        ("val_acc", "", False),
        ("val_size", "", False),
        ("val_size", "1e3", False),
        ("val_acc", "x", False),
        ("loss", "", True),
    ],
)
def test_a_row_of_a_validation_without_what_others_reckon_with_is_damage(tmp_path, column, cell, sound):
    """Older versions left losses out."""
    row = dict.fromkeys(run_tables.VALIDATION_COLUMNS, "1") | {column: cell}
    (tmp_path / "validation.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    found = tables.Table(tmp_path / "validation.csv", run_tables.VALIDATION_COLUMNS, 1).read()
    assert found == ([row] if sound else [])


def test_a_line_longer_than_a_row_is_damage(tmp_path):
    path = tmp_path / "training.csv"
    path.write_bytes(b"epoch,iteration\n0.1,1\n" + bytes(300_000) + b"\n0.2,2\n0.3,3")
    table = tables.Table(path, ("epoch", "iteration"), 0)
    assert [row["iteration"] for row in table.read()] == ["1", "2"]
    assert any("damaged rows, left out" in note for note in table.rebuild(9, [], True))
    assert path.read_text() == "epoch,iteration\n0.1,1\n0.2,2\n"


def test_rows_of_an_earlier_run_are_not_gone_on_with(tmp_path):
    """Without its checkpoints and its record; and a validation's folder is not said to hold nothing."""
    for name, end in (("arguments.json", "or delete it: it saved nothing"), ("validation.csv", "or delete it")):
        folder = tmp_path / name[:4]
        folder.mkdir()
        (folder / name).write_text("")
        with pytest.raises(folders.FolderError, match=f"holds a run already; give another folder, {end}$"):
            folders.new_run_folder("run", "", str(folder), True)
        with locks.lock_folder(folder), pytest.raises(folders.FolderError, match="it is being written by another process"):
            folders.new_run_folder("run", "", str(folder), True)  # which may have saved nothing yet


def test_a_run_that_saved_nothing_gives_way_to_a_repeated_call_alone(tmp_path):
    """--autoresume; nothing of another program, of a run that is being written, or of one that has lost its checkpoints."""
    files = {"log.txt": "old", "training.csv": "epoch,iteration\n0.1,1\n", "report.html": "old", "mine.txt": "kept"}

    def written(name: str, record: str, **more: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {**files, "arguments.json": record, **more}.items():
            (folder / file).write_text(text)
        return folder

    ours = written("ours", '{"run_id": "x"}')
    with pytest.raises(folders.FolderError, match="holds a run already"):
        folders.new_run_folder("run", "", str(ours), True)
    with locks.lock_folder(ours), pytest.raises(folders.FolderError, match="it is being written by another process"):
        folders.new_run_folder("run", "", str(ours), True, anew=True)
    folders.check_folder("run", "", str(ours), True, anew=True)
    assert {file.name for file in ours.iterdir()} == {*files, "arguments.json", locks.FILE}  # to ask changes nothing
    folders.new_run_folder("run", "", str(ours), True, anew=True)
    assert {file.name for file in ours.iterdir()} == {"mine.txt", locks.FILE}
    lost = written("lost", '{"run_id": "x"}', checkpoint="")
    for folder, said in (
        (written("other", '{"lr": 0.1}'), "holds a run already"),
        (lost, "holds a run that has saved, and its checkpoints are gone"),
    ):
        before = {file.name: file.read_text() for file in folder.iterdir()}
        with pytest.raises(folders.FolderError, match=said):
            folders.new_run_folder("run", "", str(folder), True, anew=True)
        assert {file.name: file.read_text() for file in folder.iterdir()} == before
    page = tmp_path / "page"
    page.mkdir()
    (page / "report.html").write_text("somebody's")
    with pytest.raises(folders.FolderError, match="holds report.html, which is of no run and would be replaced"):
        folders.new_run_folder("run", "", str(page), True)


def test_events_follow_no_prepared_link(tmp_path):
    """TensorFlow appends to whatever has the name of its file, and by itself that is the time and the host's name."""
    precious, folder = tmp_path / "precious", tmp_path / "run"
    folder.mkdir()
    precious.write_text("kept")
    for second in range(int(time.time()), int(time.time()) + 60):
        (folder / f"events.out.tfevents.{second}.{socket.gethostname()}").symlink_to(precious)
    run_log = log.RunLog(folder, console=False)
    run_log.follow("TensorBoard", lambda: trackers.Board(folder, 0, {}))
    run_log.close()
    assert precious.read_text() == "kept"
    assert [path for path in folder.glob("events.out.tfevents.*") if not path.is_symlink()]


def test_a_tracker_that_fails_is_told_of_once_and_the_others_follow(tmp_path, capsys):
    class Follower:
        def __init__(self, fails):
            self.fails, self.seen = fails, []

        def log(self, values, step):
            if self.fails:
                raise RuntimeError("no such host")
            self.seen.append((step, values["loss/train"]))

        def close(self, complete):
            self.seen.append(complete)

    row = {**dict.fromkeys(run_tables.TRAINING_COLUMNS, 1), "loss_avg": 0.5}
    for early in (False, True):
        lost, kept = Follower(True), Follower(False)
        run_log = log.RunLog(tmp_path)
        run_log.follow("--wandb", lambda lost=lost: lost)
        run_log.follow("--mlflow", lambda kept=kept: kept)
        for _ in range(2):
            run_log.training_row(row)
        if early:
            run_log.ending()
        run_log.close()
        assert kept.seen == [(1, 0.5), (1, 0.5), not early] and not lost.seen
        assert capsys.readouterr().out.count("--wandb is off for the rest of this run: RuntimeError: no such host\n") == 1


def test_a_table_without_names_has_them_of_its_iterations(tmp_path):
    """As scripts of the first releases read it; every later call finds in the file itself that it has no names."""
    names = run_tables.VALIDATION_COLUMNS[1:]
    rows = [{**dict.fromkeys(names, 1.5), "name": name, "iteration": i, "val_size": 2}
            for name, i in (("ckpt-4", 4), ("ckpt-8", 8), ("average", -1))]  # fmt: skip
    first = run_tables.run_table(tmp_path, "validation.csv", named=False)
    for row in rows:
        first.append(row)
    path = tmp_path / "validation.csv"
    before = path.read_text()
    assert before.splitlines()[:2] == [
        ",".join(names),
        ",".join("4" if n == "iteration" else "2" if n == "val_size" else "1.5" for n in names),
    ]
    later = run_tables.run_table(tmp_path, "validation.csv")
    assert [row["name"] for row in later.read()] == ["ckpt-4", "ckpt-8", ""]
    path.write_text(before[:-3])
    kept = [Kept(9, first.rows_for_state(9, True))]
    assert later.rebuild(9, kept, True) == [] and path.read_text().splitlines() == before.splitlines()[:3]
    later.append(rows[0])
    assert path.read_text().splitlines()[-1].startswith("4,")


def test_a_release_has_its_own_words(tmp_path, capsys):
    log.RunLog(tmp_path, throughput=vintage("3.0").throughput).training_row(
        {**dict.fromkeys(run_tables.TRAINING_COLUMNS, 0.0), "step": 1, "iteration": 1, "img_per_sec": 12.0}
    )
    assert "top-1 accuracy:  0.000 %, throughput:  12.00 samples/sec, time:" in capsys.readouterr().out
