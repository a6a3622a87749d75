"""Writes a report of a run, or of several side by side, as one page that needs nothing else: curves, options, plan,
timings, and what the newest checkpoint gets wrong.

cnn report logs/<run>                                 into logs/<run>/report.html
cnn report logs/<run>/ckpt-500                        what that checkpoint gets wrong, in place of the newest
cnn report logs/<run> --no-evaluation                 the rows alone, at once
cnn report logs/<run> logs/<other> --html both.html   what differs first, curves in the same charts
"""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    import sys

    sys.path.insert(0, __file__.rpartition("/tools/")[0])
    from base.process import startup

    startup.begin("cnn report")

import sys
from functools import partial

from base.fields import printable
from harness.checkpoints.checkpoint import Checkpoint
from harness.commands import entry
from harness.report_page import measuring, page, report_options, run_folder
from harness.report_page.page import Reported
from harness.report_page.run_folder import RunFolder


def main(argv: list[str]) -> int:
    """parse -> read -> evaluate -> write."""
    request = report_options.parse(argv, __doc__)
    runs = [(run_folder.read(folder), checkpoint) for folder, checkpoint in request.runs]
    report_options.check(request)
    left_out = "--no-evaluation was given"
    reported = [_evaluated(*each) if request.evaluate else Reported(each[0], missing=left_out) for each in runs]
    report_options.write(request, page.of(reported))
    print(printable(str(request.target)))
    return 0


def _evaluated(run: RunFolder, checkpoint: Checkpoint | None) -> Reported:
    """A run with the answers of a checkpoint, or its newest one; without checkpoint or data, the page says what is
    missing."""
    say = partial(print, file=sys.stderr)
    try:
        return Reported(run, measuring.evaluated(run.path, say, checkpoint))
    except measuring.Missing as error:
        say(f"warning: {run.path} is reported by its rows alone: {error}")
        return Reported(run, missing=str(error))


if __name__ == "__main__":
    sys.exit(entry.run_command("report", main, None))
