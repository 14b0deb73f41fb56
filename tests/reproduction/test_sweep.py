"""Verdicts on claims about the tilts."""

from reproduction.chapter import Verdict
from reproduction.experiment import Claim
from reproduction.experiments.sweep import panels, verdicts
from reproduction.training import fedtilt
from tests.helpers.handmade_results import case_result, metrics, part


def _sweep(
    accuracy: dict[tuple[float, float], float], fairness: dict[tuple[float, float], float] | None = None
) -> dict:
    return case_result(
        *(
            (fedtilt(*tilts, 0.01), part(metrics(value, (fairness or {}).get(tilts, 5.0))))
            for tilts, value in accuracy.items()
        )
    )


GRID = {(-10.0, 1.0): 50.0, (1.0, 1.0): 97.0, (10.0, 10.0): 98.0, (1.0, -1.0): 96.5}


def _verdict(rule: str, check: dict, results: dict, *, seeds: int = 2) -> Verdict:
    """The verdict if every panel has this many seeds with the same result."""
    results = {f"{name.removesuffix('0')}{seed}": result for name, result in results.items() for seed in range(seeds)}
    return verdicts((Claim(text="", rule=rule, check=check),), panels(results))[0]


def test_panels_average_seeds_and_a_collapsed_setting_is_not_the_fairest() -> None:
    fair = dict.fromkeys(GRID, 4.0) | {(-10.0, 1.0): 0.0, (1.0, 1.0): 3.0}
    results = {f"fashion-mnist-clean-10-seed-{s}": _sweep({t: v + s for t, v in GRID.items()}, fair) for s in (0, 1)}
    (panel,) = panels(results)
    assert (panel.data, panel.condition, panel.clients, panel.seeds) == ("fashion-mnist", "clean", 10, 2)
    assert panel.grid[1.0, 1.0]["accuracy"] == 97.5
    assert panel.best("accuracy") == (10.0, 10.0)
    assert panel.best("client_fairness") == (1.0, 1.0)


def test_the_best_tilts_are_among_those_claimed() -> None:
    results = {"mnist-clean-10-seed-0": _sweep(GRID)}
    positive = {"metrics": ["accuracy"], "tau": "positive", "lam": "positive"}
    assert _verdict("best-at", positive, results).holds == "holds"
    assert _verdict("best-at", positive | {"lam": [1.0]}, results).holds == "does not hold"
    partly = _verdict("best-at", {"lam": [10.0]}, results)  # one setting of four, best on one metric of three
    assert partly.holds == "holds partly"
    assert "1 of 3 cases (panels × metrics); expected by chance: 0.8." in partly.why
    either = {"tau": "negative", "lam": [10.0], "either": True}  # two of four: no more than expected by chance
    assert _verdict("best-at", either, results).holds == "does not hold"
    assert _verdict("best-at", positive | {"data": ["cifar10"]}, results).holds == "not measured"


def test_accuracy_lost_with_outliers() -> None:
    results = {"mnist-clean-10-seed-0": _sweep(GRID), "mnist-gaussian-10-seed-0": _sweep({(1.0, 1.0): 96.5})}
    check = {"condition": ["gaussian"], "points": 1.0}
    verdict = _verdict("unharmed", check, results)
    assert verdict.holds == "does not hold"
    assert "1.5" in verdict.why
    assert _verdict("unharmed", check | {"points": 2.0}, results).holds == "holds"


def test_ten_and_twenty_clients_rank_alike() -> None:
    same = {t: 2 * v - 100 for t, v in GRID.items()}
    other = dict(zip(GRID, reversed(GRID.values()), strict=True))
    for twenty, expected in ((same, "holds"), (other, "does not hold")):
        results = {"mnist-clean-10-seed-0": _sweep(GRID), "mnist-clean-20-seed-0": _sweep(twenty)}
        assert _verdict("agree", {"rho": 0.8}, results).holds == expected


def test_both_kinds_of_fairness_improve_together() -> None:
    def sweep(order: list[float]) -> dict:
        parts = [(fedtilt(1.0, float(i), 0.01), part(metrics(97.0, i, mean))) for i, mean in enumerate(order)]
        return {"mnist-clean-10-seed-0": case_result(*parts)}

    assert _verdict("together", {"rho": 0.5}, sweep([1.0, 2.0, 3.0, 4.0])).holds == "holds"
    assert _verdict("together", {"rho": 0.5}, sweep([4.0, 3.0, 2.0, 1.0])).holds == "does not hold"


def test_one_panel_with_one_seed_decides_nothing() -> None:
    check = {"metrics": ["accuracy"], "tau": "positive", "lam": "positive"}
    one, two = {"mnist-clean-10-seed-0": _sweep(GRID)}, {f"mnist-clean-{n}-seed-0": _sweep(GRID) for n in (10, 20)}
    assert _verdict("best-at", check, one, seeds=1).holds == "one seed"
    assert _verdict("best-at", check, two, seeds=1).holds == "holds"


def test_most_cases_are_a_majority_and_a_claim_may_name_the_clients() -> None:
    grid = {(1.0, -1.0): 97.0, (1.0, 1.0): 96.0}
    results = {"mnist-clean-10-seed-0": _sweep(grid), "mnist-clean-20-seed-0": _sweep({t: -v for t, v in grid.items()})}
    check = {"metrics": ["accuracy"], "lam": "negative"}
    assert _verdict("best-at", check | {"most": True}, results).holds == "does not hold"  # one of two
    assert _verdict("best-at", check | {"most": True, "clients": [10]}, results).holds == "holds"
    assert _verdict("best-at", check | {"clients": [20]}, results).holds == "does not hold"
