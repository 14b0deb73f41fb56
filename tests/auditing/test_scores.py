"""The score: calibrated on margins that are drawn from the mixture, small on clean data, and sound at the edges."""

import pytest
import torch
from sklearn.linear_model import Ridge

from fedtilt.auditing.scores import (
    _RIDGE,
    _leave_one_out,
    evidence,
    expected_precision,
    fit_mixture,
    score_clients,
    wrong_label_share,
)


def drawn(share: float, clients: int = 4, n: int = 500) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Margins of right labels around 4 and of wrong ones around −5, the client of each, and which are wrong."""
    generator = torch.Generator().manual_seed(1)
    wrong = torch.rand(clients * n, generator=generator) < share
    margin = torch.where(wrong, -5.0, 4.0) + 2.0 * torch.randn(clients * n, generator=generator)
    return margin.double(), torch.arange(clients).repeat_interleave(n), wrong


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_the_mixture_finds_the_share_and_its_scores_are_probabilities(share: float) -> None:
    margin, client, wrong = drawn(share)
    mixture = fit_mixture(margin, client, 4)
    score = mixture.score(margin, client)
    assert float(score.mean()) == pytest.approx(float(wrong.double().mean()), abs=0.01)
    assert (mixture.right, mixture.wrong, mixture.deviation) == pytest.approx((4.0, -5.0, 2.0), abs=0.3)
    unsure = (score > 0.2) & (score < 0.8)
    assert float(wrong[unsure].double().mean()) == pytest.approx(float(score[unsure].mean()), abs=0.2)


def test_clean_margins_are_not_split_in_two() -> None:
    margin, client, _ = drawn(0.0)
    assert float(fit_mixture(margin, client, 4).score(margin, client).mean()) < 0.01


def test_clients_have_shares_of_their_own() -> None:
    margin, client, _ = drawn(0.0)
    bad = (client == 3) & (torch.arange(len(client)) % 5 < 3)
    margin = torch.where(bad, -margin, margin)
    shares = fit_mixture(margin, client, 4).shares
    assert shares[3] == pytest.approx(0.6, abs=0.05)
    assert shares[:3].max() < 0.03


def test_a_higher_margin_is_never_more_suspicious() -> None:
    margin, client, _ = drawn(0.2, clients=1)
    score = fit_mixture(margin, client, 1).score(margin, client)
    assert bool((score[margin.argsort()].diff() <= 0).all())


def test_leave_one_out_is_a_regression_without_the_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(25, 3, generator=generator, dtype=torch.float64).log_softmax(1)
    y = torch.randint(0, 3, (25,), generator=generator)
    found = _leave_one_out(log_p, y)
    x = (log_p - log_p.mean(0)) / (log_p - log_p.mean(0)).std(unbiased=False)
    targets = torch.nn.functional.one_hot(y, 3).double()
    for i in (0, 7, 24):
        rest = torch.arange(25) != i
        model = Ridge(alpha=_RIDGE).fit(x[rest].numpy(), targets[rest].numpy())
        assert found[i].tolist() == pytest.approx(model.predict(x[i : i + 1].numpy())[0].tolist(), abs=1e-6)


def test_a_client_with_mostly_wrong_labels_does_not_vouch_for_itself() -> None:
    y = torch.arange(600) % 2
    log_p = torch.where(torch.nn.functional.one_hot(y, 2).bool(), -0.1, -2.0).double()
    log_p += 0.01 * torch.randn(600, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flipped = torch.where(torch.arange(600) % 10 < 7, 1 - y, y)
    assert torch.equal(evidence(log_p, flipped).argmax(1), y)


def test_one_sample_one_class_and_equal_margins_have_finite_scores() -> None:
    log_p = torch.tensor([[0.7, 0.3]]).log().double()
    score, margin, looks_like = score_clients([log_p, log_p.repeat(5, 1)], [torch.tensor([0]), torch.ones(5).long()])
    assert bool(score.isfinite().all() and margin.isfinite().all())
    assert looks_like.tolist()[0] == 0


def test_wilson_interval_and_expected_precision() -> None:
    found = wrong_label_share(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert (found.share, found.low, found.high) == pytest.approx((0.1, 0.0179, 0.4042), abs=1e-4)  # 1 of 10
    assert expected_precision(torch.tensor([0.5, 1.0, 0.0])).tolist() == [1.0, 0.75, 0.5]
