"""Predict how much memory and time a training needs on an IPU system, and search for faster settings.

cnn plan --config mk2_efficientnet_b4_g16_16ipus
cnn plan --config mk2_resnet50_mlperf_pod16_bs20 --system BOW-POD16 POD16
cnn plan --config B4-G16-GN-Native_16IPU_4x4 --search --html plan.html
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cnn_harness.emulator.cost_model import variants
from cnn_harness.emulator.cost_model.prediction import predict
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import output
from cnn_harness.tools.planning import calibration, plan_options, plan_page, plan_table, planned_config
from cnn_harness.tools.planning.plan_options import PlanRequest
from cnn_harness.tools.planning.planned_config import Planned


def main(call: Call) -> int:
    """Predict every configuration on every system, and print and write the results; return the exit code."""
    request = plan_options.parse(call)
    if request.calibrate:
        print(calibration.report(request.calibrate, request.systems[0]))
        return 0
    planned = planned_config.fastest(request) if request.search else plan(request)
    compared = [plan_table.schedules(each) for each in planned] if request.schedules else []
    if request.noise_scale:
        compared += [plan_table.batches(each, request.noise_scale) for each in planned]
    if request.chakra:
        from cnn_harness.tools.planning import chakra  # late, because only traces need protobuf

        chakra.write(planned[0].prediction, Path(request.chakra))
    if request.html:
        output.write_atomically(request.html, plan_page.render(planned), output.PAGE)
    if request.json:
        plans = [each.values(share) for each, share in zip(planned, planned_config.efficiencies(planned))]
        text = json.dumps(plans if len(plans) > 1 else plans[0], indent=1) + "\n"
        if request.json == "-":
            print(text, end="")
            return 0
        output.write_atomically(request.json, text, output.JSON)
    print("\n\n".join([plan_table.report(planned), *compared]))
    return 0


def plan(request: PlanRequest) -> list[Planned]:
    """Return the prediction for each configuration and system, in the order of the command line."""
    scaled = len(request.systems) > 1
    return [
        Planned(
            case.name, predict(case.workload, case.system), case.run, case.notes, changes=case.changes, rates=request.rates,
            undivided=variants.undivided(case.workload, case.system) if scaled else "",
        ) for case in plan_options.cases(request)
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(answers.run_command("plan", main, None))
