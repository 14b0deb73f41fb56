"""The numbers of the tuned comparison on the page, recomputed from the JSON files with scipy and plain loops."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import reproduction
from reproduction.results import RESULTS, ResultsFolder
from tests.helpers.handmade_results import write_tuned_results
from tests.reproduction.page.test_recomputed import (
    CONDITIONS,
    METRICS,
    RIVALS,
    interval,
    results_of,
    values,
    whole_text,
)

KINDS = {"validation": "clean", "noisy_validation": "noisy"}
Cells = dict[tuple[str, str], dict[tuple[str, str], list[dict[str, Any]]]]  # cell → method, kind → a result per seed
Tests = dict[tuple[str, str, str, str, str], tuple[np.ndarray, float, float]]


def tuned_text(folder: Path) -> str:
    """The opening of the front page, and the chapter."""
    text = whole_text(folder)
    opening, chapters = text[: text.index("\n## Wrong labels that stay\n")], re.split(r"^# ", text, flags=re.MULTILINE)
    return opening + "".join(chapter for chapter in chapters if chapter.startswith("Every method tuned"))


@pytest.fixture(scope="module", params=["random numbers", "our results"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the results, and the page."""
    if request.param == "our results":
        return RESULTS, tuned_text(RESULTS)
    folder = ResultsFolder(tmp_path_factory.mktemp("results"))
    write_tuned_results(folder, seeds=10)
    return folder.folder, tuned_text(folder.folder)


@pytest.fixture(scope="module")
def cells(source: tuple[Path, str]) -> Cells:
    """The results of every method with the settings of chosen.toml."""
    folder = Path(reproduction.__file__).parent / "data"
    chosen, cells = tomllib.loads((folder / "chosen.toml").read_text("utf-8")), {}
    for condition in CONDITIONS:
        for data in ("mnist", "fashion-mnist", "cifar10"):
            rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for result in results_of(source[0], "tuned", f"{data}-{condition}-seed-"):
                for split, kind in KINDS.items():
                    for method, setting in chosen[data][condition][split].items():
                        wanted = {"preset": method, **setting}
                        (name,) = [name for name, s in result["settings"].items() if s == wanted]
                        rows.setdefault((method, kind), []).append(result["methods"][name])
            if rows:
                cells[condition, data] = rows
    return cells


@pytest.fixture(scope="module")
def tests(cells: Cells) -> Tests:
    """Kind, rival, metric, condition, data set → differences (positive: FedTilt is better), p, p after Holm."""
    differences = {
        (kind, rival, metric, *cell): sign * (values(rows["fedtilt", kind], metric) - values(rows[rival, kind], metric))
        for cell, rows in cells.items()
        for kind in KINDS.values()
        for rival in RIVALS
        if (rival, kind) in rows
        for metric, (_, sign) in METRICS.items()
    }
    p_values = {key: stats.ttest_1samp(difference, 0.0).pvalue for key, difference in differences.items()}
    different: dict[tuple, list[tuple]] = {}  # the same settings for both kinds of validation data are one test
    for key, difference in differences.items():
        different.setdefault((*key[1:], tuple(difference)), []).append(key)
    ordered = sorted(different.values(), key=lambda keys: p_values[keys[0]])
    corrected, largest = {}, 0.0
    for i, keys in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - i) * p_values[keys[0]]))
        corrected |= dict.fromkeys(keys, largest)
    return {key: (differences[key], p_values[key], corrected[key]) for key in differences}


def counts(selected: list[tuple[np.ndarray, float, float]]) -> list[int]:
    """Better, tied, worse; better and worse after Holm's correction."""
    better, worse = (sum(sign * d.mean() > 0 and p < 0.05 for d, p, _ in selected) for sign in (1, -1))
    corrected = [sum(sign * d.mean() > 0 and p < 0.05 for d, _, p in selected) for sign in (1, -1)]
    return [better, len(selected) - better - worse, worse, *corrected]


def different_tests(tests: Tests) -> int:
    return len({(*key[1:], tuple(difference)) for key, (difference, _, _) in tests.items()})


def test_the_counts_of_better_tied_and_worse(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    page = source[1]
    if not cells:
        assert "Every method tuned with the same budget" in page.split("Not measured yet: ")[1]
        return
    assert f"Holm’s correction over the {different_tests(tests)} different comparisons" in page
    for kind in KINDS.values():
        for rival, title in RIVALS.items():
            for metric in (None, *METRICS):
                selected = [t for k, t in tests.items() if k[:2] == (kind, rival) and metric in (None, k[2])]
                numbers = counts(selected)
                first, label = numbers[:3], f" {METRICS[metric][0]} |" if metric else ""
                line = re.search(rf"^\| {kind} \| {title} \|{re.escape(label)} (\d.*) \|$", page, re.MULTILINE)
                assert line is not None
                found = list(map(int, line[1].split(" | ")))
                assert (found[:3], found[-2:]) == (first, numbers[3:])


def test_the_opening(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    page = source[1]
    for (condition, data), rows in cells.items():
        line = f"| {CONDITIONS[condition]} | {data} |"
        for rival in ("fedavg_finetuned", "ditto"):
            for metric in ("accuracy", "worst"):
                difference, _, adjusted = tests["noisy", rival, metric, condition, data]
                mean, ends, excludes = interval(difference)
                line += f" {f'**{mean}**' if excludes else mean}{' ★' if adjusted < 0.05 else ''}<br>{ends} |"
        assert line in page
        assert all(len(results) == len(rows["fedtilt", "noisy"]) for results in rows.values())
    if not cells:
        return

    def count(kind: str, rival: str, metric: str) -> list[int]:
        return counts([test for key, test in tests.items() if key[:3] == (kind, rival, metric)])

    for rival in ("fedavg_finetuned", "ditto"):
        accuracy, worst, clean = (
            count(*key)
            for key in (("noisy", rival, "accuracy"), ("noisy", rival, "worst"), ("clean", rival, "accuracy"))
        )
        assert (
            f"- **Against {RIVALS[rival]}** it is more accurate in {accuracy[0]} of {len(cells)} cells and less "
            f"accurate in {accuracy[2]}; for the worst 10 % of the clients it is better in {worst[0]} and worse in "
            f"{worst[2]}. "
        ) in page
        assert f"it is more accurate in {clean[0]} and less accurate in {clean[2]}." in page
    ahead, behind, leading = 0, 0, dict.fromkeys(["fedtilt", *RIVALS], 0)
    for cell, rows in cells.items():
        both = [counts([tests["noisy", rival, "accuracy", *cell]]) for rival in ("fedavg_finetuned", "ditto")]
        ahead += all(numbers[0] for numbers in both)
        behind += any(numbers[2] for numbers in both)
        accuracy = {method: values(results, "accuracy") for (method, kind), results in rows.items() if kind == "noisy"}
        best = max(accuracy, key=lambda method: accuracy[method].mean())
        for method, numbers in accuracy.items():
            gap = accuracy[best] - numbers
            leading[method] += method == best or gap.mean() < 0.005 or stats.ttest_1samp(gap, 0.0).pvalue >= 0.05
    found = re.search(
        r"more accurate than both\*\* in (\S+)[^.]* cells .*less accurate than one of them in (\S+)", page
    )
    assert found is not None
    assert [0 if word.startswith("none") else int(word) for word in found.groups()] == [ahead, behind]
    for method, number in leading.items():
        if number:
            assert re.search(rf"tied with it:\*\* .*\b{RIVALS.get(method, 'FedTilt')} in {number}\b", page)


def test_what_remains_after_the_correction(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    if not cells:
        return
    texts = []
    for rival in ("fedavg_finetuned", "ditto"):
        remaining = {
            (*key[2:], tuple(d)): d.mean() > 0 for key, (d, _, p) in tests.items() if key[1] == rival and p < 0.05
        }
        wins = sum(remaining.values())
        texts.append(f"{wins} for FedTilt and {len(remaining) - wins} for {RIVALS[rival]}")
    assert f"over all {different_tests(tests)} comparisons" in source[1]
    assert f"these differences remain: {'; '.join(texts)}." in source[1]


def test_the_table_of_every_cell(source: tuple[Path, str], cells: Cells) -> None:
    for (condition, data), rows in cells.items():
        start = source[1].index(f"<summary>{data}, {condition}: every method, ")
        table = source[1][start : source[1].index("</details>", start)]
        for (method, _), results in rows.items():
            line = rf"^\| {RIVALS.get(method, 'FedTilt')}<br>[^|]* \| (both|clean|noisy) \|"
            for metric in METRICS:
                numbers = values(results, metric)
                half = stats.t.ppf(0.975, len(numbers) - 1) * stats.sem(numbers)
                line += rf" (\*\*)?{numbers.mean():.2f} ± {half:.2f}(\*\*)? \|"
            assert re.search(line, table, re.MULTILINE)


def test_the_differences(source: tuple[Path, str], tests: Tests) -> None:
    for (_, rival, metric, condition, data), (difference, p, adjusted) in tests.items():
        if rival in ("fedavg_finetuned", "ditto"):
            mean, ends, excludes = interval(difference)
            text = f"**{mean} ({ends})**" if excludes else f"{mean} ({ends})"
            effect = f"{difference.mean() / difference.std(ddof=1):+.1f}".replace("-", "−")
            line = (
                rf"\| {condition} \| {data} \| \w+ \| {METRICS[metric][0]} \| {re.escape(text)} \| {re.escape(effect)}"
            )
            assert re.search(rf"{line} \| {len(difference)} \| {p:.4f} \| {adjusted:.4f} \|", source[1])


def test_verdicts(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    if not cells:
        return
    for kind, rival in (("clean", "ditto"), ("noisy", "ditto"), ("noisy", "fedavg_finetuned")):
        numbers = counts([test for key, test in tests.items() if key[:2] == (kind, rival)])
        total = sum(numbers[:3])
        verdict = "holds" if numbers[0] == total else "holds partly" if numbers[0] else "does not hold"
        against = f"better than {RIVALS[rival]} on all five metrics"
        claim = f"| With {kind} validation data, FedTilt is {against}. |"
        assert f"{claim} **{verdict}** | FedTilt {against}: {numbers[0]} of {total} (" in source[1]
    wins = total = 0
    for rows in cells.values():
        for metric, (_, sign) in list(METRICS.items())[:4]:
            if ("term", "clean") in rows:
                better = []
                for rival in ("term", "fedprox"):
                    gap = sign * (values(rows["ditto", "clean"], metric) - values(rows[rival, "clean"], metric))
                    better.append(gap.mean() > 0 and stats.ttest_1samp(gap, 0.0).pvalue < 0.05)
                wins, total = wins + all(better), total + 1
    assert f"Ditto better than TERM and FedProx on the paper’s four metrics: {wins} of {total} (" in source[1]
