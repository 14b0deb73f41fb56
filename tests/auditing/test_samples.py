"""The audit of samples: planted flips are found, names are the user's, and `ft.audit` works without a federation."""

from functools import partial
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedtilt as ft
from fedtilt.auditing.samples import suspects_csv
from fedtilt.data.corrections import read_corrections

MLP = partial(ft.models.mlp, hidden=(32,))


@pytest.fixture(scope="module")
def audited() -> tuple[ft.Federation, ft.Result]:
    fed = ft.Federation.build(
        ft.data.load("digits"), clients=10, max_train=100, outliers="flips", outlier_rate=0.2, outlier_redraw="once",
        outlier_flip_to="any",
    )  # fmt: skip
    methods = [ft.fedavg(), ft.fedtilt(tau=0.0, lam=-2.0, mu=0.1)]
    return fed, ft.run(methods, fed, MLP, rounds=12, participation=0.5, epochs=3, lr=0.1, audit=True)


def test_planted_flips_are_found_and_their_share_is_estimated(audited: tuple[ft.Federation, ft.Result]) -> None:
    fed, result = audited
    audit = result.audit()
    assert audit.method == "fedtilt"  # the smallest lam
    clients = audit.client.unique().tolist()
    planted = torch.cat([fed.outlier_mask(client) for client in clients])
    true = torch.cat([fed.clean_train(client)[1] for client in clients])
    assert roc_auc_score(planted, audit.score) > 0.98
    worst = audit.worst_first[: int(planted.sum())]
    assert float(planted[worst].double().mean()) > 0.9
    assert float(audit.score.mean()) == pytest.approx(float(planted.double().mean()), abs=0.04)
    expected = audit.cut(0.9).precision
    assert float(planted[audit.score >= 0.9].double().mean()) == pytest.approx(expected, abs=0.05)
    assert float((audit.looks_like == true)[planted].double().mean()) > 0.85
    covered = [
        share.wrong.low <= float(planted[audit.client == fed.client_names.index(share.client)].double().mean())
        <= share.wrong.high
        for share in audit.wrong_labels()
    ]  # fmt: skip
    assert sum(covered) >= 9


def test_confusions_count_suspects(audited: tuple[ft.Federation, ft.Result]) -> None:
    audit = audited[1].audit("fedavg")
    confusion = audit.confusion()
    assert int(confusion.sum()) == len(audit.suspects()) == audit.cut(0.5).suspects
    by_client = sum(audit.confusion(name) for name in audit.client_names)
    assert torch.equal(confusion, by_client)
    classes = audit.wrong_labels(by_class=True)
    assert sum(row.suspects for row in classes) == len(audit.suspects())
    assert sum(row.samples for row in classes) == len(audit)


def test_suspects_have_the_names_of_the_user(audited: tuple[ft.Federation, ft.Result]) -> None:
    fed, result = audited
    frame = result.audit().to_pandas()
    assert frame["score"].is_monotonic_decreasing
    assert len(frame) == int(fed.train_sizes().sum())
    worst = result.audit().worst(1)[0]
    rows = fed.row_names(worst.client)
    label = fed.train(worst.client, seed=0, round=1)[1][rows.index(worst.row)]
    assert fed.class_names[int(label)] == worst.label != worst.looks_like


def test_the_csv_is_read_back(audited: tuple[ft.Federation, ft.Result], tmp_path: Path) -> None:
    path, suspects = tmp_path / "suspects.csv", audited[1].audit().suspects()
    path.write_text(suspects_csv(suspects))
    read = read_corrections(path)
    assert [(c.row, c.label, c.looks_like) for c in read] == [(s.row, s.label, s.looks_like) for s in suspects]


def test_an_unknown_method_is_named(audited: tuple[ft.Federation, ft.Result]) -> None:
    with pytest.raises(KeyError, match="no method 'ditto' in this run"):
        audited[1].audit("ditto")


def test_a_model_its_outputs_and_its_losses_without_a_federation() -> None:
    data = ft.data.load("digits")
    x, y = data.x_train.float().flatten(1)[:600], data.y_train[:600]
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    held = torch.arange(600) >= 300
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[~held]), y[~held]).backward()
        optimizer.step()
    wrong = torch.arange(300) % 5 == 0
    labels = torch.where(wrong, (y[held] + 3) % 10, y[held])
    groups = torch.arange(300) // 100
    found = ft.audit(model, x[held], labels, groups)
    assert found.client_names == ("0", "1", "2")
    assert roc_auc_score(wrong, found.score) > 0.98
    with torch.no_grad():
        outputs = model(x[held])
    assert torch.equal(ft.audit(outputs, None, labels, groups).score, found.score)
    by_loss = ft.audit(torch.nn.functional.cross_entropy(outputs, labels, reduction="none"), None, labels)
    assert roc_auc_score(wrong, by_loss.score) > 0.97
    assert by_loss.suspects()[0].looks_like == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 2), None, torch.zeros(2).long()), "y has shape"),
        ((torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(3).long()), "x has no effect"),
        ((torch.nn.Linear(4, 2), None, torch.zeros(3).long()), "a model needs samples"),
        ((torch.zeros(3, 2), None, torch.tensor([0, 1, 2])), "y goes from 0 to 2"),
        ((torch.full((3,), torch.nan), None, torch.zeros(3).long()), "not finite"),
        ((torch.zeros(3, 2), None, torch.zeros(3).long(), torch.zeros(2)), "groups has shape"),
    ],
)
def test_bad_arguments_are_one_line(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ft.InputError, match=message) as error:
        ft.audit(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
