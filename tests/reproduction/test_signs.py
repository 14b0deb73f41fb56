from typing import Any

import pytest

from reproduction import Options, load
from reproduction.chapter import CaptionedFigure, Table
from reproduction.experiments.signs import NO_TILT, cases, chapter, grid, measure
from reproduction.experiments.signs_claims import Tilts

EXPERIMENT = load("signs")


def test_the_grid_has_every_combination_of_signs_twice() -> None:
    tilts = grid(EXPERIMENT.settings)
    assert len(tilts) == len({t.name for t in tilts}) == 1 + 2 * 8 + 4
    by_signs = [t.signs for t in tilts if not t.q and t != NO_TILT]
    assert {signs: by_signs.count(signs) for signs in by_signs} == {
        (a, b): 2 for a in (1, 0, -1) for b in (1, 0, -1) if (a, b) != (0, 0)
    }


def test_larger_data_needs_a_gpu() -> None:
    small = cases(EXPERIMENT, Options(device="cpu"))
    large = cases(EXPERIMENT, Options(device="cuda"))
    assert {c.needs for c in small} == {"digits"}
    assert {c.needs for c in large} == {"digits", "mnist"}
    assert large[: len(small)] == small
    assert len({c.name for c in large}) == len(large) == 2 * 3 * 3


def _handmade(changes: dict[str, dict[str, dict[str, float]]], seeds: int = 3) -> dict[str, dict[str, Any]]:
    """Results in which every setting equals no tilt, except for changes: condition → setting → metric → value."""
    plain = {
        "accuracy": 90.0,
        "client_fairness": 1.0,
        "client_data_fairness_mean": 6.0,
        "client_data_fairness_std": 0.5,
        "worst": 89.0,
        "best": 91.0,
        "minimum": 89.0,
    }
    results = {}
    for condition in ("clean", "flips", "gaussian"):
        for seed in range(seeds):
            methods = {}
            for t in grid(EXPERIMENT.settings):
                metrics = {k: v + 0.1 * seed for k, v in (plain | changes.get(condition, {}).get(t.name, {})).items()}
                methods[t.name] = {"test": {"shared": metrics, "personal": metrics, "never_selected": 0}}
            results[f"digits-{condition}-seed-{seed}"] = {"methods": methods}
    return results


def _verdict(key: str, results: dict[str, dict[str, Any]]) -> str:
    index = [claim.key for claim in EXPERIMENT.claims].index(key)
    return chapter(EXPERIMENT, results).verdicts[index].holds


PLUS_MINUS = [Tilts(1.0, -1.0, 0.0).name, Tilts(10.0, -10.0, 0.0).name]
MINUS_MINUS = [Tilts(-1.0, -1.0, 0.0).name, Tilts(-10.0, -10.0, 0.0).name]
MINUS_PLUS = [Tilts(-1.0, 1.0, 0.0).name, Tilts(-10.0, 10.0, 0.0).name]


def _all(names: list[str], **metrics: float) -> dict[str, dict[str, float]]:
    return dict.fromkeys(names, metrics)


def test_high_means_better_than_no_tilt_in_every_comparison() -> None:
    fair = {"clean": _all(PLUS_MINUS, client_data_fairness_mean=2.0)}
    robust = {condition: _all(PLUS_MINUS, accuracy=95.0) for condition in ("flips", "gaussian")}
    assert _verdict("+ -", _handmade({})) == "does not hold"
    assert _verdict("+ -", _handmade(fair)) == "holds partly"
    assert _verdict("+ -", _handmade(fair | robust)) == "holds"
    assert _verdict("- +", _handmade(fair | robust)) == "does not hold"


def test_very_high_also_means_not_worse_than_high() -> None:
    unfair = {"clean": _all(MINUS_MINUS, client_data_fairness_mean=9.0)}
    robust = {c: _all(MINUS_MINUS, accuracy=95.0) for c in ("flips", "gaussian")}
    assert _verdict("- -", _handmade(unfair | robust)) == "holds"
    beaten = {c: robust[c] | _all(PLUS_MINUS, accuracy=97.0) for c in robust}
    assert _verdict("- -", _handmade(unfair | beaten)) == "holds partly"


def test_larger_tilts_are_compared_with_smaller_ones() -> None:
    steps = {PLUS_MINUS[0]: 88.0, PLUS_MINUS[1]: 85.0}
    worse = {c: {name: {"accuracy": value} for name, value in steps.items()} for c in ("flips", "gaussian")}
    assert _verdict("less", _handmade(worse)) == "holds"
    assert _verdict("more", _handmade(worse)) == "does not hold"  # not fairer
    recovered = {c: worse[c] | _all(PLUS_MINUS[1:], accuracy=89.0) for c in worse}  # the large tilt costs less
    assert _verdict("less", _handmade(recovered)) == "holds partly"


def test_the_fairest_and_the_most_robust_settings_may_differ() -> None:
    fair = {"clean": _all(PLUS_MINUS, client_data_fairness_mean=2.0)}
    robust = {c: _all(MINUS_MINUS, accuracy=95.0) for c in ("flips", "gaussian")}
    assert _verdict("apart", _handmade(fair | robust)) == "holds"
    assert _verdict("apart", _handmade(fair | robust | {"flips": _all(PLUS_MINUS, accuracy=95.0)})) == "holds partly"
    assert _verdict("apart", _handmade(robust)) == "does not hold"  # all are equally fair


def test_a_collapsed_setting_is_neither_fair_nor_robust() -> None:
    """Accuracy 50 % on every client: perfectly fair, and useless."""
    collapsed = {
        "clean": _all(MINUS_PLUS, accuracy=50.0, client_data_fairness_mean=0.0),
        "flips": _all(MINUS_PLUS, accuracy=50.0),
        "gaussian": _all(MINUS_PLUS, accuracy=50.0),
    }
    results = _handmade(collapsed)
    assert _verdict("- +", results) == "does not hold"
    table = chapter(EXPERIMENT, results).parts[0]
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows if "†" in str(row[0])] == [f"{name} †" for name in MINUS_PLUS]


def test_a_setting_that_diverged_is_marked_and_counts_as_collapsed() -> None:
    fair = {"clean": _all(PLUS_MINUS, client_data_fairness_mean=2.0)}
    results = _handmade(fair | {condition: _all(PLUS_MINUS, accuracy=95.0) for condition in ("flips", "gaussian")})
    assert _verdict("+ -", results) == "holds"
    del results["digits-gaussian-seed-1"]["methods"][PLUS_MINUS[1]]
    assert _verdict("+ -", results) == "holds partly"
    tables = [part for part in chapter(EXPERIMENT, results).parts if isinstance(part, Table)]
    assert [f"{PLUS_MINUS[1]} (diverged)" in [row[0] for row in t.rows] for t in tables[:3]] == [False, False, True]


def test_the_servers_tilt_is_evaluated_with_the_shared_model() -> None:
    high, low = [f"q = {q}" for q in ("1", "10")], [f"q = −{q}" for q in ("1", "10")]
    conditions = ("clean", "flips", "gaussian")
    changes = {c: _all(high, client_fairness=0.3) | _all(low, client_fairness=3.0) for c in conditions}
    assert _verdict("q +", _handmade(changes)) == _verdict("q -", _handmade(changes)) == "holds"
    assert _verdict("q +", _handmade({c: _all(high, client_fairness=3.0) for c in conditions})) == "does not hold"


def test_clean_data_alone_gives_no_verdict() -> None:
    clean_only = {name: result for name, result in _handmade({}).items() if "clean" in name}
    assert {v.holds for v in chapter(EXPERIMENT, clean_only).verdicts} == {"not measured"}
    assert {v.holds for v in chapter(EXPERIMENT, {}).verdicts} == {"not measured"}


def test_one_seed_decides_nothing() -> None:
    verdicts = chapter(
        EXPERIMENT, _handmade({"clean": _all(PLUS_MINUS, client_data_fairness_mean=2.0)}, seeds=1)
    ).verdicts
    assert {v.holds for v in verdicts} == {"not measured"}


def test_a_small_federation_from_cases_to_a_chapter() -> None:
    settings = dict(EXPERIMENT.settings) | {
        "outliers": ["none", "flips"],
        "q": [1.0],
        "digits": {**EXPERIMENT.settings["digits"], "count": 4, "max_train": 20, "rounds": 1, "epochs": 1},
    }
    experiment = type(EXPERIMENT)(**{**vars(EXPERIMENT), "settings": settings})
    options = Options(seeds=1, device="cpu")
    results = {c.name: measure(c, options, lambda *_: None) for c in cases(experiment, options)}
    result = chapter(experiment, results)
    tables = [part for part in result.parts if isinstance(part, Table)]
    assert [len(t.rows) for t in tables] == [17, 17, 2]
    (figure,) = [part for part in result.parts if isinstance(part, CaptionedFigure)]
    assert sum(len(trace["x"]) for trace in figure.figure["data"]) == 2 * 17
    accuracy = results["digits-clean-seed-0"]["methods"][NO_TILT.name]["test"]["personal"]["accuracy"]
    assert tables[0].rows[0][3] == f"{accuracy:.1f}"
    assert pytest.approx(100 - accuracy, abs=1e-3) == figure.figure["data"][0]["y"][0]
