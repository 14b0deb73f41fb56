"""The leaderboard on federations that exist: its cases, its data in files, its baselines and its ranks."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import friedmanchisquare

import fedtilt as ft
from fedtilt.errors import InputWarning
from reproduction.experiment import Options, load
from reproduction.experiments import federations, leaderboard
from reproduction.prepared import prepare, read_table
from reproduction.runner import reproduce

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


def test_ranks_and_critical_difference():
    rng = np.random.default_rng(1)
    table = rng.random((6, 3))  # federations × methods
    cells = [{name: {"accuracy": value} for name, value in zip("abc", row, strict=True)} for row in table]
    ranks = leaderboard.mean_ranks(cells)
    expected = (table[:, :, None] < table[:, None, :]).sum(2).mean(0) + 1
    assert list(ranks.values()) == pytest.approx(list(expected))
    statistic = 12 * 6 / (3 * 4) * (sum(rank**2 for rank in ranks.values()) - 3 * 4**2 / 4)
    assert statistic == pytest.approx(friedmanchisquare(*table.T).statistic)
    assert leaderboard.critical_difference(3, 6) == pytest.approx(
        2.343 * np.sqrt(3 * 4 / 36), abs=2e-3
    )  # Demsar's table


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
