"""Compute energy, carbon dioxide and money of a predicted training."""

from __future__ import annotations

from dataclasses import dataclass

from cnn_harness.emulator.cost_model.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates of a user; None means that a rate is not given.

    `pue` is the energy of the building divided by that of the machines. `grid` is the grams of carbon dioxide for a kWh, and
    `price` the price of the system per hour.
    """

    pue: float | None = None
    grid: float | None = None
    price: float | None = None

    def of(self, prediction: Prediction) -> dict[str, float | None]:
        """Return the costs that the user asks for: kilowatt_hours, kilograms_of_co2 and money. A cost is None if it needs
        the watts of a system that has none."""
        found: dict[str, float | None] = {}
        energy, price = prediction.kilowatt_hours, self.price or prediction.system.price
        if self.pue or self.grid:
            found["kilowatt_hours"] = None if energy is None else energy * (self.pue or 1.0)
        if self.grid:
            found["kilograms_of_co2"] = None if energy is None else energy * (self.pue or 1.0) * self.grid / 1000
        if price:  # the whole system is paid for, even if the plan leaves chips idle.
            found["money"] = price * prediction.timing.hours
        return found

    def line(self, prediction: Prediction) -> list[str]:
        """Return a line with the costs, or none if there are none."""
        found, price = self.of(prediction), self.price or prediction.system.price
        parts = []
        if found.get("kilowatt_hours") is not None:
            parts.append(f"{found['kilowatt_hours']:,.4g} kWh with PUE {self.pue or 1:g}")
        if found.get("kilograms_of_co2") is not None:
            parts.append(f"{found['kilograms_of_co2']:,.4g} kg CO2 with {self.grid:g} g/kWh")
        if "money" in found:
            parts.append(f"{found['money']:,.2f} with {price:g} an hour for the system")
        if None in found.values():
            parts.append(f"{'energy ' * bool(parts)}unknown, because {prediction.system.name} has no watts")
        return [f"  costs: {', '.join(parts)}"] if parts else []


NO_RATES = Rates()
