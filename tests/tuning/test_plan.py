"""The stages of successive halving."""

import itertools

import pytest

from fedtilt.tuning.plan import FINALISTS, rungs


@pytest.mark.parametrize("settings", [1, 2, 3, 5, 16, 17, 64, 200])
@pytest.mark.parametrize("rounds", [1, 2, 10, 50, 500])
def test_every_stage_has_fewer_settings_and_more_rounds(settings: int, rounds: int) -> None:
    plan = rungs(settings, rounds)
    assert plan[0].settings == settings
    assert plan[-1].rounds == rounds
    for a, b in itertools.pairwise(plan):
        assert a.settings > b.settings
        assert a.rounds < b.rounds
    assert len(plan) == 1 or plan[-1].settings <= max(FINALISTS, -(-settings // 4))
    assert rungs(settings, rounds, halving=False) == [(settings, rounds)]


def test_64_settings_cost_at_most_six_runs() -> None:
    for rounds in (40, 50, 100, 500):
        plan = rungs(64, rounds)
        starts = [0, *(rung.rounds for rung in plan)]
        cost = sum((rung.settings + 1) * (rung.rounds - start) for start, rung in zip(starts, plan, strict=False))
        assert cost <= 5.5 * rounds
