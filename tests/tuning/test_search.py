"""`ft.tune`: grids and samples, stages, kills, budgets and what it rejects."""

import dataclasses
import functools
import math
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods.aggregators import Krum
from fedtilt.methods.before import Clip
from fedtilt.methods.objectives import Tilted
from fedtilt.runs.callback import SearchProgress
from fedtilt.spec import MethodSpec, load
from fedtilt.tuning.search import Search
from fedtilt.tuning.tune import parse_duration
from fedtilt.tuning.tuned_method import SpecMethod
from tests.helpers.callbacks import Calls

MLP = functools.partial(ft.models.mlp, hidden=(8,))
TRAIN = {"rounds": 4, "participation": 0.5, "epochs": 1, "lr": 0.1, "workers": 0}
METHOD = ft.fedtilt(tau=0, lam=0)
SHARED = ft.fedavg()  # without a proximal term, which limits lr

SHARED_TILTED = ft.fedtilt(tau=0, lam=0, mu=math.inf)


@functools.cache
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=6, max_train=40, validation=0.3, seed=1)


def tune(tuned: ft.Method = METHOD, **options) -> ft.Tuning:
    return ft.tune([tuned], federation(), MLP, **{**TRAIN, **options})


def values(tuning: ft.Tuning) -> dict:
    return {name: (row.rounds, row.validation, row.gain) for name, row in tuning.settings.items()}


def test_without_halving_every_setting_has_the_values_of_an_ordinary_run() -> None:
    tuning = tune(over={"lam": [-2], "batch_size": [10, 20]}, halving=False)
    assert len(tuning.settings) == 3
    assert tuning.saving == 0.0
    for name, row in tuning.settings.items():
        method = ft.fedtilt(tau=0, lam=row.setting["lam"])
        result = ft.run([method], federation(), MLP, **TRAIN, batch_size=row.setting["batch_size"])["fedtilt"]
        assert result.summary.never_selected == 0
        assert row.validation["accuracy"] == pytest.approx(result.validation.accuracy, abs=1e-9), name
        if name in tuning.test:
            assert tuning.test[name]["accuracy"] == (result.accuracy,)


def test_weak_settings_are_stopped_early_and_the_best_train_to_the_end() -> None:
    steps: list[SearchProgress] = []
    tuning = tune(over={"lam": [-2, -1, 0, 1, 5], "mu": [0.01, 1]}, callbacks=[Calls(on_search=steps.append)])
    rounds = sorted(row.rounds for row in tuning.settings.values())
    assert rounds == [1] * 7 + [4] * 3  # two of the others and the user's own
    assert tuning.settings["fedtilt"].rounds == 4
    assert tuning.trained_rounds == 10 * 1 + 3 * 3
    assert tuning.saving == pytest.approx(1 - 19 / 40)
    assert [(step.stage, step.settings, step.round) for step in steps] == [(1, 10, 1), (2, 3, 2), (2, 3, 3), (2, 3, 4)]
    full = tune(over={"lam": [-2, -1, 0, 1, 5], "mu": [0.01, 1]}, halving=False)
    for name, row in tuning.settings.items():
        if row.rounds == 4:  # a setting that went on has the values of one that never stopped
            assert row.validation == full.settings[name].validation


def test_a_range_is_sampled_and_its_recommendation_runs() -> None:
    tuning = tune(over={"lam": ft.Range(-3, 1), "lr": "0.01..1", "epochs": [1, 2]}, trials=6, seeds=2)
    assert len(tuning.settings) == 7
    for name, row in tuning.settings.items():
        if name != "fedtilt":
            assert -3 <= row.setting["lam"] <= 1
            assert 0.01 <= row.setting["lr"] <= 1
            assert row.setting["epochs"] in (1, 2)
    assert values(tuning) == values(
        tune(over={"lam": ft.Range(-3, 1), "lr": "0.01..1", "epochs": [1, 2]}, trials=6, seeds=2)
    )
    result = ft.run(tuning.methods, federation(), MLP, **tuning.train)
    assert result["fedtilt"].accuracy == tuning.test[tuning.chosen]["accuracy"][0]


@pytest.mark.parametrize("over", [{"lam": [-2, -1, 0, 1, 5]}, {"lam": ft.Range(-3, 1)}])
def test_a_killed_search_goes_on_to_the_same_result(over: dict, tmp_path: Path) -> None:
    options = {"over": over, "trials": 5}
    expected = values(tune(**options))
    for stop in (1, 2, 3):  # in each stage, and between them

        def kill(step: SearchProgress, stop: int = stop) -> None:
            if step.round == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tune(**options, out=tmp_path / "search", callbacks=[Calls(on_search=kill)])
    assert values(tune(**options, out=tmp_path / "search")) == expected
    assert values(tune(**options, out=tmp_path / "search")) == expected  # finished: from its scores
    with pytest.raises(InputError, match="is a search with by = None, and now it is worst; choose another folder"):
        tune(**options, by="worst", out=tmp_path / "search")
    assert not list((tmp_path / "search/search").glob("stage-*/*/"))  # no models are left


def test_a_search_goes_on_where_another_number_of_settings_trains_together(tmp_path: Path, monkeypatch) -> None:
    options = {"over": {"lam": [-2, -1, 0, 1, 5]}, "out": tmp_path / "search"}
    rounds = []

    def kill(step: SearchProgress) -> None:
        rounds.append(step.round)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_fitting_together", lambda self: 2)
    with pytest.raises(KeyboardInterrupt):
        tune(**options, callbacks=[Calls(on_search=kill)])
    assert rounds == [1, 1]  # the second batch of the first stage
    monkeypatch.undo()
    expected = values(tune(over=options["over"]))
    assert values(tune(**options)) == expected
    monkeypatch.setattr(Search, "_fitting_together", lambda self: 3)
    assert values(tune(**options)) == expected  # finished: from its scores


def test_a_setting_that_diverges_is_left_out(tmp_path: Path) -> None:
    calls = Calls()
    options = {"over": {"lr": [0.1, 1e30]}, "out": tmp_path / "search"}
    tuning = tune(SHARED, **options, callbacks=[calls])
    assert tuning.diverged == ("fedavg lr=1e+30",)
    assert "method 'fedavg lr=1e+30' diverged" in calls.notices[0]
    assert calls.notices[0].endswith("continuing without it")
    assert tuning.is_unchanged
    assert values(tune(SHARED, **options)) == values(tuning)
    with pytest.raises(InputError, match="every setting of fedavg diverged"):
        tune(SHARED, over={"lr": [1e30, 2e30]}, lr=1e30)


def test_a_search_killed_after_a_setting_diverged_is_resumed_without_it(tmp_path: Path) -> None:
    options = {"over": {"tau": [1, 2], "lr": [0.1, 1e30]}, "seeds": 2, "halving": False}

    def kill(step: SearchProgress) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    expected = tune(SHARED_TILTED, **options)
    assert len(expected.diverged) == 2
    with pytest.raises(KeyboardInterrupt):
        tune(SHARED_TILTED, **options, out=tmp_path, callbacks=[Calls(on_search=kill)])
    resumed = tune(SHARED_TILTED, **options, out=tmp_path)
    assert (resumed.diverged, values(resumed)) == (expected.diverged, values(expected))


def test_the_budget_ends_a_search_with_what_it_has() -> None:
    tuning = tune(over={"lam": [-2, -1, 0, 1, 5]}, budget=1e-6)
    assert tuning.out_of_time
    assert tuning.is_unchanged
    assert tuning.reason == "keep yours: the budget ended before any setting was compared"
    assert not tune(over={"lam": [-2]}, budget="1h").out_of_time


@pytest.mark.parametrize("over", [{"lam": [-2, -1, 0, 1, 5]}, {"lam": ft.Range(-3, 1)}])
def test_with_a_budget_few_settings_train_together_if_a_round_is_long(over: dict, monkeypatch) -> None:
    calls = []
    options = {"over": over, "trials": 5, "callbacks": [Calls(on_search=calls.append)]}
    tune(**options, budget="1h")
    assert calls[0].settings == 1  # the user's setting, which is timed
    assert max(step.settings for step in calls) > 2
    calls.clear()
    monkeypatch.setattr(Search, "_seconds_per_round", 150.0)
    assert len(tune(**options, budget="1h").settings) > 2
    assert {step.settings for step in calls} <= {1, 2}  # a tenth of an hour is two rounds


def test_a_search_that_its_budget_has_shortened_goes_on_as_it_was_planned(tmp_path: Path, monkeypatch) -> None:
    options = {"over": {"lam": [-2, -1, 0, 1, 5]}, "budget": 1000.0, "out": tmp_path / "search", "rounds": 8}
    monkeypatch.setattr(Search, "_affordable", lambda self, until, start, settings: min(until, 5))

    def kill(step: SearchProgress) -> None:
        if step.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(**options, callbacks=[Calls(on_search=kill)])
    monkeypatch.undo()  # now there would be time for all rounds
    tuning = tune(**options)
    assert tuning.compared_rounds == 5
    assert values(tune(**options)) == values(tuning)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90s", "1.5 h", "5m", 2)] == [90, 5400, 300, 2]


def test_a_recommendation_keeps_its_constraints() -> None:
    tuning = tune(over={"lr": [0.0001, 0.1]}, halving=False, at_most={"accuracy": 0.3}, by="client_fairness")
    assert tuning.is_possible
    assert tuning.settings[tuning.chosen].validation["accuracy"] <= 30
    impossible = tune(over={"lr": [0.0001, 0.1]}, halving=False, at_least={"accuracy": 1.0})
    assert not impossible.is_possible
    assert impossible.is_unchanged
    assert impossible.reason.startswith("no setting has accuracy ≥ 100 %; the nearest is")


def test_impossible_combinations_are_named_and_impossible_values_rejected() -> None:
    calls = Calls()
    over = {"aggregator": ["tilted", "median"], "q": [0, 1]}
    tuning = tune(over=over, callbacks=[calls], halving=False)
    assert list(tuning.settings) == ["fedtilt", "fedtilt aggregator=tilted q=1", "fedtilt aggregator=median q=0"]
    assert calls.notices == [
        "1 setting, 'fedtilt aggregator=median q=1', is not possible and skipped: "
        + tuning.impossible["fedtilt aggregator=median q=1"]
    ]
    with pytest.raises(InputError, match="method 'fedtilt': proximal: mu must be a number ≥ 0, got -1"):
        tune(over={"mu": [0.1, -1], "lam": [0, 1]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": {"taw": [1]}}, "over taw: there is no such setting to tune; did you mean tau?"),
        ({"over": {"start": ["last"]}}, "over start: there is no such setting to tune; did you mean personal.start?"),
        ({"over": {"rounds": [1]}}, "over rounds: there is no such setting to tune"),
        ({"over": {"lam": []}}, "over lam is empty"),
        ({"over": {"lam": [0]}}, "over lam=0 is the setting that fedtilt has; give other values"),
        ({"over": {"epochs": ft.Range(0.5, 2)}}, "over epochs = 0.5..2 has no whole ends"),
        ({"by": "f2"}, "there is no objective 'f2' for classification"),
        ({"at_least": {"f2": 1}}, "there is no objective 'f2' for classification"),
        ({"method": "ditto"}, "method 'ditto' is not among the methods; choose from fedtilt"),
        ({"budget": "soon"}, "budget = 'soon' is not a duration; write for example 90s, 5m or 1.5h"),
        ({"budget": 0}, "budget = 0 leaves no time"),
        ({"trials": 0}, "trials must be a whole number ≥ 1, got 0"),
    ],
)
def test_bad_input_is_one_line(options: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        tune(**options)
    assert message in str(error.value)


def test_a_federation_without_validation_data_and_several_methods_are_rejected() -> None:
    bare = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=40)
    with pytest.raises(InputError, match="no client has a validation sample to tune tau and lam on"):
        ft.tune([METHOD], bare, MLP, **TRAIN)
    with pytest.raises(InputError, match="there are 2 methods; name the one to tune, such as method='fedtilt'"):
        ft.tune([METHOD, ft.ditto()], federation(), MLP, **TRAIN)
    with pytest.raises(InputError, match="over mu: there is no such setting to tune; choose from lr, client_mom"):
        ft.tune([ft.fedavg()], federation(), MLP, over={"mu": [1]}, **TRAIN)


def test_a_setting_missing_from_a_spec_is_that_of_the_preset_or_of_the_run() -> None:
    spec = load("digits", methods=["fedprox", "local"], overrides=["train.lr=0.2", "train.lr_personal=0.3"])
    assert SpecMethod(spec, None, ["mu", "lr", "batch_size"]).current == {"mu": 0.01, "lr": 0.2, "batch_size": 10}
    assert SpecMethod(spec, "local", ["lr_personal"]).current == {"lr_personal": 0.3}
    assert SpecMethod(load("digits"), None, ["lam"]).name == "fedtilt"  # the first that has it
    with pytest.raises(InputError, match="over tau: there is no such setting to tune"):
        SpecMethod(spec, None, ["tau"])
    term = MethodSpec(preset="term", name="term", settings={"t": 1.0})
    both = dataclasses.replace(load("digits"), methods=(term, *spec.methods))
    with pytest.raises(InputError, match="no method has all of t and mu; term has t"):
        SpecMethod(both, None, ["t", "mu"])
    candidate = SpecMethod(both, None, ["t"]).candidate({"t": 3.0})
    assert candidate.method.objective == Tilted(3.0, 3.0)


def test_components_and_their_settings_are_axes() -> None:
    settings = {"aggregator": {"rule": "krum", "bad_share": 0.2}, "before": ["clipping"]}
    method = MethodSpec(preset="ditto", name="ditto", settings=settings)
    base = dataclasses.replace(load("digits"), methods=(method,))
    tuned = SpecMethod(base, None, ["aggregator", "aggregator.bad_share", "before.0.radius", "personal.mu"])
    assert tuned.current == {
        "aggregator": "krum",
        "aggregator.bad_share": 0.2,
        "before.0.radius": None,
        "personal.mu": 0.01,
    }
    krum = tuned.candidate({"aggregator": "krum", "aggregator.bad_share": 0.3, "before.0.radius": 2.0}).method
    assert krum == ft.ditto(aggregator=Krum(0.3), before=Clip(2.0))


def test_numbers_as_targets_are_compared_by_their_error() -> None:
    pandas = pytest.importorskip("pandas")
    x = torch.linspace(-1, 1, 80)
    rows = pandas.DataFrame({"x": x, "y": 3 * x + 1, "site": ["a", "b"] * 40})
    data = ft.data.table(rows, target="y", client="site", task="regression", test_share=0.3)
    numbers = ft.Federation.build(data, validation=0.3)
    options = {**TRAIN, "participation": 1.0, "loss": "squared", "over": {"lr": [1e-4, 0.1]}, "halving": False}
    tuning = ft.tune([ft.fedavg()], numbers, MLP, **options)
    assert tuning.by.name == "mae"
    best = min(tuning.settings, key=lambda name: tuning.settings[name].validation["mae"])
    assert best == tuning.chosen == "fedavg"  # lr = 0.1, as it was
    assert tuning.settings["fedavg lr=0.0001"].gain < 0
    with pytest.raises(InputError, match="there is no objective 'accuracy' for regression; choose one of mae, rmse"):
        ft.tune([ft.fedavg()], numbers, MLP, by="accuracy", **options)
