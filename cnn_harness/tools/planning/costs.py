"""Compute energy, carbon dioxide and money of predicted trainings, and choose the trainings that a budget allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import between, opt, short
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.systems import smallest_holding
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.harness.commands import answers
from cnn_harness.harness.reports.predicted_rate import duration
from cnn_harness.tools.planning import system_file

UNITS = ("", "h", "Wh")  # of a budget; "" is money.
BUDGET = "must be money, hours or energy, such as 500, '40 h' or '120 kWh'"


def _positive(most: float) -> Callable[[float], str | None]:
    """Return a check that a number is above 0 and at most `most`."""
    return lambda value: None if 0 < value <= most else f"must be above 0 and at most {most:g}"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that trainings may cost together. `unit` is one of `UNITS`, and `given` the text of the user."""

    amount: float
    unit: str
    given: str

    @classmethod
    def of(cls, text: str) -> Budget | None:
        """Return the budget that a text means, or None if it means none."""
        amounts = {unit: system_file.quantity(text, unit) for unit in reversed(UNITS)}
        return next((cls(amount=amounts[unit], unit=unit, given=text) for unit in UNITS if amounts[unit]), None)

    def text(self, amount: float) -> str:
        """Return an amount with the budget's unit."""
        return {"": f"{amount:,.2f}", "h": duration(amount), "Wh": energy(amount / 1000)}[self.unit]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates of a user; None means that a rate is not given.

    `pue` is the energy of the building divided by that of the machines. `grid` is the grams of carbon dioxide for a kWh, and
    `price` the price of the system per hour.
    """

    pue: float | None = None
    grid: float | None = None
    price: float | None = None
    budget: Budget | None = None

    def of(self, *trainings: Prediction) -> dict[str, float | None]:
        """Return the costs that the user asks for: kilowatt_hours, kilograms_of_co2 and money, of all trainings together,
        which have one system. A cost is None if it needs the watts of a system that has none."""
        found: dict[str, float | None] = {}
        energy, price = self._energy(*trainings), self.price or trainings[0].system.price
        if self.pue or self.grid:
            found["kilowatt_hours"] = energy
        if self.grid:
            found["kilograms_of_co2"] = None if energy is None else energy * self.grid / 1000
        if price:  # the whole system is paid for, even if the plan leaves chips idle.
            found["money"] = price * sum(each.timing.hours for each in trainings)
        return found

    def _energy(self, *trainings: Prediction) -> float | None:
        """Return the kWh that the building needs."""
        hours = [each.kilowatt_hours for each in trainings]
        return None if None in hours else sum(filter(None, hours)) * (self.pue or 1.0)

    def line(self, *trainings: Prediction) -> list[str]:
        """Return a line with the costs, or none if there are none."""
        found, system = self.of(*trainings), trainings[0].system
        parts = []
        if found.get("kilowatt_hours") is not None:
            parts.append(f"{found['kilowatt_hours']:,.4g} kWh with PUE {self.pue or 1:g}")
        if found.get("kilograms_of_co2") is not None:
            parts.append(f"{found['kilograms_of_co2']:,.4g} kg CO2 with {self.grid:g} g/kWh")
        if "money" in found:
            parts.append(f"{found['money']:,.2f} with {self.price or system.price:g} an hour for the system")
        if None in found.values():
            parts.append(f"{'energy ' * bool(parts)}unknown, because {system.name} has no watts")
        return [f"  costs: {', '.join(parts)}"] if parts else []

    def spent(self, training: Prediction) -> float:
        """Return what a training costs in the unit of the budget, or 0 without one. Raise OptionError if a rate is
        missing."""
        if self.budget is None:
            return 0.0
        system, unit, energy = training.system, self.budget.unit, self._energy(training)
        price = self.price or system.price
        hourly = {"": price, "h": 1.0, "Wh": energy and 1000 * energy / training.timing.hours}[unit]
        if hourly is None:
            missing = "price; give --price" if unit == "" else "watts; give a budget in hours"
            raise OptionError(
                f"--budget {self.budget.given}: {system.name} has no {missing}, or add it to the system's file"
            )
        return hourly * training.timing.hours

    def affordable(self, trainings: Sequence[Prediction]) -> list[bool]:
        """Return for each training whether the budget allows it, after all earlier ones that it allows."""
        left, allowed = self.budget.amount if self.budget else 0.0, []
        for each in trainings:
            spent = self.spent(each)
            allowed.append(spent <= left)
            left -= spent * allowed[-1]
        return allowed


NO_RATES = Rates()


@dataclass(frozen=True, kw_only=True)
class CostOptions(answers.OwnOptions):
    """The options of every command that prints costs."""

    pue: float | None = opt(
        None, "energy of the building, divided by that of the machines (power usage effectiveness)", check=between(1, 10)
    )
    grid: float | None = opt(None, "grams of CO2 for a kWh of electricity", metavar="GRAMS", check=_positive(10_000))
    price: float | None = opt(None, "price of the system per hour", check=_positive(1e9))
    budget: str | None = opt(
        None, "the most that all trainings, or the plan of --search, may cost: money, hours or energy, as in 500, '40 h' or "
        "'120 kWh'", metavar="AMOUNT", check=lambda text: None if Budget.of(text) else BUDGET,
    )  # fmt: skip

    @property
    def rates(self) -> Rates:
        """The rates of the user."""
        return Rates(pue=self.pue, grid=self.grid, price=self.price, budget=self.budget and Budget.of(self.budget))


@dataclass(frozen=True, kw_only=True)
class PlannedOptions(CostOptions):
    """The options of a command that prints the costs of many trainings before it starts them."""

    system: str | None = opt(
        None, "print the costs of all trainings on this system before the first starts: a name or a file, as for cnn plan",
        metavar="NAME|FILE",
    )  # fmt: skip

    def planned(self, workloads: Sequence[Workload]) -> tuple[list[str], list[bool]]:
        """Return lines with the costs of all trainings, and whether the budget allows each. Raise OptionError for costs
        without a system."""
        if self.system is None:
            if self.rates != NO_RATES:
                raise OptionError("costs need the system that they are predicted for; give --system NAME, as for cnn plan")
            return [], [True] * len(workloads)
        systems = system_file.chosen((self.system,))
        if len(systems) > 1:
            raise OptionError(f"--system {short(self.system)} has {len(systems)} systems; give a file with one")
        trainings = [predict(each, smallest_holding(systems[0], each.plan.ipus)) for each in workloads]
        allowed = self.rates.affordable(trainings) if self.rates.budget else [True] * len(trainings)
        hours = sum(each.timing.hours for each in trainings)
        power = energy(None if systems[0].watts is None else sum(each.kilowatt_hours or 0.0 for each in trainings))
        lines = [f"predicted on {systems[0].name} for all: {duration(hours)}{f', {power}' * bool(power)}"]
        lines += self.rates.line(*trainings)
        if self.rates.budget:
            spent = sum(self.rates.spent(each) for each, kept in zip(trainings, allowed) if kept)
            lines.append(
                f"budget {self.rates.budget.given}: {sum(allowed)} of {len(allowed)} trainings, for "
                f"{self.rates.budget.text(spent)}"
            )
        return lines, allowed


def energy(hours: float | None) -> str:
    """Return kWh as text, or "" if they are unknown."""
    if hours is None:
        return ""
    return f"{hours:,.0f} kWh" if hours >= 10 else f"{hours:.1f} kWh" if hours >= 0.1 else f"{1000 * hours:.2g} Wh"
