"""Verdicts on claims, from numbers."""

import pytest

from fedtilt.reproduction import load
from fedtilt.reproduction.comparison.claims import verdicts
from fedtilt.reproduction.comparison.standings import standings
from fedtilt.reproduction.experiment import Claim
from fedtilt.reproduction.sweep import claims as sweeps
from fedtilt.reproduction.train_grid import ditto, fedavg, fedtilt
from tests.helpers.handmade_results import cell, compared, metrics, part

DATA = ("mnist", "fashion-mnist", "cifar10")


def _judge(claim: Claim, gains: tuple[float, ...], *, seeds: int = 3):
    """A verdict where FedTilt is ahead of Ditto by so many points on the three data sets."""
    tilts = {"mnist": (50.0, 100.0), "fashion-mnist": (50.0, 100.0), "cifar10": (2.0, 1.0)}
    results = {
        f"{data}-seed-{s}": compared(metrics(70.0 + s), metrics(90.0 + s), metrics(90.0 + s + gain), tilts[data])
        for data, gain in zip(DATA, gains, strict=True)
        for s in range(seeds)
    }
    return verdicts((claim,), standings(load("clean"), results))[0]


BEST = Claim(text="best", rule="best", check={"metrics": ["accuracy"]})


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((1, 1, 1), "holds"), ((1, 0, -1), "holds partly"), ((0, 0, -1), "does not hold")],
)
def test_best_of_all(gains: tuple[float, ...], expected: str) -> None:
    verdict = _judge(BEST, gains)
    assert verdict.holds == expected
    assert f"{gains.count(1)} of 3" in verdict.why
    assert "FedTilt (validated) better than FedAvg and Ditto (validated) on accuracy" in verdict.why


def test_one_seed_makes_nothing_hold() -> None:
    verdict = _judge(BEST, (1, 1, -1), seeds=1)
    assert verdict.holds == "one seed"
    assert "On one seed: mnist 1 ahead; fashion-mnist 1 ahead; cifar10 1 not ahead." in verdict.why


@pytest.mark.parametrize(("gain", "expected"), [(1, "holds"), (-1, "holds partly")])
def test_one_seed_can_stand_against_a_claim(gain: float, expected: str) -> None:
    sure = {f"mnist-seed-{s}": compared(metrics(70.0), metrics(90.0), metrics(91.0), (50.0, 100.0)) for s in range(2)}
    lone = {"cifar10-seed-0": compared(metrics(70.0), metrics(90.0), metrics(90.0 + gain), (2.0, 1.0))}
    assert verdicts((BEST,), standings(load("clean"), sure | lone))[0].holds == expected


def test_what_else_is_told_does_not_decide() -> None:
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"], "rows": ["fedavg"], "also": ["fedtilt"]})
    verdict = _judge(claim, (1, 1, 1))
    assert verdict.holds == "does not hold"
    assert "FedTilt (paper’s tilts) better than FedAvg and Ditto (validated) on accuracy: 3 of 3" in verdict.why


def test_a_claim_about_a_breakdown_needs_its_margin() -> None:
    check = {"rows": ["fedtilt"], "rivals": ["ditto"], "metrics": ["accuracy"], "data": ["fashion-mnist"], "by": 10.0}
    assert _judge(Claim(text="", rule="best", check=check), (0, 11, 0)).holds == "holds"
    verdict = _judge(Claim(text="", rule="best", check=check, guess="Our guess."), (50, 9, 50))
    assert verdict.holds == "does not hold"
    assert "In points (± standard error): fashion-mnist FedTilt (paper’s tilts) +9.00 ± 0.00." in verdict.why
    assert verdict.why.endswith("Our guess.")


def test_what_stands_against_a_claim_is_named() -> None:
    results = {
        f"mnist-seed-{s}": compared(metrics(70.0 + s, 9.0), metrics(90.0 + s, 5.0), metrics(91.0 + s, 6.0))
        for s in range(3)
    }
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy", "client_fairness"]})
    verdict = verdicts((claim,), standings(load("clean"), results))[0]
    assert "1 of 2 (mnist 1 better, 1 worse (client fairness))" in verdict.why


def test_no_guess_beside_what_holds_or_was_not_measured() -> None:
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"]}, guess="Our guess.")
    assert "Our guess." not in _judge(claim, (1, 1, 1)).why
    assert "Our guess." not in _judge(claim, (1, 1, 1), seeds=1).why
    assert verdicts((claim,), standings(load("clean"), {}))[0].why == ""
    assert _judge(claim, (1, 0, 1)).why.endswith("Our guess.")


def test_the_papers_tilts_hold_unless_another_setting_is_better() -> None:
    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})

    def judge(other: float, seeds: int = 3):
        results = {
            f"mnist-seed-{s}": cell(
                (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0 + s))),
                (fedtilt(1.0, 1.0, 0.01), part(metrics(other + s))),
            )
            for s in range(seeds)
        }
        return verdicts((claim,), standings(load("clean"), results))[0]

    assert judge(95.0).holds == "holds"
    assert judge(96.0).holds == "does not hold"
    assert "1 of 1 others are better, fedtilt tau=1 lam=1 among them" in judge(96.0).why
    assert (judge(95.0, seeds=1).holds, judge(96.0, seeds=1).holds) == ("one seed", "one seed")
    assert "mnist 1 ahead" in judge(95.0, seeds=1).why
    assert "mnist 1 not ahead" in judge(96.0, seeds=1).why


def test_tilts_that_were_not_measured_win_nothing() -> None:
    results = {f"mnist-seed-{s}": cell((fedtilt(1.0, 1.0, 0.01), part(metrics(90.0 + s)))) for s in range(3)}
    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})
    assert verdicts((claim,), standings(load("clean"), results))[0].holds == "not measured"


def test_a_setting_that_ran_once_decides_nothing_where_others_ran_often() -> None:
    def seed(s: int) -> dict:
        parts = [
            (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0 + s))),
            (fedtilt(1.0, 1.0, 0.01), part(metrics(94.0 + s))),
        ]
        return cell(*parts, *([(fedtilt(10.0, 1.0, 0.01), part(metrics(99.0)))] if s == 0 else []))

    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})
    results = {f"mnist-seed-{s}": seed(s) for s in range(3)}
    assert verdicts((claim,), standings(load("clean"), results))[0].holds == "holds"


def test_one_lost_rival_is_enough_to_lose() -> None:
    def seed(s: int) -> dict:
        ours = [(ditto(0.01), part(metrics(90.0 + s))), (fedtilt(50.0, 100.0, 0.01), part(metrics(85.0 + s)))]
        return cell(*ours, *([(fedavg(), part(metrics(70.0)))] if s == 0 else []))

    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"], "data": ["mnist"]})
    results = {f"mnist-seed-{s}": seed(s) for s in range(3)}
    assert verdicts((claim,), standings(load("clean"), results))[0].holds == "does not hold"


def test_without_a_rule_nothing_is_measured() -> None:
    verdict = _judge(Claim(text="said", unmeasured="Not run."), (1, 1, 1))
    assert (verdict.holds, verdict.why) == ("not measured", "Not run.")


def test_lam_gains_more_at_a_higher_tau() -> None:
    claim = Claim(text="", rule="rises", check={"data": ["mnist"], "tau": [0.0, 50.0], "lam": [1.0, 10.0]})

    def judge(*gains: float):
        """A verdict where a larger lam is worth one point at tau = 0, and so many at tau = 50, seed by seed."""
        results = {
            f"mnist-seed-{s}": cell(
                (fedtilt(0.0, 1.0, 0.01), part(metrics(90.0 + s))),
                (fedtilt(0.0, 10.0, 0.01), part(metrics(91.0 + s))),
                (fedtilt(50.0, 1.0, 0.01), part(metrics(95.0 + s))),
                (fedtilt(50.0, 10.0, 0.01), part(metrics(95.0 + s + gain))),
            )
            for s, gain in enumerate(gains)
        }
        return verdicts((claim,), standings(load("clean"), results))[0]

    assert judge(2.0, 2.5, 2.0).holds == "holds partly"  # in accuracy; in fairness nothing changes
    assert "mnist accuracy +1.17 ± 0.17" in judge(2.0, 2.5, 2.0).why
    assert judge(0.0, 2.1, 1.0).holds == "does not hold"  # 0.03 ± 0.61: chance
    assert judge(2.0).holds == "one seed"
    assert judge().holds == "not measured"


def test_what_is_stable_loses_no_more_than_the_papers_own_rows() -> None:
    claim = Claim(text="", rule="stable", check={"rows": ["fedavg", "fedtilt"], "data": ["mnist"], "points": 2.0})

    def found(fedavg: float, tilted: float, **more: tuple[float, float]):
        return {
            f"mnist-seed-{s}": compared(metrics(fedavg + s), metrics(90.0), metrics(tilted + 0.1 * s), **more)
            for s in range(3)
        }

    clean = standings(load("clean"), found(80.0, 95.0))
    for tilted, expected in ((94.0, "holds"), (90.0, "holds partly")):
        noisy = standings(load("corruptions"), found(79.0, tilted, tilts=(-0.5, 1.0)))
        verdict = verdicts((claim,), noisy, clean)[0]
        assert verdict.holds == expected
    assert "1 of 2 (mnist 1 no more, 1 more). Points lost (± standard error): mnist FedAvg 1.00 ± 0.00; " in verdict.why
    assert verdicts((claim,), noisy)[0].holds == "not measured"  # nothing to hold it against


# -- sweeps ------------------------------------------------------------------------------------------------------------


def _sweep(accuracy: dict[tuple[float, float], float], fairness: dict[tuple[float, float], float] | None = None):
    return cell(
        *(
            (fedtilt(*tilts, 0.01), part(metrics(value, (fairness or {}).get(tilts, 5.0))))
            for tilts, value in accuracy.items()
        )
    )


GRID = {(-10.0, 1.0): 50.0, (1.0, 1.0): 97.0, (10.0, 10.0): 98.0, (1.0, -1.0): 96.5}


def _sweep_verdict(rule: str, check: dict, results: dict, *, seeds: int = 2):
    """A verdict where every panel was run so often, with the same outcome."""
    results = {f"{name.removesuffix('0')}{seed}": found for name, found in results.items() for seed in range(seeds)}
    return sweeps.verdicts((Claim(text="", rule=rule, check=check),), sweeps.panels(results))[0]


def test_panels_average_seeds_and_a_collapsed_setting_is_not_the_fairest() -> None:
    fair = dict.fromkeys(GRID, 4.0) | {(-10.0, 1.0): 0.0, (1.0, 1.0): 3.0}
    results = {f"fashion-mnist-clean-10-seed-{s}": _sweep({t: v + s for t, v in GRID.items()}, fair) for s in (0, 1)}
    (panel,) = sweeps.panels(results)
    assert (panel.data, panel.condition, panel.clients, panel.seeds) == ("fashion-mnist", "clean", 10, 2)
    assert panel.grid[1.0, 1.0]["accuracy"] == 97.5
    assert panel.best("accuracy") == (10.0, 10.0)
    assert panel.best("client_fairness") == (1.0, 1.0)


def test_where_the_best_tilts_lie() -> None:
    results = {"mnist-clean-10-seed-0": _sweep(GRID)}
    positive = {"metrics": ["accuracy"], "tau": "positive", "lam": "positive"}
    assert _sweep_verdict("best-at", positive, results).holds == "holds"
    assert _sweep_verdict("best-at", positive | {"lam": [1.0]}, results).holds == "does not hold"
    partly = _sweep_verdict("best-at", {"lam": [10.0]}, results)  # one setting of four, best on one metric of three
    assert partly.holds == "holds partly"
    assert "1 of 3 cases (panels × metrics); by chance, it would be in 0.8" in partly.why
    either = {"tau": "negative", "lam": [10.0], "either": True}  # two of four: no more than chance would have it
    assert _sweep_verdict("best-at", either, results).holds == "does not hold"
    assert _sweep_verdict("best-at", positive | {"data": ["cifar10"]}, results).holds == "not measured"


def test_what_outliers_cost() -> None:
    results = {"mnist-clean-10-seed-0": _sweep(GRID), "mnist-gaussian-10-seed-0": _sweep({(1.0, 1.0): 96.5})}
    check = {"condition": ["gaussian"], "points": 1.0}
    verdict = _sweep_verdict("unharmed", check, results)
    assert verdict.holds == "does not hold"
    assert "1.5" in verdict.why
    assert _sweep_verdict("unharmed", check | {"points": 2.0}, results).holds == "holds"


def test_ten_and_twenty_clients_rank_alike() -> None:
    same = {t: 2 * v - 100 for t, v in GRID.items()}
    other = dict(zip(GRID, reversed(GRID.values()), strict=True))
    for twenty, expected in ((same, "holds"), (other, "does not hold")):
        results = {"mnist-clean-10-seed-0": _sweep(GRID), "mnist-clean-20-seed-0": _sweep(twenty)}
        assert _sweep_verdict("agree", {"rho": 0.8}, results).holds == expected


def test_fairness_of_both_kinds_goes_together() -> None:
    def sweep(order: list[float]):
        parts = [(fedtilt(1.0, float(i), 0.01), part(metrics(97.0, i, mean))) for i, mean in enumerate(order)]
        return {"mnist-clean-10-seed-0": cell(*parts)}

    assert _sweep_verdict("together", {"rho": 0.5}, sweep([1.0, 2.0, 3.0, 4.0])).holds == "holds"
    assert _sweep_verdict("together", {"rho": 0.5}, sweep([4.0, 3.0, 2.0, 1.0])).holds == "does not hold"


def test_one_panel_of_one_seed_decides_nothing() -> None:
    check = {"metrics": ["accuracy"], "tau": "positive", "lam": "positive"}
    lone, two = {"mnist-clean-10-seed-0": _sweep(GRID)}, {f"mnist-clean-{n}-seed-0": _sweep(GRID) for n in (10, 20)}
    assert _sweep_verdict("best-at", check, lone, seeds=1).holds == "one seed"
    assert _sweep_verdict("best-at", check, two, seeds=1).holds == "holds"


def test_most_cases_are_a_majority_and_a_claim_may_name_the_clients() -> None:
    grid = {(1.0, -1.0): 97.0, (1.0, 1.0): 96.0}
    results = {"mnist-clean-10-seed-0": _sweep(grid), "mnist-clean-20-seed-0": _sweep({t: -v for t, v in grid.items()})}
    check = {"metrics": ["accuracy"], "lam": "negative"}
    assert _sweep_verdict("best-at", check | {"most": True}, results).holds == "does not hold"  # one of two
    assert _sweep_verdict("best-at", check | {"most": True, "clients": [10]}, results).holds == "holds"
    assert _sweep_verdict("best-at", check | {"clients": [20]}, results).holds == "does not hold"
