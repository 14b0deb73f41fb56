"""Metrics of predicted numbers against scikit-learn, and their frame."""

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import METRICS, metrics_for
from fedtilt.evaluation.evaluator import Grouping
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.weighted_predictions import PredictedNumbers, Weighted

REFERENCES = {
    "mae": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
    "rmse": lambda y, p, w: sk.root_mean_squared_error(y, p, sample_weight=w),
    "mean_error": lambda y, p, w: np.average(p - y, weights=w),
    "r2": lambda y, p, w: sk.r2_score(y, p, sample_weight=w),
}


def draw(samples: int = 200) -> PredictedNumbers:
    rng = np.random.default_rng(0)
    targets = 1e4 + 50 * rng.normal(size=samples)
    return PredictedNumbers(targets, targets + 20 * rng.normal(size=samples) + 5)


@pytest.mark.parametrize("name", metrics_for("regression"))
def test_against_scikit_learn(name: str) -> None:
    samples = draw()
    weights = np.random.default_rng(1).integers(0, 4, (5, 200)).astype(float)
    expected = [REFERENCES[name](samples.targets, samples.predictions, w) for w in weights]
    np.testing.assert_allclose(METRICS[name].values(Weighted(samples, weights)), expected, rtol=1e-9)


def test_equal_targets_have_no_r2() -> None:
    samples = PredictedNumbers(np.full(3, 7.0), np.array([6.0, 7.0, 8.0]))
    assert np.isnan(METRICS["r2"].values(Weighted(samples, np.ones((1, 3)))))
    assert METRICS["mae"].values(Weighted(samples, np.ones((1, 3)))) == pytest.approx(2 / 3)


def predictions() -> Predictions:
    samples = draw()
    client, sex = np.arange(200) % 8, np.arange(200) // 8 % 2
    groupings = {
        "client": Grouping("client", tuple("abcdefgh"), torch.tensor(client)),
        "range": Grouping("range", ("≤ 10000", "> 10000"), torch.tensor(samples.targets > 1e4).long()),
        "sex": Grouping("sex", ("f", "m"), torch.tensor(sex)),
    }
    numbers = torch.tensor(samples.targets).float()
    return Predictions(outputs=torch.tensor(samples.predictions), groupings=groupings, numbers=numbers)


def test_a_frame_has_values_intervals_and_gaps() -> None:
    found = predictions()
    frame = metrics_frame(found, by="sex", resamples=200)
    assert list(frame.metrics) == list(metrics_for("regression"))
    rows = found.groupings["sex"].codes == 1
    y, p = found.numbers[rows].double(), found.outputs[rows]
    assert frame.group_estimates["m"]["rmse"].value == pytest.approx(sk.root_mean_squared_error(y, p))
    assert frame.difference()["mae"] == frame.gap("mae").difference
    low, high, kind, _ = frame.overall_estimates["mae"].interval
    assert low < frame.overall_estimates["mae"].value < high
    assert kind
    assert set(metrics_frame(found, "mae", by="range", resamples=0).group_estimates) == {"≤ 10000", "> 10000"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": "auroc"}, "metric 'auroc' is not for numbers as targets; choose among mae, rmse, mean_error, r2"),
        ({"positive": "1"}, "positive = '1' is for classes, and the data has numbers as targets; leave it out"),
        ({"by": "class"}, "by = 'class' is unknown; choose among client, range, sex"),
    ],
)
def test_what_is_for_classes_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics_frame(predictions(), **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there are no probabilities of numbers"):
        _ = predictions().probabilities
