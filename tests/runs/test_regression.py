"""Numbers as targets: an independent loop, scikit-learn's diabetes from file to prediction, and what is rejected."""

import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import report, seeds
from fedtilt.cli.console import Console
from fedtilt.cli.run import print_run
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import scores_of
from fedtilt.files import read_json, write_tensors
from fedtilt.report import compare
from fedtilt.report.run_reader import read_run
from fedtilt.runs.audit import audit_run
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.training import native
from tests.helpers.plain_loop import batches

pandas = pytest.importorskip("pandas")

SETTINGS = {"rounds": 2, "participation": 1.0, "epochs": 2, "lr": 0.05, "device": "cpu", "workers": 0}
SPEC = """
name = "diabetes"
task = "regression"
[data]
file = "diabetes.csv"
target = "progression"
client = "clinic"
[model]
name = "mlp"
hidden = [16]
[train]
rounds = 12
participation = 1.0
epochs = 2
lr = 0.02
workers = 0
[[methods]]
preset = "fedtilt"
tau = 0.5
lam = 0.0
mu = 1.0
"""


def diabetes(rows: int = 442) -> "pandas.DataFrame":
    frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})[:rows]
    clinic = np.array(["north", "south", "west"])[np.arange(len(frame)) * 3 // len(frame)]
    return frame.assign(sex=frame["sex"].map({1.0: "f", 2.0: "m"}), clinic=clinic)


def table(**settings: object) -> ft.data.Dataset:
    return ft.data.table(diabetes(), target="progression", client="clinic", task="regression", **settings)


def small_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(6,))


def tilted(losses: Tensor, groups: Tensor, tau: float, lam: float) -> Tensor:
    """The loss of the paper, written out."""
    total = torch.zeros(())
    for group in groups.unique():
        members = losses[groups == group]
        inner = members.mean() if lam == 0 else (lam * members).exp().mean().log() / lam
        total = total + len(members) / len(losses) * (tau * inner).exp()
    return total.log() / tau


@pytest.mark.parametrize(("loss", "group"), [("squared", None), ("huber", "sex")])
def test_fedtilt_equals_an_independent_loop(loss: str, group: str | None) -> None:
    fed = ft.Federation.build(table(group=group), max_train=40)
    method = ft.fedtilt(tau=0.7, lam=-0.3, mu=0.5)
    delta = {"delta": 0.5} if loss == "huber" else {}
    result = ft.run([method], fed, small_mlp, **SETTINGS, loss={"name": loss, **delta}, batch_size=10)["fedtilt"]

    mean, deviation = fed.target.mean, fed.target.deviation
    column = fed.groups[group or "range"].train
    start = ft.models.build(small_mlp, fed.input_shape, 1, seeds.key(0, "init"))
    w = [p.detach().clone() for p in start.parameters()]
    personal: dict[int, list[Tensor]] = {}
    for number in (1, 2):
        trained = []
        for client in range(3):
            rows = fed.train_index[client]
            y = (fed.dataset.y_train[rows].double() - mean) / deviation
            models = {"w": [p.clone() for p in w], "v": [p.clone() for p in personal.get(client, w)]}
            order = seeds.permutations(seeds.key(0, "order", round=number, client=client), 2, len(rows))
            for batch in [b for epoch in order for b in epoch.split(10)]:
                for name, parameters in models.items():
                    leaves = [p.requires_grad_() for p in parameters]
                    first, bias, second, last = leaves
                    x = fed.dataset.x_train[rows][batch]
                    error = ((x @ first.T + bias).relu() @ second.T + last)[:, 0] - y[batch].float()
                    if loss == "squared":
                        losses = error.square()
                    else:
                        losses = torch.where(error.abs() < 0.5, error.square() / 2, 0.5 * (error.abs() - 0.25))
                    grads = torch.autograd.grad(tilted(losses, column[rows][batch], 0.7, -0.3), leaves)
                    prox = 0.5 if name == "v" else 0.0
                    models[name] = [
                        (p - 0.05 * (g + prox * (p - a))).detach() for p, g, a in zip(leaves, grads, w, strict=True)
                    ]
            personal[client] = models["v"]
            trained.append(models["w"])
        w = [torch.stack(parts).mean(0) for parts in zip(*trained, strict=True)]

    torch.testing.assert_close(list(result.shared.model.parameters()), w, rtol=1e-4, atol=1e-5)
    for client in range(3):
        torch.testing.assert_close(
            list(result.personal(client).model.parameters()), personal[client], rtol=1e-4, atol=1e-5
        )
    assert len(list(batches(fed, 0, 1, 2))) == 8


def test_scores_are_those_of_scikit_learn_in_the_unit_of_the_target() -> None:
    fed = ft.Federation.build(table(group="sex"), validation=0.1)
    assert fed.train(0, seed=0, round=1)[1].abs().max() < 5  # standardised for training
    result = ft.run([ft.fedavg(), ft.ditto(0.1)], fed, small_mlp, **SETTINGS)
    r = result["ditto"]
    found = []
    for client in range(fed.clients):
        x, y = fed.test(client)
        y = y * fed.target.deviation + fed.target.mean
        with torch.no_grad():
            p = r.personal(client)(x)[:, 0]
        found.append((sk.mean_absolute_error(y, p), sk.root_mean_squared_error(y, p)))
    mae, rmse = np.array(found).T
    assert (r.mae, r.rmse) == pytest.approx((mae.mean(), rmse.mean()), rel=1e-4)
    assert r.client_fairness == pytest.approx(mae.std(), rel=1e-3)
    assert r.metrics.others[0].client_fairness == pytest.approx(rmse.std(), rel=1e-3)
    assert (r.metrics.worst, r.metrics.best) == pytest.approx((mae.max(), mae.min()), rel=1e-4)
    frame = r.metrics_frame(by="sex", resamples=0)
    assert r.groups["sex"].values == pytest.approx(frame.by_group["mae"].to_dict())
    assert r.groups["sex"].others[0].values == pytest.approx(frame.by_group["rmse"].to_dict())
    assert list(r.groups) == ["sex", "range"]
    assert r.client_data_fairness == r.groups["sex"].client_spread
    rows = result.to_pandas(by="range")
    assert list(rows)[-3:] == ["samples", "mae", "rmse"]
    assert rows[rows.method == "ditto"]["samples"].sum() == len(fed.dataset.y_test)
    assert "accuracy" not in repr(result)
    assert "MAE" in repr(result)
    with pytest.raises(InputError, match="there is no accuracy here, but mae and rmse"):
        _ = r.accuracy
    with pytest.raises(InputError, match="a certificate is about shares of right predictions"):
        r.certificate()
    assert r.validation.score == "mae"


def test_a_table_from_file_to_prediction(tmp_path: Path) -> None:
    diabetes().to_csv(tmp_path / "diabetes.csv", index=False)
    (tmp_path / "diabetes.toml").write_text(SPEC)
    (result,) = run_spec(load(tmp_path / "diabetes.toml"), tmp_path / "run").values()
    assert result["fedtilt"].mae < 50  # the mean of the targets has 66
    stored = read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]
    assert stored["mae"]["mean"] == result["fedtilt"].mae
    assert stored["rmse_client_fairness"]["mean"] == result["fedtilt"].metrics.others[0].client_fairness
    assert "accuracy" not in (tmp_path / "run/results.json").read_text()
    exported = export_model(tmp_path / "run", "fedtilt", "south")
    write_tensors(tmp_path / "south.safetensors", exported.tensors, exported.metadata)
    model = ft.models.load(tmp_path / "south.safetensors")
    new = diabetes().query("clinic == 'south'").drop(columns=["progression", "clinic"])
    with torch.no_grad():
        predicted = model(ft.data.transform(new, like=tmp_path / "south.safetensors"))[:, 0]
        assert torch.equal(
            predicted, result["fedtilt"].personal("south")(ft.data.transform(new, like=tmp_path / "run"))[:, 0]
        )
    assert 100 < predicted.mean() < 200
    assert load(tmp_path / "run/spec.toml").task == "regression"
    for audit in (result.audit, lambda: audit_run(tmp_path / "run")):
        with pytest.raises(ft.InputError, match=r"finds wrong labels, and the .* numbers.*; there is none"):
            audit()
    text = report.markdown([tmp_path / "run"])
    assert "fedtilt reaches an MAE of" in text
    assert "accura" not in text.lower()
    assert "range" in text
    page = report.write([tmp_path / "run"], tmp_path / "report.html").read_text()
    notes = " ".join(re.findall(r'<p class="note">(.*?)</p>', page, re.DOTALL))
    assert "MAE on the client’s test data" in notes
    assert "accura" not in notes.lower()


@pytest.mark.slow  # tests/runs/test_predictor.py has a fast one
def test_an_onnx_file_predicts_in_the_unit_of_the_target(fedtilt, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    diabetes().to_csv(tmp_path / "diabetes.csv", index=False)
    (tmp_path / "diabetes.toml").write_text(SPEC)
    (result,) = run_spec(load("diabetes.toml", overrides=["train.rounds=2"]), tmp_path / "run").values()
    new = diabetes().query("clinic == 'south'").drop(columns=["progression", "clinic"])
    x = ft.data.transform(new, like=tmp_path / "run")
    models = {(): result["fedtilt"].shared, ("--client", "south"): result["fedtilt"].personal("south")}
    for number, (client, model) in enumerate(models.items()):
        written = fedtilt("export", "run", "--method", "fedtilt", *client, "--to", f"{number}.onnx")
        assert written.code == 0, written.err
        session = onnxruntime.InferenceSession(tmp_path / f"{number}.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(["output"], {"input": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-5, atol=1e-3)
        assert 100 < found.mean() < 200


def test_ranges_are_quartiles_of_the_training_targets() -> None:
    data = table()
    low, _, high = np.quantile(data.y_train, [0.25, 0.5, 0.75])
    assert data.target.bounds[0] == pytest.approx(low, abs=12)  # from 15 quantiles of each client
    assert data.target.bounds[2] == pytest.approx(high, abs=12)
    assert data.target.mean == pytest.approx(float(data.y_train.double().mean()))
    assert data.labels("train").bincount().min() > 60
    y = torch.arange(8.0)
    exact = ft.data.Dataset(
        name="mine", x_train=y[:, None], y_train=y, x_test=y[:, None], y_test=y, task="regression"
    )  # fmt: skip
    assert exact.class_names == ("≤ 1.75", "1.75 to 3.5", "3.5 to 5.25", "> 5.25")
    fed = ft.Federation.build(exact, clients=2, partition="classes", classes_per_client=2)
    assert fed.class_counts().sum(1).tolist() == [4, 4]
    assert (fed.class_counts() > 0).sum(1).tolist() == [2, 2]


def test_every_backend_agrees_with_the_loop() -> None:
    fed = ft.Federation.build(table(), max_train=30)
    loop, *others = [
        ft.run([ft.fedtilt(tau=1.0, lam=0.5)], fed, small_mlp, **SETTINGS, backend=backend)["fedtilt"]
        for backend in ("autograd", "stacked", *(["native"] if native.available() else []))
    ]
    for other in others:
        torch.testing.assert_close(other.sums, loop.sums, rtol=1e-4, atol=1e-3)
    assert scores_of(loop.sums)[0].name == "mae"


NUMBERS = {"x_train": torch.zeros(4, 1), "x_test": torch.zeros(4, 1), "name": "mine"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ft.data.Dataset(**NUMBERS, y_train=torch.rand(4), y_test=torch.rand(4), classes=2),
            "give one int64 label per sample, .* or set task = 'regression'",
        ),
        (
            lambda: ft.data.Dataset(**NUMBERS, y_train=torch.ones(4, 3), y_test=torch.ones(4, 3), classes=3),
            "several targets per sample are not supported: make a data set for each",
        ),
        (
            lambda: ft.data.Dataset(**NUMBERS, y_train=torch.ones(4), y_test=torch.ones(4), task="regression"),
            "has the same target in all training samples",
        ),
        (
            lambda: ft.data.table(diabetes().assign(progression=1.5), target="progression", task="regression"),
            "has one value in the training rows",
        ),
        (
            lambda: ft.data.table(diabetes().assign(progression="high"), target="progression", task="regression"),
            "column 'progression'",
        ),
        (lambda: ft.data.table(diabetes(), target="progression", task="ranking"), "task of the schema is 'ranking'"),
        (
            lambda: ft.Federation.build(table(), outliers="flips"),
            "outliers = 'flips' changes classes, and .* has numbers as targets; leave them out",
        ),
        (
            lambda: ft.run([ft.fedavg()], ft.Federation.build(table()), small_mlp, loss="focal"),
            "loss = 'focal' is not for regression; choose one of squared, huber, or leave it out",
        ),
        (
            lambda: ft.run([ft.fedavg()], ft.Federation.build(ft.data.load("toy-2")), small_mlp, loss="huber"),
            "loss = 'huber' is not for classification",
        ),
        (
            lambda: ft.run([ft.fedavg()], ft.Federation.build(table()), small_mlp, audit=True),
            "audit = True finds wrong labels, and the data has numbers as targets; leave it out",
        ),
        (
            lambda: ft.run(
                [ft.fedtilt(lam=0.0, levels=[("class", 1.0)])], ft.Federation.build(table(group="sex")), small_mlp
            ),
            "levels of method 'fedtilt' have 'class', but the data has the groups 'range', 'sex'",
        ),
        (
            lambda: ft.run([ft.fedavg()], ft.Federation.build(table()), lambda: nn.Linear(11, 3)),
            r"the model returns \(2, 3\) for 2 samples; expected \(2, 1\)",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("outliers.kind=flips", "outliers.kind = 'flips' changes classes, and task = 'regression' has"),
        ("train.audit=true", "train.audit finds wrong labels"),
        ("train.loss=cross_entropy", "loss = 'cross_entropy' is not for regression"),
        ("data.exclude=x.csv", "data.exclude corrects labels"),
        ("task=ranking", "task = 'ranking'"),
    ],
)
def test_a_spec_rejects_what_needs_classes(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "diabetes.toml").write_text(SPEC)
    with pytest.raises(InputError) as error:
        load(tmp_path / "diabetes.toml", overrides=[line])
    assert message in str(error.value)


def test_regression_needs_a_table_in_a_spec() -> None:
    with pytest.raises(InputError, match=r"task = 'regression' needs data.file; other data sets have classes"):
        load("digits", overrides=["task=regression", "outliers.kind=none"])


def test_seeds_with_other_ranges_of_the_target_have_one_report(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    diabetes().to_csv(tmp_path / "diabetes.csv", index=False)
    (tmp_path / "spec.toml").write_text(SPEC.replace("[data]", '[data]\ngroup = "sex"', 1))
    spec = load(tmp_path / "spec.toml", overrides=["seeds=2", "train.rounds=1"])
    run_spec(spec, tmp_path / "run")
    run = read_run(tmp_path / "run")
    names = [list(s.last("fedtilt").groups["range"].values) for s in run.compared]
    assert names[0] != names[1]  # the quartiles of other training rows
    by_sex, by_range = compare.group_tables(run)
    assert [metric.title for metric in by_sex.groups] == ["f", "m"]
    assert by_range.groups == ()
    worst = [s.last("fedtilt").groups["range"].worst[1] for s in run.compared]
    assert by_range.rows["fedtilt"]["worst"].values == tuple(worst)
    print_run(Console(), tmp_path / "run", None, 1.0)
    assert "by range" in capsys.readouterr().out
    assert report.write([tmp_path / "run"], tmp_path / "page.html").exists()
