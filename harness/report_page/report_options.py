"""The options of cnn report: which runs, into which file, and whether their checkpoints are evaluated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import OptionError
from base.process import command_line
from base.storage import files
from harness.checkpoints import find
from harness.checkpoints.checkpoint import Checkpoint
from harness.report_page.page import FILE, MAX_RUNS
from harness.reports import output


@dataclass(frozen=True)
class ReportRequest:
    """The runs, each once, with the checkpoint that is evaluated, None for the newest; the page, None for that of a single
    run's own folder; and whether checkpoints are evaluated at all."""

    runs: tuple[tuple[Path, Checkpoint | None], ...]
    html: str | None
    evaluate: bool

    @property
    def target(self) -> Path:
        """The file that is to be written."""
        return Path(self.html) if self.html else self.runs[0][0] / FILE

    @property
    def may_replace(self) -> tuple[str, ...]:
        """The page of a single run, for a page on that run alone."""
        own = len(self.runs) == 1 and self.target.resolve() == (self.runs[0][0] / FILE).resolve()
        return (FILE,) * own


def parse(argv: Sequence[str], description: str) -> ReportRequest:
    """The request; OptionError where the page cannot be written as far as its name and folder tell."""
    parser = command_line.Parser(
        prog="cnn report", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"run folders, or checkpoints in them, at most {MAX_RUNS}")
    parser.add_argument("--html", metavar="FILE", help=f"the page (default: {FILE} in the folder of a single run)")
    parser.add_argument(
        "--no-evaluation",
        action="store_true",
        help="the rows alone, without checkpoints and data",
    )
    given = parser.parse_args(argv)
    runs = {path.resolve(): _run(path) for path in map(Path, given.runs)}
    if len(runs) > MAX_RUNS:
        raise OptionError(f"{len(runs)} runs: at most {MAX_RUNS} fit on a page; give fewer")
    if given.html is None and len(runs) > 1:
        raise OptionError(f"{len(runs)} runs have no common folder for their page: give --html FILE")
    return ReportRequest(tuple(runs.values()), given.html, not given.no_evaluation)


def _run(path: Path) -> tuple[Path, Checkpoint | None]:
    """The run's folder, and the checkpoint if the path names one."""
    if path.is_dir() or not find.prefix(path).with_name(f"{find.prefix(path).name}.index").exists():
        return path, None
    (checkpoint,) = find.select(find.prefix(path))
    return find.run_folder(path), checkpoint


def check(request: ReportRequest) -> None:
    """OptionError for a page that cannot be written, before minutes are spent on it."""
    if request.html:
        output.check(request.html, output.PAGE, may_replace=request.may_replace)
    else:
        elsewhere = "give --html FILE elsewhere, or make the folder writable"
        kind = output.ANY if request.target.is_symlink() else output.PAGE  # the page takes the link's place
        output.check(str(request.target), kind, elsewhere, request.may_replace)


def write(request: ReportRequest, text: str) -> None:
    """Write the page: through a link or into a pipe where --html names one, but through none in a run's folder."""
    if request.html:
        output.write_atomically(request.html, text, output.PAGE, request.may_replace)
    else:
        files.write_atomically(request.target, text)
