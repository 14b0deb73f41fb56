"""Every metric against scikit-learn, with and without weights, ties, missing classes and a positive class."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import METRICS, check_metrics, metrics_for
from fedtilt.evaluation.weighted_predictions import PredictedClasses, Weighted, reliability_curve

Array = np.ndarray


def draw(classes: int, samples: int = 300, *, ties: bool = False, seed: int = 0) -> PredictedClasses:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    logits = rng.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if ties:
        probabilities = probabilities.round(1) + 0.01
        probabilities /= probabilities.sum(1, keepdims=True)
    return PredictedClasses(labels, probabilities.astype(np.float32).astype(float))


def macro(score: Callable[..., float]) -> Callable[[PredictedClasses, Array], float]:
    """The mean over the classes of a score of one class against all others."""

    def mean(s: PredictedClasses, w: Array) -> float:
        classes = np.unique(s.labels) if s.positive is None else [s.positive]
        return float(np.mean([score(s.labels == k, s.probabilities[:, k], sample_weight=w) for k in classes]))

    return mean


def by_prediction(score: Callable[..., float], **options: object) -> Callable[[PredictedClasses, Array], float]:
    def value(s: PredictedClasses, w: Array) -> float:
        if s.positive is not None:
            return score(s.labels == s.positive, s.predicted == s.positive, sample_weight=w, **options)
        extra = {"labels": np.unique(s.labels), "average": "macro"} if options else {}
        return score(s.labels, s.predicted, sample_weight=w, **options, **extra)

    return value


def log_loss(s: PredictedClasses, w: Array) -> float:
    if s.positive is not None:
        return sk.log_loss(s.labels == s.positive, s.probabilities[:, s.positive], sample_weight=w)
    probabilities = s.probabilities.astype(np.float32)  # as they are stored
    return sk.log_loss(s.labels, probabilities, sample_weight=w, labels=np.arange(probabilities.shape[1]))


def calibration_error(s: PredictedClasses, w: Array) -> float:
    confidence, is_true = s.confidence
    bins = np.searchsorted(np.linspace(0, 1, 11)[1:-1], confidence)
    inside = [bins == b for b in range(10) if w[bins == b].sum()]
    gap = [abs(np.average(is_true[b], weights=w[b]) - np.average(confidence[b], weights=w[b])) for b in inside]
    return float(np.average(gap, weights=[w[b].sum() for b in inside]))


def confusion(s: PredictedClasses, w: Array) -> Array:
    return sk.confusion_matrix(s.labels == s.positive, s.predicted == s.positive, sample_weight=w)


REFERENCES = {
    "accuracy": by_prediction(sk.accuracy_score),
    "balanced_accuracy": by_prediction(sk.balanced_accuracy_score),
    "precision": by_prediction(sk.precision_score, zero_division=np.nan),
    "recall": by_prediction(sk.recall_score, zero_division=np.nan),
    "f1": by_prediction(sk.f1_score, zero_division=np.nan),
    "auroc": macro(sk.roc_auc_score),
    "auprc": macro(sk.average_precision_score),
    "log_loss": log_loss,
    "calibration_error": calibration_error,
    "selection_rate": lambda s, w: confusion(s, w)[:, 1].sum() / w.sum(),
    "false_positive_rate": lambda s, w: confusion(s, w)[0, 1] / confusion(s, w)[0].sum(),
}


@pytest.mark.parametrize("name", metrics_for("classification"))
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize(("classes", "positive"), [(2, None), (2, 1), (5, None), (5, 3)])
def test_against_scikit_learn(name: str, ties: bool, classes: int, positive: int | None) -> None:
    if METRICS[name].needs_positive and positive is None:
        return
    samples = draw(classes, ties=ties)
    samples = replace(samples, positive=positive)
    weights = np.stack([np.ones(300), *np.random.default_rng(1).poisson(1.0, (3, 300))]).astype(float)
    expected = [REFERENCES[name](samples, row) for row in weights]
    np.testing.assert_allclose(
        METRICS[name].values(Weighted(samples, weights)), expected, rtol=1e-6 if name == "log_loss" else 1e-9
    )


def test_the_macro_auroc_of_all_classes_is_that_of_scikit_learn() -> None:
    samples = draw(4)
    whole = Weighted(samples, np.ones((1, 300)))
    expected = sk.roc_auc_score(samples.labels, samples.probabilities, multi_class="ovr", average="macro")
    assert METRICS["auroc"].values(whole)[0] == pytest.approx(expected, rel=1e-6)  # it normalises the probabilities


def test_of_two_classes_the_auprc_is_that_of_the_rarer_one_also_at_a_client_with_more_of_it() -> None:
    samples = replace(draw(2), rarer=1)
    at_client = samples.take(np.flatnonzero((samples.labels == 1) | (np.arange(300) < 40)))
    for found in (samples, at_client):
        expected = sk.average_precision_score(found.labels, found.probabilities[:, 1])
        assert METRICS["auprc"].values(Weighted(found, np.ones((1, len(found.labels)))))[0] == pytest.approx(expected)
    without = samples.take(np.flatnonzero(samples.labels == 0))
    assert np.isnan(METRICS["auprc"].values(Weighted(without, np.ones((1, len(without.labels))))))


def test_a_client_that_lacks_classes() -> None:
    """Classes without samples do not count, also where they are predicted."""
    samples = draw(5)
    few = samples.take(np.flatnonzero(samples.labels < 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about predicted classes without samples
        for name in ("balanced_accuracy", "precision", "recall", "f1", "auroc", "auprc", "log_loss"):
            weights = np.ones((1, len(few.labels)))
            value = METRICS[name].values(Weighted(few, weights))[0]
            assert value == pytest.approx(REFERENCES[name](few, weights[0])), name


@pytest.mark.parametrize("name", ["auroc", "false_positive_rate", "balanced_accuracy"])
def test_one_class_only_is_not_defined(name: str) -> None:
    samples = PredictedClasses(np.array([1, 1]), np.array([[0.3, 0.7], [0.6, 0.4]]), positive=1)
    assert np.isnan(METRICS[name].values(Weighted(samples, np.ones((1, 2)))))


def test_a_class_that_is_never_predicted_has_no_precision_and_an_f1_of_0() -> None:
    samples = PredictedClasses(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]), positive=1)
    weighted = Weighted(samples, np.ones((1, 2)))
    assert np.isnan(METRICS["precision"].values(weighted))
    assert METRICS["f1"].values(weighted) == 0


@pytest.mark.parametrize(
    ("name", "positive"),
    [("accuracy", None), ("precision", 1), ("recall", 1), ("selection_rate", 1), ("false_positive_rate", 1)],
)
def test_a_proportion_is_the_metric(name: str, positive: int | None) -> None:
    samples = draw(3)
    samples = replace(samples, positive=positive)
    x, n = METRICS[name].proportion(samples)
    assert x / n == pytest.approx(METRICS[name].values(Weighted(samples, np.ones((1, 300))))[0])
    assert METRICS["recall"].proportion(draw(3)) is None  # a mean over classes


def test_the_reliability_curve_is_that_of_scikit_learn() -> None:
    samples = replace(draw(2), positive=1)
    curve = reliability_curve(samples)
    truth, probability = calibration_curve(samples.labels == 1, samples.probabilities[:, 1], n_bins=10)
    np.testing.assert_allclose([b.accuracy for b in curve], truth)
    np.testing.assert_allclose([b.confidence for b in curve], probability)
    assert sum(b.samples for b in curve) == 300
    assert all(b.low <= b.accuracy <= b.high for b in curve)
    error = sum(b.samples * abs(b.accuracy - b.confidence) for b in curve) / 300
    assert METRICS["calibration_error"].values(Weighted(samples, np.ones((1, 300))))[0] == pytest.approx(error)


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(InputError, match="there is no metric 'auc'; choose among accuracy, "):
        check_metrics(["auc"])
    with pytest.raises(InputError, match="metrics is empty"):
        check_metrics([])
    assert check_metrics("auroc") == ["auroc"]
