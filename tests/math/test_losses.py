import math

import pytest
import torch
import torch.nn.functional as F

from fedtilt.errors import InputError
from fedtilt.losses import GCE, SCE
from fedtilt.math.losses import TiltedLoss
from fedtilt.math.tilt import nested_tilt, tilted_mean

LOGITS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(1))
TARGETS_IGNORED = torch.where(torch.arange(40) < 25, TARGETS, -100)
LOSSES = F.cross_entropy(LOGITS, TARGETS, reduction="none")


def test_no_tilt_is_cross_entropy_and_its_gradient() -> None:
    a, b = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    TiltedLoss()(a, TARGETS).backward()
    F.cross_entropy(b, TARGETS).backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("tau", "lam"), [(50.0, 100.0), (0.0, -2.0), (-1.0, 3.0), (2.0, 0.0)])
def test_two_levels_equal_the_formula_of_the_paper(tau: float, lam: float) -> None:
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
    torch.testing.assert_close(nested_tilt(LOSSES, [TARGETS], [lam, tau]), expected)


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
    worst = max(nested_tilt(losses[site == s], [TARGETS[site == s]], [-1.0, 2.0]) for s in range(3))
    torch.testing.assert_close(value, worst)
    included = torch.arange(40) < 25
    torch.testing.assert_close(
        TiltedLoss(2.0, -1.0)(LOGITS, TARGETS, weights=included.double()),
        TiltedLoss(2.0, -1.0)(LOGITS[:25], TARGETS[:25]),
    )


def test_negative_lam_ignores_mislabelled_samples() -> None:
    """With 40 % of the labels of one class flipped, lam < 0 still finds the boundary."""
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


def smoothed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)


def test_the_remedies_in_error_messages_work() -> None:
    criterion = TiltedLoss(2.0, -1.0)
    expected = criterion(LOGITS[:25], TARGETS[:25])
    torch.testing.assert_close(criterion(LOGITS, TARGETS_IGNORED, weights=TARGETS_IGNORED.ne(-100).float()), expected)
    rows = LOGITS.reshape(8, 5, 5).movedim(-1, 1), TARGETS.reshape(8, 5)  # (N, C, L) and (N, L)
    flattened = criterion(rows[0].movedim(1, -1).flatten(0, -2), rows[1].flatten())
    torch.testing.assert_close(flattened, criterion(LOGITS, TARGETS))
    probabilities = F.one_hot(TARGETS, 5).double()
    torch.testing.assert_close(criterion(LOGITS, probabilities, classes=TARGETS), criterion(LOGITS, TARGETS))
    with pytest.raises(IndexError, match="Target -1 is out of bounds"):
        criterion(LOGITS, TARGETS - 1)
    hinge = TiltedLoss(loss=lambda out, y: (1 - out[:, 0] * y).relu())
    signs = 2 * (TARGETS > 2).long() - 1  # this loss takes -1 as a label
    torch.testing.assert_close(hinge(LOGITS, signs), (1 - LOGITS[:, 0] * signs).relu().mean())


@pytest.mark.slow
def test_vmap_and_compile_work() -> None:
    criterion = TiltedLoss(2.0, -1.0)
    logits, targets = LOGITS.reshape(4, 10, 5), TARGETS.reshape(4, 10)
    each = torch.stack([criterion(x, y) for x, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(torch.vmap(criterion)(logits, targets), each)
    grads = torch.vmap(torch.func.grad(criterion))(logits, targets)
    torch.testing.assert_close(grads[0], torch.func.grad(criterion)(logits[0], targets[0]))
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(LOGITS, TARGETS), criterion(LOGITS, TARGETS))
    weights = torch.ones(40)
    torch.testing.assert_close(compiled(LOGITS, TARGETS, weights=weights), criterion(LOGITS, TARGETS))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TiltedLoss(loss=F.cross_entropy)(LOGITS, TARGETS), 'reduction="none"'),
        (lambda: TiltedLoss(loss=F.mse_loss)(LOGITS, LOGITS, classes=TARGETS), "got shape ()"),
        (lambda: TiltedLoss(outer=(1.0,))(LOGITS, TARGETS), "1 outer tilts, got 0 groups"),
        (
            lambda: TiltedLoss(loss=lambda o, t: (o - t).square()[:, 0])(LOGITS, LOGITS),
            "targets are torch.float64 of shape (40, 5), not labels; pass whole numbers: "
            "criterion(logits, targets, classes=...)",
        ),
        (
            lambda: TiltedLoss()(LOGITS, TARGETS.double()),
            "targets are torch.float64 of shape (40,), not labels; pass whole numbers: criterion(logits, targets, cla",
        ),
        (lambda: TiltedLoss()(LOGITS, TARGETS, classes=TARGETS.float()), "classes are torch.float32 of shape (40,)"),
        (
            lambda: TiltedLoss()(LOGITS.reshape(10, 5, 4), TARGETS.reshape(10, 4)),
            "got shape (10, 4) for 10 samples; flatten them: criterion(logits.movedim(1, -1).flatten(0, -2), tar",
        ),
        (
            lambda: TiltedLoss()(LOGITS, TARGETS_IGNORED),
            "targets contain -100, and TiltedLoss has no ignore_index; exclude these samples with "
            "criterion(logits, targets, weights=targets.ne(-100).float())",
        ),
        (lambda: TiltedLoss(loss=smoothed)(LOGITS, TARGETS_IGNORED), "targets contain -100, "),
        (lambda: TiltedLoss(tau="2"), "tau must be a number, got '2'"),
        (lambda: TiltedLoss(lam=None), "lam must be a number, got None"),
        (lambda: TiltedLoss(math.nan), "tau must be a number, got nan"),
        (lambda: TiltedLoss(outer=(True,)), "an outer tilt must be a number, got True"),
        (lambda: TiltedLoss()(LOGITS[:0], TARGETS[:0]), "must not be empty"),
    ],
)
def test_invalid_input_gives_a_one_line_error(call, message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_robust_losses_are_bounded_and_have_the_limits_of_their_papers() -> None:
    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 40.0]]), torch.tensor([0, 0])
    p = logits.softmax(1)[:, 0]
    cross_entropy = F.cross_entropy(logits, targets, reduction="none")
    gce = GCE(exponent=1.0)(logits, targets)
    torch.testing.assert_close(gce, 1 - p)  # half the mean absolute error
    near_0 = GCE(exponent=1e-6)(logits, targets)
    torch.testing.assert_close(near_0, cross_entropy, rtol=1e-4, atol=1e-4)
    assert GCE()(logits, targets)[1] <= 1 / 0.7  # a wrong label costs at most 1/q
    sce = SCE(alpha=0.0)(logits, targets)
    torch.testing.assert_close(sce, 4 * (1 - p))
