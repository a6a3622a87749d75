"""The search's answer as a configuration that train.py takes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import yaml

from base.errors import OptionError
from emulator.planner import search
from emulator.planner.prediction import Prediction, predict
from harness.options.sections import COMMAND_LINE, CONFIGURATION
from harness.planning import request
from harness.planning.request import Request
from harness.run.run import Run

# not of the network and its training, but of one call
_OF_THE_CALL = ("config", "config_path", "release", "explain", "dry_run", "summary", "help", "generated_data")


@dataclass(frozen=True)
class Planned:
    """One prediction; with --search what was asked for as `given`, and the other plans that were looked at."""

    name: str
    prediction: Prediction
    run: Run
    given: Prediction | None = None
    frontier: tuple[Prediction, ...] = ()
    looked_at: int = 0

    @property
    def block_name(self) -> str:
        """What the plan is called as a configuration."""
        return "".join(c if c.isalnum() else "_" for c in f"{self.name}_{self.prediction.system.name}_searched")

    @property
    def block(self) -> str:
        """The plan as a block for configs.yml."""
        options, plan = self.run.options, self.prediction.workload.plan
        values: dict[str, Any] = {
            name: value
            for name, value in options.values().items()
            if name not in _OF_THE_CALL and options.sources.get(name, "").startswith((COMMAND_LINE, CONFIGURATION))
        }
        values |= {
            "micro_batch_size": plan.micro_batch,
            "gradient_accumulation_count": plan.accumulation,
            "shards": plan.options.shards,
            "replicas": plan.options.replicas,
            "pipeline": plan.options.pipeline,
            "pipeline_splits": [stage[0] for stage in plan.stages[1:]],
            "pipeline_schedule": plan.schedule,
            "enable_recomputation": plan.options.enable_recomputation,
            "available_memory_proportion": list(plan.options.available_memory_proportion),
        }
        values.pop("global_batch_size", None)  # the accumulation count says it
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return yaml.safe_dump({self.block_name: plain}, sort_keys=False, default_flow_style=None, width=120)


def fastest(asked: Request) -> list[Planned]:
    """The fastest plan for each configuration and system; OptionError where nothing fits."""
    planned = []
    for name, run, work, system in request.cases(asked):
        given, found = predict(work, system), search.search(work, system)
        candidates = [Planned(name, each, run, given, found.frontier, found.looked_at) for each in found.frontier]
        best = next(filter(_is_taken, candidates), None)
        if best is None:
            raise OptionError(
                f"{name}: no plan fits on {system.name} for a global batch of {work.plan.global_batch}, of "
                f"{found.looked_at} looked at; give a larger --system, a smaller --image-size, or --precision 16.16"
            )
        planned.append(best)
    return planned


def _is_taken(planned: Planned) -> bool:
    """Whether train.py takes the plan's block, as rules between options may forbid it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        file.write(planned.block)
        file.flush()
        try:
            request.run_of(["--config-path", file.name, "--config", planned.block_name])
        except OptionError:
            return False
    return True
