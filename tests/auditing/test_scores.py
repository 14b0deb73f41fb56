"""The score: calibrated on margins that are drawn from the mixture, small on clean data, and sound at the edges."""

import math

import pytest
import torch
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score

from fedtilt.auditing.collect import margins
from fedtilt.auditing.scores import (
    _RIDGE,
    _leave_one_out,
    _maximise,
    expected_precision,
    fit_mixture,
    fit_noise,
    label_probabilities,
    score_clients,
    told_part,
    wrong_label_share,
)
from fedtilt.errors import InputWarning


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
    trust = torch.rand(25, generator=generator, dtype=torch.float64)
    found = _leave_one_out(log_p, y, trust)
    x = (log_p - log_p.mean(0)) / (log_p - log_p.mean(0)).std(unbiased=False)
    targets = torch.nn.functional.one_hot(y, 3).double()
    for i in (0, 7, 24):
        rest = torch.arange(25) != i
        model = Ridge(alpha=_RIDGE).fit(x[rest].numpy(), targets[rest].numpy(), sample_weight=trust[rest].numpy())
        assert found[i].tolist() == pytest.approx(model.predict(x[i : i + 1].numpy())[0].tolist(), abs=1e-6)


def test_a_client_with_mostly_wrong_labels_does_not_vouch_for_itself() -> None:
    y = torch.arange(600) % 2
    log_p = torch.where(torch.nn.functional.one_hot(y, 2).bool(), -0.1, -2.0).double()
    log_p += 0.01 * torch.randn(600, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wrong = torch.arange(600) % 10 < 7
    score, _, looks_like = score_clients([log_p, log_p], [torch.where(wrong, 1 - y, y), y])
    assert torch.equal(score >= 0.5, torch.cat([wrong, torch.zeros_like(wrong)]))
    assert torch.equal(looks_like, torch.cat([y, y]))


def uncertain(
    seed: int, scale: float = 2.0, clients: int = 6, n: int = 150, classes: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of classes that inputs do not tell apart well, labels drawn from them, and clients."""
    generator = torch.Generator().manual_seed(seed)
    log_p = (scale * torch.randn(clients * n, classes, generator=generator, dtype=torch.float64)).log_softmax(1)
    y = torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
    return log_p, y, torch.arange(clients).repeat_interleave(n)


def scored(log_p: torch.Tensor, y: torch.Tensor, client: torch.Tensor) -> torch.Tensor:
    parts = [client == c for c in client.unique()]
    return score_clients([log_p[rows] for rows in parts], [y[rows] for rows in parts])[0]


def precision_of(score: torch.Tensor, wrong: torch.Tensor) -> float:
    return float(average_precision_score(wrong.numpy(), score.numpy()))


def noisy(kind: str, log_p: torch.Tensor, truth: torch.Tensor, client: torch.Tensor) -> torch.Tensor:
    """Labels with errors of this kind."""
    generator = torch.Generator().manual_seed(2)
    drawn, classes = torch.rand(len(truth), generator=generator), log_p.shape[1]
    step = torch.randint(1, classes, truth.shape, generator=generator) if kind == "symmetric" else 1
    wrong = {
        "symmetric": drawn < 0.15,
        "pairwise": drawn < 0.15,
        "systematic": (client < 2) & (truth == 0) & (drawn < 0.5),
        "feature": (log_p[:, 0] > log_p[:, 0].quantile(0.7)) & (drawn < 0.5),
    }[kind]
    return torch.where(wrong, (truth + step) % classes, truth)


@pytest.mark.parametrize("kind", ["symmetric", "pairwise", "systematic", "feature"])
def test_ranks_at_least_as_well_as_cleanlab_and_scores_are_probabilities(kind: str) -> None:
    log_p, truth, client = uncertain(1, scale=3.0)
    y = noisy(kind, log_p, truth, client)
    wrong, score = y != truth, scored(log_p, y, client)
    quality = torch.from_numpy(get_label_quality_scores(y.numpy(), log_p.exp().numpy()))
    assert precision_of(score, wrong) >= precision_of(-quality, wrong) - 0.01
    if kind != "symmetric":  # a confusion is known
        assert precision_of(score, wrong) >= precision_of(-quality, wrong) + 0.01
    named = score >= 0.5
    assert int(named.sum()) >= 10
    assert float(score[named].mean()) == pytest.approx(float(wrong[named].double().mean()), abs=0.12)
    assert float(score.mean()) == pytest.approx(float(wrong.double().mean()), abs=0.03)


def test_many_wrong_labels_of_classes_that_inputs_tell_are_named() -> None:
    """Two classes per client, and 45 % of the labels any other: no fit explains much of such labels."""
    generator = torch.Generator().manual_seed(2)
    client = torch.arange(12).repeat_interleave(100)
    truth = (2 * client + torch.randint(0, 2, client.shape, generator=generator)) % 10
    noise = torch.randn(len(truth), 10, generator=generator, dtype=torch.float64)
    log_p = (3 * torch.nn.functional.one_hot(truth, 10) + noise).log_softmax(1)
    wrong = torch.rand(len(truth), generator=generator) < 0.45
    y = torch.where(wrong, (truth + torch.randint(1, 10, truth.shape, generator=generator)) % 10, truth)
    named = scored(log_p, y, client) >= 0.5
    assert float(wrong[named].double().mean()) > 0.97
    assert float(named[wrong].double().mean()) > 0.95


def test_what_inputs_and_labels_tell() -> None:
    log_p, y, client = uncertain(0, clients=2)
    fit = fit_noise(log_p, y, client, (False,))
    shares = torch.tensor([0.1, 0.9], dtype=torch.float64)
    fit = fit._replace(noise=fit.noise._replace(shares=shares))
    entropy = torch.distributions.Categorical(probs=fit.p).entropy().mean()
    counts = y.bincount().double()
    of_all = torch.distributions.Categorical(probs=counts).entropy()  # of a client, without a sample, it is higher
    assert told_part(fit, y, client) == pytest.approx(float(1 - entropy / of_all) * (0.85 + 0.35) / 2, abs=5e-3)
    certain = fit._replace(p=torch.nn.functional.one_hot(y, 3).double(), noise=fit.noise._replace(shares=0 * shares))
    assert told_part(certain, y, client) == 1
    guess = certain._replace(noise=fit.noise._replace(shares=torch.full((2,), 2 / 3, dtype=torch.float64)))
    assert told_part(guess, y, client) == pytest.approx(0)


def test_labels_that_inputs_do_not_tell_are_not_suspects() -> None:
    log_p, y, client = uncertain(0)
    assert float(scored(log_p, y, client).mean()) < 0.02
    assert float((log_p.argmax(1) != y).double().mean()) > 0.15  # though many differ from the likeliest class


def test_a_model_that_knows_little_names_no_label_and_says_so() -> None:
    """62 % of the labels are the likelier class, however sure the model is: noise, or classes not told apart."""
    log_p, _, client = uncertain(0, scale=0.7, classes=2)
    agrees = torch.rand(len(log_p), generator=torch.Generator().manual_seed(1)) < 0.62
    y = torch.where(agrees, log_p.argmax(1), log_p.argmin(1))
    parts = [client == c for c in client.unique()]
    with pytest.warns(InputWarning, match="explain these labels equally well: all scores are 0"):
        score, margin, _ = score_clients([log_p[rows] for rows in parts], [y[rows] for rows in parts])
    assert not bool(score.any())
    fit = fit_noise(log_p, y, client)  # labels are ordered without the noise, of which nothing is known
    assert not fit.with_shares
    torch.testing.assert_close(margin, fit.p.gather(1, y[:, None])[:, 0].logit())


def test_wrong_labels_of_classes_that_a_client_does_not_have() -> None:
    """Two classes per client and labels of any other: the shares of classes must not explain them."""
    generator = torch.Generator().manual_seed(5)
    client = torch.arange(10).repeat_interleave(60)
    truth = (client + torch.randint(0, 2, (600,), generator=generator)) % 10
    noise = torch.randn(600, 10, generator=generator, dtype=torch.float64)
    log_p = (2 * torch.nn.functional.one_hot(truth, 10) + noise).log_softmax(1)
    wrong = torch.rand(600, generator=generator) < 0.2
    y = torch.where(wrong, (truth + torch.randint(1, 10, (600,), generator=generator)) % 10, truth)
    named = scored(log_p, y, client) >= 0.5
    assert int((named & wrong).sum()) >= 0.8 * int(wrong.sum())
    assert int((named & wrong).sum()) >= 0.9 * int(named.sum())


def test_likelihood_and_posterior_against_loops_over_samples_and_classes() -> None:
    log_p, y, client = uncertain(4, clients=3, n=30)
    y[::6] = (y[::6] + 1) % 3
    fit = fit_noise(log_p, y, client, (True,))
    e, q = fit.noise
    again = _maximise(log_p, y, client, fit, 1)  # one step from known shares, confusion and posterior
    total = 0.0
    for i in range(len(y)):
        counts = [1.0 / 3] * 3
        for j in range(len(y)):
            if j != i and client[j] == client[i]:
                counts = [count + float(fit.posterior[j, k]) for k, count in enumerate(counts)]
        p = [math.exp(float(log_p[i, k]) / fit.temperature) * counts[k] for k in range(3)]
        p = [value / sum(p) for value in p]
        share = float(e[client[i]])
        joint = [p[k] * (1 - share if k == y[i] else share * float(q[k, y[i]])) for k in range(3)]
        total += math.log(sum(joint))
        assert again.posterior[i].tolist() == pytest.approx([value / sum(joint) for value in joint], abs=1e-9)
    assert again.log_likelihood == pytest.approx(total, rel=1e-9)
    everything = sum(label_probabilities(fit.noise, torch.full_like(y, k), client) for k in range(3))
    assert torch.allclose(everything, torch.ones_like(log_p))  # of any true class, the labels have probability 1


def test_a_regression_that_trusts_no_suspects_does_not_learn_the_habit_of_a_client() -> None:
    log_p, truth, client = uncertain(3, scale=5.0)
    wrong = (client == 0) & (truth == 0) & (torch.arange(len(truth)) % 2 == 0)
    y = torch.where(wrong, 1, truth)
    mine, trust = client == 0, torch.where(wrong, 0.0, 1.0).double()
    blind, aware = (
        margins(_leave_one_out(log_p[mine], y[mine], t), y[mine]) for t in (torch.ones(150).double(), trust[mine])
    )
    assert float(aware[wrong[mine]].mean()) < float(blind[wrong[mine]].mean()) - 0.2


def test_one_sample_one_class_and_equal_margins_have_finite_scores() -> None:
    log_p = torch.tensor([[0.7, 0.3]]).log().double()
    score, margin, looks_like = score_clients([log_p, log_p.repeat(5, 1)], [torch.tensor([0]), torch.ones(5).long()])
    assert bool(score.isfinite().all() and margin.isfinite().all())
    assert looks_like.tolist()[0] == 0


def test_wilson_interval_and_expected_precision() -> None:
    found = wrong_label_share(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert (found.share, found.low, found.high) == pytest.approx((0.1, 0.0179, 0.4042), abs=1e-4)  # 1 of 10
    assert expected_precision(torch.tensor([0.5, 1.0, 0.0])).tolist() == [1.0, 0.75, 0.5]
