"""Write an HTML report of one or more runs.

The page shows training curves, options, the plan, the speed, and which images the newest checkpoint classifies wrongly.

cnn report logs/<run>                                 write logs/<run>/report.html
cnn report logs/<run>/ckpt-500                        evaluate this checkpoint instead of the newest
cnn report logs/<run> --no-evaluation                 fast: evaluate no checkpoint
cnn report logs/<run> logs/<other> --html both.html   compare two runs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped, opt
from cnn_harness.harness.checkpoints import find
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.commands import answers, run_list
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import output, run_folder, run_page
from cnn_harness.harness.reports.run_folder import RunFolder
from cnn_harness.harness.reports.run_page import FILE, MAX_RUNS, Reported


@dataclass(frozen=True, kw_only=True)
class ReportOptions(answers.OwnOptions):
    """The options of cnn report."""

    html: str | None = opt(None, f"output file (default: {FILE} in the run directory)", metavar="FILE")
    evaluation: bool = opt(True, "show only the logged tables; read neither checkpoints nor images")


def main(call: Call) -> int:
    """Read the runs, evaluate their checkpoints and write the page; return the exit code."""
    places = {"RUN...": f"run directories or checkpoints, at most {MAX_RUNS}"}
    given, words, _ = answers.own_options(ReportOptions, call, "cnn report RUN... [options]", __doc__, places)
    runs = [(run_folder.read(folder), checkpoint) for folder, checkpoint in _reported(words, given.html).values()]
    own = runs[0][0].path / FILE
    target = Path(given.html or own)
    may_replace = (FILE,) * (len(runs) == 1 and target.resolve() == own.resolve())
    output.check(str(target), output.PAGE, may_replace)
    left_out = "--no-evaluation was given"
    text = run_page.render(
        [_evaluated(run, at) if given.evaluation else Reported(run, missing=left_out) for run, at in runs]
    )
    output.write_atomically(str(target), text, output.PAGE, may_replace)
    print(escaped(str(target)))
    return 0


def _reported(words: Sequence[str], html: str | None) -> dict[Path, tuple[Path, Checkpoint | None]]:
    """Return the run directory and the checkpoint of each given path."""
    if not words:
        raise OptionError("no run given; give a run directory, as in cnn report logs/<run>", run_list.listed())
    runs = {path.resolve(): _run(path) for path in map(Path, words)}
    if len(runs) > MAX_RUNS:
        raise OptionError(f"{len(runs)} runs are too many: give at most {MAX_RUNS}")
    if html is None and len(runs) > 1:
        raise OptionError(f"a report of {len(runs)} runs needs a file name: give --html FILE")
    return runs


def _run(path: Path) -> tuple[Path, Checkpoint | None]:
    """Return the run directory, and the checkpoint if the path is a checkpoint."""
    if path.is_dir() or not find.prefix(path).with_name(f"{find.prefix(path).name}.index").exists():
        return path, None
    (checkpoint,) = find.select(find.prefix(path))
    return find.run_folder(path), checkpoint


def _evaluated(run: RunFolder, checkpoint: Checkpoint | None) -> Reported:
    """Return a run with the predictions of this checkpoint, or of its newest if None. If that fails, return the run with the
    reason."""
    from cnn_harness.tools import validation_results

    say = partial(print, file=sys.stderr)
    try:
        return Reported(run, validation_results.evaluate(run.path, say, checkpoint))
    except validation_results.NoEvaluation as error:
        say(f"warning: the report of {run.path} has no validation results: {error}")
        return Reported(run, missing=str(error))


if __name__ == "__main__":
    sys.exit(answers.run_command("report", main, None))
