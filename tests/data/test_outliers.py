"""Outliers: rates, ranges, and draws that depend on seed, round and client only."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.data.outliers import apply, nearest_classes
from fedtilt.errors import InputError

N, SHAPE = 3000, (3, 4, 4)
X = torch.full((N, *SHAPE), 2.0)  # outside [0, 1], so every change is visible
CLASSES = torch.tensor([1, 4, 7])
Y = CLASSES[torch.arange(N) % 3]


def near(count, total, share):
    return abs(count - total * share) < 4 * (total * share * (1 - share)) ** 0.5


def draw(kind, classes=CLASSES, x=X, y=Y, seed=0, round=1, client=2, **settings):
    outliers, of_client = Outliers(kind=kind, **settings), {"clients": [client], "sizes": [len(y)]}
    return apply(outliers, x, y, [classes], seed=seed, round=round, **of_client)


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
        ({"kind": "noise"}, "outliers: unknown kind 'noise'; choose one of none, corruptions, gaussian, flips"),
        ({"kind": "flips", "rate": 1.5}, "outliers: rate must be a number ≥ 0 and ≤ 1, got 1.5"),
        ({"kind": "flips", "rate": float("nan")}, "outliers: rate must be a number, got nan"),
        ({"kind": "flips", "rate": "0.3"}, "outliers: rate must be a number, got '0.3'"),
        ({"kind": "flips", "rate": None}, "outliers: rate must be a number, got None"),
        ({"kind": "flips", "clients": True}, "outliers: clients must be a number, got True"),
        ({"kind": "gaussian", "strength": [1.0]}, r"outliers: strength must be a number, got \[1.0\]"),
        ({"strength": "strong"}, "outliers: strength must be a number, got 'strong'"),
        ({"kind": None}, "outliers: unknown kind None; choose one of none, corruptions, gaussian, flips"),
        ({"kind": "flips", "clients": -0.1}, "outliers: clients must be a number ≥ 0 and ≤ 1, got -0.1"),
        ({"kind": "corruptions", "strength": 2.0}, "outliers.strength = 2.0 .* pixels"),
        ({"kind": "gaussian", "strength": -1.0}, "outliers: strength must be a number ≥ 0, got -1.0"),
        (
            {"kind": "flips", "strength": 0.5},
            "outliers.strength = 0.5 has no effect here; set outliers.kind = 'corruptions' or",
        ),
        ({"rate": 0.5}, "outliers.rate = 0.5 has no effect here; set outliers.kind = 'corruptions' or 'gaussian' or"),
        ({"clients": 0.5}, "outliers.clients = 0.5 has no effect here"),
        ({"redraw": "once"}, "outliers.redraw = 'once' has no effect here"),
        ({"redraw": "never"}, "outliers: unknown redraw 'never'; choose one of round, once"),
        (
            {"kind": "flips", "flip_to": "far"},
            "outliers: unknown flip_to 'far'; choose one of client, any",
        ),
        (
            {"kind": "gaussian", "flip_to": "any"},
            "outliers.flip_to = 'any' has no effect here; set outliers.kind",
        ),
        ({"kind": "corruptions", "pairs": {"1": "2"}}, "outliers.pairs = .* has no effect here; set outliers.kind"),
        ({"kind": "flips", "flip_to": "pairs"}, "outliers.flip_to = 'pairs' needs outliers.pairs"),
        ({"kind": "flips", "flip_to": "any", "pairs": {"1": "2"}}, "outliers.pairs .* outliers.flip_to = 'any'"),
        ({"kind": "flips", "pairs": {"1": "1"}}, "outliers.pairs flips class '1' to itself"),
        ({"kind": "flips", "pairs": {1: 2}}, "outliers.pairs = {1: 2} is not a table of class names"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Outliers(**settings)


def test_numpy_and_tensor_settings_become_python_numbers():
    outliers = Outliers(kind="gaussian", rate=np.float32(0.5), strength=torch.tensor(2), clients=np.int64(1))
    assert json.dumps(outliers.to_json()) == '{"kind": "gaussian", "rate": 0.5, "strength": 2.0, "clients": 1.0}'
    assert outliers == Outliers(kind="gaussian", rate=0.5, strength=2.0, clients=1.0)


def build(samples=600, clients=6, **settings):
    """Three classes on a line, at 0, 1 and 3: the nearest of 0 is 1, of 1 is 0, of 2 is 1."""
    y = torch.arange(samples) % 3
    x = torch.tensor([0.0, 1.0, 3.0])[y][:, None] + torch.linspace(-0.1, 0.1, samples)[:, None]
    data = Dataset(name="line", x_train=x, y_train=y, x_test=x, y_test=y, classes=3, class_names=("a", "b", "c"))
    return Federation.build(data, clients=clients, partition="iid", **settings)


def labels(federation, round=1, seed=0):
    pairs = [federation.train(client, seed=seed, round=round) for client in range(federation.clients)]
    return torch.cat([y for _, y in pairs])


def true_labels(federation):
    return torch.cat([federation.clean_train(client)[1] for client in range(federation.clients)])


@pytest.mark.parametrize("kind", ["gaussian", "flips"])
def test_outliers_drawn_once_stay_the_same_in_every_round_and_depend_on_the_federation_s_seed(kind):
    federation = build(outliers=kind, outlier_redraw="once")
    first = federation.train(2, seed=0, round=1)
    for seed, round in ((0, 2), (5, 1)):
        again = federation.train(2, seed=seed, round=round)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = replace(federation, seed=1).train(2, seed=0, round=1)
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", ["none", "gaussian", "flips"])
def test_the_mask_of_outliers_has_exactly_the_samples_that_changed(kind):
    settings = {"outlier_redraw": "once", "outlier_rate": 0.4, "outlier_clients": 0.5} if kind != "none" else {}
    federation = build(outliers=kind, **settings)
    for client in range(federation.clients):
        (x, y), (clean_x, clean_y) = federation.train(client, seed=0, round=3), federation.clean_train(client)
        changed = federation.outlier_mask(client)
        assert torch.equal(changed, (x != clean_x)[:, 0] | (y != clean_y))
        assert bool(changed.any()) == (kind != "none" and bool(federation.has_outliers[client]))
        if changed.any():
            assert near(int(changed.sum()), len(changed), 0.4)


def test_outliers_of_every_round_have_no_mask():
    with pytest.raises(InputError, match="drawn anew in every round; build the federation with redraw = 'once'"):
        build(outliers="flips").outlier_mask(0)


def test_flips_to_any_class_are_symmetric_even_where_a_client_has_one_class():
    data = build().dataset
    federation = Federation.build(
        data, clients=3, classes_per_client=1, outliers="flips", outlier_flip_to="any", outlier_redraw="once"
    )
    for client, (own,) in enumerate(federation.client_classes):
        y = federation.train(client, seed=0, round=1)[1]
        flipped = y[y != own]
        assert near(len(flipped), len(y), 0.3)
        assert near(int((flipped == (own + 1) % 3).sum()), len(flipped), 0.5)


def test_flips_to_the_nearest_class_and_by_pairs():
    nearest = build(outliers="flips", outlier_flip_to="nearest", outlier_rate=1.0)
    true = true_labels(nearest)
    assert nearest_classes(nearest.dataset).tolist() == [1, 0, 1]
    assert torch.equal(labels(nearest), torch.tensor([1, 0, 1])[true])
    paired = build(outliers="flips", outlier_pairs={"c": "a"}, outlier_rate=1.0)
    assert torch.equal(labels(paired), torch.tensor([0, 1, 0])[true])


def test_flips_need_classes_that_exist_and_numbers_to_compare():
    with pytest.raises(InputError, match="outliers.pairs has the class 'd', which 'line' does not have; .* a, b, c"):
        build(outliers="flips", outlier_pairs={"a": "d"})
    tokens = torch.arange(12).reshape(6, 2)
    data = Dataset(
        name="words", x_train=tokens, y_train=tokens[:, 0] % 3, x_test=tokens, y_test=tokens[:, 0] % 3, classes=3
    )
    with pytest.raises(InputError, match="outliers.flip_to = 'nearest' compares numbers, and 'words' has tokens"):
        Federation.build(data, clients=1, partition="iid", outliers="flips", outlier_flip_to="nearest")


def test_the_record_of_outliers_has_new_settings_only_where_they_are_used():
    assert list(Outliers(kind="flips").to_json()) == ["kind", "rate", "strength", "clients"]
    settings = Outliers(kind="flips", redraw="once", pairs={"1": "2"})
    assert Outliers(**settings.to_json()) == settings
    assert settings.to_json()["redraw"] == "once"
    assert Outliers(**asdict(settings)) == settings
