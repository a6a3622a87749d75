"""Search for the fastest plans, and write a plan as a configuration for train.py."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.emulator.cost_model import roofline, search, supersteps
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.remedies import remedies
from cnn_harness.emulator.plan.number_formats import FP16
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.run import as_configuration
from cnn_harness.harness.run.run import Run
from cnn_harness.tools.planning import plan_options
from cnn_harness.tools.planning.costs import NO_RATES, Rates
from cnn_harness.tools.planning.plan_options import PlanRequest


@dataclass(frozen=True)
class Planned:
    """A plan with its prediction. After a search, `given` is the prediction for the requested plan, and `frontier` contains
    the predictions for the best plans."""

    name: str
    prediction: Prediction
    run: Run
    notes: tuple[str, ...]
    given: Prediction | None = None
    frontier: tuple[Prediction, ...] = ()
    looked_at: int = 0
    undivided: str = ""  # the reason if the plan leaves some IPUs of the system unused
    changes: str = ""  # the options that --vary added
    rates: Rates = NO_RATES  # of energy, CO2 and money

    @cached_property
    def remedies(self) -> tuple[str, ...]:
        """Options of train.py that reduce the memory of the fullest IPU; () if the plan fits."""
        follows = self.run.options.training.global_batch_size is not None
        return remedies(self.prediction, None if follows else self.run.plan.accumulation)

    def values(self, efficiency: float | None) -> dict[str, Any]:
        """Return the prediction as values for JSON. `efficiency` is the scaling efficiency, if known."""
        found = {}
        if self.given:
            found = {"configuration": self.block, "looked_at": self.looked_at, "given": self.given.values()}
        changes = {"changes": self.changes} if self.changes else {}
        costs = {"costs": costs} if (costs := self.rates.of(self.prediction)) else {}
        scaling = {"efficiency": efficiency, "undivided": self.undivided, "remedies": list(self.remedies)}
        opened = {
            "steps": [[step.values() for step in ipu] for ipu in supersteps.steps(self.prediction)],
            "layers": [layer.values() for layer in roofline.layers(self.prediction)],
        }
        return {"name": self.name, **changes, **self.prediction.values(), **costs, **scaling, **opened, **found}

    @property
    def block_name(self) -> str:
        """The name of the plan's configuration."""
        return "".join(c if c.isalnum() else "_" for c in f"{self.name}_{self.prediction.system.name}_searched")

    @property
    def block(self) -> str:
        """The plan as a configuration for configs.yml, in YAML."""
        plan = self.prediction.workload.plan
        values = as_configuration.given_values(self.run.options) | {
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
        values.pop("global_batch_size", None)  # The accumulation count already determines it.
        return as_configuration.block(self.block_name, values)


def efficiencies(planned: Sequence[Planned]) -> list[float | None]:
    """Return the scaling efficiency of each plan: its rate per IPU, divided by the rate per IPU on the smallest system with
    the same type of IPU. The value is None if the configuration is planned on one system only."""
    found: list[float | None] = []
    for each in planned:
        similar = [p for p in planned if p.name == each.name and p.prediction.system.device == each.prediction.system.device]
        rates = {p.prediction.system.devices: p.prediction.timing.images_per_second for p in similar}
        ipus, least = each.prediction.system.devices, min(rates)
        found.append(rates[ipus] / ipus / (rates[least] / least) if len(rates) > 1 else None)
    return found


def fastest(request: PlanRequest) -> list[Planned]:
    """Return the fastest plan for each configuration and system. Raise OptionError if no plan fits in memory."""
    planned = []
    for name, run, notes, work, system, changes in plan_options.cases(request):
        given, plans = predict(work, system), search.search(work, system)
        if not plans.frontier:
            raise OptionError(
                f"{name}: none of {plans.looked_at} plans with global batch {work.plan.global_batch} fits on {system.name}; "
                f"{_advice(run)}"
            )
        within = _within_budget(name, plans.frontier, request.rates)
        candidates = [
            Planned(name, each, run, notes, given, within, plans.looked_at, changes=changes, rates=request.rates)
            for each in within
        ]
        planned.append(_first_accepted(candidates))
    return planned


def _within_budget(name: str, plans: tuple[Prediction, ...], rates: Rates) -> tuple[Prediction, ...]:
    """Return the plans that the budget allows. Raise OptionError with the cost of the cheapest if it allows none."""
    if not rates.budget:
        return plans
    cheapest = min(plans, key=rates.spent)
    within = tuple(each for each in plans if rates.spent(each) <= rates.budget.amount)
    if not within:
        raise OptionError(
            f"{name}: the cheapest plan on {cheapest.system.name} costs {rates.budget.text(rates.spent(cheapest))}, more "
            f"than --budget {rates.budget.given}; give a larger budget, or fewer --epochs"
        )
    return within


def _advice(run: Run) -> str:
    """Return what to try if no plan fits."""
    half = "" if run.plan.precision.compute.bytes <= FP16.bytes else ", or --precision 16.16"
    return f"give a smaller --image-size or --global-batch-size{half}"


def _first_accepted(candidates: Sequence[Planned]) -> Planned:
    """Return the first plan that train.py accepts. Raise OptionError with the last error if train.py accepts none."""
    for planned in candidates:
        rejection = _rejection(planned)
        if rejection is None:
            return planned
    raise OptionError(
        f"{planned.name}: train.py rejects all {len(candidates)} plans that fit on {planned.prediction.system.name}; "
        f"the last error: {rejection}"
    )


def _rejection(planned: Planned) -> str | None:
    """Return the error if train.py rejects the plan's configuration, otherwise None."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        file.write(planned.block)
        file.flush()
        try:
            plan_options.run_of(Call.of_values({"config_path": file.name, "config": planned.block_name}, "train"))
        except OptionError as error:
            return str(error)
    return None
