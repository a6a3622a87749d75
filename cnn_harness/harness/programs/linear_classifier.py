"""Fit a linear classifier on fixed features: multinomial logistic regression with an L2 penalty.

The loss is mean_i w_i * CE(softmax(x_i W + b), y_i) + penalty / 2 * |W|^2 on standardised features. The loss is convex, so
its minimum does not depend on a learning rate, a batch size or the order of the samples. Cross-validation chooses the
strongest penalty whose loss on the held-out samples is close to the lowest. The folds are blocks of neighbours, because
neighbouring files are often similar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

PENALTIES = tuple(10.0**k for k in (1, 0.5, 0, -0.5, -1, -1.5, -2, -2.5, -3, -4))  # The order is from strong to weak.
FOLDS = 5
# Mean losses that differ by less count as equal. If classes are separable, the loss falls with the penalty to zero, and a
# weak penalty gains nothing but large weights. This is absolute, because each loss is then a fraction of the one before.
CLOSE = 0.01
MAX_SEARCHED = 4096  # Cross-validation uses at most this many samples.
TOLERANCE = 1e-4  # L-BFGS stops if no component of the gradient is larger than this.
_LEAST_DEVIATION = 0.1  # Standardisation divides by at least this share of the features' root-mean-square deviation.
_MEMORY = 10  # L-BFGS keeps this many recent steps and the changes of the gradient in these steps.
_STEPS = 200  # L-BFGS takes at most this many steps.


def choose_penalty(features: np.ndarray, labels: np.ndarray, classes: int, weights: np.ndarray) -> tuple[float, float]:
    """Return the strongest penalty whose mean loss on the held-out folds is at most CLOSE above the lowest, and the accuracy
    on these folds in per cent.

    If no class has two samples, cross-validation is impossible and the accuracy is NaN. The arguments are the same as in
    `fit`.
    """
    if np.bincount(labels, minlength=classes).max() < 2:
        return 1.0, float("nan")
    # Samples are sorted by class, so that every class loses the same share of its samples.
    searched = np.argsort(labels, kind="stable")[:: -(-len(labels) // MAX_SEARCHED)]
    x, labels, weights = _coordinates(features[searched])[0], labels[searched], weights[searched]
    fold = folds(x, labels)
    solutions: list[np.ndarray | None] = [None] * FOLDS
    scores: list[tuple[float, float, float]] = []  # mean loss, penalty and accuracy
    for penalty in PENALTIES:
        loss, right = 0.0, 0
        for k, solution in enumerate(solutions):
            held_out = fold == k
            solutions[k] = found = _minimise(x[~held_out], labels[~held_out], weights[~held_out], classes, penalty, solution)
            logits = x[held_out] @ found[:-1] + found[-1]
            loss += _loss(logits, labels[held_out], weights[held_out])[0].sum() / weights.sum()
            right += int((logits.argmax(1) == labels[held_out]).sum())
        scores.append((loss, penalty, 100 * right / len(x)))
        if loss > 1.05 * min(scores)[0]:  # A weaker penalty would only overfit more.
            break
    return next(score[1:] for score in scores if score[0] <= min(scores)[0] + CLOSE)


def fit(
    features: np.ndarray, labels: np.ndarray, classes: int, penalty: float, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel and bias, float32 [features, classes] and [classes], so that logits are `features @ kernel + bias`.

    `features` has the shape [samples, features]. `labels` contains the class of each sample, int [samples], counted from 0.
    `weights` contains the weight of each sample in the loss, [samples].
    """
    x, axes = _coordinates(features)
    solution = None
    # Start each minimisation from the optimum of the next stronger penalty, because the two optima are close.
    for each in (p for p in PENALTIES if p >= penalty):
        solution = _minimise(x, labels, weights, classes, each, solution)
    kernel = axes @ solution[:-1]
    return kernel.astype(np.float32), (solution[-1] - features.mean(0, dtype=np.float64) @ kernel).astype(np.float32)


def folds(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the fold of each sample, int [samples], from 0 to FOLDS - 1.

    The samples of a class, in their order, are cut into blocks of about equal size, one for each fold. A cut is moved by up
    to half a block, to the place where neighbours differ most, so that series and copies of an image stay together.
    """
    fold = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        steps = np.square(np.diff(features[own], axis=0)).sum(1)  # steps[i] is the difference of samples i and i + 1
        for k in range(1, FOLDS):
            low, high = (-(-len(own) * (2 * k + side) // (2 * FOLDS)) for side in (-1, 1))
            if low < len(own):
                fold[own[low + int(steps[low - 1 : max(low, high - 1)].argmax()) :]] = k
    return fold


def _coordinates(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the standardised features as coordinates [samples, coordinates] in the space that the samples span, and axes.

    This space has fewer dimensions than the features if there are few samples. The axes [features, coordinates] convert
    weights of coordinates into weights of features. A feature that hardly varies is divided by more than its deviation.
    Otherwise its weight would be so large that unusual images get wild logits, and that 8 bits cannot hold other weights.
    """
    x, deviation = features - features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    constant = deviation < 1e-6 * max(1.0, deviation.max(initial=0))
    deviation = np.maximum(deviation, _LEAST_DEVIATION * np.sqrt(np.mean(deviation**2)))
    deviation[constant] = np.inf  # Ignore constant features.
    u, s, axes = np.linalg.svd(x / deviation, full_matrices=False)
    return u * s, axes.T / deviation[:, None]


def _loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted cross-entropy of each sample, and the gradient with respect to the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    losses = weights * (np.log(sums[:, 0]) - shifted[rows, labels])
    gradient = exponentials / sums
    gradient[rows, labels] -= 1
    return losses, gradient * weights[:, None]


def _minimise(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: int, penalty: float, start: np.ndarray | None
) -> np.ndarray:
    """Return the weights that minimise the loss, [coordinates + 1, classes]. The last row is the bias."""
    scale = 1 / weights.sum()

    def objective(solution: np.ndarray) -> tuple[float, np.ndarray]:
        w = solution[:-1]
        losses, in_logits = _loss(x @ w + solution[-1], labels, weights)
        gradient = np.vstack([scale * (x.T @ in_logits) + penalty * w, scale * in_logits.sum(0)])
        return scale * losses.sum() + penalty / 2 * np.vdot(w, w), gradient

    return _lbfgs(objective, np.zeros((x.shape[1] + 1, classes)) if start is None else start)


def _lbfgs(objective: Callable[[np.ndarray], tuple[float, np.ndarray]], point: np.ndarray) -> np.ndarray:
    """Return the minimum of a convex function by L-BFGS with backtracking (Nocedal and Wright 2006, algorithm 7.5)."""
    value, gradient = objective(point)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(_STEPS):
        if np.abs(gradient).max() < TOLERANCE:
            break
        direction = -_inverse_hessian_times(gradient, pairs)
        slope, step = np.vdot(direction, gradient), 1.0 if pairs else min(1.0, 1 / np.abs(gradient).sum())
        for _ in range(30):
            moved_value, moved_gradient = objective(point + step * direction)
            if moved_value <= value + 1e-4 * step * slope:
                break
            step /= 2
        else:  # The value cannot decrease further in float64.
            break
        change, turn = step * direction, moved_gradient - gradient
        if np.vdot(change, turn) > 1e-12 * np.vdot(turn, turn):
            pairs = [*pairs[1 - _MEMORY :], (change, turn)]
        point, value, gradient = point + change, moved_value, moved_gradient
    return point


def _inverse_hessian_times(gradient: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the product of L-BFGS's inverse Hessian and the gradient, by the two-loop recursion.

    Each of `pairs` contains a step and the change of the gradient in this step. Source: Nocedal and Wright 2006,
    algorithm 7.4.
    """
    q, factors = gradient.copy(), []
    for s, y in reversed(pairs):
        alpha = np.vdot(s, q) / np.vdot(y, s)
        factors.append(alpha)
        q -= alpha * y
    if pairs:
        s, y = pairs[-1]
        q *= np.vdot(s, y) / np.vdot(y, y)
    for (s, y), alpha in zip(pairs, reversed(factors)):
        q += s * (alpha - np.vdot(y, q) / np.vdot(y, s))
    return q
