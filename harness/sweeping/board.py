"""The trials of a sweep as they come along: what each has reached, and the lines on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.sweeping import results, workers
from harness.sweeping.block import Sweep
from harness.sweeping.results import COMPLETE, FAILED, STOPPED, WAITING, Metric, Result
from harness.sweeping.trial_runs import SEED, Planned
from harness.sweeping.workers import Work


class Board:
    """The state of every trial, in the sweep's order."""

    def __init__(self, sweep: Sweep, planned: Sequence[Planned], metric: Metric) -> None:
        self.sweep, self._metric = sweep, metric
        self._planned = {one.trial.name: one for one in planned}
        self._numbers = {name: number for number, name in enumerate(self._planned, 1)}
        self._results: dict[str, Result] = {}

    def head(self, top: Path, shares: Sequence[Sequence[int]]) -> Iterator[str]:
        """Yield the lines on what is about to run."""
        each = " | ".join(",".join(map(str, share)) for share in shares)
        at_once = "one at a time" if len(shares) == 1 else f"{len(shares)} at once"
        yield f"{self.sweep.name}: {_count(len(self._planned))} into {top}, {at_once}, on cores {each}"
        draws = self.sweep.draws
        if draws and len(self._planned) < draws.trials:
            yield f"{draws.trials} draws give {_count(len(self._planned))}: the others are the same again"
        if any(one.seeded for one in self._planned.values()):
            yield f"no seed is given: the trials have --seed {SEED}, so that they differ by what varies alone"

    def plan(self) -> Iterator[str]:
        """Yield a line for each trial, on how far it is."""
        for name, one in self._planned.items():
            state = COMPLETE if one.is_complete else "new" if one.updates is None else f"at update {one.updates}"
            yield f"{self._numbered(name)}  {state}; {one.run.length.iterations} updates, {one.run.name}"

    def say(self, text: str) -> None:
        """Print a line at once."""
        print(text, flush=True)

    def completed(self, one: Planned) -> bool:
        """Return whether an earlier call has completed a trial, which is noted then."""
        if not one.is_complete:
            return False
        self._add(one.trial.name, COMPLETE)
        self.say(f"{self._numbered(one.trial.name)}  complete: {self._line(one.trial.name)}")
        return True

    def started(self, work: Work) -> None:
        """Note that a trial is being trained."""
        updates = self._planned[work.name].updates
        self.say(f"{self._numbered(work.name)}  {'starts' if updates is None else f'goes on from update {updates}'}")

    def ended(self, work: Work, code: int, stopping: bool) -> None:
        """Note the end of a trial's process. `stopping`: it was asked to end."""
        state = COMPLETE if code == 0 else STOPPED if stopping and code > 128 else FAILED
        self._add(work.name, state, workers.reason(work.output, code) if state == FAILED else "")
        self.say(f"{self._numbered(work.name)}  {STOPPED if state == STOPPED else self._standing(work.name)}")

    def ordered(self) -> list[Result]:
        """Return all trials, the best first."""
        every = [
            self._results.get(name) or results.read(one.trial, one.folder, WAITING, self._metric)
            for name, one in self._planned.items()
        ]
        return results.ordered(every, self._metric)

    @property
    def failed(self) -> int:
        """The number of trials that have failed in this call."""
        return sum(result.state == FAILED for result in self._results.values())

    @property
    def count(self) -> str:
        """The number of all trials, in words."""
        return _count(len(self._planned))

    @property
    def best(self) -> tuple[Planned, Result] | None:
        """The best complete trial, and its result; None without one."""
        first = self.ordered()[0]
        return (self._planned[first.trial.name], first) if first.is_ranked else None

    @property
    def why_unranked(self) -> str:
        """The reason that there is no best trial, in words."""
        return results.why_unranked(self.ordered(), self._metric)

    def table(self) -> str:
        """Return a line for each trial, the best first."""
        return results.table(self.ordered(), self.sweep.axes)

    def progress(self) -> str:
        """Return a line on how many trials are complete."""
        done = sum(result.state == COMPLETE for result in self._results.values())
        return f"{done} of {self.count} {'is' if done == 1 else 'are'} complete"

    def _add(self, name: str, state: str, reason: str = "") -> None:
        one = self._planned[name]
        self._results[name] = results.read(one.trial, one.folder, state, self._metric, reason)

    def _numbered(self, name: str) -> str:
        return f"[{self._numbers[name]}/{len(self._planned)}] {name}"

    def _standing(self, name: str) -> str:
        """A trial's result, and its place among those that are complete."""
        result = self._results[name]
        ranked = [each for each in results.ordered(list(self._results.values()), self._metric) if each.is_ranked]
        place = f"; number {ranked.index(result) + 1} of {len(ranked)} so far" if result in ranked else ""
        return self._line(name) + place

    def _line(self, name: str) -> str:
        return results.line(self._results[name], self._planned[name].run.options.training.stop_after)


def _count(trials: int) -> str:
    return "1 trial" if trials == 1 else f"{trials} trials"
