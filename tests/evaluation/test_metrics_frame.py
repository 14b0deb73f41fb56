"""Metrics by client, class and group, their intervals and their gaps."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn import metrics as sk

from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Grouping
from fedtilt.evaluation.intervals import bootstrap
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.weighted_predictions import PredictedNumbers

pandas = pytest.importorskip("pandas")
FEW = {"resamples": 50}


def draw(sizes: list[int], classes: int = 2, seed: int = 0) -> Predictions:
    """Predictions on clients of these sizes, and a column of groups."""
    rng = np.random.default_rng(seed)
    samples = sum(sizes)
    labels = rng.integers(0, classes, samples)
    logits = torch.tensor(rng.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[labels])
    client = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    codes = {"client": client, "class": torch.tensor(labels), "sex": torch.tensor(rng.integers(0, 2, samples))}
    names = {"client": [f"site {i}" for i in range(len(sizes))], "class": "abcdef"[:classes], "sex": ["f", "m"]}
    groupings = {key: Grouping(key, tuple(names[key]), codes[key]) for key in codes}
    return Predictions(outputs=logits.softmax(1).float(), groupings=groupings)


def test_overall_is_pooled_and_by_group_is_each_client() -> None:
    predictions = draw([40, 60, 80], classes=3)
    frame = metrics_frame(predictions, ["f1", "balanced_accuracy"], by="client", **FEW)
    labels, predicted = predictions.labels, predictions.probabilities.argmax(1)
    assert frame.overall["f1"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"))
    rows = predictions.groupings["client"].codes == 1
    expected = sk.balanced_accuracy_score(labels[rows], predicted[rows])
    assert frame.by_group.loc["site 1", "balanced_accuracy"] == pytest.approx(expected)
    assert frame.by_group.index.name == "client"


def test_gaps_in_the_manner_of_fairlearn() -> None:
    """Demographic parity is the gap of the selection rate, equal opportunity that of the recall."""
    predictions = draw([300, 300])
    frame = metrics_frame(predictions, ["selection_rate", "recall"], by="sex", positive="b", **FEW)
    predicted, sex = predictions.probabilities.argmax(1), predictions.groupings["sex"].codes
    rates = [(predicted[sex == code] == 1).double().mean().item() for code in (0, 1)]
    recalls = [(predicted[(sex == code) & (predictions.labels == 1)] == 1).double().mean().item() for code in (0, 1)]
    assert frame.difference()["selection_rate"] == pytest.approx(abs(rates[0] - rates[1]))
    assert frame.ratio()["recall"] == pytest.approx(min(recalls) / max(recalls))
    assert frame.group_min()["recall"] == pytest.approx(min(recalls))
    assert frame.group_max()["recall"] == pytest.approx(max(recalls))
    overall = frame.overall["recall"]
    assert frame.difference("to_overall")["recall"] == pytest.approx(max(abs(r - overall) for r in recalls))
    assert frame.ratio("to_overall")["recall"] == pytest.approx(min(min(r / overall, overall / r) for r in recalls))
    gap = frame.gaps().loc["recall"]
    assert gap["difference_low"] <= gap["difference"] <= gap["difference_high"]
    assert gap["ratio_low"] <= gap["ratio"] <= gap["ratio_high"] <= 1
    assert gap["highest"] == "fm"[recalls.index(max(recalls))]


def test_a_class_is_compared_with_all_others() -> None:
    predictions = draw([100, 100], classes=3)
    frame = metrics_frame(predictions, by="class", **FEW)
    predicted = predictions.probabilities.argmax(1)
    precision, recall, f1, support = sk.precision_recall_fscore_support(predictions.labels, predicted)
    np.testing.assert_allclose(frame.by_group["precision"], precision)
    np.testing.assert_allclose(frame.by_group["recall"], recall)
    np.testing.assert_allclose(frame.by_group["f1"], f1)
    table = frame.to_pandas()
    assert table[(table["metric"] == "f1") & (table["class"] != "overall")]["samples"].tolist() == support.tolist()
    auroc = sk.roc_auc_score(predictions.labels == 2, predictions.probabilities[:, 2])
    assert frame.by_group.loc["c", "auroc"] == pytest.approx(auroc)
    assert frame.overall["auroc"] == pytest.approx(frame.by_group["auroc"].mean())


def test_a_proportion_on_one_client_has_an_exact_interval() -> None:
    predictions = draw([50, 50])
    frame = metrics_frame(predictions, "accuracy", by="client", **FEW)
    estimate = frame.group_estimates["site 0"]["accuracy"]
    interval = binomtest(round(estimate.value * 50), 50).proportion_ci(0.95, method="exact")
    assert estimate.interval[:3] == (pytest.approx(interval.low), pytest.approx(interval.high), "exact")


def test_pooled_clients_are_resampled_as_a_whole() -> None:
    """Two kinds of clients, all right or all wrong: the samples alone would say that the accuracy is well known."""
    right = torch.arange(20).repeat_interleave(100) % 2 == 0
    probabilities = torch.where(right[:, None], torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9]))
    client = torch.arange(20).repeat_interleave(100)
    groupings = {
        "client": Grouping("client", tuple(map(str, range(20))), client),
        "class": Grouping("class", ("a", "b"), torch.zeros(2000, dtype=torch.long)),
    }
    frame = metrics_frame(Predictions(outputs=probabilities, groupings=groupings), "accuracy", resamples=400)
    low, high, kind, _ = frame.overall_estimates["accuracy"].interval
    assert kind == "bootstrap over clients"
    assert 0.2 < low < 0.35  # ± 2.1 standard errors of 20 clients: 0.5 ± 0.23
    assert 0.65 < high < 0.8


def test_coverage_of_the_bootstrap_over_clients() -> None:
    """95 % intervals of a pooled mean over 12 clients whose accuracies differ; plain percentiles are too narrow."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(12), 30)
    held, plain = 0, 0
    for trial in range(400):
        x = (rng.random(360) < rng.beta(8, 2, 12)[client]).astype(float)
        drawn = bootstrap(PredictedNumbers(np.zeros(360), x), client, ["mean_error"], 200, trial)
        interval = drawn.interval("mean_error", x.mean(), 360, 0.95)
        held += interval.low <= 0.8 <= interval.high
        low, high = np.quantile(drawn.values["mean_error"], [0.025, 0.975])
        plain += low <= 0.8 <= high
    assert held >= 0.92 * 400
    assert plain < held


@pytest.mark.parametrize(("accuracies", "difference"), [((0.85, 0.8, 0.6), 0.25), ((0.8, 0.8, 0.8), 0.0)])
def test_coverage_of_gaps_between_groups_that_share_clients(accuracies: tuple[float, ...], difference: float) -> None:
    rng = np.random.default_rng(0)
    held = 0
    client, group = np.divmod(np.arange(12 * 60), 60)
    group %= 3
    names = {"client": tuple(map(str, range(12))), "class": ("a", "b"), "ward": ("x", "y", "z")}
    for _ in range(100):
        accuracy = np.clip(np.array(accuracies)[group] + rng.normal(0, 0.05, 12)[client], 0, 1)
        labels = rng.integers(0, 2, len(client))
        predicted = np.where(rng.random(len(client)) < accuracy, labels, 1 - labels)
        codes = {"client": client, "class": labels, "ward": group}
        predictions = Predictions(
            outputs=torch.eye(2)[predicted],
            groupings={key: Grouping(key, names[key], torch.tensor(codes[key])) for key in codes},
        )
        gap = metrics_frame(predictions, "accuracy", by="ward", resamples=100).gap("accuracy")
        held += gap.difference_low <= difference <= gap.difference_high
    assert held >= 94


def test_what_is_missing_has_a_reason() -> None:
    predictions = draw([4, 0, 30])
    predictions.labels[:4] = 1  # one class only
    frame = metrics_frame(predictions, ["auroc", "log_loss", "accuracy"], **FEW)
    first, empty, rest = frame.group_estimates.values()
    assert math.isnan(first["auroc"].value)
    assert first["auroc"].reason == "samples of only one class"
    assert first["log_loss"].value > 0
    assert first["log_loss"].reason == "fewer than 10 samples"
    assert first["accuracy"].interval.kind == "exact"
    assert empty["accuracy"].reason == "no test samples"
    assert not rest["auroc"].reason
    assert math.isnan(frame.gap("log_loss").difference_high)  # a group has no interval
    assert frame.gap("log_loss").difference > 0
    perfect = Predictions(outputs=torch.eye(2)[predictions.labels], groupings=predictions.groupings)
    estimate = metrics_frame(perfect, "f1", **FEW).overall_estimates["f1"]
    assert (estimate.value, estimate.reason) == (1.0, "the same in all resamples")
    assert metrics_frame(perfect, "f1", resamples=0).overall_estimates["f1"].reason == "only exact intervals"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "ward"}, "by = 'ward' is unknown; choose among client, class, sex"),
        ({"positive": "z"}, "positive = 'z' is no class; choose among a, b"),
        ({"by": "class", "positive": "a"}, "by = 'class' is about every class in turn; leave out positive"),
        ({"metrics": ["selection_rate"]}, "metric 'selection_rate' is about one class; set positive to one of a, b"),
        ({"metrics": ["auc"]}, "there is no metric 'auc'"),
        ({"confidence": 95}, "confidence = 95 is not between 0 and 1"),
        ({"resamples": -1}, "resamples must be a whole number ≥ 0, got -1"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        metrics_frame(draw([20]), **options)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_an_unknown_comparison_is_refused() -> None:
    with pytest.raises(InputError, match="choose between_groups or to_overall"):
        metrics_frame(draw([20]), "accuracy").difference("max")
