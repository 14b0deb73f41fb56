"""The benchmark of the audit judges rankings correctly."""

import numpy as np
import pytest
import torch

import fedtilt as ft
from benchmarks.audit import SETTINGS, AuditedSamples, Setting, cross_validated, found, losses, ranking
from benchmarks.audit_kinds import KINDS, tables, with_noise


def test_rankings_are_judged_at_the_number_of_flips() -> None:
    flipped = np.array([True, False, True, False, False])
    assert ranking(flipped, np.array([0.9, 0.8, 0.7, 0.1, 0.2])) == {"auroc": pytest.approx(5 / 6), "precision": 0.5}
    named = np.array([True, True, False, False, False])
    assert found(flipped, named) == {"named": 2, "precision": 0.5, "recall": 0.5}


def test_cross_validation_predicts_every_sample_by_a_network_that_did_not_see_it() -> None:
    data = ft.data.load("digits")
    setting = Setting(**vars(SETTINGS["digits"]) | {"clients": 10, "samples": 40, "pooled_epochs": 12})
    federation = setting.federation(data, 0, outlier_rate=0.2, outlier_flip_to="any")
    samples = AuditedSamples.of(federation, list(range(10)))
    probabilities, accuracy = cross_validated(samples, 10, setting, 0)
    assert probabilities.shape == (400, 10)
    assert probabilities.sum(1) == pytest.approx(1)
    predicted = probabilities.argmax(1)
    assert 100 * (predicted == samples.y.numpy()).mean() == pytest.approx(accuracy, abs=1)
    true = torch.cat([federation.clean_train(client)[1] for client in range(10)]).numpy()
    assert (predicted == true).mean() > (predicted == samples.y.numpy()).mean() > 0.5  # it did not learn the flips


def test_losses_are_those_of_each_client_s_model() -> None:
    federation = SETTINGS["digits"].federation(ft.data.load("digits"), 0, outlier_rate=0.2)
    zero = ft.models.logistic(federation.input_shape, 10)
    torch.nn.init.zeros_(zero[-1].weight)
    torch.nn.init.zeros_(zero[-1].bias)
    assert losses(federation, [3], lambda _: zero) == pytest.approx(np.log(10))


def test_each_kind_plants_its_errors() -> None:
    clients = tables(0, clients=6, rows=400)
    truth = torch.stack([y for _, y in clients])
    labels = {kind: torch.stack(with_noise(clients, 3, kind, 0)) for kind in KINDS}
    wrong = {kind: found != truth for kind, found in labels.items()}
    assert not wrong["none"].any()
    assert float(wrong["symmetric"].double().mean()) == pytest.approx(0.15, abs=0.02)
    assert set(((labels["symmetric"] - truth) % 3)[wrong["symmetric"]].tolist()) == {1, 2}
    for kind in ("pairwise", "feature", "systematic"):
        assert set(((labels[kind] - truth) % 3)[wrong[kind]].tolist()) == {1}
    assert wrong["systematic"].any(1).tolist() == [client in (1, 4) for client in range(6)]
    assert len(truth[1][wrong["systematic"][1]].unique()) == 1
