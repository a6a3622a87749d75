"""Output files named in a call are written completely or not at all, never replace a run's own file, and never block."""

from __future__ import annotations

import importlib

import pytest
from commands import SCRIPTS, run, succeed

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import fingerprints, run_files, tables
from cnn_harness.harness.evaluation import inference_record
from cnn_harness.harness.reports import numerics_record, output, profile, run_page
from cnn_harness.harness.training import numerics


@pytest.fixture
def a_run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("arguments.json", "training.csv"):
        (folder / name).write_text("kept")
    return folder


@pytest.mark.parametrize("through", ["name", "link", "linked folder"])
def test_own_files_of_run_are_kept(through, a_run, tmp_path):
    target = {"name": a_run / "training.csv", "link": tmp_path / "link", "linked folder": tmp_path / "other/training.csv"}
    (tmp_path / "link").symlink_to(a_run / "training.csv")
    (tmp_path / "other").symlink_to(a_run)
    with pytest.raises(OptionError, match="choose another name"):
        output.write_atomically(str(target[through]), "replaced", output.ANY)
    assert (a_run / "training.csv").read_text() == "kept"


def test_every_file_of_run_is_recognised(a_run):
    named = (run_page.FILE, inference_record.FILE, fingerprints.RECORD, numerics_record.RECORD, numerics.CHART, profile.EXECUTION,
             profile.PRINTED, *profile.OWN_NAMES)  # fmt: skip
    assert {*named} <= run_files.NAMES
    for name in run_files.NAMES:
        with pytest.raises(OptionError, match="choose another name"):
            output.write_atomically(str(a_run / name), "replaced", output.ANY)
        assert output.check(str(a_run / name), output.ANY, may_replace=(name,))
        assert output.check(str(a_run.parent / name), output.ANY)


def test_other_files_are_written_through_links(a_run, tmp_path):
    (tmp_path / "link").symlink_to(a_run / "mine.html")
    output.write_atomically(str(tmp_path / "link"), "new", output.ANY)
    assert (a_run / "mine.html").read_text() == "new" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("command", "words", "earlier"),
    [
        ("plan", "--config quickstart --json", '{"name": 1}'),
        ("plan", "--config quickstart --html", "<!DOCTYPE html>"),
        ("report", "{run} --no-evaluation --html", "<!DOCTYPE html>"),
        ("experiments.simulate_groups", "--output", "<svg"),
        ("cnn_harness.tools.fit_planner", "--svg", None),  # takes minutes
        ("train", "--config quickstart --profile", None),
    ],
)
def test_file_of_another_kind_is_kept(command, words, earlier, tmp_path, monkeypatch):
    if "." in command:
        main = importlib.import_module(command).main
        takes_words = command.startswith("experiments.")
        monkeypatch.setitem(SCRIPTS, command, (lambda call: main(list(call.words))) if takes_words else main)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "arguments.json").write_text('{"model": "resnet"}')
    lines = ",".join(tables.TRAINING_COLUMNS), ",".join("1" * len(tables.TRAINING_COLUMNS))
    (folder / "training.csv").write_text("\n".join(lines) + "\n")
    ending = {"--json": ".json", "--html": ".html"}.get(words.split()[-1], ".svg")
    theirs = tmp_path / f"theirs{ending}"
    theirs.write_text("of a user's own")
    call = [*words.format(run=folder).split(), theirs]
    result = run(command, *call)
    assert result.code == 2 and f"{theirs} already exists" in result.err
    assert theirs.read_text() == "of a user's own"
    for begin in ("", earlier) if earlier else ():  # an empty file, as from mktemp, and an earlier one of this kind
        theirs.write_text(begin)
        succeed(command, *call)
        assert theirs.stat().st_size > 100
