"""Tokens and several labels as targets: an independent loop, stacks, Flower, every table, and what is rejected."""

import functools
import io
import math
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import report, seeds
from fedtilt.cli.console import Console
from fedtilt.cli.metrics import _beyond_chance
from fedtilt.cli.tables import comparison_table, legend
from fedtilt.errors import InputError, InputWarning
from fedtilt.evaluation.certificate import Certificate
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.flower.loopback import run_loopback
from fedtilt.report.page import as_run
from fedtilt.runs.export import export_model
from fedtilt.tuning.objectives import find_objective

pandas = pytest.importorskip("pandas")

VOCABULARY, LENGTH = 9, 5
SETTINGS = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 4, "device": "cpu", "workers": 0}


def padded(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and their next tokens, −100 after the end of a text."""
    y = tokens[:, 1:].clone()
    y[torch.arange(y.shape[1]) >= lengths[:, None]] = -100
    return tokens[:, :-1], y


def texts(clients: int = 3, samples: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Random texts of different lengths; a token often follows from the one before."""
    rng, found = torch.Generator().manual_seed(0), []
    for _ in range(clients):
        tokens = torch.randint(0, VOCABULARY, (samples, LENGTH + 1), generator=rng)
        tokens[:, 1::2] = (tokens[:, ::2] + 1) % VOCABULARY
        found.append(padded(tokens, torch.randint(1, LENGTH + 1, (samples,), generator=rng)))
    return found


def pictures(clients: int = 3, samples: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Samples with any of three labels."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(clients, samples, 4, generator=rng)
    return list(zip(x, (x[..., :3] + 0.3 * torch.randn(x[..., :3].shape, generator=rng) > 0.4).float(), strict=True))


class Causal(nn.Module):
    """The mean embedding of a token and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(16, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        here = self.tokens(x)
        before = here.cumsum(1) / torch.arange(1, LENGTH + 1, device=x.device)[:, None]
        return self.head(torch.cat([here, before], -1))


def small_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(6,))


LANGUAGE, LABELS = "language", "multilabel"
CASES = {LANGUAGE: (texts, Causal, 0.2), LABELS: (pictures, small_mlp, 0.3)}


def federation(task: str, **settings: object) -> ft.Federation:
    return ft.Federation.from_clients(CASES[task][0](), task=task, **settings)


def sample_loss(task: str, outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of one sample, written out: the mean over its tokens, or over its labels."""
    if task == LABELS:
        p = outputs.sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    kept = y != -100
    return F.cross_entropy(outputs[kept], y[kept])


@functools.cache
def independent_loop(task: str, lam: float = 0.7, mu: float = 0.5) -> tuple[list[Tensor], dict[int, list[Tensor]]]:
    """The shared and the personal models of FedTilt after two rounds, written out."""
    _, model, lr = CASES[task]
    fed = federation(task)
    net = ft.models.build(model, fed.input_shape, fed.outputs, seeds.key(0, "init")).train()
    w = [p.detach().clone() for p in net.parameters()]
    personal: dict[int, list[Tensor]] = {}
    for number in (1, 2):
        trained = []
        for client in range(3):
            x, y = fed.clean_train(client)
            models = {"w": [p.clone() for p in w], "v": [p.clone() for p in personal.get(client, w)]}
            (order,) = seeds.permutations(seeds.key(0, "order", round=number, client=client), 1, len(y))
            for batch in order.split(4):
                for name, parameters in models.items():
                    leaves = [p.requires_grad_() for p in parameters]
                    named = dict(zip(dict(net.named_parameters()), leaves, strict=True))
                    outputs = torch.func.functional_call(net, named, (x[batch],))
                    losses = [sample_loss(task, o, t) for o, t in zip(outputs, y[batch], strict=True)]
                    tilted = (lam * torch.stack(losses)).exp().mean().log() / lam
                    grads, prox = torch.autograd.grad(tilted, leaves), mu if name == "v" else 0.0
                    models[name] = [
                        (p - lr * (g + prox * (p - a))).detach() for p, g, a in zip(leaves, grads, w, strict=True)
                    ]
            personal[client] = models["v"]
            trained.append(models["w"])
        w = [torch.stack(parts).mean(0) for parts in zip(*trained, strict=True)]
    return w, personal


@pytest.mark.parametrize("task", [LANGUAGE, LABELS])
@pytest.mark.parametrize("backend", ["autograd", "stacked"])
def test_fedtilt_equals_an_independent_loop(task: str, backend: str) -> None:
    _, model, lr = CASES[task]
    method = ft.fedtilt(tau=0, lam=0.7, mu=0.5)
    result = ft.run([method], federation(task), model, **SETTINGS, lr=lr, backend=backend)["fedtilt"]
    w, personal = independent_loop(task)
    torch.testing.assert_close([p.detach() for p in result.shared.parameters()], w, rtol=1e-3, atol=1e-5)
    for client in range(3):
        found = [p.detach() for p in result.personal(client).parameters()]
        torch.testing.assert_close(found, personal[client], rtol=1e-3, atol=1e-5)


def test_scores_of_tokens_are_those_of_every_sample_one_by_one() -> None:
    result = ft.run([ft.fedavg()], federation(LANGUAGE), Causal, **SETTINGS, lr=0.2)
    found, fed = result["fedavg"], federation(LANGUAGE)
    losses, shares = [], []
    for client in range(3):
        x, y = fed.test(client)
        with torch.no_grad():
            outputs = found.shared(x)
        losses.append([float(sample_loss(LANGUAGE, o, t)) for o, t in zip(outputs, y, strict=True)])
        right = [float((o.argmax(-1) == t)[t != -100].float().mean()) for o, t in zip(outputs, y, strict=True)]
        shares.append(right)
    by_client = np.array(losses).mean(1)
    assert found.metrics.score == "loss"
    assert found.score("loss") == pytest.approx(by_client.mean(), rel=1e-5)
    assert found.score("perplexity") == pytest.approx(np.exp(by_client).mean(), rel=1e-5)
    assert found.score("token_accuracy") == pytest.approx(100 * np.array(shares).mean(), rel=1e-5)
    assert found.client_fairness == pytest.approx(by_client.std(), rel=1e-4)
    frame = result.to_pandas()
    assert list(frame.columns[-4:]) == ["samples", "loss", "perplexity", "token_accuracy"]
    np.testing.assert_allclose(frame["loss"], by_client, rtol=1e-5)
    overall = found.metrics_frame(by=None).overall
    assert overall["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert overall["token_accuracy"] == pytest.approx(np.mean(shares), rel=1e-5)
    assert "token accuracy" in str(found.certificate())


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    fed = federation(LABELS, class_names=["cat", "dog", "emu"])
    assert fed.target.labels == ("cat", "dog", "emu")
    found = ft.run([ft.fedavg()], fed, small_mlp, **SETTINGS, lr=0.3)["fedavg"]
    scores = {"label_accuracy": [], "exact_match": [], "micro_f1": [], "loss": []}
    for client in range(3):
        x, y = fed.test(client)
        with torch.no_grad():
            outputs = found.shared(x)
        predicted, there = (outputs > 0).int().numpy(), y.int().numpy()
        scores["label_accuracy"].append(100 * (1 - sk.hamming_loss(there, predicted)))
        scores["exact_match"].append(100 * sk.accuracy_score(there, predicted))
        scores["micro_f1"].append(100 * sk.f1_score(there, predicted, average="micro", zero_division=1))
        scores["loss"].append(float(F.binary_cross_entropy_with_logits(outputs, y)))
    for name, values in scores.items():
        assert found.score(name) == pytest.approx(np.mean(values), rel=1e-5), name
    assert found.metrics.score == "label_accuracy"
    with pytest.raises(InputError, match="there is no accuracy here, but label_accuracy and exact_match"):
        _ = found.accuracy


def test_a_certificate_of_shares_holds_where_hoeffding_says() -> None:
    """The bound is the p at which the divergence from the mean is log(1 / a) / n, below the exact one of counts."""
    sums, total = torch.tensor([[33.3], [40.0]], dtype=torch.float64), torch.tensor([[40], [40]])
    bound = Certificate(sums, total).clients.bound / 100
    mean = 33.3 / 40
    divergence = mean * math.log(mean / bound) + (1 - mean) * math.log((1 - mean) / (1 - bound))
    assert divergence == pytest.approx(math.log(1 / 0.025) / 40, rel=1e-9)
    whole = torch.tensor([[33], [40]])
    assert Certificate(whole.double(), total).clients.bound < Certificate(whole, total).clients.bound
    perfect = Certificate(total.double(), total).clients.bound
    assert perfect == pytest.approx(100 * 0.025 ** (1 / 40), rel=1e-9)


def flower_task(task: str, tau: float, folder: Path) -> tuple[ft.Federation, Task]:
    """A federation, and a task whose sites have its clients' data."""
    _, model, lr = CASES[task]
    fed = federation(task)

    def of_site(node: dict) -> ft.data.Dataset:
        site, sides = int(node["partition-id"]), {}
        for side, index in (("train", fed.train_index), ("test", fed.test_index)):
            x, y = (getattr(fed.dataset, f"{key}_{side}") for key in ("x", "y"))
            sides |= {f"x_{side}": x[index[site]], f"y_{side}": y[index[site]]}
        return ft.data.Dataset(name="site", task=task, target=fed.target, **sides)

    (folder / "spec.toml").write_text(
        f"[clients]\ncount = 3\n[train]\nrounds = 2\nparticipation = 1.0\nepochs = 1\nbatch_size = 4\nlr = {lr}\n"
        f'screen = 0\n[[methods]]\npreset = "fedtilt"\ntau = {tau}\nlam = 0.7\nmu = 0.5\n'
    )
    return fed, Task(
        spec=folder / "spec.toml", model=model, data=of_site, input_shape=fed.input_shape, target=fed.target
    )


def test_a_tilt_over_groups_that_the_data_of_a_site_lacks_is_refused(tmp_path: Path) -> None:
    _, task = flower_task(LABELS, 2.0, tmp_path)
    with pytest.raises(InputError, match="site 0 cannot join: has not the groups that method 'fedtilt' tilts over"):
        run_loopback(task, 3, tmp_path)


@pytest.mark.parametrize("task", [LANGUAGE, LABELS])
def test_a_flower_federation_gives_the_simulators_models_and_scores(task: str, tmp_path: Path) -> None:
    _, model, lr = CASES[task]
    fed, flower = flower_task(task, 0.0, tmp_path)
    run_loopback(flower, 3, tmp_path)
    method = ft.fedtilt(tau=0, lam=0.7, mu=0.5)
    simulated = ft.run([method], fed, model, **SETTINGS, lr=lr, out=tmp_path / "simulated")["fedtilt"]
    sent = read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]
    for score in (simulated.metrics, *simulated.metrics.others):
        assert sent[score.score]["mean"] == pytest.approx(score.mean, rel=1e-6)
    exported, expected = (export_model(tmp_path / folder, "fedtilt") for folder in ("run", "simulated"))
    torch.testing.assert_close(exported.tensors, expected.tensors)
    assert exported.metadata["task"] == task


@pytest.mark.parametrize("task", [LANGUAGE, LABELS])
def test_report_baselines_export_and_resume(task: str, tmp_path: Path) -> None:
    _, model, lr = CASES[task]
    fed, settings = federation(task), SETTINGS | {"lr": lr}
    result = ft.run([ft.fedavg(), ft.ditto(0.1)], fed, model, **settings, out=tmp_path / "run", baselines=True)
    assert set(result.baselines) == {"local", "frequencies"}
    title = "loss" if task == LANGUAGE else "label accuracy"
    page = report.write([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert title in page
    assert ("perplexity" if task == LANGUAGE else "micro F1") in page
    assert "no client (" not in page  # one group has no statement of its own
    markdown = report.write([tmp_path / "run"], tmp_path / "report.md").read_text()
    console = Console(width=200, file=io.StringIO())
    console.print(comparison_table(as_run(result), 200), legend(as_run(result)))
    lines = list(_beyond_chance(result["fedavg"].predictions, "client", 0.95, False))
    for text in (page, markdown, console.file.getvalue()):  # chance in these scores is unknown
        for absent in (
            "airness beyond chance",
            ">beyond chance",
            "| beyond chance",
            "ails most",
            "client data fairness",
        ):
            assert absent not in text  # samples have neither classes nor groups
    assert "client data fairness" not in str(result)
    assert "beyond chance  " not in console.file.getvalue()  # the row of the legend
    assert lines == []
    assert title in console.file.getvalue()
    assert result.to_pandas(by="client")["estimate"].isna().all()
    result.export(tmp_path / "model.safetensors", "fedavg")
    module = ft.models.load(tmp_path / "model.safetensors", model)
    x, _ = fed.test(0)
    torch.testing.assert_close(module(x), result["fedavg"].shared(x))
    assert title in (tmp_path / "model.md").read_text()
    with pytest.raises(InputError, match="predicts tokens or several labels, and ft.load reads"):  # also without model=
        ft.load(tmp_path / "model.safetensors")
    longer = ft.run([ft.fedavg()], fed, model, **settings | {"rounds": 3})
    resumed = tmp_path / "resumed"
    ft.run([ft.fedavg()], fed, model, **settings, out=resumed)
    again = ft.run([ft.fedavg()], fed, model, **settings | {"rounds": 3}, out=resumed)
    assert again["fedavg"].metrics == longer["fedavg"].metrics


def test_groups_of_texts_are_tilted_and_evaluated() -> None:
    fed = federation(LANGUAGE)
    codes = {side: torch.arange(len(getattr(fed.dataset, f"y_{side}"))) % 2 for side in ("train", "test")}
    data = ft.data.Dataset(
        name="topics", task=LANGUAGE, client_names=("a", "b"), group_names={"topic": ("sport", "law")},
        **{f"{key}_{side}": getattr(fed.dataset, f"{key}_{side}") for key in ("x", "y") for side in codes},
        **{f"group_{side}": {"topic": code} for side, code in codes.items()},
        **{f"client_{side}": (torch.arange(len(code)) // 2) % 2 for side, code in codes.items()},
    )  # fmt: skip
    topics = ft.Federation.build(data)
    assert topics.group == "topic"
    result = ft.run([ft.fedtilt(tau=2, lam=0)], topics, Causal, **SETTINGS, lr=0.2)["fedtilt"]
    assert set(result.groups) == {"topic", "all"}
    assert set(result.groups["topic"].values) == {"sport", "law"}
    plain = ft.run([ft.fedtilt(tau=0, lam=0)], topics, Causal, **SETTINGS, lr=0.2)["fedtilt"]
    assert plain.metrics != result.metrics


def test_padding_changes_nothing() -> None:
    """Texts with more padding have the same losses, so the same models."""
    _, y = texts(1)[0]
    outputs = torch.randn(len(y), LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(1))
    longer = F.pad(outputs, (0, 0, 0, 3), value=7.0), F.pad(y, (0, 3), value=-100)
    loss = ft.losses.TokenCrossEntropy()
    torch.testing.assert_close(loss(*longer), loss(outputs, y))
    expected = [F.cross_entropy(o[t != -100], t[t != -100]) for o, t in zip(outputs, y, strict=True)]
    torch.testing.assert_close(loss(outputs, y), torch.stack(expected))


X, Y = texts(1)[0]


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (LANGUAGE, {"y_train": Y[:, 0]}, "task = 'language' takes int64 tokens"),
        (LANGUAGE, {"y_train": Y.float()}, "task = 'language' takes int64 tokens"),
        (LANGUAGE, {"y_train": Y.where(Y >= 0, -1)}, "the token -1 in y_train; tokens go from 0 to 8"),
        (LANGUAGE, {"y_train": Y.index_fill(0, torch.tensor([3]), -100)}, "no token to predict in sample 3 of y_train"),
        (LANGUAGE, {"target": ft.data.TokenTarget(vocabulary=4)}, "tokens go from 0 to 3"),
        (LANGUAGE, {"target": ft.data.LabelTarget(labels=("a",))}, "a LabelTarget and task = 'language'"),
        (LANGUAGE, {"classes": 9}, "classes = 9 and task = 'language'; leave out classes"),
        (LABELS, {"y_train": Y, "y_test": Y}, "task = 'multilabel' takes float32 zeros and ones"),
        (LABELS, {"y_train": 2 * Y.ge(0).float(), "y_test": Y.ge(0).float()}, "2 in y_train; a label is 0 or 1"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_raise(task: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.data.Dataset(name="texts", task=task, **{"x_train": X, "y_train": Y, "x_test": X, "y_test": Y} | changes)


def test_what_makes_no_sense_raises() -> None:
    fed = federation(LANGUAGE)
    run = {"rounds": 1, "device": "cpu"}
    with pytest.raises(InputError, match="tau = 5 of method 'fedtilt' has no effect"):
        ft.run([ft.fedtilt(tau=5, lam=0)], fed, Causal, **run)
    with pytest.raises(InputError, match="'feddbe' needs one vector of features for a sample; this model has 5"):
        ft.run([ft.methods.feddbe()], fed, Causal, **run)
    with pytest.raises(InputError, match="audit = True finds wrong labels, and the data has tokens as targets"):
        ft.run([ft.fedavg()], fed, Causal, **run, audit=True)
    with pytest.raises(InputError, match="loss = 'focal' is not for language; choose one of token_cross_entropy"):
        ft.run([ft.fedavg()], fed, Causal, **run, loss="focal")
    with pytest.raises(InputError, match=r"the model returns \(2, 5\) for 2 samples; expected \(2, 5, 9 or more\)"):
        ft.run([ft.fedavg()], fed, nn.Sequential(nn.Embedding(9, 1), nn.Flatten()), **run)
    with pytest.raises(InputError, match="is for classes; the targets are tokens or several labels"):
        ft.run([ft.methods.fedrod()], fed, Causal, **run)
    result = ft.run([ft.fedavg()], fed, Causal, **SETTINGS, lr=0.1)["fedavg"]
    with pytest.raises(InputError, match="metric 'auroc' is not for tokens as targets; choose among loss, perplexity"):
        result.metrics_frame("auroc")
    with pytest.raises(InputError, match="positive = 'a' is for classes, and the data has tokens as targets"):
        result.metrics_frame(positive="a")
    with pytest.raises(InputError, match="no objective 'class_fairness' for language; choose one of loss, perplexity"):
        find_objective("class_fairness", fed)
    with pytest.raises(InputError, match="outliers = 'flips' changes classes"):
        federation(LABELS, outliers="flips")
    with pytest.warns(InputWarning, match="the targets are the tokens of x_train themselves"):
        ft.Federation.from_clients([(X, X), (X, X)], task=LANGUAGE)
