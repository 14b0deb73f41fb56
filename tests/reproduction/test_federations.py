"""The leaderboard on real-world federations: its cases, its data in files, its baselines and its ranks."""

import itertools
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

import fedtilt as ft
from fedtilt.errors import InputError, InputWarning
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.evaluation.true_spread import true_spread
from fedtilt.evaluation.verdicts import holm
from reproduction import submitted
from reproduction.experiment import Options, load
from reproduction.experiments import federations, leaderboard
from reproduction.page.chance import beyond_chance
from reproduction.prepared import prepare, read_table
from reproduction.results import ResultsFolder
from reproduction.runner import case_statuses, reproduce
from reproduction.training import method_of
from tests.docs.code_blocks import blocks_of

FEDERATIONS = Path(__file__).parents[2] / "docs" / "federations.md"
KEYS = ("x_train", "y_train", "client_train", "x_test", "y_test", "client_test")


@pytest.fixture(autouse=True)
def no_warnings_about_small_clients():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        yield


def test_every_method_has_four_settings_and_every_method_of_the_library_is_there():
    settings = load("federations").settings
    assert {len(trials) for trials in settings["methods"].values()} == {4}
    assert {trial["preset"] for trials in settings["methods"].values() for trial in trials} == set(ft.methods.PRESETS)


def test_the_first_cases_are_all_tables_with_the_first_seed_and_no_noise():
    cases = federations.cases(load("federations"), Options())
    first = cases[: 13 * 3]
    assert {case.settings["data"] for case in first} == set(load("federations").settings["data"])
    assert {case.settings["seed"] for case in first} == {0}
    assert {case.settings["outliers"] for case in first} == {"none"}


def test_a_prepared_table_is_the_table(tmp_path):
    prepare("cgd", 1, str(tmp_path))
    stored, loaded = read_table("cgd", 1, str(tmp_path)), ft.data.load("cgd", seed=1)
    assert all(torch.equal(getattr(stored, key), getattr(loaded, key)) for key in KEYS)
    assert (stored.client_names, stored.class_names) == (loaded.client_names, loaded.class_names)
    for name, column in loaded.groups.items():
        assert torch.equal(stored.groups[name].test, column.test)


def test_one_setting_is_chosen_on_validation_data_and_measured_on_test_data():
    experiment = load("federations", quick=True)
    few = {name: experiment.settings["methods"][name] for name in ("FedAvg", "Ditto")}
    experiment = replace(experiment, settings={**experiment.settings, "methods": few})
    case = federations.cases(experiment, Options())[0]
    result = federations.measure(case, Options(device="cpu"), lambda *_: None)
    for method, chosen in result["chosen"].items():
        of_method = {name: value for name, value in result["validation"].items() if name.startswith(method)}
        assert result["validation"][chosen] == max(of_method.values())
    samples = np.array(result["samples"])
    for values in result["methods"].values():
        shares = 100 * np.array(values["correct"]) / samples
        assert values["accuracy"] == pytest.approx(shares.mean(), abs=1e-3)
        assert values["client_fairness"] == pytest.approx(shares.std(), abs=1e-3)
    assert sum(samples) == len(ft.data.load("cgd").y_test)


def test_the_mixed_effects_model_shrinks_the_clients_towards_the_pooled_regression():
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(8), 30)
    x = rng.normal(size=(240, 1))
    y = (rng.random(240) < 1 / (1 + np.exp(-x[:, 0] - np.linspace(-1, 1, 8)[client]))).astype(int)
    at_zero = np.zeros((8, 1))
    mixed = federations._mixed_effects(x, y, client, at_zero, np.arange(8), 8)[:, 1].numpy()
    own = np.array([y[client == c].mean() for c in range(8)])
    pooled = float(federations._logistic(x, y, at_zero)[0, 1])
    assert np.corrcoef(mixed, own)[0, 1] > 0.8
    assert mixed.min() < pooled < mixed.max()
    assert mixed.std() < own.std()


def test_ranks_and_pairs_by_hand():
    rng = np.random.default_rng(1)
    table = rng.random((6, 3))  # federations × methods
    cells = [{name: {"accuracy": value} for name, value in zip("abc", row, strict=True)} for row in table]
    ranks = leaderboard.mean_ranks(cells)
    assert list(ranks.values()) == pytest.approx(list((table[:, :, None] < table[:, None, :]).sum(2).mean(0) + 1))
    gaps = table[:, 0] - table[:, 1]
    (verdict,) = leaderboard.compare_over(cells, [("a", "b")])
    signs = np.array(list(itertools.product((1, -1), repeat=6)))
    by_chance = (np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-6).mean()
    assert verdict.difference == pytest.approx(gaps.mean(), abs=1e-6)
    assert verdict.p_value == pytest.approx(max(by_chance, ttest_1samp(gaps, 0.0).pvalue), abs=1e-5)


def test_the_sentence_on_the_best_names_only_what_is_told_apart():
    gaps = np.linspace(0.5, 1.5, 13)
    cells = [{"a": {"accuracy": 80.0}, "b": {"accuracy": 80.0 - 8 * g}, "c": {"accuracy": 81.0 - g}} for g in gaps]
    assert leaderboard.best_sentence(cells) == (
        "a has the highest mean accuracy; worse beyond chance are b, and the other 1 are not told apart from it."
    )
    few = [{name: cell[name] for name in "ac"} for cell in cells]
    assert "no other method is told apart from it" in leaderboard.best_sentence(few)
    assert "is told apart from all others" in leaderboard.best_sentence([{n: c[n] for n in "ab"} for c in cells])


def test_the_pairs_are_corrected_together():
    def cells(gap):
        values = {"FedTilt": 70.0 + gap, "Ditto": 70.0, "FedAvg": 70.0 - gap}
        noise = np.random.default_rng(3).normal(0, 0.3, (13, 3))
        return {
            str(n): {name: {"accuracy": v + e} for (name, v), e in zip(values.items(), row, strict=True)}
            for n, row in enumerate(noise)
        }

    table = leaderboard._pairs_table({"plain-logistic": cells(2.0), "plain-mlp": cells(0.0)})
    assert [row[:2] for row in table.rows[:2]] == [
        ["FedTilt − Ditto", "plain, logistic"], ["FedTilt − Ditto", "plain, mlp"],
    ]  # fmt: skip
    p_values = [float(row[4]) for row in table.rows]
    assert len(p_values) == 6  # three pairs that the cells have
    assert [float(row[5]) for row in table.rows] == pytest.approx(holm(p_values), rel=0.1)
    assert [row[2].startswith("**+") for row in table.rows] == [float(row[5]) <= 0.05 for row in table.rows]
    assert [row[2].startswith("**+") for row in table.rows[:4]] == [True, False] * 2


def test_the_spread_beyond_chance_of_a_cell_is_that_of_the_library():
    correct, samples = [9, 5, 3, 7], [10, 10, 4, 9]
    result = {"methods": {"a": {"accuracy": 1.0, "worst": 1.0, "client_fairness": 1.0, "correct": correct,
                                "gaps": {}, "calibration": 0.0}}, "samples": samples}  # fmt: skip
    values = leaderboard.cell_values({"cgd-plain-mlp-seed-0": result}, "cgd", "plain", "mlp", [0, 1])
    expected = true_spread(torch.tensor(correct)[:, None], torch.tensor(samples)[:, None]).estimate
    assert values["a"]["beyond_chance"] == pytest.approx(expected)


def test_the_recorded_metrics_tell_the_part_of_chance():
    correct, samples = torch.tensor([[90], [80], [99], [85]]), torch.full((4, 1), 100)
    metrics = compute_metrics(correct, samples)
    assert beyond_chance(metrics.accuracy, metrics.client_fairness, 4, 100) == pytest.approx(metrics.beyond_chance)


def test_a_submitted_method_is_one_file_and_one_command(tmp_path, monkeypatch):
    code = next(block.code for block in blocks_of(FEDERATIONS) if "TITLE" in block.code)
    folder = tmp_path / "submitted_methods"
    folder.mkdir()
    (folder / "ditto_median.py").write_text(code.replace("reproduction.submitted", "submitted_methods"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(submitted, "FOLDER", folder)
    monkeypatch.setattr(submitted, "__name__", "submitted_methods")
    options = Options(quick=True, device="cpu")
    only = ["cgd-plain-logistic-ditto_median"]
    found = reproduce("federations", tmp_path / "results", options=options, only=only)
    assert found.measured == ["federations/cgd-plain-logistic-ditto_median-seed-0"]
    (record,) = ResultsFolder(tmp_path / "results").records("federations").values()
    assert set(record.result["methods"]) == {"Ditto, median"}
    assert record.settings["methods"]["Ditto, median 3"]["mu"] == 1.0
    with (folder / "ditto_median.py").open("a") as file:
        file.write("# changed\n")
    again = case_statuses(["federations"], ResultsFolder(tmp_path / "results"), options, only)
    assert "code was" in again[0].stale
    (folder / "ditto_median.py").write_text("TITLE = 'none'\n")
    monkeypatch.delitem(sys.modules, "submitted_methods.ditto_median")
    with pytest.raises(InputError, match="needs TITLE, a name, and SETTINGS, a list of 4"):
        list(submitted.submissions())


def test_a_function_that_returns_no_method_is_named():
    with pytest.raises(InputError, match="use = 'builtins:dict' returns dict; return a Method"):
        method_of("mine", {"use": "builtins:dict", "mu": 0.1})


@pytest.mark.slow
def test_workers_write_the_results_of_one_process(tmp_path):
    only = ["cgd-plain-baselines"]
    both = [
        reproduce("federations", tmp_path / str(n), options=Options(quick=True, device="cpu"), only=only, workers=n)
        for n in (1, 2)
    ]
    assert both[0].measured == both[1].measured == ["federations/cgd-plain-baselines-seed-0"]
    assert both[0].chapters == both[1].chapters
    assert both[0].chapters["federations"].parts
    late = reproduce(
        "federations", tmp_path / "late", options=Options(quick=True, device="cpu"), only=only, workers=2, minutes=0
    )
    assert late.measured == []
