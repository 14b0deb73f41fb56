"""Verdicts on claims about the comparison tables."""

import pytest

from reproduction import load
from reproduction.chapter import Verdict
from reproduction.experiment import Claim
from reproduction.experiments.comparison_claims import verdicts
from reproduction.experiments.paired import TITLES, compare_datasets
from reproduction.training import ditto, fedavg, fedtilt
from tests.helpers.handmade_results import case_result, comparison_result, metrics, part

DATA = ("mnist", "fashion-mnist", "cifar10")


def _verdict(claim: Claim, gains: tuple[float, ...], *, seeds: int = 3) -> Verdict:
    """The verdict if FedTilt is better than Ditto by these points on the three data sets."""
    tilts = {"mnist": (50.0, 100.0), "fashion-mnist": (50.0, 100.0), "cifar10": (2.0, 1.0)}
    results = {
        f"{data}-seed-{s}": comparison_result(
            metrics(70.0 + s), metrics(90.0 + s), metrics(90.0 + s + gain), tilts[data]
        )
        for data, gain in zip(DATA, gains, strict=True)
        for s in range(seeds)
    }
    return verdicts((claim,), compare_datasets(load("clean"), results))[0]


BEST = Claim(text="best", rule="best", check={"metrics": ["accuracy"]})


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((1, 1, 1), "holds"), ((1, 0, -1), "holds partly"), ((0, 0, -1), "does not hold")],
)
def test_best_of_all(gains: tuple[float, ...], expected: str) -> None:
    verdict = _verdict(BEST, gains)
    assert verdict.holds == expected
    assert f"{gains.count(1)} of 3" in verdict.why
    assert "FedTilt (validated) better than FedAvg and Ditto (validated) on accuracy" in verdict.why


def test_the_papers_claims_have_the_papers_metrics() -> None:
    assert "on the paper’s four metrics" in _verdict(Claim(text="", rule="best"), (1, 1, 1)).why
    every = Claim(text="", rule="best", check={"metrics": list(TITLES)})
    assert "on all five metrics: 3 of 15" in _verdict(every, (1, 1, 1)).why  # of the worst 10 % nothing can be said


def test_one_seed_cannot_make_a_claim_hold() -> None:
    verdict = _verdict(BEST, (1, 1, -1), seeds=1)
    assert verdict.holds == "one seed"
    assert "On one seed: mnist 1 ahead; fashion-mnist 1 ahead; cifar10 1 not ahead." in verdict.why


@pytest.mark.parametrize(("gain", "expected"), [(1, "holds"), (-1, "holds partly")])
def test_one_seed_can_count_against_a_claim(gain: float, expected: str) -> None:
    two_seeds = {
        f"mnist-seed-{s}": comparison_result(metrics(70.0), metrics(90.0), metrics(91.0), (50.0, 100.0))
        for s in range(2)
    }
    one_seed = {"cifar10-seed-0": comparison_result(metrics(70.0), metrics(90.0), metrics(90.0 + gain), (2.0, 1.0))}
    assert verdicts((BEST,), compare_datasets(load("clean"), two_seeds | one_seed))[0].holds == expected


def test_rows_listed_in_addition_do_not_decide() -> None:
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"], "rows": ["fedavg"], "also": ["fedtilt"]})
    verdict = _verdict(claim, (1, 1, 1))
    assert verdict.holds == "does not hold"
    assert "FedTilt (paper’s tilts) better than FedAvg and Ditto (validated) on accuracy: 3 of 3" in verdict.why


def test_a_claim_with_a_margin_needs_the_margin() -> None:
    check = {"rows": ["fedtilt"], "rivals": ["ditto"], "metrics": ["accuracy"], "data": ["fashion-mnist"], "by": 10.0}
    assert _verdict(Claim(text="", rule="best", check=check), (0, 11, 0)).holds == "holds"
    verdict = _verdict(Claim(text="", rule="best", check=check, guess="Our guess."), (50, 9, 50))
    assert verdict.holds == "does not hold"
    assert "In points (95 % interval): fashion-mnist FedTilt (paper’s tilts) +9.00 (+8.68 to +9.32)." in verdict.why
    assert "(fashion-mnist 1 not clearly by 10 points)" in verdict.why
    assert verdict.why.endswith("Our guess.")


def test_metrics_that_count_against_a_claim_are_listed() -> None:
    results = {
        f"mnist-seed-{s}": comparison_result(metrics(70.0 + s, 9.0), metrics(90.0 + s, 1.0), metrics(91.0 + s, 3.0))
        for s in range(3)
    }
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy", "client_fairness"]})
    verdict = verdicts((claim,), compare_datasets(load("clean"), results))[0]
    assert "1 of 2 (mnist 1 better, 1 worse (client fairness))" in verdict.why


def test_no_guess_for_claims_that_hold_or_are_not_measured() -> None:
    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"]}, guess="Our guess.")
    assert "Our guess." not in _verdict(claim, (1, 1, 1)).why
    assert "Our guess." not in _verdict(claim, (1, 1, 1), seeds=1).why
    assert verdicts((claim,), compare_datasets(load("clean"), {}))[0].why == ""
    assert _verdict(claim, (1, 0, 1)).why.endswith("Our guess.")


def test_the_papers_tilts_hold_unless_another_setting_is_better() -> None:
    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})

    def verdict(other: float, seeds: int = 3) -> Verdict:
        results = {
            f"mnist-seed-{s}": case_result(
                (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0 + s))),
                (fedtilt(1.0, 1.0, 0.01), part(metrics(other + s))),
            )
            for s in range(seeds)
        }
        return verdicts((claim,), compare_datasets(load("clean"), results))[0]

    assert verdict(94.0).holds == "holds"
    assert "1 of 1 other settings are worse" in verdict(94.0).why
    assert verdict(95.0).holds == "does not hold"  # not told apart, which is no evidence for them
    assert verdict(96.0).holds == "does not hold"
    assert "1 of 1 other settings are better, such as fedtilt tau=1 lam=1" in verdict(96.0).why
    assert (verdict(95.0, seeds=1).holds, verdict(96.0, seeds=1).holds) == ("one seed", "one seed")
    assert "mnist 1 ahead" in verdict(95.0, seeds=1).why
    assert "mnist 1 not ahead" in verdict(96.0, seeds=1).why


def test_tilts_without_results_give_no_verdict() -> None:
    results = {f"mnist-seed-{s}": case_result((fedtilt(1.0, 1.0, 0.01), part(metrics(90.0 + s)))) for s in range(3)}
    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})
    assert verdicts((claim,), compare_datasets(load("clean"), results))[0].holds == "not measured"


def test_a_setting_with_one_seed_does_not_decide_where_others_have_more() -> None:
    def seed(s: int) -> dict:
        parts = [
            (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0 + s))),
            (fedtilt(1.0, 1.0, 0.01), part(metrics(94.0 + s))),
        ]
        return case_result(*parts, *([(fedtilt(10.0, 1.0, 0.01), part(metrics(99.0)))] if s == 0 else []))

    claim = Claim(text="", rule="paper-tilts", check={"data": ["mnist"]})
    results = {f"mnist-seed-{s}": seed(s) for s in range(3)}
    assert verdicts((claim,), compare_datasets(load("clean"), results))[0].holds == "holds"


def test_losing_to_one_rival_is_enough_to_lose() -> None:
    def seed(s: int) -> dict:
        ours = [(ditto(0.01), part(metrics(90.0 + s))), (fedtilt(50.0, 100.0, 0.01), part(metrics(85.0 + s)))]
        return case_result(*ours, *([(fedavg(), part(metrics(70.0)))] if s == 0 else []))

    claim = Claim(text="", rule="best", check={"metrics": ["accuracy"], "data": ["mnist"]})
    results = {f"mnist-seed-{s}": seed(s) for s in range(3)}
    assert verdicts((claim,), compare_datasets(load("clean"), results))[0].holds == "does not hold"


def test_a_claim_without_a_rule_is_not_measured() -> None:
    verdict = _verdict(Claim(text="", unmeasured="Not run."), (1, 1, 1))
    assert (verdict.holds, verdict.why) == ("not measured", "Not run.")


def test_lam_gains_more_at_a_higher_tau() -> None:
    claim = Claim(text="", rule="rises", check={"data": ["mnist"], "tau": [0.0, 50.0], "lam": [1.0, 10.0]})

    def verdict(*gains: float) -> Verdict:
        """The verdict if a larger lam gains one point at tau = 0, and these points at tau = 50, by seed."""
        results = {
            f"mnist-seed-{s}": case_result(
                (fedtilt(0.0, 1.0, 0.01), part(metrics(90.0 + s))),
                (fedtilt(0.0, 10.0, 0.01), part(metrics(91.0 + s))),
                (fedtilt(50.0, 1.0, 0.01), part(metrics(95.0 + s))),
                (fedtilt(50.0, 10.0, 0.01), part(metrics(95.0 + s + gain))),
            )
            for s, gain in enumerate(gains)
        }
        return verdicts((claim,), compare_datasets(load("clean"), results))[0]

    assert verdict(2.0, 2.5, 2.0).holds == "holds partly"  # in accuracy; in fairness nothing changes
    assert "mnist accuracy +1.17 (+0.35 to +1.65)" in verdict(2.0, 2.5, 2.0).why
    assert verdict(1.0, 1.3, 1.2).holds == "does not hold"  # the middle gain is 0.20 ± 0.65
    assert verdict(2.0).holds == "one seed"
    assert verdict().holds == "not measured"


def test_stable_rows_lose_no_more_than_the_papers_own_rows() -> None:
    claim = Claim(text="", rule="stable", check={"rows": ["fedavg", "fedtilt"], "data": ["mnist"], "points": 2.0})

    def results(fedavg: float, tilted: float, **tilts: tuple[float, float]) -> dict:
        return {
            f"mnist-seed-{s}": comparison_result(metrics(fedavg + s), metrics(90.0), metrics(tilted + 0.1 * s), **tilts)
            for s in range(3)
        }

    clean = compare_datasets(load("clean"), results(80.0, 95.0))
    for tilted, expected in ((94.0, "holds"), (90.0, "holds partly")):
        noisy = compare_datasets(load("corruptions"), results(79.0, tilted, tilts=(-0.5, 1.0)))
        verdict = verdicts((claim,), noisy, clean)[0]
        assert verdict.holds == expected
    assert "1 of 2 (mnist 1 within the limit, 1 above the limit). " in verdict.why
    assert "Points lost (95 % interval): mnist FedAvg +1.00 (+0.68 to +1.32); " in verdict.why
    assert verdicts((claim,), noisy)[0].holds == "not measured"  # no results on clean data


@pytest.mark.parametrize(
    ("gains", "seeds", "holds", "text"),
    [
        ((0.1, -0.2, 0.3), 3, "holds", "3 of 3 (mnist 1 within the limit; fashion-mnist 1 within the limit"),
        ((0.1, -1.1, 0.3), 3, "holds partly", "2 of 3 (mnist 1 within the limit; fashion-mnist 1 above the limit"),
        ((1.1, -1.1, 1.3), 3, "does not hold", "0 of 3"),
        ((0.1, -1.1, 0.3), 1, "one seed", "On one seed: mnist 1 within the limit; fashion-mnist 1 above the limit"),
    ],
)
def test_two_rows_are_close_if_the_interval_of_their_difference_is_small(
    gains: tuple[float, ...], seeds: int, holds: str, text: str
) -> None:
    check = {"pairs": [["fedtilt", "ditto"]], "within": 0.7}
    verdict = _verdict(Claim(text="", rule="close", check=check), gains, seeds=seeds)
    assert verdict.holds == holds
    assert text in verdict.why
    largest = max(gains, key=abs)
    assert (
        f"{'+' if largest > 0 else '−'}{abs(largest):.2f}" in verdict.why.split("The largest difference in points")[1]
    )


def test_a_claim_may_name_data_sets_and_conditions() -> None:
    def check(**where: list[str]) -> Claim:
        return Claim(text="", rule="best", check={"metrics": ["accuracy"], **where})

    assert "1 of 1 (mnist 1 better)" in _verdict(check(data=["mnist"]), (1, 1, 1)).why
    assert "3 of 3" in _verdict(check(conditions=["clean"]), (1, 1, 1)).why
    assert _verdict(check(conditions=["flips"]), (1, 1, 1)).holds == "not measured"
