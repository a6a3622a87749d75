"""Every training of the studies in experiments/ has options that train.py accepts."""

from __future__ import annotations

import itertools

import pytest

from cnn_harness.harness.options.call import Call
from cnn_harness.tools.planning.plan_options import run_of
from experiments import compare, faults, findings, large_batch, sizes

TRAININGS = {
    "large_batch": [
        draw.words(*case)
        for case, draw in itertools.product(itertools.product(large_batch.SPANS, large_batch.BATCHES), large_batch.draws(3))
    ],
    "sizes": [sizes.words(*case) for case in itertools.product(sizes.SIZES, sizes.KINDS)],
    "faults": [[*faults.WORDS, *(["--inject", fault] if fault != faults.NONE else [])] for fault in faults.FAULTS],
    "findings": [["--config", config, *findings.SHORTER] for config in (*findings.RECIPES.values(), findings.HALF)],
    **{
        name: [[*study.always.split(), *words.split()] for words in study.variants.values()]
        for name, study in compare.STUDIES.items()
    },
}


@pytest.mark.parametrize("study", TRAININGS)
def test_trainings_are_accepted(study):
    for words in TRAININGS[study]:
        run_of(Call.of_words([*map(str, words), "--seed", "1"], "train"))


@pytest.mark.parametrize("name", compare.STUDIES)
def test_each_variant_is_compared_with_the_reference_above_it(name):
    study = compare.STUDIES[name]
    names = [*study.variants]
    for k, variant in enumerate(names):
        reference = study.reference(variant)
        if variant in study.references:
            assert reference is None
        else:
            assert names.index(reference) < k and not set(names[names.index(reference) + 1 : k]) & {*study.references}
