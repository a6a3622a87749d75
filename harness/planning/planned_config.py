"""The search's answer as a configuration that train.py takes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from base.errors import OptionError
from base.fields import ONE_CALL
from emulator.cost_model import search
from emulator.cost_model.prediction import Prediction, predict
from emulator.cost_model.remedies import remedies
from emulator.plan.number_formats import FP16
from harness.options.exclusive import drop_conflicting
from harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, with_trait
from harness.planning import plan_options
from harness.planning.plan_options import PlanRequest
from harness.run.run import Run

_GIVEN = (COMMAND_LINE, CONFIGURATION, RECORDED)


@dataclass(frozen=True)
class Planned:
    """A prediction; with --search the requested plan's as `given`, and those of the other plans that were looked at."""

    name: str
    prediction: Prediction
    run: Run
    given: Prediction | None = None
    frontier: tuple[Prediction, ...] = ()
    looked_at: int = 0
    undivided: str = ""  # why the plan leaves a part of the system out, though it is scaled to it

    @cached_property
    def remedies(self) -> tuple[str, ...]:
        """Options of train.py that lessen the need of the fullest IPU, where the plan does not fit."""
        follows = self.run.options.training.global_batch_size is not None
        return remedies(self.prediction, None if follows else self.run.plan.accumulation)

    def values(self, efficiency: float | None) -> dict[str, Any]:
        """Return the plan for JSON."""
        found = {}
        if self.given:
            found = {"configuration": self.block, "looked_at": self.looked_at, "given": self.given.values()}
        scaling = {"efficiency": efficiency, "undivided": self.undivided, "remedies": list(self.remedies)}
        return {"name": self.name, **self.prediction.values(), **scaling, **found}

    @property
    def block_name(self) -> str:
        """The plan's name as a configuration."""
        return "".join(c if c.isalnum() else "_" for c in f"{self.name}_{self.prediction.system.name}_searched")

    @property
    def block(self) -> str:
        """The plan as a block for configs.yml."""
        options, plan = self.run.options, self.prediction.workload.plan
        left_out = with_trait(ONE_CALL)
        values: dict[str, Any] = {
            name: value
            for name, value in options.values().items()
            if name not in left_out and options.sources.get(name, "").startswith(_GIVEN) and value is not None
        }
        values |= {
            "micro_batch_size": plan.micro_batch_size,
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
        values = drop_conflicting(values)  # those of a recorded run are all there
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return yaml.safe_dump({self.block_name: plain}, sort_keys=False, default_flow_style=None, width=120)


def efficiencies(planned: Sequence[Planned]) -> list[float | None]:
    """Return each plan's rate for an IPU of its system as a share of that on the smallest system of the same IPUs; None
    where a plan is on one system."""
    found: list[float | None] = []
    for each in planned:
        kin = [p for p in planned if p.name == each.name and p.prediction.system.ipu is each.prediction.system.ipu]
        rates = {p.prediction.system.ipus: p.prediction.timing.images_per_second for p in kin}
        ipus, least = each.prediction.system.ipus, min(rates)
        found.append(rates[ipus] / ipus / (rates[least] / least) if len(rates) > 1 else None)
    return found


def fastest(request: PlanRequest) -> list[Planned]:
    """The fastest plan for each configuration and system; OptionError where nothing fits."""
    planned = []
    for name, run, work, system in plan_options.cases(request):
        given, plans = predict(work, system), search.search(work, system)
        candidates = [Planned(name, each, run, given, plans.frontier, plans.looked_at) for each in plans.frontier]
        if not candidates:
            raise OptionError(
                f"{name}: no plan fits on {system.name} for a global batch of {work.plan.global_batch}, of "
                f"{plans.looked_at} looked at; {_smaller(run)}"
            )
        planned.append(_first_taken(candidates))
    return planned


def _smaller(run: Run) -> str:
    """Return the advice for a network that fits nowhere."""
    half = "" if run.plan.precision.compute.bytes <= FP16.bytes else ", or --precision 16.16"
    return f"give a smaller --image-size or --global-batch-size{half}"


def _first_taken(candidates: Sequence[Planned]) -> Planned:
    """The first one whose block train.py takes; OptionError with the last one's fault if there is none."""
    for planned in candidates:
        refusal = _refusal(planned)
        if refusal is None:
            return planned
    raise OptionError(
        f"{planned.name}: of the {len(candidates)} plans that fit on {planned.prediction.system.name} train.py takes none; "
        f"the last one: {refusal}"
    )


def _refusal(planned: Planned) -> str | None:
    """Why train.py does not take the plan's block, as rules between options may forbid it; None if it does."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        file.write(planned.block)
        file.flush()
        try:
            plan_options.run_of(["--config-path", file.name, "--config", planned.block_name])
        except OptionError as error:
            return str(error)
    return None
