"""The numbers of the tuned comparison on the page, recomputed from the JSON files with plain loops."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reproduction
from reproduction.results import RESULTS, ResultsFolder
from tests.helpers.handmade_results import write_tuned_results
from tests.reproduction.page.test_recomputed import (
    CONDITIONS,
    METRICS,
    RIVALS,
    Gap,
    gap_of,
    results_of,
    values,
    whole_text,
)

KINDS = {"validation": "clean", "noisy_validation": "noisy"}
Cells = dict[tuple[str, str], dict[tuple[str, str], list[dict[str, Any]]]]  # cell → method, kind → a result per seed
Tests = dict[tuple[str, str, str, str, str], tuple[Gap, float]]


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
    """Kind, rival, metric, condition, data set → the difference (positive: FedTilt is better), and p after Holm."""
    gaps = {
        (kind, rival, metric, *cell): gap_of(rows["fedtilt", kind], rows[rival, kind], metric)
        for cell, rows in cells.items()
        for kind in KINDS.values()
        for rival in RIVALS
        if (rival, kind) in rows
        for metric in METRICS
    }
    different: dict[tuple, list[tuple]] = {}  # the same settings for both kinds of validation data are one test
    for key, gap in gaps.items():
        if np.isfinite(gap.low):
            different.setdefault((*key[1:], gap), []).append(key)
    ordered = sorted(different.values(), key=lambda keys: gaps[keys[0]].p)
    corrected, largest = dict.fromkeys(gaps, 1.0), 0.0
    for i, keys in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - i) * gaps[keys[0]].p))
        corrected |= dict.fromkeys(keys, largest)
    return {key: (gap, corrected[key]) for key, gap in gaps.items()}


def counts(selected: list[tuple[Gap, float]]) -> list[int]:
    """Better, not told apart, worse; better and worse after Holm's correction."""
    better, worse = (sum(gap.sign == sign for gap, _ in selected) for sign in (1, -1))
    corrected = [sum(gap.sign == sign and p <= 0.05 for gap, p in selected) for sign in (1, -1)]
    return [better, len(selected) - better - worse, worse, *corrected]


def different_tests(tests: Tests) -> int:
    return len({(*key[1:], gap) for key, (gap, _) in tests.items() if np.isfinite(gap.low)})


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


def not_told_apart(of_method: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The most accurate method, and those that are not worse after Holm's correction over all pairs."""
    order = sorted(of_method, key=lambda method: -values(of_method[method], "accuracy").mean())
    pairs = {(a, b): gap_of(of_method[a], of_method[b], "accuracy") for a, b in itertools.combinations(order, 2)}
    ranked, largest, adjusted = sorted(pairs, key=lambda pair: pairs[pair].p), 0.0, {}
    for i, pair in enumerate(ranked):
        adjusted[pair] = largest = max(largest, (len(ranked) - i) * pairs[pair].p)
    first, *others = order
    worse = {b for b in others if pairs[first, b].sign > 0 and pairs[first, b].mean >= 0.005}
    return [
        b for b in order if b == first or b not in worse or (len(worse) < len(others) and adjusted[first, b] > 0.05)
    ]


def test_the_opening(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    page = source[1]
    for (condition, data), rows in cells.items():
        line = f"| {CONDITIONS[condition]} | {data} |"
        for rival in ("fedavg_finetuned", "ditto"):
            for metric in ("accuracy", "worst"):
                gap, adjusted = tests["noisy", rival, metric, condition, data]
                mean, ends = gap.texts
                line += f" {f'**{mean}**' if gap.sign else mean}{' ★' if adjusted <= 0.05 else ''}{ends} |"
        assert line in page
        assert all(len(results) == len(rows["fedtilt", "noisy"]) for results in rows.values())
    if not cells:
        return

    def count(kind: str, rival: str, metric: str) -> list[int]:
        return counts([test for key, test in tests.items() if key[:3] == (kind, rival, metric)])

    for rival in ("fedavg_finetuned", "ditto"):
        accuracy, clean = (count(kind, rival, "accuracy") for kind in ("noisy", "clean"))
        assert (
            f"- **Against {RIVALS[rival]}** it is more accurate in {accuracy[0]} of {len(cells)} cells and less "
            f"accurate in {accuracy[2]}. In points of accuracy: "
        ) in page
        assert f"it is more accurate in {clean[0]} and less accurate in {clean[2]}." in page
    ahead, behind, leading = 0, 0, dict.fromkeys(["fedtilt", *RIVALS], 0)
    for cell, rows in cells.items():
        both = [counts([tests["noisy", rival, "accuracy", *cell]]) for rival in ("fedavg_finetuned", "ditto")]
        ahead += all(numbers[0] for numbers in both)
        behind += any(numbers[2] for numbers in both)
        of_method = {method: results for (method, kind), results in rows.items() if kind == "noisy"}
        for method in not_told_apart(of_method):
            leading[method] += 1
    found = re.search(
        r"more accurate than both\*\* in (\S+)[^.]* cells .*less accurate than one of them in (\S+)", page
    )
    assert found is not None
    assert [0 if word.startswith("none") else int(word) for word in found.groups()] == [ahead, behind]
    for method, number in leading.items():
        if number:
            assert re.search(rf"not told apart from it:\*\* .*\b{RIVALS.get(method, 'FedTilt')} in {number}\b", page)


def test_what_remains_after_the_correction(source: tuple[Path, str], cells: Cells, tests: Tests) -> None:
    if not cells:
        return
    texts = []
    for rival in ("fedavg_finetuned", "ditto"):
        remaining = {(*key[2:], gap): gap.mean > 0 for key, (gap, p) in tests.items() if key[1] == rival and p <= 0.05}
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
                line += rf" (\*\*)?{sum(numbers.tolist()) / len(numbers):.2f} ± {numbers.std(ddof=1):.2f}(\*\*)? \|"
            assert re.search(line, table, re.MULTILINE)


def test_the_differences(source: tuple[Path, str], tests: Tests) -> None:
    for (_, rival, metric, condition, data), (gap, adjusted) in tests.items():
        if rival in ("fedavg_finetuned", "ditto") and metric != "worst":
            mean, ends = gap.texts
            text = f"{mean} ({ends.removeprefix('<br>')})"
            line = rf"\| {condition} \| {data} \| \w+ \| {METRICS[metric][0]} \| "
            line += re.escape(f"**{text}**" if gap.sign else text)
            assert re.search(rf"{line} \| {len(gap.seeds)} \| {gap.p:.4f} \| {adjusted:.4f} \|", source[1])


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
        for metric in list(METRICS)[:4]:
            if ("term", "clean") in rows:
                rivals = [rows[rival, "clean"] for rival in ("term", "fedprox")]
                better = [gap_of(rows["ditto", "clean"], rival, metric).sign > 0 for rival in rivals]
                wins, total = wins + all(better), total + 1
    assert f"Ditto better than TERM and FedProx on the paper’s four metrics: {wins} of {total} (" in source[1]
