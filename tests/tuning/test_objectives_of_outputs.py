"""Objectives of probabilities: AUROC, AUPRC, F1 and balanced accuracy on all samples, for resampled clients too."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import fedtilt as ft
from fedtilt.cli.console import Console
from fedtilt.cli.tune import print_tuning
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.evaluation.verdicts import compare
from fedtilt.report.tuning_page import build_tuning_page
from fedtilt.tuning.objectives import OUTPUT_OBJECTIVES, ClientOutputs, ScoreTable, draw_of


def outputs(seed: int = 0) -> ClientOutputs:
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy((rng.random(200) < 0.1).astype(np.int64))
    positive = torch.from_numpy(1 / (1 + np.exp(-(rng.normal(size=200) + 2 * labels.numpy() - 1)))).float()
    clients = torch.arange(8).repeat_interleave(25)
    return ClientOutputs(torch.stack([1 - positive, positive], 1), labels, clients, torch.tensor(1))


def test_the_values_are_those_of_scikit_learn() -> None:
    found = outputs()
    y, p = found.labels.numpy(), found.probabilities[:, 1].numpy()
    expected = {
        "auroc": sk.roc_auc_score(y, p), "auprc": sk.average_precision_score(y, p), "f1": sk.f1_score(y, p > 0.5),
        "balanced_accuracy": sk.balanced_accuracy_score(y, p > 0.5),
    }  # fmt: skip
    table = ScoreTable(torch.zeros(8, 2), torch.zeros(8, 2), {}, found)
    assert {name: o.value(table) for name, o in OUTPUT_OBJECTIVES.items()} == pytest.approx(expected)


def test_samples_follow_their_clients() -> None:
    found, rows = outputs(), torch.tensor([5, 0, 5])
    expected = torch.cat([(found.clients == row).nonzero()[:, 0] for row in rows])
    taken = found.of_clients(rows)
    assert torch.equal(taken.labels, found.labels[expected])
    assert torch.equal(taken.probabilities, found.probabilities[expected])
    assert taken.clients.tolist() == [0] * 25 + [1] * 25 + [2] * 25


def test_a_difference_has_an_interval_although_some_clients_have_no_positives() -> None:
    ours = ScoreTable(torch.zeros(8, 2), torch.ones(8, 2), {}, outputs())
    theirs = ours._replace(outputs=outputs()._replace(probabilities=outputs(1).probabilities))
    by = OUTPUT_OBJECTIVES["auprc"]
    (found,) = compare(
        [draw_of({"ours": ours, "theirs": theirs}, by)], "auprc", [("ours", "theirs")], higher_is_better=True
    )
    assert found.difference == pytest.approx(by.value(ours) - by.value(theirs))
    assert -1 < found.low < found.difference < found.high < 1


def test_a_search_by_auroc_resumes_from_its_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(6):
        y = (rng.random(60) < 0.2).astype(int)
        data.append((torch.from_numpy(rng.normal(size=(60, 3)) + y[:, None]).float(), y.tolist()))
    federation = ft.Federation.from_clients(data, validation=0.3)
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 16, "workers": 0, "out": tmp_path / "s"}
    over = {"lr": [0.001, 0.3]}
    found = ft.tune([ft.fedavg()], federation, ft.models.mlp, over=over, by="auroc", **settings)
    again = ft.tune([ft.fedavg()], federation, ft.models.mlp, over=over, by="auroc", **settings)
    assert found.by.name == "auroc"
    assert {n: s.validation["auroc"] for n, s in found.settings.items()} == {
        n: s.validation["auroc"] for n, s in again.settings.items()
    }
    assert all(0.2 < s.validation["auroc"] <= 1 for s in found.settings.values())
    assert all(row.interval[0] <= row.gain <= row.interval[1] for row in found.settings.values() if row.interval)
    assert "points" not in found.reason
    assert found.pareto_front[0] == max(found.settings, key=lambda name: found.settings[name].validation["auroc"])
    print_tuning(Console(file=(out := io.StringIO()), width=120), tmp_path, found)
    values = [f"{s.validation['auroc']:.3f}" for s in found.settings.values()]
    assert all(f" {value} " in out.getvalue() for value in values)
    page = build_tuning_page(tmp_path / "s")
    assert all(f">{s.validation['auroc']:.4g}<" in page for s in found.settings.values())
    impossible = settings | {"out": None, "at_least": {"auroc": 60}}
    with pytest.raises(InputError, match="at least auroc = 60 is not possible; give a number from 0 to 1"):
        ft.tune([ft.fedavg()], federation, ft.models.mlp, over=over, by="auroc", **impossible)
    with pytest.raises(InputError, match="there is no objective 'rocauc' for classification"):
        ft.tune([ft.fedavg()], federation, ft.models.mlp, over=over, by="rocauc", **settings | {"out": None})


def test_settings_are_compared_although_the_first_clients_have_samples_of_one_class() -> None:
    """Ditto is compared on clients with a personal model, and after the first stage these have no rare sample."""
    rng, data = np.random.default_rng(0), []
    for n in range(6):
        y = (rng.random(60) < 0.2).astype(int) * (n not in TrainSettings(participation=0.34).selected(1, 6))
        data.append((torch.from_numpy(rng.normal(size=(60, 3)) + y[:, None]).float(), y.tolist()))
    federation = ft.Federation.from_clients(data, validation=0.3, class_names=["no", "yes"])
    settings = {"rounds": 4, "participation": 0.34, "epochs": 1, "batch_size": 16, "workers": 0}
    found = ft.tune([ft.ditto(0.1)], federation, ft.models.mlp, over={"mu": [0.01, 1, 5, 9]}, by="auprc", **settings)
    assert {row.rounds for row in found.settings.values()} == {1, 4}
    assert all(0 < row.validation["auprc"] <= 1 for row in found.settings.values())
