"""Sentences on whether federation helps: against which baseline, and which clients it does not help."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedtilt.evaluation.comparison import Comparison, compare
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.gains import Gains, client_gains
from fedtilt.evaluation.intervals import bootstrap
from fedtilt.evaluation.metrics_frame import with_targets
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.statistics import PairedDifference
from fedtilt.evaluation.weighted_predictions import Weighted
from fedtilt.report.compare import baseline_table, comparison_table, lead_metric, rare_class
from fedtilt.report.run_reader import Run
from fedtilt.text_tables import article, join_words

_MAX_NAMES = 5  # of clients
_POOLED = {
    "pooled logistic": "a logistic regression",
    "pooled linear": "a linear regression",
    "pooled boosting": "gradient boosting",
}
_CONSTANTS = {"majority": "the majority class", "mean": "the mean", "frequencies": "frequencies in the training data"}
_RESAMPLES = 500


def verdict(run: Run) -> list[str]:
    """Whether the best method is better than every client alone, than one prediction for all, and than pooled rows.

    Empty if the run has no baselines, or has not stored its predictions. The best method is chosen on the data that it
    is compared on, so the confidence of its intervals is raised by the number of methods (Bonferroni).
    """
    stored = run.predictions
    names = [name for name in run.baselines if all(name in by_name for by_name in stored)]
    if not names or not all(method in by_name for by_name in stored for method in run.methods):
        return []
    rows, lead = comparison_table(run, "evaluated") | baseline_table(run), lead_metric(run)
    choose = max if lead.higher_is_better else min
    best = choose(run.methods, key=lambda method: rows[method][lead.key].mean)
    sentences = _about_local(run, best) if "local" in names else []
    constant = next((name for name in names if name in _CONSTANTS), None)
    if constant is not None:
        sentences.append(_about_constant(run, best, constant, rows[constant][lead.key].mean))
    if pooled := [name for name in names if name.startswith("pooled")]:
        model = choose(pooled, key=lambda name: rows[name][lead.key].mean)
        gap = _difference(run, best, model)
        value = _value(run, rows[model][lead.key].mean)
        clearly = {1: "is worse", 0: "is not clearly better", -1: "is better"}
        sentences.append(
            f"With all rows in one place, {_POOLED[model]} has {value} and {clearly[gap.sign()]}: against it, "
            f"{_change(run, best, gap)}."
        )
    return sentences


def _about_local(run: Run, best: str) -> list[str]:
    gap = _difference(run, best, "local")
    over = "on all test samples" if rare_class(run) is not None else f"mean over {gap.pairs:,} clients"
    text = f"against every client alone, {_change(run, best, gap)}, {over}"
    sentence = {
        1: f"Federation helps: {text}.",
        0: f"Whether federation helps is not clear: {text}.",
        -1: f"Federation does not help here: {text}.",
    }[gap.sign()]
    if rare_class(run) is not None:  # the accuracy of a client says little, and its AUPRC is uncertain
        return [sentence]
    found = _comparison(run, best, "local")
    worse, lower = found.worse(), [name for name, value in found.clients.items() if value < 0]
    seed = f" in seed {run.compared[0].seed}" if len(run.compared) > 1 else ""
    counts = ", ".join(gains_of(run, best, "local").counts)
    shares = f"By the 95 % intervals of their own test samples{seed}: {counts}."
    if worse:
        return [sentence, f"Better off alone beyond chance{seed}: {_names(worse)}.", shares]
    if lower:
        by_chance = f"a better {run.score.title} alone{seed}, none beyond chance: {_names(lower)}"
        verb = "has" if len(lower) == 1 else "have"
        return [sentence, f"{len(lower)} of {len(found.clients)} clients {verb} {by_chance}.", shares]
    return [sentence, f"No client has a better {run.score.title} alone{seed}.", shares]


def gains_of(run: Run, ours: str, theirs: str) -> Gains:
    """What every client has from a method rather than from another or a baseline, in the first seed."""
    stored = run.predictions[0]
    return client_gains(stored[ours], stored[theirs], theirs)


def _about_constant(run: Run, best: str, constant: str, value: float) -> str:
    what = f"Predicting {_CONSTANTS[constant]}"
    if rare_class(run) is not None:
        what = "A random ranking"
    gap = _difference(run, best, constant)
    what, change = f"{what} has {_value(run, value)}", _change(run, best, gap)
    if gap.sign() > 0:
        return f"{what}; against it, {change}."
    return f"{what}, and no method is clearly better: against it, {change}. Train longer, or look at the columns."


def _value(run: Run, value: float) -> str:
    if rare_class(run) is not None:
        return f"an AUPRC of {value:.3f}"
    if run.score.unit == "%":
        return f"{value:.1f} %"
    return f"{article(run.score.title)} {run.score.title} of {value:.4g}"


def _change(run: Run, method: str, gap: PairedDifference) -> str:
    """By how much a method changes the score, with its interval."""
    what = "AUPRC" if rare_class(run) is not None else run.score.title
    digits, unit = (3, "") if rare_class(run) is not None else (1, " points") if run.score.unit else (None, "")
    # of errors, a positive difference is a lower error; the text has the sign of the error itself
    sign = 1 if run.score.higher_is_better else -1
    ends = sorted(sign * end for end in (gap.low, gap.high))
    texts = (f"{v:+.4g}" if digits is None else f"{v:+.{digits}f}" for v in (sign * gap.mean, *ends))
    mean, low, high = (text if float(text) else text[1:] for text in texts)  # 0.0 has no sign
    return f"{method} changes the {what} by {mean}{unit} (95 % interval {low} to {high})".replace("-", "−")


def _difference(run: Run, ours: str, theirs: str) -> PairedDifference:
    """The difference over all seeds; positive: ours is better."""
    confidence = 1 - 0.05 / len(run.methods)
    if rare_class(run) is None:
        return _comparison(run, ours, theirs, confidence).difference
    found = [_auprc_difference(by_name[ours], by_name[theirs], confidence) for by_name in run.predictions]
    mean = fmean(gap.mean for gap in found)
    below, above = max(gap.mean - gap.low for gap in found), max(gap.high - gap.mean for gap in found)
    return found[0]._replace(mean=mean, low=mean - below, high=mean + above)  # the widest of the seeds


def _comparison(run: Run, ours: str, theirs: str, confidence: float = 0.95) -> Comparison:
    return compare([(by_name[ours], by_name[theirs]) for by_name in run.predictions], confidence)


def _auprc_difference(ours: Predictions, theirs: Predictions, confidence: float) -> PairedDifference:
    """The difference of the AUPRC of the rare class, on the same resamples of clients, or of samples."""
    clients, metrics = ours.groupings[CLIENT].codes.numpy(), ["auprc"]
    drawn = [bootstrap(with_targets(p), clients, metrics, _RESAMPLES, 0).values["auprc"] for p in (ours, theirs)]
    gaps, whole = drawn[0] - drawn[1], np.ones((1, len(clients)))
    value, other = (float(METRICS["auprc"].values(Weighted(with_targets(p), whole))[0]) for p in (ours, theirs))
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(gaps, [tail, 1 - tail])
    return PairedDifference(value - other, float(low), float(high), np.nan, np.nan, len(gaps))


def thresholds(run: Run) -> list[str]:
    """What the thresholds that were chosen on validation data give on the test data, of the first seed; or nothing."""
    found, texts = run.compared[0].thresholds, []
    for method, threshold in found.items():
        predictions = run.predictions[0].get(method)
        if predictions is None:
            return []
        positive = predictions.class_names.index(threshold.name)
        predicted = threshold.classes(predictions.probabilities, predictions.class_names) == positive
        actual = predictions.labels == positive
        hits, flagged, cases = int((predicted & actual).sum()), int(predicted.sum()), int(actual.sum())
        value = f"{threshold.value:.{2 if threshold.value < 0.995 else 5}g}"  # 0.996 is not 1
        texts.append(f"{method} ({value}) finds {hits} of {cases} and is right in {hits} of {flagged}")
    if not texts:
        return []
    name = next(iter(found.values())).name
    return [f"With a threshold on the probability of {name}, chosen on validation data: {'; '.join(texts)}."]


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return join_words([*names[:_MAX_NAMES], *more])
