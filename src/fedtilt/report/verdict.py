"""Sentences on whether federation helps: against which baseline, and which clients it does not help."""

import math
from collections.abc import Sequence

from fedtilt.evaluation.client_differences import Draw, Rows
from fedtilt.evaluation.gains import Gains, client_gains, differences_by_client
from fedtilt.evaluation.verdicts import Verdict, worse_clients
from fedtilt.report import compare
from fedtilt.report.compare import lead_metric, rare_class
from fedtilt.report.run_reader import Run
from fedtilt.text_tables import article, join_words

_MAX_NAMES = 5  # of clients
_POOLED = {
    "pooled logistic": "a logistic regression",
    "pooled linear": "a linear regression",
    "pooled boosting": "gradient boosting",
}
_CONSTANTS = {"majority": "the majority class", "mean": "the mean", "frequencies": "frequencies in the training data"}


def verdict(run: Run) -> list[str]:
    """Whether the best method is better than every client alone, than one prediction for all, and than pooled rows.

    Empty if the run has no baselines, or has not stored its predictions. The best method is chosen on the rows that it
    is compared on, so that its intervals and verdicts are corrected for all methods.
    """
    stored = run.predictions
    names = [name for name in run.baselines if all(name in by_name for by_name in stored)]
    if not names or not all(method in by_name for by_name in stored for method in run.methods):
        return []
    rows = compare.comparison_table(run, "evaluated") | compare.baseline_table(run)
    lead = lead_metric(run)
    choose = max if lead.higher_is_better else min
    best = choose(run.methods, key=lambda method: rows[method][lead.key].mean)
    sentences = _about_local(run, best) if "local" in names else []
    constant = next((name for name in names if name in _CONSTANTS), None)
    if constant is not None:
        sentences.append(_about_constant(run, best, constant, rows[constant][lead.key].mean))
    if pooled := [name for name in names if name.startswith("pooled")]:
        model = choose(pooled, key=lambda name: rows[name][lead.key].mean)
        gap = _difference(run, best, model, len(run.methods) * len(pooled))
        value = _value(run, rows[model][lead.key].mean)
        clearly = {1: "is worse", 0: "is not told apart", -1: "is better"}
        sentences.append(
            f"With all rows in one place, {_POOLED[model]} has {value} and {clearly[gap.sign()]}: against it, "
            f"{_change(run, best, gap)}."
        )
    return sentences


def _about_local(run: Run, best: str) -> list[str]:
    gap = _difference(run, best, "local")
    is_rare = rare_class(run) is not None
    over = "on all test samples" if is_rare else f"mean over {len(run.compared[0].tested):,} clients"
    text = f"against every client alone, {_change(run, best, gap)}, {over}"
    sentence = {
        1: f"Federation helps: {text}.",
        0: f"Federation and every client alone are not told apart: {text}.",
        -1: f"Federation does not help here: {text}.",
    }[gap.sign()]
    if is_rare:  # the accuracy of a client says little, and its AUPRC is uncertain
        return [sentence]
    differences = [differences_by_client(by_name[best], by_name["local"]) for by_name in run.predictions]
    worse = worse_clients(differences)
    lower = [name for name, rows in differences[0].items() if rows.mean() < 0]
    seed = f" in seed {run.compared[0].seed}" if len(run.compared) > 1 else ""
    who = f"No client has a better {run.score.title} alone{seed}."
    if worse:
        who = f"Better off alone beyond chance: {_names(worse)}."
    elif lower:
        by_chance = f"a better {run.score.title} alone{seed}, none beyond chance: {_names(lower)}"
        who = f"{len(lower)} of {len(differences[0])} clients {'has' if len(lower) == 1 else 'have'} {by_chance}."
    counts = ", ".join(gains_of(run, best, "local").counts)
    return [sentence, who, f"By the 95 % intervals of their own rows{seed}: {counts}."]


def gains_of(run: Run, ours: str, theirs: str) -> Gains:
    """What every client has from a method rather than from another or a baseline, in the first seed."""
    stored = run.predictions[0]
    return client_gains(stored[ours], stored[theirs], theirs)


def _about_constant(run: Run, best: str, constant: str, value: float) -> str:
    what, metric = f"Predicting {_CONSTANTS[constant]} has {_value(run, value)}", None
    if rare := compare.rare_metrics(run):  # of few samples, the AUPRC is too uncertain to compare with
        what, metric = f"A random ranking has {_value(run, value)} and an AUROC of 0.5", rare[1]
    gap = _difference(run, best, constant, metric=metric)
    change = _change(run, best, gap, metric)
    if gap.sign() > 0:
        return f"{what}; against it, {change}."
    return f"{what}, and no method is better beyond chance: against it, {change}. Train longer, or look at the columns."


def _value(run: Run, value: float) -> str:
    if rare_class(run) is not None:
        return f"an AUPRC of {value:.3f}"
    if run.score.unit == "%":
        return f"{value:.1f} %"
    return f"{article(run.score.title)} {run.score.title} of {value:.4g}"


def _change(run: Run, method: str, gap: Verdict, metric: compare.Metric | None = None) -> str:
    """By how much a method changes the score, or another metric, with its interval."""
    what = ("auprc" if metric is None else metric.key).upper() if rare_class(run) is not None else run.score.title
    digits, unit = (3, "") if rare_class(run) is not None else (1, " points") if run.score.unit else (None, "")
    # of errors, a positive difference is a lower error; the text has the sign of the error itself
    sign = 1 if run.score.higher_is_better else -1
    ends = sorted(sign * end for end in (gap.low, gap.high))
    texts = (f"{v:+.4g}" if digits is None else f"{v:+.{digits}f}" for v in (sign * gap.difference, *ends))
    mean, low, high = (text if float(text) else text[1:] for text in texts)  # 0.0 has no sign
    interval = f"95 % interval {low} to {high}" if math.isfinite(gap.low) else gap.reason
    return f"{method} changes the {what} by {mean}{unit} ({interval})".replace("-", "−")


def _difference(run: Run, ours: str, theirs: str, asked: int = 0, metric: compare.Metric | None = None) -> Verdict:
    """Ours against theirs, where ours was chosen among all methods, or among as many pairs."""
    draws = []
    for stored, seed_run in zip(run.predictions, run.compared, strict=True):
        counts = {name: stored[name].counts() for name in (ours, theirs)}
        rows = {name: Rows.of(stored[name]) for name in counts}
        sums, total = {name: found for name, (found, _) in counts.items()}, counts[ours][1]
        draws.append(Draw(sums=sums, total=total, rows=rows.get, new_data=seed_run.drawn.generated))
    metric, asked = metric or lead_metric(run), asked or len(run.methods)
    return compare.compare_several(draws, metric, [(ours, theirs)], asked)[0]


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
