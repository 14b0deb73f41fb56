"""Every method with its chosen settings, on test data of seeds that tuning did not use."""

from pathlib import Path
from statistics import fmean

import pytest

from reproduction import Options, load
from reproduction.chapter import Table, Text
from reproduction.experiments.chosen import chosen_settings
from reproduction.experiments.paired import COMPARED_METRICS, DatasetComparison
from reproduction.experiments.tuned import (
    METHOD_TITLES,
    ROW_TITLES,
    cases,
    chapter,
    compare_cells,
    count_tests,
    measure,
    row_settings,
    score_all,
)
from reproduction.experiments.tuning import cases as tuning_cases
from reproduction.results import ResultsFolder
from reproduction.runner import load_results
from reproduction.training import evaluated, method_of, trial_name
from tests.helpers.handmade_results import metrics, part, write_tuned_results

METHODS = {"fedavg", "fedprox", "term", "local", "fedavg_finetuned", "ditto", "fedtilt"}


def test_seeds_and_sizes_of_the_cases() -> None:
    all_cases = cases(load("tuned"), Options())
    tuning_seeds = {case.settings["seed"] for case in tuning_cases(load("tuning"), Options())}
    for data in ("mnist", "fashion-mnist"):
        seeds = [c.settings["seed"] for c in all_cases if c.settings["data"] == data]
        assert sorted(set(seeds)) == list(range(10))
        assert not set(seeds) & tuning_seeds
    sizes = {str(c.settings["clients"]) for c in [*all_cases, *tuning_cases(load("tuning"), Options())]}
    assert len(sizes) == 1  # settings are used with the client sizes that they were chosen for
    for case in all_cases:
        for name, setting in case.settings["methods"].items():
            assert method_of(name, setting).name == name


def test_rows_of_a_cell() -> None:
    settings = load("tuned").settings
    rows = row_settings(settings, "mnist", "flips")
    assert set(rows) == METHODS | {f"{m}-noisy" for m in METHODS} | {
        f"{m}-{start}" for m in ("ditto", "fedtilt") for start in ("last", "initial")
    }
    assert rows["ditto"] == {"preset": "ditto", **chosen_settings()["mnist"]["flips"]["validation"]["ditto"]}
    assert rows["ditto-initial"] == rows["ditto-last"] | {"personal_start": "initial"}
    gaussian = set(row_settings(settings, "mnist", "gaussian")) - set(rows)
    assert gaussian == {"fedtilt-captions", "fedtilt-text"}
    assert row_settings(settings, "mnist", "unknown") == {}


def test_a_quick_case_keeps_metrics_on_test_data_alone() -> None:
    experiment = load("tuned").quick_version()
    case = next(case for case in cases(experiment, Options(quick=True)) if "gaussian" in case.name)
    result = measure(case, Options(quick=True, device="cpu"), lambda *_: None)
    assert {split for method in result["methods"].values() for split in method} == {"test"}
    assert set(result["methods"]) == set(case.settings["methods"])
    for method in result["methods"].values():  # counts of clients, which later verdicts compare
        for models, correct in method["test"]["correct"].items():
            pairs = zip(correct or [], result["samples"], strict=correct is not None)
            shares = [100 * sum(right) / sum(samples) for right, samples in pairs]
            assert method["test"][models] is None or fmean(shares) == pytest.approx(
                method["test"][models]["accuracy"], abs=1e-3
            )
    comparison = compare_cells(experiment, {case.name: result})["digits gaussian"]
    assert set(comparison.rows) == set(row_settings(experiment.settings, "digits", "gaussian"))
    captions = result["methods"]["fedtilt tau=-50 lam=50"]
    assert comparison.values("fedtilt-captions", "accuracy").values == (evaluated(captions)["accuracy"],)
    assert compare_cells(experiment, {})["digits flips"].rows == {}


def test_the_chapter_says_what_is_missing_and_shows_equal_settings_once(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    write_tuned_results(folder, seeds=2)
    experiment, results = load_results(folder, "tuned", quick=False)
    parts = chapter(experiment, {name: r for name, r in results.items() if name.startswith("mnist-gaussian")}).parts
    missing = next(part.markdown for part in parts if isinstance(part, Text))
    assert missing.startswith("Not measured yet: mnist clean, mnist corruptions, mnist flips, fashion-mnist clean, ")
    assert missing.endswith("cifar10 flips.")
    table = next(p for p in parts if isinstance(p, Table) and p.caption == "mnist, gaussian: every method, 2 seeds")
    settings = row_settings(experiment.settings, "mnist", "gaussian")
    assert len(table.rows) == len({trial_name(setting) for setting in settings.values()})
    for method in METHODS:
        title = METHOD_TITLES[method]
        kinds = [row[1] for row in table.rows if row[0].startswith(f"{title}<br>")]
        assert kinds == (["both"] if settings[method] == settings[f"{method}-noisy"] else ["clean", "noisy"])


def test_equal_settings_for_both_kinds_of_validation_data_are_one_test() -> None:
    def by_seed(*accuracy: float) -> dict[int, dict]:
        return {seed: part(metrics(value)) for seed, value in enumerate(accuracy)}

    cell = DatasetComparison(data="mnist", condition="flips", titles=ROW_TITLES, clients=100)
    ours, theirs, other = by_seed(95.0, 96.0, 97.0), by_seed(94.0, 94.5, 95.5), by_seed(93.0, 94.5, 95.5)
    cell.rows.update({"fedtilt": ours, "fedtilt-noisy": ours, "ditto": theirs, "ditto-noisy": theirs})
    same = score_all([cell])
    assert count_tests(same) == len(COMPARED_METRICS) - 1  # nothing is known of the worst 10 %
    cell.rows["ditto-noisy"] = other
    different = score_all([cell])
    assert count_tests(different) == len(COMPARED_METRICS)  # and another test of accuracy: fairness is equal
    first = next(s for s in same if s.rival == "ditto" and s.metric.key == "accuracy")
    assert first.adjusted == pytest.approx(first.difference.verdict.p_value * (len(COMPARED_METRICS) - 1))
    assert {s.outcome for s in same if s.rival == "term"} == {"not measured"}
