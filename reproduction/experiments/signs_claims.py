"""The settings by the signs of their tilts, the metrics of each, and checks of the paper's claims about them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.evaluation.statistics import CONFIDENCE, paired_difference
from reproduction.chapter import Holds, Verdict, verdict_on
from reproduction.experiment import Claim, Experiment, Results, by_seed
from reproduction.experiments.paired import TITLES, condition_name

COLLAPSE = 20.0  # points of accuracy below no tilt: clients lose a class, and fairness means nothing

Values = dict[str, dict[str, list[float]]]  # condition → setting → one value per seed
SIGN_METRICS = TITLES | {"accuracy": "accuracy (%)"}


def sign(value: float) -> int:
    """−1, 0 or 1."""
    return (value > 0) - (value < 0)


def format_number(value: float) -> str:
    """A number with a typographic minus sign.

    >>> format_number(-10.0)
    '−10'
    """
    return f"{value:g}".replace("-", "−")


class Tilts(NamedTuple):
    """One setting."""

    tau: float
    lam: float
    q: float

    @property
    def name(self) -> str:
        """Name of the setting in results and tables."""
        if self.q:
            return f"q = {format_number(self.q)}"
        return f"tau = {format_number(self.tau)}, lam = {format_number(self.lam)}"

    @property
    def signs(self) -> tuple[int, int]:
        """The signs of tau and lam."""
        return sign(self.tau), sign(self.lam)


NO_TILT = Tilts(0.0, 0.0, 0.0)


def grid(settings: Mapping[str, Any]) -> list[Tilts]:
    """No tilt, every combination of signs of tau and lam in both sizes, and the server's tilts q."""
    signs = [pair for pair in product((1, 0, -1), repeat=2) if pair != (0, 0)]
    sizes = (settings["small"], settings["large"])
    tilted = [Tilts(tau * size, lam * size, 0.0) for tau, lam in signs for size in sizes]
    return [NO_TILT, *tilted, *(Tilts(0.0, 0.0, q) for q in settings["q"])]


class DatasetResults(NamedTuple):
    """Metrics on one data set, by metric."""

    personal: dict[str, Values]
    shared: dict[str, Values]

    @property
    def conditions(self) -> list[str]:
        """Clean, and the kinds of outliers."""
        return list(self.personal["accuracy"])

    @property
    def conditions_with_error(self) -> list[str]:
        """The conditions with several seeds; one seed has no interval and decides nothing."""
        return [c for c in self.conditions if len(self.personal["accuracy"][c][NO_TILT.name]) > 1]

    def diverged(self, setting: str, condition: str) -> bool:
        """Whether the setting diverged in any seed."""
        return setting not in self.personal["accuracy"][condition]

    def collapsed(self, setting: str, condition: str) -> bool:
        """Whether the setting diverged, or is so inaccurate that clients must have lost a class."""
        if self.diverged(setting, condition):
            return True
        accuracy = self.personal["accuracy"][condition]
        return fmean(accuracy[setting]) < fmean(accuracy[NO_TILT.name]) - COLLAPSE


def collect(experiment: Experiment, results: Results) -> dict[str, DatasetResults]:
    """Data set → its metrics, where there are results on clean data and with outliers."""
    settings, by_data = experiment.settings, {}
    names = [tilts.name for tilts in grid(settings)]
    for data in [*settings["data"], *settings["gpu_data"]]:
        by_condition = {}
        for condition in map(condition_name, settings["outliers"]):
            runs = [result["methods"] for result in by_seed(results, f"{data}-{condition}").values()]
            if runs:
                by_condition[condition] = runs
        if "clean" in by_condition and len(by_condition) > 1:
            by_data[data] = DatasetResults(*(_values(by_condition, names, models) for models in ("personal", "shared")))
    return by_data


def _values(by_condition: Mapping[str, Sequence[Any]], names: Sequence[str], models: str) -> dict[str, Values]:
    """Metric → values; a setting that diverged in any seed is skipped in that condition."""
    finished = {c: [name for name in names if all(name in run for run in runs)] for c, runs in by_condition.items()}
    return {
        metric: {
            c: {name: [run[name]["test"][models][metric] for run in runs] for name in finished[c]}
            for c, runs in by_condition.items()
        }
        for metric in SIGN_METRICS
    }


def paper_words(experiment: Experiment, tilts: Tilts) -> tuple[str, str]:
    """The paper's words for a combination of signs: client data fairness, robustness."""
    if tilts == NO_TILT:
        return "medium", "medium"
    for claim in experiment.claims:
        if (claim.check.get("tau"), claim.check.get("lam")) == tilts.signs:
            return claim.check["fairness"], claim.check["robustness"]
    return "", ""


_CHANCE = (1 - CONFIDENCE) / 2  # the share of equal settings that seem better by chance


class Comparison(NamedTuple):
    """One comparison of two settings."""

    text: str  # what was compared, with the numbers
    agrees: bool  # with the claim


def compare_seeds(values: Sequence[float], reference: Sequence[float]) -> int:
    """1 if the 95 % interval of the paired difference values − reference is above 0, −1 if it is below, else 0.

    >>> compare_seeds([3.0, 5.0, 4.0], [1.0, 3.0, 2.1]), compare_seeds([3.0, 1.0], [1.0, 3.1])
    (1, 0)
    """
    return paired_difference(values, reference).sign()


def verdict(claim: Claim, experiment: Experiment, by_data: Mapping[str, DatasetResults]) -> Verdict:
    """How many of the comparisons that a claim makes agree with it."""
    if not claim.check:
        return verdict_on(claim, "not measured")
    if claim.check.get("apart"):
        return _check_apart(claim, experiment, by_data)
    comparisons = [c for data, results in by_data.items() for c in _compare(claim, experiment, data, results)]
    if not comparisons:
        return verdict_on(claim, "not measured", "One seed has no error bar." if by_data else "")
    agreeing = sum(comparison.agrees for comparison in comparisons)
    expected = len(comparisons) * _CHANCE
    partly: Holds = "holds partly" if agreeing > expected else "does not hold"
    holds: Holds = "holds" if agreeing == len(comparisons) else partly
    reference = "no tilt or a smaller one" if "more" in claim.check else "no tilt"
    others = "; ".join(comparison.text for comparison in comparisons if not comparison.agrees)
    return verdict_on(
        claim,
        holds,
        f"{agreeing} of {len(comparisons)} comparisons with {reference} agree, with a 95 % interval on the claimed "
        f"side of 0; expected by chance: {expected:.1f}." + (f" The others: {others}." if others else ""),
    )


def _compare(claim: Claim, experiment: Experiment, data: str, results: DatasetResults) -> list[Comparison]:
    """A comparison for every setting with the claim's signs and every condition."""
    check, comparisons = claim.check, []
    if "more" in check:
        return _compare_sizes(check, experiment, data, results)
    conditions = results.conditions_with_error
    for tilts in grid(experiment.settings):
        if "q" in check and sign(tilts.q) == check["q"]:
            values = results.shared["client_fairness"]
            comparisons += [
                _compare_setting(data, c, tilts, "client fairness of w", values, check["fairness"], -1, results, [])
                for c in conditions
            ]
        elif "tau" in check and not tilts.q and tilts.signs == (check["tau"], check["lam"]):
            size = max(abs(tilts.tau), abs(tilts.lam))
            rivals = [r for r in grid(experiment.settings) if not r.q and size in (abs(r.tau), abs(r.lam))]
            fair = [r.name for r in rivals if paper_words(experiment, r)[0] == "high"]
            robust = [r.name for r in rivals if paper_words(experiment, r)[1] == "high"]
            fairness, accuracy = results.personal["client_data_fairness_mean"], results.personal["accuracy"]
            for c in conditions:
                comparisons.append(
                    _compare_setting(
                        data, c, tilts, "client data fairness", fairness, check["fairness"], -1, results, fair
                    )
                    if c == "clean"
                    else _compare_setting(data, c, tilts, "accuracy", accuracy, check["robustness"], 1, results, robust)
                )
    return comparisons


def _compare_setting(
    data: str, condition: str, tilts: Tilts, what: str, values: Values, word: str, better: int,
    results: DatasetResults, rivals: Sequence[str],
) -> Comparison:  # fmt: skip
    """High: better than no tilt. Low: worse. Very high: also not worse than the settings called high.

    Args:
        data: The data set.
        condition: Clean, or the kind of outliers.
        tilts: The setting.
        what: The metric's name.
        values: The metric's values.
        word: The paper's word.
        better: 1 if higher values are better, −1 if lower ones are.
        results: All metrics on the data set.
        rivals: The settings of the same size that the paper calls high.
    """
    by_setting = values[condition]
    claimed = better if "high" in word else -better
    if results.diverged(tilts.name, condition):
        return Comparison(f"{data}, {condition}, {tilts.name}: diverged", claimed != better)
    collapsed = results.collapsed(tilts.name, condition)
    measured = compare_seeds(by_setting[tilts.name], by_setting[NO_TILT.name])
    agrees = measured == claimed and not (collapsed and claimed == better)
    numbers = f"{fmean(by_setting[tilts.name]):.1f} against {fmean(by_setting[NO_TILT.name]):.1f}"
    if word.startswith("very"):
        ahead = [
            rival
            for rival in rivals
            if not results.collapsed(rival, condition)
            and compare_seeds(by_setting[tilts.name], by_setting[rival]) == -better
        ]
        agrees = agrees and not ahead
        numbers += "".join(f", {fmean(by_setting[rival]):.1f} with {rival}" for rival in ahead)
    mark = " (collapsed)" if collapsed else ""
    return Comparison(f"{data}, {condition}, {tilts.name}: {what} {numbers}{mark}", agrees)


def _compare_sizes(
    check: Mapping[str, Any], experiment: Experiment, data: str, results: DatasetResults
) -> list[Comparison]:
    """From no tilt to small tilts of these signs to large ones, client data fairness improves or accuracy falls."""
    tau, lam = check["more"]
    sizes = (experiment.settings["small"], experiment.settings["large"])
    settings = [NO_TILT.name, *(Tilts(tau * size, lam * size, 0.0).name for size in sizes)]
    fairness = check["of"] == "fairness"
    key, what = ("client_data_fairness_mean", "client data fairness") if fairness else ("accuracy", "accuracy")
    comparisons = []
    for condition in [c for c in results.conditions_with_error if (c == "clean") == fairness]:
        by_setting = results.personal[key][condition]
        for smaller, larger in pairwise(settings):
            if results.diverged(smaller, condition) or results.diverged(larger, condition):
                comparisons.append(Comparison(f"{data}, {condition}, {larger}: diverged", not fairness))
                continue
            lower = compare_seeds(by_setting[larger], by_setting[smaller]) == -1
            agrees = lower and not (fairness and results.collapsed(larger, condition))
            numbers = f"{fmean(by_setting[larger]):.1f} against {fmean(by_setting[smaller]):.1f} with {smaller}"
            comparisons.append(Comparison(f"{data}, {condition}, {larger}: {what} {numbers}", agrees))
    return comparisons


def _check_apart(claim: Claim, experiment: Experiment, by_data: Mapping[str, DatasetResults]) -> Verdict:
    """With no kind of outliers is one of the fairest settings (client data fairness, clean) among the most robust."""
    texts, apart = [], []
    for data, results in by_data.items():
        settings = [tilts.name for tilts in grid(experiment.settings) if not tilts.q]
        conditions = results.conditions_with_error
        for condition in [c for c in conditions if c != "clean" and "clean" in conditions]:
            usable = [s for s in settings if not results.collapsed(s, "clean") and not results.collapsed(s, condition)]
            fair = _best_and_tied(results.personal["client_data_fairness_mean"]["clean"], usable, -1)
            robust = _best_and_tied(results.personal["accuracy"][condition], usable, 1)
            both = [setting for setting in fair if setting in robust]
            apart.append(not both)
            texts.append(f"{data}, {condition}: {f'{both[0]} is both' if both else f'{fair[0]} and {robust[0]}'}")
    if not apart:
        return verdict_on(claim, "not measured", "One seed has no error bar." if by_data else "")
    holds: Holds = "holds" if all(apart) else "holds partly" if any(apart) else "does not hold"
    return verdict_on(
        claim,
        holds,
        f"In {sum(apart)} of {len(apart)} cases no setting is best, or tied with the best, on both. "
        f"The fairest and the most robust: {'; '.join(texts)}. With so few seeds many settings tie with the best: a "
        "setting that is both shows no conflict, which is less than that there is none.",
    )


def _best_and_tied(values: Mapping[str, Sequence[float]], usable: Sequence[str], better: int) -> list[str]:
    """The best setting, then its ties; `better` is 1 if higher values are better, −1 if lower ones are."""
    first = max(usable, key=lambda setting: better * fmean(values[setting]))
    return [first] + [s for s in usable if s != first and compare_seeds(values[s], values[first]) == 0]
