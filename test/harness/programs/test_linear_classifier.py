"""The fit of a linear classifier meets the conditions of its optimum in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cnn_harness.harness.programs.linear_classifier import FOLDS, choose_penalty, fit, folds

ONES = np.ones(90)  # sample weights


def clusters(samples: int, features: int, classes: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    labels = np.arange(samples) % classes
    centres = random.normal(size=(classes, features))
    return (centres[labels] + spread * random.normal(size=(samples, features))).astype(np.float32), labels


@pytest.mark.parametrize(("samples", "features", "penalty"), [(60, 8, 0.1), (24, 100, 0.01)])
def test_solution_is_optimum(samples, features, penalty):
    """The gradient of mean_i w_i CE_i + penalty / 2 |W|^2 on standardised features is 0."""
    x, labels = clusters(samples, features, 3, 2.0)
    weights = np.array([1.0, 0.5, 2.0])[labels]
    kernel, bias = fit(x, labels, 3, penalty, weights)
    deviation = x.std(0, dtype=np.float64)
    standardised = (x - x.mean(0, dtype=np.float64)) / deviation
    logits = x.astype(np.float64) @ kernel + bias
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    of_logits = weights[:, None] * (probabilities - np.eye(3)[labels]) / weights.sum()
    np.testing.assert_allclose(standardised.T @ of_logits + penalty * kernel * deviation[:, None], 0, atol=2e-4)
    np.testing.assert_allclose(of_logits.sum(0), 0, atol=2e-4)


def test_cross_validation_separates_noise_from_structure():
    clear, labels = clusters(90, 20, 3, 0.5)
    noise = np.random.default_rng(1).normal(size=(90, 20)).astype(np.float32)
    (weak, high), (strong, low) = choose_penalty(clear, labels, 3, ONES), choose_penalty(noise, labels, 3, ONES)
    assert high > 95 and low < 60 and strong > weak
    kernel, bias = fit(clear, labels, 3, weak, ONES)
    np.testing.assert_array_equal((clear @ kernel + bias).argmax(1), labels)


def test_separable_classes_get_no_large_weights():
    """The loss falls with the penalty to zero, but below 0.01 it counts as equal."""
    x, labels = clusters(90, 20, 3, 0.1)
    penalty, accuracy = choose_penalty(x, labels, 3, ONES)
    assert accuracy == 100 and 0.005 < penalty < 0.05


def test_cross_validation_covers_all_classes(monkeypatch):
    """The order of the samples does not matter. Only every fifth sample is used in the search."""
    monkeypatch.setattr("cnn_harness.harness.programs.linear_classifier.MAX_SEARCHED", 40)
    x, labels = clusters(200, 20, 5, 3.0)
    in_turn = choose_penalty(x, labels, 5, np.ones(200))
    by_class = np.argsort(labels, kind="stable")
    assert in_turn == choose_penalty(x[by_class], labels[by_class], 5, np.ones(200))
    assert 30 < in_turn[1] < 90


def test_eight_bits_hold_the_weights():
    """A feature that hardly varies in the training images gets no weight that makes the others too coarse."""
    x, labels = clusters(60, 40, 3, 1.0)
    x[:, :4] *= 1e-3
    kernel, bias = fit(x, labels, 3, 1e-3, ONES[:60])
    step = np.abs(kernel).max(0) / 127
    exact, rounded = (x @ each + bias for each in (kernel, np.rint(kernel / step) * step))
    assert np.abs(rounded - exact).max() < 0.1 * exact.std()


def test_folds_keep_series_and_copies_together():
    """Files of a class are in the order of their names, so copies and images of a series are neighbours."""
    random = np.random.default_rng(3)
    for series in (1, 2, 3, 5):
        scenes = random.normal(size=(120 // series, 16))
        x = np.repeat(scenes, series, axis=0) + 1e-3 * random.normal(size=(120 // series * series, 16))
        labels = np.arange(len(x)) * 3 // len(x)
        fold = folds(x, labels)
        for label in range(3):
            own = fold[labels == label]
            assert (np.diff(own) >= 0).all() and set(own) == set(range(FOLDS))  # blocks; every fold has every class
        by_scene = fold[: 40 // series * series].reshape(-1, series)
        assert (by_scene == by_scene[:, :1]).all()
    for count in range(1, 12):
        fold = folds(random.normal(size=(count, 4)), np.zeros(count, int))
        assert fold[0] == 0 and (np.diff(fold) >= 0).all() and len(set(fold)) == min(count, FOLDS)


def test_accuracy_in_cross_validation_holds_for_other_series():
    """Each scene was photographed four times, with one of three random labels. So an unseen scene is guessed."""
    random = np.random.default_rng(4)
    scenes, of_scene = random.normal(size=(60, 30)), np.arange(60) % 3
    x = (np.repeat(scenes, 4, axis=0) + 0.01 * random.normal(size=(240, 30))).astype(np.float32)
    assert choose_penalty(x, np.repeat(of_scene, 4), 3, np.ones(240))[1] < 60
