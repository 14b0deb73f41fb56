"""A case: many settings trained together on one federation."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.evaluation.round_metrics import round_metrics
from reproduction import Options, load, training

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "outliers": "flips",
    "clients": {"count": 6, "classes_per_client": 2, "validation": 0.2, "max_train": 40},
    "model": "mlp",
    "train": {"rounds": 4, "participation": 0.5, "epochs": 1, "batch_size": 10, "lr": 0.1},
    "seed": 3,
    "methods": dict([training.fedavg(), training.ditto(0.1), training.fedtilt(0.0, -2.0, 0.01)]),
}
CPU = Options(device="cpu")


def _silent(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def case_result() -> dict[str, Any]:
    return training.train_grid(SETTINGS, CPU, _silent)


def _without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "train_seconds"}


def test_a_case_has_the_metrics_of_the_simulation(case_result: dict[str, Any]) -> None:
    federation = ft.Federation.build(
        ft.data.load("digits"), clients=6, classes_per_client=2, validation=0.2, max_train=40, outliers="flips", seed=3
    )
    alone = ft.fedtilt(0, -2, mu=0.01)
    *_, last = ft.simulate(
        [alone], federation, ft.models.mlp, rounds=4, participation=0.5, epochs=1, lr=0.1, seed=3, device="cpu"
    )
    assert last.counts is not None
    assert last.validation is not None
    assert last.validation_total is not None
    part = case_result["methods"]["fedtilt tau=0 lam=-2"]
    for split, counts, total in (
        ("test", last.counts["fedtilt"], last.total),
        ("validation", last.validation["fedtilt"], last.validation_total),
    ):
        summary = round_metrics(counts, total, federation.has_outliers)
        assert summary.personal is not None
        for view, expected in (("shared", summary.shared), ("personal", summary.personal)):
            measured = part[split][view]
            assert measured["accuracy"] == pytest.approx(expected.accuracy, abs=1e-4)
            assert measured["client_fairness"] == pytest.approx(expected.client_fairness, abs=1e-4)
            assert measured["client_data_fairness_mean"] == pytest.approx(expected.client_data_fairness[0], abs=1e-4)
            assert measured["minimum"] == pytest.approx(expected.worst_client, abs=1e-4)
    assert training.evaluated(part)["accuracy"] == part["curve"][-1]


def test_a_case_has_curves_and_both_models(case_result: dict[str, Any]) -> None:
    assert case_result["rounds"] == [1, 2, 3, 4]
    assert set(case_result["methods"]) == set(SETTINGS["methods"]) == set(case_result["settings"])
    assert case_result["methods"]["fedavg"]["test"]["personal"] is None
    assert all(len(part["curve"]) == 4 for part in case_result["methods"].values())
    assert case_result["diverged"] == {}


def test_long_curves_are_thinned() -> None:
    rounds = 2 * training.MAX_CURVE_POINTS - 1  # evaluated in every other round, and in the last
    train = SETTINGS["train"] | {"rounds": rounds}
    result = training.train_grid(SETTINGS | {"train": train, "methods": dict([training.fedavg()])}, CPU, _silent)
    assert result["rounds"] == [*range(2, rounds, 2), rounds]
    assert len(result["rounds"]) == training.MAX_CURVE_POINTS


def test_a_setting_that_diverges_is_listed_and_the_others_continue(case_result: dict[str, Any]) -> None:
    """Its step overflows in the second round; the first round is not trained again."""
    methods = {**SETTINGS["methods"], "too large": {"preset": "fedavg", "lr": 1000.0}}
    notices: list[str] = []
    rounds: list[int] = []
    options = dataclasses.replace(CPU, notice=notices.append)
    result = training.train_grid(SETTINGS | {"methods": methods}, options, lambda done, *_: rounds.append(done))
    assert list(result["diverged"]) == ["too large"]
    assert result["methods"] == case_result["methods"]
    assert rounds == [1, 2, 3, 4]
    assert [notice.partition(" on client")[0] for notice in notices] == ["method 'too large' diverged in round 2"]


def test_without_curves_only_the_last_round_is_evaluated(case_result: dict[str, Any]) -> None:
    result = training.train_grid(SETTINGS, CPU, _silent, curves=False)
    assert result["rounds"] == [4]
    for name, part in result["methods"].items():
        assert part["test"] == case_result["methods"][name]["test"]
        assert part["curve"] == case_result["methods"][name]["curve"][-1:]


def test_a_case_skips_a_damaged_checkpoint(case_result: dict[str, Any], tmp_path: Path) -> None:
    notices: list[str] = []
    options = dataclasses.replace(CPU, work=tmp_path / "work", checkpoint_seconds=0.0, notice=notices.append)

    def interrupt(done: int, total: int, message: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train_grid(SETTINGS, options, interrupt)
    (tmp_path / "work/checkpoints/round-00002/manifest.json").write_text("{")
    assert training.train_grid(SETTINGS, options, _silent)["methods"] == case_result["methods"]
    assert "going back to the one before" in notices[0]
    assert notices[1:] == ["resumes after round 1"]


def test_if_every_setting_diverges_all_are_listed() -> None:
    settings = SETTINGS | {"train": SETTINGS["train"] | {"lr": 1e30}}
    settings["methods"] = dict([training.fedavg(), training.fedtilt(0.0, -2.0, 0.0)])
    result = training.train_grid(settings, CPU, _silent)
    assert result["methods"] == {}
    assert set(result["diverged"]) == set(settings["methods"])


def test_an_interrupted_case_resumes_to_the_same_metrics(case_result: dict[str, Any], tmp_path: Path) -> None:
    notices: list[str] = []
    work = tmp_path / "work"
    options = dataclasses.replace(CPU, work=work, checkpoint_seconds=0.0, notice=notices.append)

    def interrupt(done: int, total: int, message: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train_grid(SETTINGS, options, interrupt)
    rounds: list[int] = []
    result = training.train_grid(SETTINGS, options, lambda done, *_: rounds.append(done))
    assert rounds == [3, 4]
    assert notices == ["resumes after round 2"]
    assert _without_time(result) == _without_time(case_result)


def test_checkpoints_of_other_settings_are_not_used(case_result: dict[str, Any], tmp_path: Path) -> None:
    options = dataclasses.replace(CPU, work=tmp_path / "work", checkpoint_seconds=0.0)
    training.train_grid(SETTINGS | {"seed": 4}, options, _silent)
    assert (tmp_path / "work").exists()
    rounds: list[int] = []
    result = training.train_grid(SETTINGS, options, lambda done, *_: rounds.append(done))
    assert rounds == [1, 2, 3, 4]
    assert _without_time(result) == _without_time(case_result)


def test_a_short_case_writes_no_checkpoint(tmp_path: Path) -> None:
    options = dataclasses.replace(CPU, work=tmp_path / "work")
    training.train_grid(SETTINGS | {"methods": dict([training.fedavg()])}, options, _silent)
    assert not (tmp_path / "work").exists()


def test_a_condition_names_outliers_of_its_own() -> None:
    experiment = load("static-tuning").quick_version()
    settings = training.federation_settings(experiment.settings, "digits", "bad-clients")
    assert settings["outliers"] == {"kind": "flips", "rate": 0.6, "redraw": "once", "flip_to": "any", "clients": 0.25}
    assert training.federation_settings(experiment.settings, "digits", "none")["outliers"] == "none"
    assert load("static").settings["conditions"] == load("static-tuning").settings["conditions"]
    case = SETTINGS | {"methods": dict([training.fedavg()]), "train": SETTINGS["train"] | {"rounds": 1}}
    flipped, clean = (
        training.train_grid(case | {"outliers": outliers}, CPU, _silent)["methods"]
        for outliers in (settings["outliers"] | {"clients": 1.0}, "none")
    )
    assert flipped != clean
