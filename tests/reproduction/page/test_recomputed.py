"""The counts and verdicts on the pages, recomputed from the records with scipy and plain loops."""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from reproduction import load
from reproduction.page.build import build_page
from reproduction.page.impossible import impossible_table
from reproduction.page.markdown import front_page, site_pages
from reproduction.results import RESULTS, ResultsFolder
from tests.reproduction.page.published import published_page

CONDITIONS = {"clean": "clean data", "corruptions": "random corruptions", "gaussian": "Gaussian noise",
              "flips": "label flips"}  # fmt: skip
DATA = ("mnist", "fashion-mnist", "cifar10")
METRICS = {
    "accuracy": ("accuracy", 1), "client_fairness": ("client fairness", -1),
    "client_data_fairness_mean": ("client data fairness, mean", -1),
    "client_data_fairness_std": ("client data fairness, std", -1), "worst": ("accuracy of the worst 10 %", 1),
}  # fmt: skip
RIVALS = {
    "fedavg_finetuned": "FedAvg with fine-tuning", "ditto": "Ditto", "local": "local training only", "term": "TERM",
    "fedprox": "FedProx", "fedavg": "FedAvg",
}  # fmt: skip
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def page() -> str:
    return whole_text(RESULTS)


@cache
def whole_text(folder: Path) -> str:
    """The front page and all chapters."""
    page = published_page() if folder == RESULTS else build_page(ResultsFolder(folder))
    return "\n".join([front_page(page)[0], *site_pages(page).values()])


def results_of(folder: Path, name: str, prefix: str) -> list[dict[str, Any]]:
    """The results of the cases of an experiment whose names start like this, in the order of the file."""
    records = map(json.loads, (folder / f"{name}.jsonl").read_text("utf-8").splitlines())
    return [record["result"] for record in records if record["case"].startswith(prefix)]


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str], Rows]:
    """Condition and data set → row → the result of every seed, with settings chosen on validation data."""
    cells = {}
    for condition in CONDITIONS:
        for data in DATA:
            rows: Rows = {"fedavg": [], "ditto": [], "ditto-validated": [], "fedtilt-validated": []}
            for result in results_of(RESULTS, condition, f"{data}-seed-"):
                methods = result["methods"]
                rows["fedavg"].append(methods["fedavg"])
                rows["ditto"].append(methods["ditto mu=0.01"])
                for preset in ("ditto", "fedtilt"):
                    best, best_rank = "", (-1.0, 0.0)
                    for name, method in methods.items():
                        if result["settings"][name]["preset"] == preset:
                            validation = method["validation"]["personal"]
                            rank = (validation["accuracy"], -validation["client_fairness"])
                            if rank > best_rank:
                                best, best_rank = name, rank
                    rows[f"{preset}-validated"].append(methods[best])
            cells[condition, data] = rows
    return cells


def values(results: list[dict[str, Any]], metric: str, shared: bool = False) -> np.ndarray:
    tests = [result["test"] for result in results]
    return np.array([(test["shared"] if shared else test["personal"] or test["shared"])[metric] for test in tests])


def error(ours: dict[str, float], theirs: dict[str, float], metric: str, clients: int) -> float:
    """The standard error of a difference on one seed, of unpaired clients; inf: unknown."""
    both = ours, theirs
    stds = {"accuracy": "client_fairness", "client_data_fairness_mean": "client_data_fairness_std"}
    if metric in stds:
        return math.sqrt(sum(m[stds[metric]] ** 2 for m in both) / (clients - 1))
    if metric == "worst":
        return math.inf
    if metric == "client_fairness":
        reach = max(max(m["accuracy"] - m["minimum"], m["best"] - m["accuracy"]) for m in both)
    else:
        reach = max(min(50, 100 - m["minimum"]) - m["client_data_fairness_mean"] for m in both)
    return 1.25 * math.sqrt(sum(max(reach**2 - m[metric] ** 2, 2 * m[metric] ** 2) for m in both) / 4 / (clients - 1))


class Gap(NamedTuple):
    """The difference of two settings over seeds."""

    mean: float
    low: float
    high: float
    p: float
    seeds: tuple[float, ...]

    @property
    def sign(self) -> int:
        return 0 if self.p > 0.05 else 1 if self.mean > 0 else -1

    @property
    def texts(self) -> tuple[str, str]:
        """The mean, and the interval behind a line break; empty without one."""
        ends = f"<br>{signed(self.low)} to {signed(self.high)}" if math.isfinite(self.low) else ""
        return signed(self.mean), ends


def gap_of(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], metric: str, clients: int = 100) -> Gap:
    """Twice the median p over seeds, and the interval of the seed in the middle at half the error."""
    sign, found = METRICS[metric][1], []
    for a, b in zip(evaluated(ours), evaluated(theirs), strict=True):
        found.append((sign * (a[metric] - b[metric]), error(a, b, metric, clients)))
    freedom, mean = clients - 1, float(np.mean([gap for gap, _ in found]))
    if math.isinf(found[0][1]):
        return Gap(mean, -math.inf, math.inf, 1.0, tuple(gap for gap, _ in found))
    ordered = sorted(found, key=lambda each: math.copysign(1, each[0]) * stats.t.cdf(abs(each[0]) / each[1], freedom))
    half, odd = len(ordered) // 2, len(ordered) % 2
    middle = ordered[half] if odd else tuple(np.mean(ordered[half - 1 : half + 1], axis=0))
    p = min(1.0, 2 * 2 * stats.t.sf(abs(middle[0]) / middle[1], freedom)) if middle[0] * mean > 0 else 1.0
    margin = stats.t.ppf(1 - 0.0125, freedom) * middle[1]
    ends = min(middle[0] - margin, mean), max(middle[0] + margin, mean)
    return Gap(mean, *ends, p, tuple(gap for gap, _ in found))


def evaluated(results: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [result["test"]["personal"] or result["test"]["shared"] for result in results]


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def test_the_differences(page: str, cells: dict[tuple[str, str], Rows]) -> None:
    for (condition, data), rows in cells.items():
        line = f"| {data} |"
        for metric in METRICS:
            gap = gap_of(rows["fedtilt-validated"], rows["ditto-validated"], metric)
            mean, ends = gap.texts
            line += f" {f'**{mean}**' if gap.sign else mean}{ends} |"
        assert line in page, condition


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_verdict_on_fedtilt_as_the_best(page: str, cells: dict[tuple[str, str], Rows], condition: str) -> None:
    metrics = list(METRICS) if condition == "flips" else list(METRICS)[:4]
    wins = 0
    for data in DATA:
        rows = cells[condition, data]
        for metric in metrics:
            rivals = [rows[rival] for rival in ("fedavg", "ditto-validated")]
            wins += all(gap_of(rows["fedtilt-validated"], rival, metric).sign > 0 for rival in rivals)
    cases = 3 * len(metrics)
    verdict = "holds" if wins == cases else "holds partly" if wins else "does not hold"
    which = "all five metrics" if condition == "flips" else "the paper’s four metrics"
    text = f"FedTilt (validated) better than FedAvg and Ditto (validated) on {which}: {wins} of {cases} ("
    title = load(condition).title
    chapter = re.split(r"^# ", page[page.index(f"\n# {title}\n") + 3 :], flags=re.MULTILINE)[0]
    assert f"| **{verdict}** | {text}" in chapter


def test_impossible_figures_are_found_by_brute_force() -> None:
    """The spread of two equal classes, over all pairs of accuracies with the given mean, never reaches the figure."""
    first = np.linspace(0, 100, 10001)
    impossible = 0
    experiments = [load(name) for name in ("clean", "corruptions", "gaussian")]
    for experiment in experiments:
        for data in ("mnist", "fashion-mnist"):
            for accuracy, _, spread, _ in experiment.published[data].values():
                second = 2 * accuracy - first
                allowed = (second >= 0) & (second <= 100)
                impossible += (np.abs(first - second) / 2)[allowed].max() < spread
    table = impossible_table(experiments)
    assert table is not None
    assert (impossible, len(table.rows)) == (16, 18)
    assert table.caption.startswith("16 of the paper’s 18 figures")
    assert sum("impossible" in str(row[-1]) for row in table.rows) == 16
    assert "any p above 0.39" in table.notes
    assert "for two classes, 15 are impossible" in table.notes
