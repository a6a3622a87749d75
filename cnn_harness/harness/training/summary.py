"""Log the last lines of a training: the accuracy, the run directory, and commands to continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnn_harness.base import bounds
from cnn_harness.base.process import commands
from cnn_harness.harness.checkpoints.write import SaveError
from cnn_harness.harness.commands import hints

if TYPE_CHECKING:
    from cnn_harness.harness.training.run_dir import TrainingContext
    from cnn_harness.harness.training.validator import Validator


def log_finished(context: TrainingContext, done: int, validator: Validator, host_throughput: float) -> None:
    """Log the summary of a call that was not stopped early. `host_throughput` is the speed on this host in images/s."""
    note, run, folder, length = context.log.note, context.run, context.folder, context.run.length
    if context.log.folder is None and not context.team.is_first:
        return
    from cnn_harness.harness.reports import predicted_rate, training_chart

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
        note(f"No logs were written, because of --no-logs. Checkpoints, if any, are in {folder}")
        return

    chart = training_chart.write_run_svg(folder, training_chart.run_title(run.options.values()))
    note(f"Run directory:   {folder}", always=True)
    note(f"Chart:           {chart}", always=True)
    _write_page(context)
    if not context.team.is_first:  # Only the folder of instance 0 can be resumed.
        return
    if done < length.iterations and not validator.reason_to_end:
        note(f"Resume:          {hints.command('restore', *hints.resuming(context.team.cluster, folder))}")
        return
    if not context.saves:
        return
    if run.data_source.spec.validation_images:
        note(f"Validate again:  {hints.command('validation', *hints.restoring(folder))}")
    longer = length.extension_flags(run.options.training.iterations is not None)
    if done < length.iterations:
        longer = ["--patience", str(2 * validator.without_gain)] if done else ["--epochs", f"{length.epochs:g}"]
    if longer:
        note(f"Train further:   {hints.command('restore', *hints.resuming(context.team.cluster, folder), *longer)}")


def _write_page(context: TrainingContext) -> None:
    """Write the report page of the run. Log a warning if that fails."""
    from cnn_harness.harness.reports import run_page

    try:
        context.log.note(f"Report:          {run_page.write(context.folder)}")
    except Exception as error:  # An error in the report must not make a finished run fail.
        context.log.note(f"warning: cannot write {context.folder / run_page.FILE}: {bounds.reason(error)}")


def log_stopped(context: TrainingContext, call: str, reason: str, *changed: str) -> None:
    """Log why a call ends early, and the command that resumes the run.

    `call` is the command to log if this process has saved no checkpoint. The options `changed` are added to the command,
    because the resumed run would fail again without them.
    """
    run, folder, log, writer = context.run, context.folder, context.log, context.writer
    log.note(f"Stopped: {reason}", always=True)
    try:
        writer.wait_until_finished()
    except (SaveError, OSError) as error:  # The thread raises OSError if it cannot write to log.txt.
        log.note(f"warning: {error}")
    if not run.options.logging.logs or context.team.instance:
        return
    if writer.latest:
        log.note(f"The newest checkpoint is {writer.latest}.", always=True)
        again = hints.command("restore", *hints.resuming(context.team.cluster, folder)) if writer.has_saved else call
        log.note(f"Resume:          {' '.join([again, *[commands.in_shell(changed)] * bool(changed)])}", always=True)
    else:
        logging = run.options.logging
        occupied = logging.logs_path and not logging.autoresume
        again = ". Delete this directory before you repeat the call" if occupied else ". Repeat the call" if changed else ""
        log.note(
            f"There is no checkpoint in {folder}{again}{f' with {commands.in_shell(changed)}' if changed else ''}",
            always=True,
        )
