"""docs/byzfl-seeds.md matches the recorded runs; its figures by hand."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.byzfl_seeds import (
    PAGE,
    best_of_mean,
    config_of,
    difference_of_means,
    figures,
    mean_change,
    our_runs,
    page,
)
from reproduction.results import CaseResult, ResultsFolder

DEFAULT = {
    "benchmark_config": {"nb_steps": 800, "f": [1, 2, 3, 4], "nb_training_seeds": 3},
    "aggregator": [
        {"name": "GeometricMedian", "parameters": {"nu": 0.1, "T": 3}}, {"name": "TrMean", "parameters": {}},
    ],
    "pre_aggregators": [{"name": "Clipping", "parameters": {}}, {"name": "NNM", "parameters": {}}],
    "attack": [
        {"name": "SignFlipping", "parameters": {}}, {"name": "Optimal_InnerProductManipulation", "parameters": {}},
    ],
}  # fmt: skip


def test_the_page_matches_the_record() -> None:
    assert PAGE.read_text() == page(), "run python -m benchmarks.byzfl_seeds --page"


def test_one_run_of_byzfls_default_configuration() -> None:
    before = json.dumps(DEFAULT)
    case = {"attackers": 3, "method": "geometric-median", "attack": "ipm", "batch_seed": 2, "division_seed": 1}
    config = config_of(case, DEFAULT)
    assert config["benchmark_config"] == {
        "nb_steps": 800, "f": 3, "tolerated_f": 3, "nb_workers": 13, "nb_honest_clients": 10, "nb_training_seeds": 3,
        "data_distribution": {"name": "gamma_similarity_niid", "distribution_parameter": 0.0},
        "training_seed": 2, "data_distribution_seed": 1,
    }  # fmt: skip
    assert config["aggregator"] == {"name": "GeometricMedian", "parameters": {"nu": 0.1, "T": 3, "f": 3}}
    assert [step["parameters"] for step in config["pre_aggregators"]] == [{"f": 3}, {"f": 3}]
    assert config["attack"]["name"] == "Optimal_InnerProductManipulation"
    assert json.dumps(DEFAULT) == before


def test_a_figure_is_the_best_evaluation_of_the_mean_under_the_worst_attack() -> None:
    curves = {"sign-flip": [[10, 20, 30], [10, 40, 0], [10, 30, 0]], "ipm": [[0, 12, 0], [0, 9, 0], [0, 9, 60]]}
    cases = [
        {"division_seed": 0, "attackers": 3, "method": "trimmed-mean", "attack": attack, "batch_seed": seed, "curve": c}
        for attack, found in curves.items() for seed, c in enumerate(found)
    ]  # fmt: skip
    assert best_of_mean(curves["sign-flip"]) == 30  # each for itself: 30, 40 and 30
    assert figures(cases, 3, "trimmed-mean") == {0: (20, True)}
    assert figures(cases[:3], 3, "trimmed-mean") == {0: (30, False)}  # IPM is not measured
    assert figures(cases[:2], 3, "trimmed-mean") == {}  # nor the third seed
    assert mean_change(cases[:2]) == (10 + 10 + 30 + 40) / 4


def test_the_difference_of_two_groups_of_runs() -> None:
    difference, error = difference_of_means([30.0, 34.0], [20.0, 24.0, 28.0])
    assert difference == 8
    assert error == pytest.approx(math.sqrt(8 / 2 + 16 / 3))


def test_our_runs_are_those_of_the_attack(tmp_path: Path) -> None:
    for name, best in {"f-3-ipm-seed-0": 20.0, "f-3-ipm-seed-1": 30.0, "f-3-alie-seed-0": 80.0}.items():
        record = CaseResult(
            case=f"byzfl-mnist-gamma-0-{name}", what="", quick=False, seeds=None, settings={}, environment={},
            seconds=0.0, result={"best": {"trimmed-mean": best}},
        )  # fmt: skip
        ResultsFolder(tmp_path).append("others", record)
    assert our_runs(3, "trimmed-mean", "ipm", tmp_path) == [20.0, 30.0]
