"""The settings by the signs of their tilts, and what was measured of each."""

from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.reproduction.comparison.experiment import told
from fedtilt.reproduction.experiment import Experiment

COLLAPSE = 20.0  # points of accuracy below (0, 0): a client has given up a class, and its spreads mean nothing
_MINUS = "−"

Values = dict[str, dict[str, list[float]]]  # condition → setting → one value per seed
METRICS = {
    "accuracy": "accuracy (%)",
    "client_fairness": "client spread",
    "client_data_fairness_mean": "class spread",
    "client_data_fairness_std": "std of it",
}


def sign(value: float) -> int:
    """−1, 0 or 1."""
    return (value > 0) - (value < 0)


def signed(value: float) -> str:
    """A number with a true minus."""
    return f"{value:g}".replace("-", _MINUS)


class Tilts(NamedTuple):
    """One setting."""

    tau: float
    lam: float
    q: float

    @property
    def name(self) -> str:
        """As the tables have it."""
        if self.q:
            return f"q = {signed(self.q)}"
        return f"tau = {signed(self.tau)}, lam = {signed(self.lam)}"

    @property
    def signs(self) -> tuple[int, int]:
        """The signs of tau and lam."""
        return sign(self.tau), sign(self.lam)


PLAIN = Tilts(0.0, 0.0, 0.0)


def grid(settings: Mapping[str, Any]) -> list[Tilts]:
    """(0, 0), every other combination of signs in both sizes, and the tilts of the server."""
    signs = [pair for pair in product((1, 0, -1), repeat=2) if pair != (0, 0)]
    sizes = (settings["small"], settings["large"])
    tilted = [Tilts(tau * size, lam * size, 0.0) for tau, lam in signs for size in sizes]
    return [PLAIN, *tilted, *(Tilts(0.0, 0.0, q) for q in settings["q"])]


class Measured(NamedTuple):
    """One data set's numbers, metric by metric."""

    personal: dict[str, Values]
    shared: dict[str, Values]

    @property
    def conditions(self) -> list[str]:
        """Clean, and the kinds of outliers."""
        return list(self.personal["accuracy"])

    @property
    def compared(self) -> list[str]:
        """The conditions with an error bar: one seed has none, and decides nothing."""
        return [c for c in self.conditions if len(self.personal["accuracy"][c][PLAIN.name]) > 1]

    def diverged(self, setting: str, condition: str) -> bool:
        """Whether a setting's models became infinite in any seed there."""
        return setting not in self.personal["accuracy"][condition]

    def collapsed(self, setting: str, condition: str) -> bool:
        """Whether a setting has given up classes there, or diverged."""
        if self.diverged(setting, condition):
            return True
        here = self.personal["accuracy"][condition]
        return fmean(here[setting]) < fmean(here[PLAIN.name]) - COLLAPSE


def collected(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> dict[str, Measured]:
    """Data set → its numbers, from the cells that are there; what diverged in a seed is left out of that condition."""
    settings, found = experiment.settings, {}
    for name in [*settings["data"], *settings["gpu_data"]]:
        by_condition = {
            told(outliers): [
                results[k]["methods"] for k in sorted(results) if k.startswith(f"{name}-{told(outliers)}-seed-")
            ]
            for outliers in settings["outliers"]
        }
        by_condition = {condition: runs for condition, runs in by_condition.items() if runs}
        if "clean" not in by_condition or len(by_condition) < 2:
            continue
        names = [t.name for t in grid(settings)]
        kept = {c: [s for s in names if all(s in run for run in runs)] for c, runs in by_condition.items()}

        def values(of: str, metric: str, by: dict[str, Any] = by_condition, kept: dict[str, Any] = kept) -> Values:
            return {c: {s: [run[s]["test"][of][metric] for run in runs] for s in kept[c]} for c, runs in by.items()}

        found[name] = Measured(*({metric: values(of, metric) for metric in METRICS} for of in ("personal", "shared")))
    return found


def words(experiment: Experiment, t: Tilts) -> tuple[str, str]:
    """The paper's words on a combination of signs: client data fairness, robustness."""
    if t == PLAIN:
        return "medium", "medium"
    for claim in experiment.claims:
        if (claim.check.get("tau"), claim.check.get("lam")) == t.signs:
            return claim.check["fairness"], claim.check["robustness"]
    return "", ""
