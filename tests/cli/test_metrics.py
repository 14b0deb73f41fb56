"""`fedtilt metrics` as a user sees it, the stored predictions behind it, and the certificate below the table."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from sklearn import metrics as sk

import fedtilt as ft
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.files import write_json
from fedtilt.runs.predictions import read_or_predict
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.predictions import read_predictions
from fedtilt.storage.run_folder import RunFolder

SETTINGS = ["clients.count=6", "train.rounds=3", "train.epochs=2", "train.workers=0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metrics") / "run"
    run_spec(load("digits", overrides=SETTINGS, methods=["fedavg", "fedtilt"], device="cpu"), folder)
    return folder


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_predictions_agree_with_the_counts_and_are_computed_again(run_folder: Path) -> None:
    stored = read_or_predict(run_folder)
    counts, total = RunFolder(run_folder / "seed-0").evaluations.counts(3)
    for name, correct in (("fedavg", counts["fedavg"].shared), ("fedtilt", counts["fedtilt"].personal)):
        found = stored.by_method[name].counts()
        assert torch.equal(found[0], correct)
        assert torch.equal(found[1], total)
    (run_folder / "seed-0/predictions.safetensors").unlink()
    read_or_predict(run_folder, ["fedavg"])
    assert list(read_or_predict(run_folder, ["fedtilt"]).by_method) == ["fedtilt"]
    again = read_predictions(run_folder / "seed-0", 3)  # both are stored
    for name, predictions in stored.by_method.items():
        assert torch.equal(again[name].probabilities, predictions.probabilities)


def test_all_methods_against_scikit_learn(fedtilt, run_folder: Path) -> None:
    result = fedtilt("metrics", "run", "--metric", "auroc", "--metric", "f1", "--resamples", "50", "--csv", "all.csv")
    assert result.code == 0, result.err
    with Path("all.csv").open() as file:
        values = {(row["method"], row["metric"]): row for row in csv.DictReader(file)}
    for name, found in read_or_predict(run_folder).by_method.items():
        y, p = found.labels, found.probabilities
        assert float(values[name, "f1"]["value"]) == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
        auroc = sk.roc_auc_score(y, p.double() / p.double().sum(1, keepdim=True), multi_class="ovr")
        row = values[name, "auroc"]
        assert float(row["value"]) == pytest.approx(auroc, rel=1e-4)  # it wants sums of exactly 1, which breaks ties
        assert f"{float(row['value']):.3f} [{float(row['low']):.3f}, {float(row['high']):.3f}]" in result.out
        assert row["interval"] == "bootstrap over clients"
    lines = " ".join(result.out.split())
    assert f"{len(found.labels):,} test samples, seed 0, after round 3" in lines
    assert "fedtilt: with 95 % confidence, no client's accuracy is below" in lines
    assert "20 clients are needed for a statement about a client not yet seen" in lines


def test_by_client_names_gaps_and_what_is_missing(fedtilt, run_folder: Path) -> None:
    arguments = ["--method", "fedtilt", "--by", "client", "--positive", "3", "--resamples", "20"]
    result = fedtilt("metrics", "run", *arguments)
    assert result.code == 0, result.err
    assert "class 3 against all others" in result.out
    assert "selection" in result.out
    assert "\\n" not in result.out  # titles of two words are in two lines
    assert "difference" in result.out
    found = read_or_predict(run_folder, ["fedtilt"]).by_method["fedtilt"]
    lacking = int((found.counts()[1][:, 3] == 0).sum())
    assert f"recall: no value for {lacking} of 6: no samples of the class" in result.out
    assert "fedavg" not in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "ditto"], "run has no method 'ditto'; it has fedavg, fedtilt"),
        (["--seed", "7"], "run has no seed 7; it has 0"),
        (["--by", "ward"], "by = 'ward' is unknown; choose among client, class"),
        (["--metric", "selection_rate"], "metric 'selection_rate' is about one class; set positive to one of 0, 1, "),
        (["--positive", "cat"], "positive = 'cat' is no class"),
    ],
)
def test_errors_are_one_line(fedtilt, run_folder: Path, arguments: list[str], message: str) -> None:
    result = fedtilt("metrics", "run", *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_a_run_on_flower_sites_has_no_predictions(fedtilt, run_folder: Path) -> None:
    record = json.loads((run_folder / "run.json").read_text())
    record.pop("digest", None)
    (run_folder / "run.json").write_text(json.dumps(record | {"runner": "flower"}))
    (run_folder / "seed-0/predictions.safetensors").unlink()
    result = fedtilt("metrics", "run")
    assert result.code == 2
    assert "run was trained on Flower sites; their test data and predictions stay there" in result.err


def test_more_rounds_replace_the_predictions(run_folder: Path) -> None:
    before = read_or_predict(run_folder, ["fedavg"]).by_method["fedavg"].probabilities
    result = ft.resume(run_folder, rounds=4)[0]
    after = read_or_predict(run_folder, ["fedavg"])
    assert after.round == 4
    assert not torch.equal(after.by_method["fedavg"].probabilities, before)
    assert torch.equal(result["fedavg"].predictions.probabilities, after.by_method["fedavg"].probabilities)


def test_the_certificate_is_below_the_table(fedtilt, run_folder: Path) -> None:
    result = fedtilt("resume", "run")
    certificates = {name: r.certificate() for name, r in ft.resume(run_folder)[0].items()}
    bounds = [f"{int(c.clients.bound)} % ({int(c.groups.bound)} %) with {name}" for name, c in certificates.items()]
    expected = f"certificate with 95 % confidence, no client (class of one) is below {', '.join(bounds)}"
    assert expected in " ".join(result.out.split())


def test_a_result_without_a_folder_predicts_when_asked() -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"))
    result = ft.run([ft.fedtilt(tau=1, lam=-1)], federation, ft.models.mlp, rounds=2, lr=0.1, workers=0, epochs=1)[
        "fedtilt"
    ]
    correct, total = result.predictions.counts()
    assert torch.equal(correct, result.sums)
    assert torch.equal(total, result.total)
    frame = result.metrics_frame(["accuracy", "recall"], by="class", resamples=0)
    assert list(frame.overall_estimates) == ["accuracy", "recall"]
    assert sum(b.samples for b in result.reliability_curve("1")) == int(total.sum())
    x, y = federation.test(1)
    with torch.no_grad():
        expected = result.model(1)(x).softmax(1)
    mine = result.predictions.groupings["client"].codes == 1
    torch.testing.assert_close(result.predictions.probabilities[mine], expected)
    assert torch.equal(result.predictions.labels[mine], y)


def test_the_threshold_of_a_run_decides_what_is_predicted(fedtilt, run_folder: Path) -> None:
    found = read_or_predict(run_folder).by_method["fedavg"]
    threshold = Threshold("3", float(found.probabilities[:, 3].quantile(0.8)), "f1")
    write_json(run_folder / "seed-0/thresholds.json", {"thresholds": {"fedavg": threshold.to_json()}})
    labels = (found.labels == 3).numpy()
    result = fedtilt("metrics", "run", "--positive", "3", "--resamples", "0", "--csv", "out.csv")
    assert result.code == 0, result.err
    assert f"fedavg predicts {threshold.in_words()}" in " ".join(result.out.split())
    with (run_folder.parent / "out.csv").open(newline="") as file:
        rows = {(row["method"], row["metric"]): float(row["value"]) for row in csv.DictReader(file) if row["value"]}
    predicted = threshold.classes(found.probabilities, found.class_names).numpy() == 3
    assert rows["fedavg", "recall"] == pytest.approx(sk.recall_score(labels, predicted))
    assert rows["fedavg", "precision"] == pytest.approx(sk.precision_score(labels, predicted))
    assert rows["fedavg", "recall"] > sk.recall_score(labels, (found.probabilities.argmax(1) == 3).numpy())
