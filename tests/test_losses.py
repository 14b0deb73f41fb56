import math

import pytest
import torch
import torch.nn.functional as F

from fedtilt.errors import InputError
from fedtilt.losses import TiltedLoss, client_loss
from fedtilt.tilt import tilted_mean

LOGITS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(1))
LOSSES = F.cross_entropy(LOGITS, TARGETS, reduction="none")


def test_no_tilt_is_cross_entropy_and_its_gradient() -> None:
    a, b = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    TiltedLoss()(a, TARGETS).backward()
    F.cross_entropy(b, TARGETS).backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("tau", "lam"), [(50.0, 100.0), (0.0, -2.0), (-1.0, 3.0), (2.0, 0.0)])
def test_two_levels_are_the_formula_of_the_paper(tau: float, lam: float) -> None:
    parts = []
    for k in TARGETS.unique():
        inside = LOSSES[TARGETS == k]
        class_loss = inside.mean() if lam == 0 else (lam * inside).exp().mean().log() / lam
        parts.append((len(inside) / len(LOSSES), class_loss))
    if tau == 0:
        expected = sum(share * loss for share, loss in parts)
    else:
        expected = sum(share * (tau * loss).exp() for share, loss in parts).log() / tau
    torch.testing.assert_close(TiltedLoss(tau=tau, lam=lam)(LOGITS, TARGETS), expected)
    torch.testing.assert_close(client_loss(LOSSES, TARGETS, tau, lam), expected)


def test_equal_tilts_are_term() -> None:
    torch.testing.assert_close(TiltedLoss(3.0, 3.0)(LOGITS, TARGETS), tilted_mean(LOSSES, 3.0))


def test_infinite_tilts_are_worst_class_and_best_sample() -> None:
    worst = max(LOSSES[TARGETS == k].mean() for k in range(5))
    torch.testing.assert_close(TiltedLoss(tau=math.inf)(LOGITS, TARGETS), worst)
    best = sum(LOSSES[TARGETS == k].min() * (TARGETS == k).sum() for k in range(5)) / 40
    torch.testing.assert_close(TiltedLoss(lam=-math.inf)(LOGITS, TARGETS), best)


def test_another_loss_outer_groups_and_weights() -> None:
    site = torch.arange(40) % 3
    squared = lambda out, y: (out[:, 0] - y).square()
    value = TiltedLoss(2.0, -1.0, outer=(math.inf,), loss=squared)(LOGITS, TARGETS.double(), [site], classes=TARGETS)
    losses = squared(LOGITS, TARGETS)
    worst = max(client_loss(losses[site == s], TARGETS[site == s], 2.0, -1.0) for s in range(3))
    torch.testing.assert_close(value, worst)
    kept = torch.arange(40) < 25
    torch.testing.assert_close(
        TiltedLoss(2.0, -1.0)(LOGITS, TARGETS, weights=kept.double()), TiltedLoss(2.0, -1.0)(LOGITS[:25], TARGETS[:25])
    )


def test_mislabelled_samples_lose_their_say() -> None:
    """One line in a training loop: with 40 % of the labels flipped, lam < 0 still finds the boundary."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (600,), generator=rng)
    x = torch.randn(600, 2, generator=rng) + 2.5 * (2 * y[:, None] - 1) * torch.tensor([1.0, 0.0])
    flipped = torch.where((torch.rand(600, generator=rng) < 0.4) & (y == 0), 1 - y, y)  # class 0 only
    accuracy = {}
    for lam in (0.0, -4.0):
        weight = torch.zeros(2, 3, requires_grad=True)
        for _ in range(300):
            logits = x @ weight[:, :2].T + weight[:, 2]
            (grad,) = torch.autograd.grad(TiltedLoss(lam=lam)(logits, flipped), weight)
            weight.data -= 0.5 * grad
        accuracy[lam] = ((x @ weight[:, :2].T + weight[:, 2]).argmax(1) == y).float().mean().item()
    assert accuracy[-4.0] > 0.99
    assert accuracy[-4.0] > accuracy[0.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TiltedLoss(loss=F.cross_entropy)(LOGITS, TARGETS), 'reduction="none"'),
        (lambda: TiltedLoss(loss=F.mse_loss)(LOGITS, LOGITS), "got shape ()"),
        (lambda: TiltedLoss(outer=(1.0,))(LOGITS, TARGETS), "1 outer tilts, got 0 groups"),
        (
            lambda: TiltedLoss(loss=lambda o, t: (o - t).square()[:, 0])(LOGITS, LOGITS),
            "pass integer classes=",
        ),
        (lambda: TiltedLoss()(LOGITS[:0], TARGETS[:0]), "must not be empty"),
    ],
)
def test_bad_input_is_one_sentence(call, words: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)
