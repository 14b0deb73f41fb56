"""Equal tuning budgets: the same number of trials for every method, chosen on validation data of tuning seeds alone."""

import json
from dataclasses import replace

import pytest

from fedtilt.errors import InputError
from reproduction import Options, load
from reproduction.experiments.tuning import (
    STAGES,
    VALIDATION,
    cases,
    chapter,
    choices,
    choose,
    measure,
    stage_grids,
    trials,
)
from reproduction.results import RESULTS, ResultsFolder
from reproduction.runner import load_results
from reproduction.training import method_of

TRAIN = {"lr": 0.01, "epochs": 10}


@pytest.mark.parametrize(
    ("data", "sizes"), [("mnist", [12, 4]), ("fashion-mnist", [12, 4]), ("cifar10", [6, 4]), ("digits", [2, 1])]
)
def test_every_method_has_the_same_number_of_different_trials(data: str, sizes: list[int]) -> None:
    settings = load("tuning").settings
    stages = [trials(grids) for stage in STAGES if (grids := stage_grids(settings, data, stage))]
    assert [{len(by_name) for by_name in grid.values()} for grid in stages] == [{size} for size in sizes]
    assert all(grid.keys() == stages[0].keys() for grid in stages)
    for method in stages[0]:  # settings that a trial leaves out have defaults: the methods must differ, not the names
        methods = {replace(method_of(name, s), name="x") for grid in stages for name, s in grid[method].items()}
        assert len(methods) == sum(sizes), method


def test_a_trial_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match="the trial 'ditto mu=0.1' twice"):
        trials({"ditto": [{"mu": [0.1, 1.0]}, {"mu": [0.1]}]})


def test_tuning_seeds_are_not_those_of_the_comparisons() -> None:
    seeds = {case.settings["seed"] for case in cases(load("tuning"), Options())}
    compared = {case.settings["seed"] for case in _comparison_cases()}
    assert len(seeds) == 3
    assert not seeds & compared


def _comparison_cases() -> list:
    from reproduction.experiments.comparison import cases as comparison_cases

    return [
        c for name in ("clean", "corruptions", "gaussian", "flips") for c in comparison_cases(load(name), Options())
    ]


def _result(**accuracy: float) -> dict:
    metrics = {name: {"validation": {"accuracy": value, "client_fairness": 5.0}} for name, value in accuracy.items()}
    return {"methods": metrics, "diverged": {}}


def test_the_best_mean_over_seeds_is_chosen_and_an_end_of_the_grid_is_named() -> None:
    by_name = {name: {"preset": "fedavg", "lr": lr} for name, lr in {"a": 0.1, "b": 0.2, "c": 0.3}.items()}
    choice = choose(by_name, [_result(a=90, b=80, c=10), _result(a=80, b=91, c=99)], "validation", TRAIN)
    assert (choice.trial, choice.accuracy, choice.at_the_end) == ("b", 85.5, ())
    choice = choose(by_name, [_result(a=90, b=80, c=10)], "validation", TRAIN)
    assert (choice.trial, choice.at_the_end) == ("a", ("lr",))
    choice = choose(by_name, [_result(a=90, b=80), _result(b=80, c=99)], "validation", TRAIN)
    assert choice.trial == "b"  # the others diverged in one of the seeds


def test_the_ends_of_a_grid_count_defaults_but_neither_text_nor_two_values() -> None:
    preset = {"preset": "ditto", "personal_start": "initial"}
    by_name = {"a": preset | {"lr_personal": 0.1}, "b": preset | {"mu": 0.1}, "c": preset | {"mu": 1.0}}
    assert choose(by_name, [_result(a=90, b=80, c=10)], "validation", TRAIN).at_the_end == ("mu",)  # mu 0.01
    assert choose(by_name, [_result(a=80, b=90, c=10)], "validation", TRAIN).at_the_end == ()
    by_name["a"] |= {"lr_personal": 0.001}
    by_name["c"] |= {"lr_personal": 0.1}
    assert choose(by_name, [_result(a=80, b=90, c=10)], "validation", TRAIN).at_the_end == ()  # lr_personal 0.01
    assert choose(by_name, [_result(a=80, b=10, c=90)], "validation", TRAIN).at_the_end == ("lr_personal", "mu")


def test_the_choice_is_over_both_grids_where_both_are_measured() -> None:
    experiment = load("tuning").quick_version()
    first, second = (
        {
            "methods": {
                name: {split: {"accuracy": accuracy, "client_fairness": 1.0} for split in VALIDATION}
                for name in case.settings["methods"]
            }
        }
        for case, accuracy in zip(cases(experiment, Options(quick=True)), (80.0, 90.0), strict=False)
    )
    results = {"digits-clean-seed-100": first}
    key = ("digits", "clean", "fedtilt", "validation")
    assert choices(experiment, results)[key].trial == "fedtilt tau=0 lam=-2 lr_personal=0.1"
    results["digits-clean-extended-seed-100"] = second
    assert choices(experiment, results)[key].trial == "fedtilt tau=0 lam=-2 lr_personal=0.03 mu=0.1"
    assert choices(experiment, {"digits-clean-extended-seed-100": second}) == {}


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
    experiment, results = load_results(ResultsFolder(RESULTS), "tuning", quick=False)
    chosen = choices(experiment, results)
    assert chosen
    for (data, condition, method, split), choice in chosen.items():
        means: dict[str, float] = {}
        prefixes = tuple(f"{data}-{condition}{stage}-seed-" for stage in ("", "-extended"))
        cases = {case: result for case, result in results.items() if case.startswith(prefixes)}
        seeds = {case.split("-")[-1] for case in cases}
        for result in cases.values():
            for name, metrics in result["methods"].items():
                if name.split()[0] == method:
                    means[name] = means.get(name, 0.0) + metrics[split]["accuracy"] / len(seeds)
        assert choice.accuracy == pytest.approx(max(means.values()))
        assert means[choice.trial] == pytest.approx(choice.accuracy)
