"""Plan and settle: the lanes of every method, and nothing flawed in an average."""

import math

import pytest
import torch
from torch import Tensor

from fedtilt.errors import Diverged, InputError
from fedtilt.methods import ditto, fedavg, fedprox, fedtilt, term
from fedtilt.rounds.round import plan, server_update

W, V = torch.zeros(4), torch.ones(4)
RATES = {"lr": 0.1, "lr_personal": 0.2}


def lane_of(job) -> tuple:
    return job.start is W, job.anchor is W, job.prox, job.tau, job.lam, job.lr


def test_lanes_of_every_method() -> None:
    """The table of the design: start at w, anchor w, pull, tau, lam, lr."""
    shared = {
        fedavg(): (True, True, 0.0, 0.0, 0.0, 0.1),
        fedprox(0.3): (True, True, 0.3, 0.0, 0.0, 0.1),
        term(2.0): (True, True, 0.0, 2.0, 2.0, 0.1),
        ditto(0.5): (True, True, 0.0, 0.0, 0.0, 0.1),
        fedtilt(5.0, -2.0, mu=0.5): (True, True, 0.0, 5.0, -2.0, 0.1),
    }
    personal = {
        ditto(0.5): (False, True, 0.5, 0.0, 0.0, 0.2),
        fedtilt(5.0, -2.0, mu=0.5): (False, True, 0.5, 5.0, -2.0, 0.2),
    }
    for method, expected in shared.items():
        planned = plan(method, W, V, **RATES)
        assert lane_of(planned.shared) == expected
        if method in personal:
            assert lane_of(planned.personal) == personal[method]
            assert planned.personal.start is V
            assert plan(method, W, None, **RATES).personal.start is W  # the first time, v starts at w
        else:
            assert planned.personal is None
            assert len(planned.jobs) == 1


def test_settle_is_the_mean_for_fedavg_whatever_the_order_of_arrival() -> None:
    updates = {n: torch.randn(50) for n in (5, 1, 9)}
    settled = server_update(fedavg(), torch.zeros(50), updates, {})
    torch.testing.assert_close(settled.shared, torch.stack(list(updates.values())).mean(0))
    assert settled.rejected == {}
    assert torch.equal(
        server_update(fedavg(), torch.zeros(50), dict(reversed(updates.items())), {}).shared, settled.shared
    )


def test_weighting_by_samples() -> None:
    updates, samples = {0: torch.zeros(3), 1: torch.ones(3)}, {0: 100, 1: 300}
    assert server_update(fedavg(weighting="samples"), W[:3], updates, samples).shared.tolist() == [0.75] * 3
    assert server_update(fedavg(), W[:3], updates, samples).shared.tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "aggregator",
    ["tilted", "mean", "median", "geometric_median", "trimmed_mean", "krum", "multi_krum", "norm_clipped"],
)
def test_every_rule_serves_a_method(aggregator: str) -> None:
    updates = {n: torch.randn(20) for n in range(10)} | {10: torch.full((20,), 1e6)}
    shared = server_update(fedavg(aggregator=aggregator), torch.zeros(20), updates, {}).shared
    assert (shared.abs().max() < 5) == (aggregator not in ("tilted", "mean"))


def test_an_aggregate_that_is_not_finite_is_never_handed_on() -> None:
    far = {0: torch.full((3,), -3e38), 1: torch.full((3,), 3e38)}
    with pytest.raises(Diverged, match=r"'fedavg' diverged on the server: .* is not finite; look at its rule"):
        server_update(fedavg(), W[:3], far, {})
    with pytest.raises(Diverged, match=r"lower the size in steps = \(300, 10.0\)"):
        server_update(fedavg(steps=(300, 10)), W[:3], {0: torch.ones(3), 1: 3 * torch.ones(3)}, {})


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (torch.tensor([1.0, math.nan, 0.0]), "is not finite"),
        (torch.tensor([1.0, math.inf, 0.0]), "is not finite"),
        (torch.ones(1), "has shape (1,) instead of (3,)"),
        (torch.ones(3, 1), "has shape (3, 1) instead of (3,)"),
        (torch.tensor(1.0), "has shape () instead of (3,)"),
        (torch.ones(3, dtype=torch.float64), "has type torch.float64 instead of torch.float32"),
        (torch.ones(3, dtype=torch.long), "has type torch.int64 instead of torch.float32"),
    ],
)
def test_a_flawed_model_never_enters_an_average(bad: Tensor, why: str) -> None:
    good = {0: torch.ones(3), 2: 3 * torch.ones(3)}
    settled = server_update(fedavg(), W[:3], good | {1: bad}, {})
    assert settled.rejected == {1: why}
    assert torch.equal(settled.shared, server_update(fedavg(), W[:3], good, {}).shared)
    with pytest.raises(InputError, match="no client model to aggregate"):
        server_update(fedavg(), W[:3], {1: bad}, {})
