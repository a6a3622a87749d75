"""The last lines of a training: accuracy, run directory, and commands to continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from base import bounds
from base.process import commands
from harness.checkpoints.write import SaveError
from harness.commands import hints

if TYPE_CHECKING:
    from harness.training.run_dir import TrainingContext
    from harness.training.validator import Validator


def log_finished(context: TrainingContext, done: int, validator: Validator, host_throughput: float) -> None:
    """Log the summary of a call that was not stopped early. `host_throughput`: images per second on this machine."""
    note, run, folder, length = context.log.note, context.run, context.folder, context.run.length
    if context.log.folder is None and not context.team.is_first:
        return
    from harness.reports import predicted_rate, training_chart

    validated, best = validator.newest, validator.best
    if validated:
        accuracy = f"validation top-1 accuracy: {float(validated['val_acc']):.2f}%"
        final = int(validated["iteration"]) == done
        note(f"Final {accuracy}" if final else f"Newest {accuracy} ({validated['name']}), after {done} updates of training")
        if float(best["val_acc"]) > float(validated["val_acc"]):
            note(f"Best validation top-1 accuracy: {float(best['val_acc']):.2f}% ({best['name']})")
    for line in predicted_rate.compared(run, host_throughput):
        note(line)
    if not run.options.logging.logs:
        note(f"No logs were kept. Checkpoints, if any, are in {folder}")
        return

    chart = training_chart.write_run_svg(folder, training_chart.run_title(run.options.values()))
    note(f"Run directory:   {folder}", always=True)
    note(f"Chart:           {chart}", always=True)
    _write_page(context)
    if not context.team.is_first:  # only instance 0's folder can be resumed
        return
    if done < length.iterations and not validator.ends_run:
        note(f"Resume:          {hints.command('restore', *hints.resuming(run, folder))}")
        return
    if not context.saves:
        return
    if run.data_source.spec.validation_images:
        note(f"Validate again:  {hints.command('validation', *hints.restoring(folder))}")
    longer = length.extension_flags(run.options.training.iterations is not None)
    if done < length.iterations:
        longer = ["--patience", str(2 * validator.without_gain)]
    if longer:
        note(f"Train further:   {hints.command('restore', *hints.resuming(run, folder), *longer)}")


def _write_page(context: TrainingContext) -> None:
    """Write the report page from the CSV rows only; log a warning if that fails."""
    from harness.report_page import run_page

    try:
        context.log.note(f"Report:          {run_page.write(context.folder)}")
    except Exception as error:  # no error of the report may fail a finished run
        context.log.note(f"warning: cannot write {context.folder / run_page.FILE}: {bounds.reason(error)}")


def log_stopped(context: TrainingContext, call: str, reason: str, *changed: str) -> None:
    """Log the end of a call that ends early.

    `call`: the command line to repeat if the run has saved no checkpoint. `changed`: options to add, without which a resumed
    run would fail again.
    """
    run, folder, log, writer = context.run, context.folder, context.log, context.writer
    log.note(f"Stopped: {reason}", always=True)
    try:
        writer.wait_until_finished()
    except (SaveError, OSError) as error:  # OSError: the thread could not write its line to log.txt
        log.note(f"warning: {error}")
    if not run.options.logging.logs or run.cluster.instance:
        return
    if writer.latest:
        log.note(f"The newest checkpoint is {writer.latest}.", always=True)
        again = hints.command("restore", *hints.resuming(run, folder)) if writer.has_saved else call
        log.note(f"Resume:          {' '.join([again, *[commands.in_shell(changed)] * bool(changed)])}", always=True)
    else:
        logging = run.options.logging
        occupied = logging.logs_path and not logging.autoresume
        again = ". Delete this directory before you repeat the call" if occupied else ". Repeat the call" if changed else ""
        log.note(
            f"There is no checkpoint in {folder}{again}{f' with {commands.in_shell(changed)}' if changed else ''}",
            always=True,
        )
