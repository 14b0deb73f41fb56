"""The settings by the signs of their tilts, and the metrics of each."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from reproduction.comparison.dataset_comparison import TITLES, condition_name
from reproduction.experiment import Experiment, Results

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
            runs = [results[key]["methods"] for key in sorted(results) if key.startswith(f"{data}-{condition}-seed-")]
            if runs:
                by_condition[condition] = runs
        if "clean" in by_condition and len(by_condition) > 1:
            by_data[data] = DatasetResults(*(_values(by_condition, names, models) for models in ("personal", "shared")))
    return by_data


def _values(by_condition: Mapping[str, Sequence[Any]], names: Sequence[str], models: str) -> dict[str, Values]:
    """Metric → values; a setting that diverged in any seed is left out of that condition."""
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
