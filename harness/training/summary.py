"""The last lines of a training: accuracy, where the run is, how to continue."""

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
    """Log the end of a call that has reached its end. `host_throughput`: images a second on this machine."""
    note, run, folder, length = context.log.note, context.run, context.folder, context.run.length
    if context.log.folder is None and not context.team.is_first:
        return
    from harness.reports import predicted_rate, training_chart

    validated, best = validator.newest, validator.best
    if validated:
        accuracy = f"validation top-1 accuracy: {float(validated['val_acc']):.2f}%"
        final = int(validated["iteration"]) == done
        note(f"Final {accuracy}" if final else f"Newest {accuracy}, of {validated['name']}; the run has done {done} updates")
        if float(best["val_acc"]) > float(validated["val_acc"]):
            note(f"Best validation top-1 accuracy: {float(best['val_acc']):.2f}%, of {best['name']}")
    for line in predicted_rate.compared(run, host_throughput):
        note(line)
    if not run.options.logging.logs:
        note(f"No logs were kept; checkpoints, if any, are in {folder}")
        return

    picture = training_chart.write_run_svg(folder, training_chart.run_title(run.options.values()))
    note(f"The run is in {folder}; its picture: {picture}", always=True)
    _write_page(context)
    if not context.team.is_first:  # instance 0's folder is the one to resume
        return
    if done < length.iterations and not validator.ends_run:
        note(f"Go on:           {hints.command('restore', *hints.resuming(run, folder))}")
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
    """Write the run's page from the rows alone; a warning if that fails."""
    from harness.report_page import run_page

    try:
        context.log.note(f"Its page:        {run_page.write(context.folder)}")
    except Exception as error:  # whatever is wrong with it, the run is done
        context.log.note(f"warning: {context.folder / run_page.FILE} is not written: {bounds.reason(error)}")


def log_stopped(context: TrainingContext, call: str, reason: str, *changed: str) -> None:
    """Log the end of a call that ends early. `call`: the command line that resumes the run as long as it has
    saved nothing; `changed`: options with which resuming is no repetition."""
    run, folder, log, writer = context.run, context.folder, context.log, context.writer
    log.note(f"Stopped: {reason}", always=True)
    try:
        writer.wait_until_finished()
    except (SaveError, OSError) as error:  # of a task that tells of a checkpoint in a log that takes no more
        log.note(f"warning: {error}")
    if not run.options.logging.logs or run.cluster.instance:
        return
    if writer.latest:
        log.note(f"The newest checkpoint is {writer.latest}.", always=True)
        again = hints.command("restore", *hints.resuming(run, folder)) if writer.has_saved else call
        log.note(f"Go on:           {' '.join([again, *[commands.in_shell(changed)] * bool(changed)])}", always=True)
    else:
        logging = run.options.logging
        in_the_way = logging.logs_path and not logging.autoresume
        again = "; delete it before the same call" if in_the_way else "; make the same call" if changed else ""
        log.note(
            f"There is no checkpoint in {folder}{again}{f' with {commands.in_shell(changed)}' if changed else ''}",
            always=True,
        )
