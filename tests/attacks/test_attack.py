"""Attacks: who attacks, what attackers train on and send, and every rule against every attack."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.attacks.attack import KINDS, AttackedFederation, with_trigger
from fedtilt.attacks.forged_updates import forge, forged_update
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import RoundRule
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import COMPONENTS, PRESETS, ServerRound
from fedtilt.methods.aggregators import Bulyan, FLTrust, Krum, RootSelected, TrimmedMean
from fedtilt.methods.before import NNM
from fedtilt.state import ServerState

MODEL = functools.partial(ft.models.mlp, hidden=(8,))
SHORT = {"epochs": 1, "batch_size": 20, "lr": 0.1, "participation": 1.0, "workers": 0, "device": "cpu"}


@functools.cache
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=10, partition="iid", max_train=40)


def attacked(**settings: object) -> AttackedFederation:
    return AttackedFederation.of(federation(), ft.Attack(**settings), seed=0)


def test_attackers_are_chosen_by_the_seed_and_have_no_test_data() -> None:
    fed = attacked(kind="alie", share=0.3)
    assert len(fed.attackers) == 3
    assert fed.attackers == tuple(ft.Attack(kind="ipm", share=0.3).attackers(fed.client_names, 0))  # of any kind
    seeds = {tuple(ft.Attack(kind="alie", share=0.3).attackers(fed.client_names, seed)) for seed in range(10)}
    assert len(seeds) > 5
    for client in range(10):
        assert (len(fed.test_index[client]) == 0) == (client in fed.attackers)
        assert torch.equal(fed.train_index[client], federation().train_index[client])
    assert attacked(kind="mimic", clients=("7", "2")).attackers == (2, 7)
    assert len(attacked(kind="mimic").attackers) == 2


def test_poisoned_data() -> None:
    flipped = attacked(kind="label_flip", clients=("3",), from_round=2)
    clean = federation().train(3, seed=0, round=2)
    assert torch.equal(flipped.train(3, seed=0, round=1)[1], clean[1])
    x, y = flipped.train(3, seed=0, round=2)
    assert torch.equal(y, (clean[1] + 1) % 10)
    assert torch.equal(x, clean[0])
    assert torch.equal(flipped.train(4, seed=0, round=2)[1], federation().train(4, seed=0, round=2)[1])

    planted = attacked(kind="backdoor", clients=("3",), target="7", poisoned=0.5)
    x, y = planted.train(3, seed=0, round=1)
    has_trigger = (x[:, :, -2:, -2:] == 1.0).flatten(1).all(1)
    assert 0.3 < has_trigger.float().mean() < 0.7
    assert (y[has_trigger] == 7).all()
    assert torch.equal(y[~has_trigger], clean[1][~has_trigger])
    assert torch.equal(x[:, :, :6], clean[0][:, :, :6])

    test = planted.with_triggers()
    x, y = test.test(0)
    original_x, original_y = federation().test(0)
    assert (y == 7).all()
    assert torch.equal(x, with_trigger(original_x[original_y != 7], 1.0))


def test_forged_updates_by_hand() -> None:
    received = torch.tensor([10.0, 10.0])
    steps = {0: [1.0, 0.0], 1: [3.0, 0.0], 2: [0.0, 5.0]}
    updates = {client: ClientUpdate(received + torch.tensor(step), 1) for client, step in steps.items()}

    def sent(**settings: object) -> Tensor:
        server = ServerState(received)
        asked = ServerRound(received=received, selected=3, population=3, round=3)
        mean, _ = RoundRule.of(ft.fedavg(), server, asked, updates, TrainSettings())
        forged = forge(ft.Attack(**settings), mean, updates, [2])
        assert all(forged[client] is updates[client] for client in (0, 1))
        return forged[2].parameters - received

    close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-5)
    close(sent(kind="sign_flip"), torch.tensor([0.0, -5.0]))
    close(sent(kind="scale", strength=2), torch.tensor([0.0, 10.0]))
    close(sent(kind="same_value", strength=3), torch.tensor([3.0, 3.0]))
    close(sent(kind="alie", strength=1), torch.tensor([2.0 - 2**0.5, 0.0]))
    close(sent(kind="ipm", strength=3), torch.tensor([-6.0, 0.0]))
    close(sent(kind="mimic"), torch.tensor([1.0, 0.0]))
    close(sent(kind="ipm", from_round=4), torch.tensor([0.0, 5.0]))
    close(sent(kind="label_flip"), torch.tensor([0.0, 5.0]))  # it poisons data, and sends what it trained
    assert sent(kind="ipm", search=True)[0] < -1000  # the mean follows any strength
    noise = forged_update("gaussian", torch.zeros(10000), torch.zeros(1, 10000), 2.0, key=1)
    assert noise.std().item() == pytest.approx(2.0, rel=0.05)


def rules() -> list[ft.Method]:
    """Every rule and every step before a rule, with as many bad clients as it tolerates of ten."""
    shares = {"trimmed_mean": 0.2, "krum": 0.2, "multi_krum": 0.2, "bulyan": 0.1, "nnm": 0.2}

    def table(rule: str) -> dict[str, object]:
        return {"rule": rule} | ({"bad_share": shares[rule]} if rule in shares else {})

    beside = {"bucketing": {"aggregator": "median"}}
    return [
        *[ft.fedavg(name=rule, aggregator=table(rule)) for rule in COMPONENTS["aggregator"]],
        *[
            ft.ditto(name=f"ditto {step}", before=[table(step)], **beside.get(step, {}))
            for step in COMPONENTS["before"]
        ],
        ft.fedtilt(tau=1, lam=-1, q=-1.0),
    ]


def presets() -> list[ft.Method]:
    """Every method with its defaults; weights that clients claim are refused beside attackers."""
    needed: dict[str, Any] = {"fedtilt": {"tau": 1, "lam": 1}, "term": {"t": 1}}
    needed |= {key: {"weighting": "equal"} for key in ("fedas", "fedminmax")}
    return [preset(name=f"preset {name}", **needed.get(name, {})) for name, preset in PRESETS.items()]


def shared(result: ft.Result) -> dict[str, Tensor]:
    return {name: torch.cat([p.detach().flatten() for p in r.shared.parameters()]) for name, r in result.items()}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "alie" else pytest.mark.slow) for kind in KINDS]
)
def test_every_rule_against_every_attack_repeats_its_bits_and_resumes(kind: str, tmp_path: Path) -> None:
    methods = rules() if kind == "alie" else [*rules(), *presets()]
    attack = ft.Attack(kind=kind, share=0.1)
    run = functools.partial(ft.run, methods, federation(), MODEL, attack=attack, **SHORT)
    whole = run(rounds=3)
    run(rounds=2, out=tmp_path / "run")
    resumed = run(rounds=3, out=tmp_path / "run")
    for name, parameters in shared(whole).items():
        assert parameters.isfinite().all()
        assert torch.equal(parameters, shared(resumed)[name]), name
        assert whole[name].metrics.clients == 9
        assert whole[name].metrics == resumed[name].metrics


def test_the_strongest_attack_moves_every_rule_at_least_as_far_as_none() -> None:
    run = functools.partial(ft.run, federation=federation(), model=MODEL, rounds=1, **SHORT)
    weakest = shared(run(rules(), attack=ft.Attack(kind="alie", share=0.1, strength=1e-9)))
    strongest = shared(run(rules(), attack=ft.Attack(kind="alie", share=0.1, search=True)))
    honest_mean = weakest["mean"]  # attackers that send it change no mean
    for name, parameters in strongest.items():
        assert (parameters - honest_mean).norm() >= (weakest[name] - honest_mean).norm() - 1e-6, name
    assert (strongest["mean"] - honest_mean).norm() > 100  # it has no bound


def test_an_attack_later_changes_nothing_before() -> None:
    run = functools.partial(ft.run, [ft.fedavg()], federation(), MODEL, **SHORT)
    late = ft.Attack(kind="sign_flip", strength=5, from_round=2)
    without, with_attack = shared(run(rounds=1)), shared(run(rounds=2, attack=late))
    assert torch.equal(shared(run(rounds=1, attack=ft.Attack(kind="label_flip", from_round=1)))["fedavg"],
                       shared(run(rounds=1, attack=ft.Attack(kind="label_flip")))["fedavg"])  # fmt: skip
    rounds = [
        torch.cat([p.detach().flatten() for p in r.model("fedavg").parameters()])
        for r in ft.simulate([ft.fedavg()], federation(), MODEL, rounds=2, attack=late, **SHORT)
    ]
    assert torch.equal(rounds[0], without["fedavg"])
    assert torch.equal(rounds[1], with_attack["fedavg"])
    assert not torch.equal(rounds[1], shared(run(rounds=2))["fedavg"])


def test_robust_rules_withstand_what_breaks_the_mean() -> None:
    methods = [
        ft.fedavg(),
        *[ft.fedavg(name=name, aggregator=name) for name in ("median", "geometric_median", "fltrust")],
        ft.fedavg(name="root_selected", aggregator=RootSelected(bad_share=0.2)),
        ft.fedavg(name="nnm", aggregator=TrimmedMean(0.2), before=[NNM(0.2)]),
    ]
    attack = ft.Attack(kind="same_value", share=0.2)
    result = ft.run(methods, federation(), MODEL, rounds=15, attack=attack, **SHORT | {"epochs": 3})
    assert result["fedavg"].accuracy < 30
    assert all(result[m.name].accuracy > 60 for m in methods[1:])


@pytest.mark.parametrize(
    ("settings", "method", "message"),
    [
        ({"share": 0.96}, ft.fedavg(), "attack.share = 0.96 leaves no honest client of 10; choose fewer attackers"),
        ({"clients": tuple("0123456789")}, ft.fedavg(), "leaves no honest client of 10"),
        ({"clients": ("x",)}, ft.fedavg(), "client x does not exist; the clients are 0 to 9"),
        (
            {"share": 0.3},
            ft.fedavg(aggregator=Krum(0.2)),
            "bad_share = 0.2 of method 'fedavg' is less than the 3 of 10 clients that attack; use bad_share ≥ 0.3",
        ),
        (
            {"share": 0.1},
            ft.fedavg(aggregator=Bulyan(0.2)),
            "bad_share = 0.2 of method 'fedavg' is 2 of the 10 clients in a round, for which bulyan needs 11",
        ),
        (
            {},
            ft.fedavg(weighting="samples"),
            "weighting = 'samples' of method 'fedavg' counts the samples that clients claim, and attackers can claim",
        ),
        ({"from_round": 4}, ft.fedavg(), "attack.from_round = 4 is after the last round, 3"),
        ({"kind": "backdoor", "target": "x"}, ft.fedavg(), "attack.target = 'x' is no class of the data"),
        ({}, ft.fedavg(aggregator=FLTrust(401)), "is more than the 400 training samples that they are drawn from"),
    ],
)
def test_a_run_that_cannot_be_is_one_line(settings: dict, method: ft.Method, message: str) -> None:
    attack = ft.Attack(**{"kind": "alie"} | settings)
    with pytest.raises(InputError) as error:
        ft.run([method], federation(), MODEL, rounds=3, attack=attack, **SHORT)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "attack needs kind, one of sign_flip, "),
        ({"kind": "bribe"}, "attack: unknown kind 'bribe'; choose one of sign_flip, "),
        ({"kind": "alie", "share": 0}, "attack: share must be a number > 0 and < 1, got 0"),
        ({"kind": "alie", "share": 0.1, "clients": ["1"]}, "attack.share = 0.1 has no effect with clients"),
        ({"kind": "mimic", "strength": 2}, "attack.strength = 2.0 has no effect with kind = 'mimic'"),
        ({"kind": "alie", "strength": 2, "search": True}, "attack.strength = 2.0 has no effect with search = True"),
        ({"kind": "scale", "search": True}, "attack.search = True has no effect with kind = 'scale'"),
        ({"kind": "scale", "target": "3"}, "attack.target = '3' has no effect with kind = 'scale'"),
    ],
)
def test_settings_that_have_no_effect_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        ft.Attack(**settings)
    assert message in str(error.value)


def test_rounds_with_more_attackers_than_tolerated_are_named() -> None:
    from fedtilt.engine.prepare import prepare
    from fedtilt.engine.settings import train_settings

    method = ft.fedavg(aggregator=TrimmedMean(0.2))
    settings = {**SHORT, "participation": 0.5, "rounds": 30, "attack": ft.Attack(kind="alie", share=0.2)}
    prepared = prepare([method], federation(), MODEL, train_settings(settings))
    attackers = set(prepared.federation.attackers)
    more = sum(len(attackers & set(prepared.settings.selected(r, 10))) > 1 for r in range(1, 31))
    assert more
    assert f"tolerates 1 bad of 5 clients in a round, and {more} of 30 rounds have more" in prepared.notices[0]


def test_a_backdoor_is_measured_and_recorded(tmp_path: Path) -> None:
    methods = [ft.fedavg(), ft.fedavg(name="median", aggregator="median"), ft.ditto()]
    attack = ft.Attack(kind="backdoor", share=0.2, target="3", strength=3)
    run = functools.partial(ft.run, methods, federation(), MODEL, rounds=12, attack=attack, **SHORT | {"epochs": 3})
    result = run(out=tmp_path)
    assert result["fedavg"].attack_success > 80 > 30 > result["median"].attack_success
    assert result.attack == attack
    assert len(result.attackers) == 2
    record = json.loads((tmp_path / "seed-0" / "federation.json").read_text())
    assert [record["clients"][n] for n in record["attackers"]] == list(result.attackers)
    fingerprint = json.loads((tmp_path / "seed-0" / "fingerprint.json").read_text())
    assert fingerprint["train"]["attack"]["kind"] == "backdoor"
    again = run(out=tmp_path)  # read from the folder
    assert again["median"].attack_success == result["median"].attack_success
    assert ft.run(methods, federation(), MODEL, rounds=1, **SHORT)["fedavg"].attack_success is None
    # by hand: the share of triggered images of other classes that honest clients see as the target
    fed = AttackedFederation.of(federation(), attack, 0)
    shares = []
    for client in set(range(10)) - set(fed.attackers):
        x, y = federation().test(client)
        with torch.no_grad():
            predicted = result["fedavg"].shared(with_trigger(x[y != 3], 1.0)).argmax(1)
        shares.append(100 * (predicted == 3).double().mean().item())
    assert result["fedavg"].attack_success == pytest.approx(sum(shares) / len(shares))


def test_client_momentum_is_a_moving_average_of_updates(tmp_path: Path) -> None:
    """With equal clients and one step a round: w ← w + m, where m = beta · m − (1 − beta) · lr · gradient."""
    x, y = federation().train(0, seed=0, round=1)
    same = ft.Federation.from_clients([((x, y), (x, y))] * 3)
    net = ft.models.mlp(input_shape=(1, 8, 8), classes=10, hidden=(4,))
    method = ft.fedavg(client_momentum=0.9)
    settings = {"local_steps": 1, "batch_size": len(y), "lr": 0.5, "participation": 1.0, "workers": 0, "device": "cpu"}
    result = ft.run([method], same, net, rounds=3, out=tmp_path, **settings)

    expected = copy.deepcopy(net)
    momentum = [torch.zeros_like(p) for p in expected.parameters()]
    for _ in range(3):
        expected.zero_grad()
        torch.nn.functional.cross_entropy(expected(x), y).backward()
        with torch.no_grad():
            for m, p in zip(momentum, expected.parameters(), strict=True):
                m.mul_(0.9).add_(p.grad, alpha=-0.1 * 0.5)
                p += m
    for ours, theirs in zip(result["fedavg"].shared.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    first = ft.run([method], same, net, rounds=2, out=tmp_path / "stopped", **settings)
    resumed = ft.run([method], same, net, rounds=3, out=tmp_path / "stopped", **settings)
    assert torch.equal(shared(resumed)["fedavg"], shared(result)["fedavg"])
    assert not torch.equal(shared(first)["fedavg"], shared(result)["fedavg"])
    with pytest.raises(InputError, match=r"client_momentum of method 'fedavg' must be a number ≥ 0 and < 1, got 1"):
        ft.fedavg(client_momentum=1.0)


@pytest.mark.parametrize(
    ("kind", "aggregator"),
    [("scale", "mean"), ("scale", "median"), ("scale", "geometric_median"), ("same_value", "mean")],
)
def test_a_forged_update_that_is_not_finite_is_rejected(kind: str, aggregator: str) -> None:
    attack, method = ft.Attack(kind=kind, strength=1e39, clients=("2", "7")), ft.fedavg(aggregator=aggregator)
    (round,) = ft.simulate([method], federation(), MODEL, attack=attack, rounds=1, **SHORT)
    assert round.screened["fedavg"] == {2: "is not finite", 7: "is not finite"}
    assert round.state.server["fedavg"].parameters.isfinite().all()
