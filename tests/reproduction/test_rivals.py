"""The ranking of all methods from made-up results."""

from statistics import fmean

from fedtilt.evaluation.verdicts import holm
from fedtilt.methods import PRESETS
from fedtilt.report.compare import METRICS
from reproduction.experiment import Options, Results, load
from reproduction.experiments import rivals
from reproduction.experiments.rivals import Cell, cells_of, choose, losing_sentence, mean_ranks, score_all
from reproduction.records import difference
from reproduction.training import method_of

EXPERIMENT = load("rivals")


def measured(test: float, validation: float, success: float | None = None) -> dict:
    extra = {} if success is None else {"attack_success": success}
    return {
        "test": {"shared": {"accuracy": test, "worst": 100 - test, "client_fairness": 1.0}, "personal": None, **extra},
        "validation": {"shared": {"accuracy": validation}, "personal": None},
    }


def test_every_method_has_the_same_number_of_trials_and_all_presets_take_part() -> None:
    trials = rivals.trials(EXPERIMENT.settings)
    assert {len(of_method) for of_method in trials.values()} == {4}
    settings = [setting for of_method in trials.values() for setting in of_method.values()]
    compared = {name for name, preset in PRESETS.items() if ".published." not in preset.__module__}
    assert {setting["preset"] for setting in settings} == compared
    for of_method in trials.values():
        assert len({str(sorted(setting.items(), key=str)) for setting in of_method.values()}) == 4
        for name, setting in of_method.items():
            method_of(name, setting)
    cases = rivals.cases(EXPERIMENT, Options())
    assert len(cases) == 2 * 11 * 3 * 5  # the cross-entropy, GCE, SCE
    names = [name for case in cases if case.settings["seed"] == 0 for name in case.settings["methods"]]
    assert len(names) == 2 * 11 * sum(map(len, trials.values()))  # each trial in one case
    losses = [case.settings["train"].get("loss") for case in cases if "GCE 1" in case.settings["methods"]]
    assert losses
    assert all(loss["name"] == "gce" for loss in losses)
    attacked = {case.settings["attack"]["kind"] for case in cases if "attack" in case.settings}
    assert len(attacked) == 6
    assert all(case.settings["outliers"] == "none" for case in cases if "attack" in case.settings)


def test_a_setting_is_chosen_on_the_other_seeds() -> None:
    by_seed = {
        0: {"a": measured(50, 99), "b": measured(60, 10)},
        1: {"a": measured(51, 20), "b": measured(61, 30)},
        2: {"a": measured(52, 20), "b": measured(62, 30)},
    }
    assert choose(0, by_seed, ["a", "b"]) == "b"  # 20 and 20 against 30 and 30
    assert choose(1, by_seed, ["a", "b"]) == "a"  # 99 and 20 against 10 and 30
    assert choose(0, {0: by_seed[0]}, ["a", "b"]) == "a"  # one seed
    del by_seed[2]["b"]  # diverged
    assert choose(0, by_seed, ["a", "b"]) == "a"
    assert choose(0, by_seed, ["c"]) is None


def made_up(experiment_seeds: int = 5) -> Results:
    """FedTilt is 3 points above all but Ditto, which is 2 points above it under ALIE."""
    results: Results = {}
    for number, case in enumerate(rivals.cases(EXPERIMENT, Options(seeds=experiment_seeds))):
        methods = {}
        for name in case.settings["methods"]:
            noise = ((number * 7 + len(name)) % 5) / 10
            accuracy = 93.0 if name.startswith("FedTilt") else 90.0
            if name.startswith("Ditto") and "alie" in case.name:
                accuracy = 95.0
            success = 12.5 if "backdoor" in case.name else None
            methods[name] = measured(accuracy + noise, accuracy - int(name[-1]), success)
        results[case.name] = {"methods": methods}
    return results


def test_the_ranking_and_the_differences() -> None:
    cells = cells_of(EXPERIMENT, made_up(), rivals.trials(EXPERIMENT.settings))
    assert len(cells) == 22
    scores = score_all(cells)
    methods = len(EXPERIMENT.settings["methods"])
    assert len(scores) == 22 * (methods - 1)
    score = next(s for s in scores if (s.data, s.condition, s.rival) == ("mnist", "alie", "Ditto"))
    cell = next(c for c in cells if c[:2] == ("mnist", "alie"))
    assert cell.clients == 40  # attackers have no test data
    assert score.difference == difference(cell.chosen["FedTilt"], cell.chosen["Ditto"], METRICS[0], 40)
    assert [s.adjusted for s in scores] == holm([s.difference.verdict.p_value for s in scores])
    text = losing_sentence(scores)
    assert "less accurate in 2; after the correction, in " in text
    verdicts = [(s.data, s.difference.verdict) for s in scores]
    lost = [f"{data}, alie (−{-v.difference:.2f})" for data, v in verdicts if v.sign() < 0]
    assert sorted(text.split(" It loses against Ditto on ")[1].strip(".").split("), ")) == [lost[1], lost[0].strip(")")]
    chapter = rivals.chapter(EXPERIMENT, made_up())
    ranks = {row[0]: row[1:] for row in chapter.parts[0].rows}
    assert ranks["FedTilt"] == ["1.1", f"{methods - 0.1:.1f}", f"{(methods + 1) / 2:.1f}"]  # 1 in 20 cells, 2 in 2
    for table, data in zip(chapter.parts[1:], ("mnist", "fashion-mnist"), strict=False):
        assert table.caption == f"All methods: accuracy on {data}"
        assert table.columns[1:] == list(EXPERIMENT.settings["conditions"])
        assert table.rows[0][0] == "FedTilt"
        assert len(table.rows) == methods
        assert "mean over 5 seeds" in table.notes
    assert "Trials of each method: 4." in chapter.lead
    assert chapter.parts[-1].caption == "Success of the backdoor"
    assert chapter.parts[-1].rows[0][1] == "12.5"


def test_ranks_share_ties_and_a_method_without_result_is_last() -> None:
    cell = Cell("d", "c", {"accuracy": {"a": {0: 90.0}, "b": {0: 90.0}, "c": {}, "d": {0: 95.0}}}, {})
    assert mean_ranks([cell]) == {"a": 2.5, "b": 2.5, "c": 4.0, "d": 1.0}
    assert fmean(mean_ranks([cell]).values()) == 2.5


def test_missing_cells_are_named() -> None:
    results = {name: result for name, result in made_up(1).items() if name.startswith("mnist-clean")}
    without_loss = {name: result for name, result in results.items() if "GCE" not in name}
    assert "; mnist, clean;" in rivals.chapter(EXPERIMENT, without_loss).parts[-1].markdown
    chapter = rivals.chapter(EXPERIMENT, results)
    assert "fashion-mnist, clean;" in chapter.parts[-1].markdown
    assert "; mnist, clean;" not in chapter.parts[-1].markdown
