"""The decision metrics, reliability curves and certificates of a report."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from markupsafe import escape
from sklearn.metrics import balanced_accuracy_score

import fedtilt as ft
from fedtilt import report
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.report.decision_metrics import decision_metrics
from fedtilt.report.figure import styles
from fedtilt.report.run_reader import read_run
from fedtilt.report.summary import certificates
from fedtilt.storage.predictions import read_predictions
from tests.helpers.hostile_names import NASTY


def test_the_table_has_the_mean_over_seeds(run_folder: Path) -> None:
    run = read_run(run_folder)
    section = decision_metrics(run, styles(run.methods))
    assert list(section.rows) == ["fedavg", "ditto", NASTY]
    stored = [read_predictions(run_folder / f"seed-{seed}", 3)[NASTY] for seed in (0, 1)]
    values = [balanced_accuracy_score(p.labels, p.probabilities.argmax(1)) for p in stored]
    cell = section.rows[NASTY][[metric.title for metric in section.metrics].index("balanced accuracy")]
    assert cell.value == pytest.approx(sum(values) / 2)
    assert cell.uncertainty == f"± {torch.tensor(values, dtype=torch.float64).std():.3f}"
    confusion, reliability = section.figures
    for figure in (confusion, reliability):
        samples = [row[-1] for row in figure.rows if row[0] == NASTY]
        assert sum(samples) == sum(len(p.labels) for p in stored)
    right = sum(row[-1] for row in confusion.rows if row[0] == NASTY and row[1] == row[2])
    assert right == sum(int((p.probabilities.argmax(1) == p.labels).sum()) for p in stored)


def test_the_page_says_how_intervals_are_computed(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = read_run(run_folder)
    one = replace(several, seed_runs=several.seed_runs[:1])
    assert decision_metrics(several, styles(one.methods)).uncertainty == "the standard deviation over seeds"
    by_clients = "95 % intervals (exact or bootstrap over clients with 1,000 resamples"
    assert decision_metrics(one, styles(one.methods)).uncertainty == f"{by_clients})"
    monkeypatch.setattr("fedtilt.report.decision_metrics.LARGE", 10)
    bins = "for which AUROC and AUPRC rank samples in bins of their scores"
    assert decision_metrics(one, styles(one.methods)).uncertainty == f"{by_clients}, {bins})"


def test_the_page_has_the_section_and_the_certificates(run_folder: Path, page: str) -> None:
    run = read_run(run_folder)
    correct, total = (
        torch.cat([part(s) for s in run.compared]) for part in (lambda s: s.sums("ditto"), lambda s: s.total)
    )
    certificate = Certificate(correct, total)
    sentence = certificates(run)
    bounds = f"{int(certificate.clients.bound)} % ({int(certificate.groups.bound)} %) with ditto"
    assert bounds in sentence
    assert str(escape(bounds)).replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert "<summary>Balanced accuracy, F1, AUROC, AUPRC, log loss, calibration, confusion</summary>" in page
    assert "a client not yet seen" not in page  # the clients of two seeds share their data
    assert bounds in report.markdown([run_folder])


def test_without_predictions_the_page_says_how_to_compute_them(copy: Path) -> None:
    (copy / "seed-1/predictions.safetensors").unlink()
    page = report.write([copy], copy / "report.html").read_text()
    assert "Not stored in this run; computed by: <code>fedtilt metrics" in page
    assert "<summary>Balanced accuracy" not in page


def test_one_seed_has_the_values_and_intervals_of_fedtilt_metrics(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(4):
        y = (torch.rand(120, generator=rng) < 0.1).long()
        clients.append((torch.randn(120, 3, generator=rng) + y[:, None], y.tolist()))
    federation = ft.Federation.from_clients(clients, validation=0.3)
    settings = {"rounds": 2, "participation": 1.0, "epochs": 2, "lr": 0.1, "workers": 0, "out": tmp_path / "run"}
    ft.run([ft.fedavg()], federation, ft.models.logistic, **settings)
    run = read_run(tmp_path / "run")
    threshold = run.compared[0].thresholds["fedavg"]  # chosen on validation data, as class 1 is rare
    section = decision_metrics(run, styles(run.methods))
    predictions = read_predictions(tmp_path / "run" / "seed-0", 2)["fedavg"]
    frame = metrics_frame(predictions, by=None, threshold=threshold)  # as `fedtilt metrics` calls it
    assert [METRICS[name] for name in frame.metrics] == list(section.metrics)
    for name, cell in zip(frame.metrics, section.rows["fedavg"], strict=True):
        estimate = frame.overall_estimates[name]
        assert cell.value == estimate.value
        interval = f"{estimate.interval.low:.3f} to {estimate.interval.high:.3f}"
        assert cell.uncertainty == ("" if name == "calibration_error" else interval)
