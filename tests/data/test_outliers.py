"""Outliers: rates, ranges, and draws that depend on seed, round and client only."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from fedtilt.data import Outliers
from fedtilt.data.outliers import apply
from fedtilt.errors import InputError

N, SHAPE = 3000, (3, 4, 4)
X = torch.full((N, *SHAPE), 2.0)  # outside [0, 1], so every change is visible
CLASSES = torch.tensor([1, 4, 7])
Y = CLASSES[torch.arange(N) % 3]


def near(count, total, share):
    return abs(count - total * share) < 4 * (total * share * (1 - share)) ** 0.5


def draw(kind, classes=CLASSES, x=X, y=Y, seed=0, round=1, client=2, **settings):
    return apply(Outliers(kind=kind, **settings), x, y, classes, seed=seed, round=round, client=client)


@pytest.mark.parametrize(("rate", "strength"), [(0.3, 0.3), (0.1, 0.7)])
def test_corruptions(rate, strength):
    x, y = draw("corruptions", rate=rate, strength=strength)
    changed = x != X
    rows = changed.flatten(1).any(1)
    assert torch.equal(y, Y)
    assert near(int(rows.sum()), N, rate)
    assert near(int(changed.sum()), int(rows.sum()) * 48, strength)
    assert near(int(changed[:, 0].sum()), int(rows.sum()) * 16, strength)
    values = x[changed]
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert float(values.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / len(values)) ** 0.5)
    assert not torch.equal(changed[rows][:, 0], changed[rows][:, 1])  # channels are drawn separately


@pytest.mark.parametrize("strength", [None, 0.2])
def test_gaussian(strength):
    x, y = draw("gaussian", strength=strength)
    deviation = 1.0 if strength is None else strength
    rows = (x != X).flatten(1).any(1)
    noise = (x - X)[rows]
    assert torch.equal(y, Y)
    assert near(int(rows.sum()), N, 0.3)
    assert float(noise.mean()) == pytest.approx(0, abs=4 * deviation / noise.numel() ** 0.5)
    assert float(noise.std()) == pytest.approx(deviation, rel=4 / (2 * noise.numel()) ** 0.5)
    assert float(noise.abs().max()) > 3 * deviation  # unclipped


def test_flips_go_to_the_client_s_other_classes_evenly():
    x, y = draw("flips")
    changed = y != Y
    assert x is X
    assert near(int(changed.sum()), N, 0.3)
    assert set(y.tolist()) == set(CLASSES.tolist())
    for old in CLASSES.tolist():
        flipped = y[changed & Y.eq(old)]
        for new in set(CLASSES.tolist()) - {old}:
            assert near(int((flipped == new).sum()), len(flipped), 0.5)


def test_flips_do_not_change_clients_with_one_class():
    y = torch.full((N,), 4)
    assert torch.equal(draw("flips", classes=torch.tensor([4]), y=y, rate=1.0)[1], y)


@pytest.mark.parametrize("kind", ["corruptions", "gaussian", "flips"])
def test_draws_depend_on_seed_round_and_client_only(kind):
    x_before, y_before = X.clone(), Y.clone()
    first = draw(kind)
    torch.manual_seed(3)
    draw(kind, client=9)
    again = draw(kind)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (draw(kind, seed=1), draw(kind, round=2), draw(kind, client=3)):
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert torch.equal(X, x_before)  # nothing is changed in place
    assert torch.equal(Y, y_before)


def test_every_kind_changes_the_same_samples():
    rows = [(draw(k)[0] != X).flatten(1).any(1) for k in ("corruptions", "gaussian")] + [draw("flips")[1] != Y]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_no_outliers_and_rates_of_0_and_1():
    assert draw("none") == (X, Y)
    assert torch.equal(draw("gaussian", rate=0.0)[0], X)
    assert (draw("flips", rate=1.0)[1] != Y).all()
    assert draw("corruptions", x=X[:0], y=Y[:0])[0].shape == (0, *SHAPE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "noise"}, "outliers = 'noise' .* none, corruptions, gaussian, flips"),
        ({"kind": "flips", "rate": 1.5}, "outlier_rate = 1.5"),
        ({"kind": "flips", "rate": float("nan")}, "outlier_rate must be a number, got nan"),
        ({"kind": "flips", "rate": "0.3"}, "outlier_rate must be a number, got '0.3'"),
        ({"kind": "flips", "rate": None}, "outlier_rate must be a number, got None"),
        ({"kind": "flips", "clients": True}, "outlier_clients must be a number, got True"),
        ({"kind": "gaussian", "strength": [1.0]}, r"outlier_strength must be a number, got \[1.0\]"),
        ({"strength": "strong"}, "outlier_strength must be a number, got 'strong'"),
        ({"kind": None}, "outliers = None is unknown; choose one of none, corruptions, gaussian, flips"),
        ({"kind": "flips", "clients": -0.1}, "outlier_clients = -0.1"),
        ({"kind": "corruptions", "strength": 2.0}, "outlier_strength = 2.0 .* pixels"),
        ({"kind": "gaussian", "strength": -1.0}, "outlier_strength = -1.0"),
        ({"kind": "flips", "strength": 0.5}, "outlier_strength = 0.5 does not apply to flips"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Outliers(**settings)


def test_numpy_and_tensor_settings_become_python_numbers():
    outliers = Outliers(kind="gaussian", rate=np.float32(0.5), strength=torch.tensor(2), clients=np.int64(1))
    assert json.dumps(asdict(outliers)) == '{"kind": "gaussian", "rate": 0.5, "strength": 2.0, "clients": 1.0}'
    assert outliers == Outliers(kind="gaussian", rate=0.5, strength=2.0, clients=1.0)
