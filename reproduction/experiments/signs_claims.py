"""The settings by the signs of their tilts, the metrics of each, and checks of the paper's claims about them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.evaluation.verdicts import LEVEL
from reproduction.chapter import Holds, Verdict, verdict_on
from reproduction.experiment import Claim, Experiment, Results, by_seed
from reproduction.experiments.paired import COMPARED_METRICS, TITLES, clients_of, condition_name
from reproduction.records import BySeed, best_rows, difference, methods_of

COLLAPSE = 20.0  # points of accuracy below no tilt: clients lose a class, and fairness means nothing

Values = dict[str, dict[str, list[float]]]  # condition → setting → one value per seed
SIGN_METRICS = TITLES | {"accuracy": "accuracy (%)"}
_BY_KEY = {metric.key: metric for metric in COMPARED_METRICS}


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
    records: Mapping[str, Mapping[str, BySeed]]  # condition → setting → seed → its result
    clients: int

    def sign(self, setting: str, reference: str, metric: str, condition: str, view: str = "personal") -> int:
        """1 or −1 where the metric of a setting is higher or lower than the reference’s, beyond chance; else 0."""
        of_setting, records = _BY_KEY[metric], self.records[condition]
        found = difference(records[setting], records[reference], of_setting, self.clients, view)
        return 0 if found is None else found.verdict.sign() * (1 if of_setting.higher_is_better else -1)

    def best(self, metric: str, condition: str, usable: Sequence[str]) -> list[str]:
        """The best of these settings, and those that are not told apart from it."""
        records = {setting: self.records[condition][setting] for setting in usable}
        return best_rows(records, _BY_KEY[metric], self.clients, "personal")

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
            found = by_seed(results, f"{data}-{condition}")
            if found:
                by_condition[condition] = {seed: methods_of(result) for seed, result in found.items()}
        if "clean" in by_condition and len(by_condition) > 1:
            runs = {condition: list(found.values()) for condition, found in by_condition.items()}
            personal, shared = (_values(runs, names, models) for models in ("personal", "shared"))
            finished = personal["accuracy"]
            records = {
                condition: {name: {seed: run[name] for seed, run in found.items()} for name in finished[condition]}
                for condition, found in by_condition.items()
            }
            by_data[data] = DatasetResults(personal, shared, records, clients_of(settings, data))
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


_CHANCE = LEVEL / 2  # the share of equal settings that seem better by chance


class Comparison(NamedTuple):
    """One comparison of two settings."""

    text: str  # what was compared, with the numbers
    agrees: bool  # with the claim


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
            comparisons += [
                _compare_setting(
                    data, c, tilts, "client fairness of w", "client_fairness", check["fairness"], results, []
                )
                for c in conditions
            ]
        elif "tau" in check and not tilts.q and tilts.signs == (check["tau"], check["lam"]):
            size = max(abs(tilts.tau), abs(tilts.lam))
            rivals = [r for r in grid(experiment.settings) if not r.q and size in (abs(r.tau), abs(r.lam))]
            fair = [r.name for r in rivals if paper_words(experiment, r)[0] == "high"]
            robust = [r.name for r in rivals if paper_words(experiment, r)[1] == "high"]
            for c in conditions:
                what, key, word, high = (
                    ("client data fairness", "client_data_fairness_mean", check["fairness"], fair) if c == "clean"
                    else ("accuracy", "accuracy", check["robustness"], robust)
                )  # fmt: skip
                comparisons.append(_compare_setting(data, c, tilts, what, key, word, results, high))
    return comparisons


def _compare_setting(
    data: str, condition: str, tilts: Tilts, what: str, key: str, word: str, results: DatasetResults,
    rivals: Sequence[str],
) -> Comparison:  # fmt: skip
    """High: better than no tilt. Low: worse. Very high: also not worse than the settings called high.

    Args:
        data: The data set.
        condition: Clean, or the kind of outliers.
        tilts: The setting.
        what: The metric's name; client fairness is that of the shared model.
        key: The metric's key.
        word: The paper's word.
        results: All metrics on the data set.
        rivals: The settings of the same size that the paper calls high.
    """
    view = "shared" if key == "client_fairness" else "personal"
    by_setting = (results.shared if view == "shared" else results.personal)[key][condition]
    better = 1 if _BY_KEY[key].higher_is_better else -1
    claimed = better if "high" in word else -better
    if results.diverged(tilts.name, condition):
        return Comparison(f"{data}, {condition}, {tilts.name}: diverged", claimed != better)
    collapsed = results.collapsed(tilts.name, condition)
    measured = results.sign(tilts.name, NO_TILT.name, key, condition, view)
    agrees = measured == claimed and not (collapsed and claimed == better)
    numbers = f"{fmean(by_setting[tilts.name]):.1f} against {fmean(by_setting[NO_TILT.name]):.1f}"
    if word.startswith("very"):
        ahead = [
            rival
            for rival in rivals
            if not results.collapsed(rival, condition)
            and results.sign(tilts.name, rival, key, condition, view) == -better
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
            lower = results.sign(larger, smaller, key, condition) == -1
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
            fair = results.best("client_data_fairness_mean", "clean", usable)
            robust = results.best("accuracy", condition, usable)
            both = [setting for setting in fair if setting in robust]
            apart.append(not both)
            texts.append(f"{data}, {condition}: {f'{both[0]} is both' if both else f'{fair[0]} and {robust[0]}'}")
    if not apart:
        return verdict_on(claim, "not measured", "One seed has no error bar." if by_data else "")
    holds: Holds = "holds" if all(apart) else "holds partly" if any(apart) else "does not hold"
    return verdict_on(
        claim,
        holds,
        f"In {sum(apart)} of {len(apart)} cases no setting is best, or not told apart from the best, on both. "
        f"The fairest and the most robust: {'; '.join(texts)}. Many settings are not told apart from the best: a "
        "setting that is both shows no conflict, which is less than that there is none.",
    )
