"""Equal tuning budgets: the same number of trials for every method, chosen on validation data of tuning seeds alone."""

import json
from pathlib import Path

import pytest

from fedtilt.reproduction import Options, load
from fedtilt.reproduction.results_folder import ResultsFolder
from fedtilt.reproduction.runner import load_results
from fedtilt.reproduction.train_grid import method_of
from fedtilt.reproduction.tuning.experiment import cases, chapter, choices, choose, measure, trials

DOCS = Path(__file__).parents[3] / "docs" / "reproduction" / "results"


@pytest.mark.parametrize("quick", [False, True])
def test_every_method_has_the_same_number_of_trials(quick: bool) -> None:
    experiment = load("tuning").quick_version() if quick else load("tuning")
    grid = trials(experiment.settings["trials"])
    assert {len(by_name) for by_name in grid.values()} == {2 if quick else 12}
    assert all(method_of(name, setting) for by_name in grid.values() for name, setting in by_name.items())


def test_tuning_seeds_are_not_those_of_the_comparisons() -> None:
    seeds = {case.settings["seed"] for case in cases(load("tuning"), Options())}
    compared = {case.settings["seed"] for case in _comparison_cases()}
    assert len(seeds) == 3
    assert not seeds & compared


def _comparison_cases() -> list:
    from fedtilt.reproduction.comparison.experiment import cases as comparison_cases

    return [
        c for name in ("clean", "corruptions", "gaussian", "flips") for c in comparison_cases(load(name), Options())
    ]


def _result(**accuracy: float) -> dict:
    metrics = {name: {"validation": {"accuracy": value, "client_fairness": 5.0}} for name, value in accuracy.items()}
    return {"methods": metrics, "diverged": {}}


def test_the_best_mean_over_seeds_is_chosen_and_an_end_of_the_grid_is_named() -> None:
    axes = {"lr": [0.1, 0.2, 0.3]}
    by_name = {"a": {"lr": 0.1}, "b": {"lr": 0.2}, "c": {"lr": 0.3}}
    choice = choose(axes, by_name, [_result(a=90, b=80, c=10), _result(a=80, b=91, c=99)], "validation")
    assert (choice.trial, choice.accuracy, choice.at_the_end) == ("b", 85.5, ())
    choice = choose(axes, by_name, [_result(a=90, b=80, c=10)], "validation")
    assert (choice.trial, choice.at_the_end) == ("a", ("lr",))
    choice = choose(axes, by_name, [_result(a=90, b=80), _result(b=80, c=99)], "validation")
    assert choice.trial == "b"  # the others diverged in one of the seeds


def test_a_case_keeps_metrics_on_validation_data_alone() -> None:
    experiment = load("tuning").quick_version()
    case = next(case for case in cases(experiment, Options(quick=True)) if "flips" in case.name)
    result = measure(case, Options(quick=True, device="cpu"), lambda *_: None)
    assert set(result["methods"]) == set(case.settings["methods"])
    assert {split for method in result["methods"].values() for split in method} == {"validation", "noisy_validation"}
    clean, noisy = (result["methods"]["ditto lr_personal=0.1 mu=0.01"][s] for s in ("validation", "noisy_validation"))
    assert clean["accuracy"] > noisy["accuracy"]  # 30 % of its labels are wrong
    assert "Not measured yet: digits, clean" in json.dumps(
        [p.__dict__ for p in chapter(experiment, {case.name: result}).parts]
    )


def test_the_committed_choices_are_those_of_a_plain_recomputation() -> None:
    experiment, results = load_results(ResultsFolder(DOCS), "tuning", quick=False)
    chosen = choices(experiment, results)
    assert chosen
    for (data, condition, method, split), choice in chosen.items():
        means: dict[str, float] = {}
        for seed in (100, 101, 102):
            content = json.loads((DOCS / "tuning" / f"{data}-{condition}-seed-{seed}.json").read_text())
            for name, metrics in content["result"]["methods"].items():
                if name.split()[0] == method:
                    means[name] = means.get(name, 0.0) + metrics[split]["accuracy"] / 3
        assert choice.accuracy == pytest.approx(max(means.values()))
        assert means[choice.trial] == pytest.approx(choice.accuracy)
