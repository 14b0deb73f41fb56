"""What the audit collects: the same numbers as forward passes by hand, without any effect on training."""

from functools import partial
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.auditing.collect import Collected, margins
from fedtilt.math.tilt import nested_tilt_grad
from fedtilt.simulation import simulate

MLP = partial(ft.models.mlp, hidden=(8,))
METHODS = [ft.fedavg(), ft.fedtilt(tau=1.0, lam=-2.0, mu=0.1)]
SETTINGS = {"participation": 0.5, "epochs": 1, "batch_size": 10, "lr": 0.1}


def federation(**settings: object) -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=6, max_train=40, **settings)


def test_margins_are_negative_for_labels_that_look_wrong() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.0], [4.0, 1.0, 3.0]])
    assert margins(logits, torch.tensor([0, 1])).tolist() == [1.0, -3.0]


def test_sums_are_those_of_forward_passes_by_hand() -> None:
    fed, method = federation(), ft.fedtilt(tau=1.0, lam=-2.0, mu=0.1)
    sent: list[torch.nn.Module] = []  # the shared model after each round
    sums: dict[int, dict[str, torch.Tensor]] = {}
    rounds: dict[int, int] = {}
    for r in simulate([method], fed, MLP, rounds=3, audit=True, eval_every=3, **SETTINGS):
        for client in r.selected:
            found = Collected.of(r.state.client_states.get(("fedtilt", client)))
            assert found is not None
            rounds[client] = rounds.get(client, 0) + 1
            assert found.rounds == rounds[client]
            totals = {key: value * found.rounds for key, value in found.learnt._asdict().items()}
            totals["p"] = found.log_p.exp() * found.rounds * (found.rounds + 1) / 2  # the r-th counts r times
            if sent:  # the model that round 1 starts from is known to the run alone
                x, y = fed.train(client, seed=0, round=r.number)
                with torch.no_grad():
                    logits = r.model("fedtilt", client)(x)
                    p = sent[-1](x).softmax(1)
                loss = torch.nn.functional.cross_entropy(logits, y, reduction="none")
                weight = nested_tilt_grad(loss, [y], [-2.0, 1.0]) * len(y)
                by_hand = {"p": p * found.rounds, "loss": loss, "weight": weight, "margin": margins(logits, y)}
                for key, value in by_hand.items():
                    before = sums[client][key] if client in sums else 0.0
                    torch.testing.assert_close(totals[key], before + value.double(), rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(found.learnt.last_margin, by_hand["margin"].double(), rtol=1e-4, atol=1e-4)
            sums[client] = totals
        sent.append(r.model("fedtilt"))
    assert max(rounds.values()) > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_collecting_changes_no_bit_of_the_training_and_depends_on_no_worker(workers: int) -> None:
    fed = federation()
    plain = ft.run(METHODS, fed, MLP, rounds=2, workers=0, **SETTINGS)
    audited = ft.run(METHODS, fed, MLP, rounds=2, workers=workers, audit=True, **SETTINGS)
    for name in plain:
        for a, b in zip(plain[name].shared.parameters(), audited[name].shared.parameters(), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(plain[name].sums, audited[name].sums)
    reference = ft.run(METHODS, fed, MLP, rounds=2, workers=0, audit=True, **SETTINGS)
    assert torch.equal(reference.audit().score, audited.audit().score)


def test_a_run_without_audit_says_how_to_collect() -> None:
    result = ft.run([ft.fedavg()], federation(), MLP, rounds=1, **SETTINGS)
    with pytest.raises(ft.InputError, match="no data for an audit; train it with audit = True"):
        result.audit()


def test_resumed_is_uninterrupted(tmp_path: Path) -> None:
    fed, folder = federation(), tmp_path / "run"
    whole = ft.run(METHODS, fed, MLP, rounds=4, audit=True, **SETTINGS)
    ft.run(METHODS, fed, MLP, rounds=2, audit=True, out=folder, **SETTINGS)
    resumed = ft.run(METHODS, fed, MLP, rounds=4, audit=True, out=folder, **SETTINGS)
    assert torch.equal(whole.audit().score, resumed.audit().score)
    assert torch.equal(whole.audit("fedavg").learnt.margin, resumed.audit("fedavg").learnt.margin)
    with pytest.raises(ft.InputError, match=r"train.audit"):
        ft.run(METHODS, fed, MLP, rounds=4, out=folder, **SETTINGS)
