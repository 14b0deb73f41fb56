"""What a run is compared with: computed once, stored, the same after a resume, in every table."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight

import fedtilt as ft
from fedtilt.evaluation.predictions import CLIENT
from fedtilt.runs.spec_run import resume, run_spec
from fedtilt.spec import load

NAMES = ["local", "majority", "pooled logistic", "pooled boosting"]
SPEC = """
name = "own"
data = {{ file = "{file}", target = "{target}", client = "site" }}
{task}
model = {{ name = "mlp", hidden = [8] }}
train = {{ rounds = 2, participation = 1.0, epochs = 2, batch_size = 16, lr = 0.1, workers = 0 }}
[[methods]]
preset = "fedavg"
[[methods]]
preset = "ditto"
mu = 0.5
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six sites; the label depends on two columns and the site."""
    path, rng = tmp_path_factory.mktemp("table") / "table.csv", np.random.default_rng(0)
    lines = ["site,age,pressure,cost,ill"]
    for row in range(360):
        site, age, pressure = row % 6, rng.normal(50, 10), rng.normal(120, 15)
        score = (age - 50) / 10 + (pressure - 120) / 15 + (site - 2.5) / 2 + rng.logistic()
        lines.append(f"s{site},{age:.1f},{pressure:.1f},{100 + 20 * score:.1f},{'yes' if score > 1 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_spec(folder: Path, table: Path, target: str = "ill", task: str = "") -> Path:
    path = folder / "spec.toml"
    path.write_text(SPEC.format(file=table, target=target, task=task))
    return path


def test_a_spec_on_a_table_has_baselines_which_a_resume_reads(table: Path, tmp_path: Path) -> None:
    spec = load(str(write_spec(tmp_path, table)), overrides=['data.drop=["cost"]'])
    (result,) = run_spec(spec, tmp_path / "run").values()
    assert list(result.baselines) == NAMES
    stored = {p: p.read_bytes() for p in sorted((tmp_path / "run/seed-0/baselines").rglob("*")) if p.is_file()}
    assert [p.name for p in stored] == ["round-00002.safetensors", "metrics.jsonl", "predictions.safetensors"]
    (again,) = resume(tmp_path / "run").values()
    assert {p: p.read_bytes() for p in stored} == stored
    for name in NAMES:
        assert again.baselines[name].metrics == result.baselines[name].metrics
        assert torch.equal(again.baselines[name].sums, result.baselines[name].sums)
    (more,) = resume(tmp_path / "run", 3).values()
    assert more.baselines["majority"].metrics == result.baselines["majority"].metrics
    assert not torch.equal(more.baselines["local"].predictions.outputs, torch.zeros(0))
    metrics = tmp_path / "run/seed-0/baselines/metrics.jsonl"
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert set(rounds) == {3}
    frame = more.to_pandas()
    assert list(dict.fromkeys(frame["method"])) == ["fedavg", "ditto", *NAMES]
    written = json.loads((tmp_path / "run" / "results.json").read_text())["baselines"]
    assert {name: found["accuracy"]["mean"] for name, found in written.items()} == {
        name: found.accuracy for name, found in more.baselines.items()
    }
    off = load(str(write_spec(tmp_path, table)), overrides=['data.drop=["cost"]', "train.baselines=false"])
    run_spec(off, tmp_path / "off")
    assert not (tmp_path / "off/seed-0/baselines").exists()


def test_every_baseline_is_what_it_says(table: Path) -> None:
    federation = ft.Federation.build(ft.data.table(table, target="ill", client="site", drop=["cost"]))
    settings = {"rounds": 2, "participation": 1.0, "epochs": 2, "batch_size": 16, "lr": 0.1, "workers": 0}
    result = ft.run([ft.fedavg(), ft.methods.ditto(0.5)], federation, ft.models.mlp, **settings)
    assert "local" not in repr(result)
    assert list(result.baselines) == NAMES  # computed now
    assert "pooled boosting: accuracy" in repr(result)
    trained = ft.run([ft.methods.local()], federation, ft.models.mlp, **settings)["local"]
    assert torch.equal(result.baselines["local"].sums, trained.sums)
    x, y = (torch.cat(part) for part in zip(*map(federation.clean_train, range(6)), strict=True))
    client = torch.arange(6).repeat_interleave(federation.train_sizes())
    x_test, y_test, client_test = federation.evaluation("test")
    mean, std = x.double().mean(0), x.double().std(0, correction=0)
    rows = [torch.cat([(part - mean) / std, torch.eye(6)[c]], 1) for part, c in ((x, client), (x_test, client_test))]
    model = LogisticRegression(max_iter=1000).fit(rows[0], y)
    found = result.baselines["pooled logistic"].predictions
    np.testing.assert_allclose(found.outputs, model.predict_proba(rows[1]), atol=1e-6)
    assert torch.equal(found.groupings[CLIENT].codes, client_test)
    majority = int(y.bincount().argmax())
    expected = 100 * torch.stack([(y_test[client_test == c] == majority).double().mean() for c in range(6)]).mean()
    assert result.baselines["majority"].accuracy == pytest.approx(float(expected))
    assert result.baselines["pooled boosting"].metrics_frame("auroc", by=None).overall["auroc"] > 0.6


def test_numbers_have_their_mean_and_regressions(table: Path) -> None:
    data = ft.data.table(table, target="cost", client="site", drop=["ill"], task="regression")
    federation = ft.Federation.build(data)
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 16, "workers": 0, "baselines": True}
    result = ft.run([ft.methods.local()], federation, ft.models.mlp, **settings)
    assert list(result.baselines) == ["mean", "pooled linear", "pooled boosting"]  # the run has local itself
    y_train = torch.cat([data.y_train[rows] for rows in federation.train_index]).double()
    _, y_test, client = federation.evaluation("test")
    errors = (y_test.double() - y_train.mean()).abs()
    expected = torch.stack([errors[client == c].mean() for c in range(6)]).mean()
    assert result.baselines["mean"].mae == pytest.approx(float(expected), rel=1e-4)
    assert result.baselines["pooled linear"].mae < 0.8 * result.baselines["mean"].mae


def test_a_rare_class_gets_a_threshold_that_is_best_on_validation_data(tmp_path: Path) -> None:
    rng, clients = np.random.default_rng(0), []
    for _ in range(4):
        y = (rng.random(300) < 0.06).astype(int)
        clients.append((torch.from_numpy(rng.normal(size=(300, 2)) + 1.5 * y[:, None]).float(), y.tolist()))
    federation = ft.Federation.from_clients(clients, class_names=["no", "yes"], validation=0.4)
    settings = {"rounds": 3, "participation": 1.0, "epochs": 2, "batch_size": 16, "lr": 0.1, "workers": 0}
    result = ft.run([ft.fedavg()], federation, ft.models.mlp, out=tmp_path / "run", **settings)
    threshold = result["fedavg"].threshold
    assert threshold is not None
    assert (threshold.name, threshold.by) == ("yes", "f1")
    x, y, _ = federation.evaluation("validation")
    with torch.no_grad():
        probability = result["fedavg"].shared(x).softmax(1)[:, 1].numpy()
    chosen = f1_score(y, probability >= threshold.value)
    assert chosen == pytest.approx(max(f1_score(y, probability >= value) for value in probability))
    written = json.loads((tmp_path / "run/seed-0/thresholds.json").read_text())["thresholds"]
    assert written == {"fedavg": threshold.to_json()}
    result.export(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["threshold"]) == threshold.to_json()
    common = ft.Federation.from_clients([(x, [i % 2 for i in range(300)]) for x, _ in clients], validation=0.4)
    assert ft.run([ft.fedavg()], common, ft.models.mlp, **settings)["fedavg"].threshold is None


def test_balanced_class_weights_are_those_of_scikit_learn(table: Path) -> None:
    federation = ft.Federation.build(ft.data.table(table, target="ill", client="site", drop=["cost"]))
    y = torch.cat([federation.clean_train(client)[1] for client in range(6)]).numpy()
    weights = tuple(compute_class_weight("balanced", classes=np.arange(2), y=y).tolist())
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 16, "workers": 0}
    found = [
        ft.run([ft.fedavg()], federation, ft.models.mlp, loss=ft.losses.CrossEntropy(class_weights=value), **settings)
        for value in ("balanced", weights)
    ]
    first, second = (dict(result["fedavg"].shared.named_parameters()) for result in found)
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ft.InputError, match="unknown class_weights 'even'; choose one of balanced"):
        ft.losses.CrossEntropy(class_weights="even")
