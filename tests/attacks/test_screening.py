"""Screening: one client's update cannot destroy a shared model, and the client is named."""

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.attacks.screening import Screened, screen
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.math.robust import geometric_median
from fedtilt.simulation.simulator import Simulator
from fedtilt.state import ServerState

W = torch.tensor([1.0, 2.0, 3.0, 4.0])


def updates(*steps: list[float], samples: int = 10) -> dict[int, ClientUpdate]:
    return {n: ClientUpdate(W + torch.tensor(step), samples) for n, step in enumerate(steps)}


HONEST = [[1.0, 0.1, 0.0, 0.0], [1.0, -0.1, 0.0, 0.0], [1.0, 0.0, 0.1, 0.0]]


def test_updates_of_one_kind_pass_unchanged() -> None:
    before = updates(*HONEST)
    screened = screen(ServerState(W), before, 3.0)
    assert screened.rejected == screened.bounded == {}
    assert all(screened.updates[n].parameters is before[n].parameters for n in before)
    assert screened.slot["lengths"].tolist() == pytest.approx([1.01**0.5])


def remembering(slot: dict[str, Tensor]) -> ServerState:
    return ServerState(W, slots={"screening": slot})


def test_a_long_update_is_clipped_and_a_much_longer_one_rejected() -> None:
    screened = screen(ServerState(W), updates(*HONEST[:2], [0.0, 4.0, 0.0, 0.0]), 3.0)
    reference = 1.01**0.5  # the median of three lengths
    assert (screened.updates[2].parameters - W).norm() == pytest.approx(reference)
    assert screened.bounded == {2: "sent an update 3.98 times as long as the median: clipped"}
    screened = screen(ServerState(W), updates(*HONEST[:2], [700.0, 0.0, 0.0, 0.0]), 3.0)
    assert screened.rejected == {2: "sent an update 697 times as long as the median"}
    assert list(screened.updates) == [0, 1]


def test_an_update_far_from_the_others_is_moved_back() -> None:
    """Its length is ordinary: what stands out is the distance from the geometric median of all, in median distances."""
    before = updates(*HONEST, [1.0, 0.0, -0.1, 0.0], [-1.0, 0.0, 0.0, 0.0])
    screened = screen(ServerState(W), before, 3.0)
    assert screened.rejected == {}
    assert list(screened.bounded) == [4]
    assert "times as far from the others as the median: clipped" in screened.bounded[4]
    steps = torch.stack([u.parameters - W for u in before.values()])
    centre = geometric_median(steps)
    radius = (steps - centre).norm(dim=1).median()
    torch.testing.assert_close((screened.updates[4].parameters - W - centre).norm(), radius, rtol=1e-4, atol=1e-4)
    assert all(screened.updates[n].parameters is before[n].parameters for n in range(4))


def test_two_clients_have_no_majority_and_steps_are_bounded_by_the_shorter_and_by_history() -> None:
    pair = updates(HONEST[0], [1e30, 0.0, 0.0, 0.0])
    screened = screen(ServerState(W), pair, 3.0)
    assert screened.rejected == {}
    assert (screened.updates[1].parameters - W).norm() == pytest.approx(1.01**0.5, rel=1e-5)
    screened = screen(remembering({"lengths": torch.tensor([0.3, 0.3, 0.3])}), pair, 3.0)
    assert list(screened.bounded) == [0, 1]  # both are longer than three times what the model usually moves
    assert (screened.updates[1].parameters - W).norm() == pytest.approx(0.3, rel=1e-5)
    assert screened.slot["lengths"].tolist() == pytest.approx([0.3, 0.3, 0.3, 1.01**0.5])


def _rounds(*steps: list[float], rounds: int, **keywords: int) -> list[Screened]:
    """The same updates in several rounds; what is remembered is passed on through float tensors, as a checkpoint is."""
    found, slot = [], dict[str, Tensor]()
    for _ in range(rounds):
        found.append(screen(remembering(slot), updates(*steps), 3.0, **keywords))
        slot = {name: tensor.clone() for name, tensor in found[-1].slot.items()}
    return found


def test_a_client_that_works_against_the_others_is_rejected_after_three_rounds() -> None:
    """Nobody is rejected for one round, and none is if the others do not agree."""
    opposed = [-1.0, 0.0, 0.0, 0.0]
    rounds = _rounds(*HONEST, opposed, rounds=4)
    assert [list(r.rejected) for r in rounds] == [[], [], [3], [3]]
    assert "against the others for several rounds (agreement -1.00)" in rounds[-1].rejected[3]
    different = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], opposed]
    assert all(r.rejected == {} for r in _rounds(*different, rounds=6))
    slot = dict(rounds[-1].slot)
    for _ in range(60):  # it trains as the others do: its agreement is positive again
        last = screen(remembering(slot), updates(*HONEST, HONEST[0]), 3.0)
        slot = last.slot
    assert last.rejected == {}


def test_a_late_client_counts_its_own_rounds() -> None:
    slot = _rounds(*HONEST, rounds=5, clients=4)[-1].slot
    rejected = []
    for _ in range(3):
        screened = screen(remembering(slot), updates(*HONEST, [-1.0, 0.0, 0.0, 0.0]), 3.0)
        slot = screened.slot
        rejected.append(list(screened.rejected))
    assert rejected == [[], [], [3]]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_no_more_clients_are_rejected_than_may_be_bad(bad: int) -> None:
    """Two colluders and a third one stand out; those beyond the share are bounded, not rejected."""
    against = [[-1.0, 0.1, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [1e4, 0.0, 0.0, 0.0]]
    honest = [*HONEST, [1.0, 0.0, -0.1, 0.0], [1.0, 0.0, 0.0, 0.1], [1.0, 0.0, 0.0, -0.1]]
    last = _rounds(*honest, *against, rounds=5, bad=bad)[-1]
    assert len(last.rejected) == bad
    assert set(last.rejected) <= {6, 7, 8}
    assert set(last.rejected) | set(last.bounded) == {6, 7, 8}


def test_colluders_exclude_no_more_honest_clients_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten send the mean of the honest ones times −2.9, whatever the direction of the others."""
    generator = torch.Generator().manual_seed(0)
    w, slot = torch.zeros(50), dict[str, Tensor]()
    common = torch.randn(50, generator=generator)
    for spread in (0.3, 1.0, 3.0):
        for _ in range(8):
            steps = common + spread * torch.randn(10, 50, generator=generator)
            steps[8:] = -2.9 * steps[:8].mean(0)
            sent = {n: ClientUpdate(step, 10) for n, step in enumerate(steps)}
            screened = screen(ServerState(w, slots={"screening": slot}), sent, 3.0, bad=2)
            slot = screened.slot
            assert len(screened.rejected) <= 2
            assert set(screened.rejected) <= {8, 9}


def test_a_model_sent_back_and_a_claim_of_samples() -> None:
    before = updates(*HONEST, [0.0] * 4)
    before[0] = before[0]._replace(samples=10_000_000)
    screened = screen(ServerState(W), before, 3.0)
    assert screened.rejected == {3: "sent the model back as it received it"}
    assert screened.bounded == {0: "claimed 10000000 samples, of which 30 count"}
    assert screened.updates[0].samples == 30


def test_losses_are_bounded_by_what_the_others_declare() -> None:
    losses = [1.0, 1.2, 1.5, 1e30]
    before = {n: u._replace(declared={"loss": losses[n]}) for n, u in updates(*HONEST, HONEST[0]).items()}
    screened = screen(ServerState(W), before, 3.0)
    assert [screened.updates[n].declared["loss"] for n in range(4)] == [1.0, 1.2, 1.5, 1.5]
    assert screened.bounded == {3: "declared a loss of 1e+30, of which 1.5 counts"}
    losses[3] = 2.9  # within 1.5 + 3 · (1.5 − 1)
    before = {n: u._replace(declared={"loss": losses[n]}) for n, u in before.items()}
    assert screen(ServerState(W), before, 3.0).bounded == {}
    loose = screen(ServerState(W), before, 1e40)
    assert all(loose.updates[n] is before[n] for n in before)


def test_what_components_send_is_bounded_too() -> None:
    """A tensor of the model's size becomes the geometric median, any other is clipped to the median length."""
    honest = [[1.0, 0.2, 0.0, 0.0], [1.0, 0.0, 0.1, 0.0], [0.9, 0.0, 0.0, 0.1]]
    control = torch.tensor([*honest, [-2.9, 0.0, 0.0, 0.0]])
    traces = torch.tensor([[1.0], [2.0], [3.0], [1e9]])
    before = {
        n: u._replace(sent={"correction": {"control": control[n]}, "training": {"trace": traces[n]}})
        for n, u in updates(*HONEST, HONEST[0]).items()
    }
    screened = screen(ServerState(W), before, 3.0, bad=0)
    assert list(screened.bounded) == [3]
    assert "sent 'control' 28.3 times as far from the others as the median: clipped" in screened.bounded[3]
    assert "sent 'trace' 5e+08 times as long as the median: clipped" in screened.bounded[3]
    torch.testing.assert_close(
        screened.updates[3].sent["correction"]["control"], geometric_median(control), rtol=1e-3, atol=1e-3
    )
    assert screened.updates[3].sent["training"]["trace"].tolist() == [2.0]
    assert screened.updates[0] is before[0]
    assert list(screen(ServerState(W), before, 3.0).rejected) == [3]  # 5e8 times is gross
    trusted = screen(ServerState(W), before, 3.0, trusted=["correction", "training"])
    assert trusted.bounded == trusted.rejected == {}


def test_a_tensor_of_one_client_where_the_others_send_nothing_counts_nothing() -> None:
    sent = torch.tensor([[0.0], [0.0], [0.0], [1e30]])
    before = {n: u._replace(sent={"training": {"mean": sent[n]}}) for n, u in updates(*HONEST, HONEST[0]).items()}
    screened = screen(ServerState(W), before, 3.0, bad=0)
    assert screened.updates[3].sent["training"]["mean"].tolist() == [0.0]


def test_averaged_buffers_are_compared_too() -> None:
    buffers = torch.tensor([0.0, 1.0, 10.0])  # mean, variance, number of batches
    server = ServerState(W, buffers)
    honest = [[0.3, 0.1, 5.0], [0.2, 0.2, 5.0], [0.3, 0.2, 6.0], [0.1, 0.3, 5.0]]

    def sent(*steps: list[float]) -> dict[int, ClientUpdate]:
        before = updates(*[HONEST[n % 3] for n in range(len(steps))])
        return {
            n: u._replace(buffers=buffers + torch.tensor(step))
            for (n, u), step in zip(before.items(), steps, strict=True)
        }

    before = sent(*honest)
    screened = screen(server, before, 3.0)
    assert screened.rejected == screened.bounded == {}
    assert all(screened.updates[n].buffers is before[n].buffers for n in before)
    for poison in ([1e30, 0.1, 5.0], [0.3, 30.0, 5.0], [0.3, 0.1, 1e9]):
        screened = screen(server, sent(*honest, poison), 3.0)
        assert list(screened.rejected) == [4]
        assert "sent a change of" in screened.rejected[4]
    screened = screen(server, sent(*honest, [0.3, 1.5, 5.0]), 3.0)  # the median of the lengths is 0.316
    assert screened.bounded == {4: "sent a change of statistics 4.84 times as long as the median: clipped"}
    step = screened.updates[4].buffers - buffers
    assert step[:2].norm() == pytest.approx(0.1**0.5)
    assert step[2] == 5


def test_the_server_keeps_the_lengths_and_reports_what_it_did() -> None:
    method, settings = ft.fedavg(), TrainSettings(screen=3.0)
    update = server_update(method, ServerState(W), updates(*HONEST, [1e30] * 4), settings)
    assert list(update.rejected) == [3]
    torch.testing.assert_close(update.state.parameters, W + torch.tensor(HONEST).mean(0))
    assert len(update.state.slot("screening")["lengths"]) == 1
    plain = server_update(method, ServerState(W), updates(*HONEST), TrainSettings())
    screened = server_update(method, ServerState(W), updates(*HONEST), settings)
    assert torch.equal(plain.state.parameters, screened.state.parameters)
    assert list(plain.state.to_tensors()) == ["parameters"]


@pytest.mark.parametrize("rule", ["multi_krum", "trimmed_mean", "nnm"])
def test_screening_and_the_rule_exclude_no_more_than_the_share_together(rule: str) -> None:
    """One of four may be bad: the one that is rejected was it, and the rule excludes no honest client more."""

    def method(bad_share: float) -> ft.Method:
        part = {"rule": rule, "bad_share": bad_share}
        return ft.fedavg(before=[part], aggregator="median") if rule == "nnm" else ft.fedavg(aggregator=part)

    settings = TrainSettings(screen=3.0)
    update = server_update(method(1 / 4), ServerState(W), updates(*HONEST, [1e30] * 4), settings)
    assert list(update.rejected) == [3]
    torch.testing.assert_close(update.state.parameters, W + torch.tensor(HONEST).mean(0))
    # two of eight: one is rejected, and the rule excludes one more
    steps = [*HONEST, *HONEST, [-1.0, 0.0, 0.0, 0.0], [1e30] * 4]
    update = server_update(method(1 / 4), ServerState(W), updates(*steps), settings)
    assert list(update.rejected) == [7]
    expected = server_update(method(1 / 7), ServerState(W), updates(*steps[:7]), TrainSettings())
    assert torch.equal(update.state.parameters, expected.state.parameters)


def test_krum_needs_no_model_for_a_client_that_was_rejected() -> None:
    """One of five may be bad, for which Krum needs five models; of the four that are left none may be."""
    method = ft.fedavg(aggregator={"rule": "krum", "bad_share": 0.2})
    sent = updates(*HONEST, [1.0, 0.0, 0.0, 0.0], [1e30] * 4)
    update = server_update(method, ServerState(W), sent, TrainSettings(screen=3.0))
    torch.testing.assert_close(update.state.parameters, W + torch.tensor([1.0, 0.0, 0.0, 0.0]))


def test_a_rule_that_excludes_nobody_more_is_given_clipped_updates() -> None:
    """A second liar, more than the rule is set for, counts as an ordinary client."""
    method = ft.fedavg(aggregator={"rule": "multi_krum", "bad_share": 0.2})
    honest = [*HONEST, [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, -0.1, 0.0]]
    sent = updates(*honest, [-20.0, 0.0, 0.0, 0.0])
    settings = TrainSettings(screen=3.0)
    named = server_update(method, ServerState(W), sent, settings)
    assert named.rejected == {}
    assert "clipped" not in named.bounded[5]  # the rule excludes it
    update = server_update(method, ServerState(W), {**sent, 6: ClientUpdate(torch.full((4,), 1e30), 10)}, settings)
    assert list(update.rejected) == [6]
    assert "times as long as the median" in update.bounded[5]
    assert update.bounded[5].endswith(": clipped")
    assert (update.state.parameters - W - torch.tensor(honest).mean(0)).norm() < 0.5


def _poisoned(kind: str, update: ClientUpdate, w: Tensor) -> ClientUpdate:
    if kind == "samples":
        return update._replace(samples=10_000_000)
    step = update.parameters - w
    parameters = {
        "x10": w + 10 * step, "x100": w + 100 * step, "sign flip": w - step, "minus": -update.parameters,
        "1e30": torch.full_like(w, 1e30), "3e38": torch.full_like(w, 3e38), "zeros": torch.zeros_like(w),
        "unchanged": w.clone(),
    }  # fmt: skip
    return update._replace(parameters=parameters[kind])


POISONS = ["x10", "x100", "sign flip", "minus", "1e30", "3e38", "zeros", "unchanged", "samples"]


def _train(
    monkeypatch: pytest.MonkeyPatch, federation: ft.Federation, method: ft.Method, bad: tuple[int, ...], kind: str,
    screen: float = 3.0,
) -> tuple[ft.Round, set[int]]:  # fmt: skip
    """Twelve rounds in which the bad clients are absent, or send poison: the last round, and the clients it names."""

    def poison(self: Simulator, clients: dict, number: int) -> tuple:  # type: ignore[type-arg]
        if kind == "absent":
            return train(self, {c: found for c, found in clients.items() if c not in bad}, number)
        sent, *others = train(self, clients, number)
        for client in bad:
            w = clients[client].plans[method.name]["shared"].start
            sent[method.name][client] = _poisoned(kind, sent[method.name][client], w)
        return sent, *others

    train = Simulator.train_clients
    monkeypatch.setattr(Simulator, "train_clients", poison)
    rounds = ft.simulate(
        [method], federation, ft.models.logistic, rounds=12, participation=1.0, epochs=2, lr=0.05, screen=screen,
        workers=0,
    )  # fmt: skip
    named = set()
    for last in rounds:
        named |= set(last.screened[method.name])
    monkeypatch.undo()
    return last, named


def _accuracy(last: ft.Round, name: str, part: str, bad: tuple[int, ...]) -> float:
    """Of the good clients, in percent."""
    good = [n for n in range(len(last.total)) if n not in bad]
    return 100 * (getattr(last.counts[name], part)[good].sum() / last.total[good].sum()).item()


@pytest.mark.parametrize(("clients", "bad"), [(4, (1,)), pytest.param(10, (2, 7), marks=pytest.mark.slow)])
def test_no_poison_costs_two_points(monkeypatch: pytest.MonkeyPatch, clients: int, bad: tuple[int, ...]) -> None:
    """The goal: shared and personal accuracy within 2 points of the run without the bad clients, which are named."""
    federation = ft.Federation.build(ft.data.load("digits"), clients=clients, partition="iid")
    method = ft.ditto(weighting="samples")
    without, named = _train(monkeypatch, federation, method, bad, "absent")
    assert named == set()
    for kind in POISONS:
        with_poison, named = _train(monkeypatch, federation, method, bad, kind)
        assert named == set(bad)
        for part in ("shared", "personal"):
            accuracy = [_accuracy(last, "ditto", part, bad) for last in (without, with_poison)]
            assert accuracy[1] > accuracy[0] - 2, (kind, part, accuracy)


RULES = {
    "mean": {}, "median": {}, "geometric_median": {}, "norm_clipped": {}, "trimmed_mean": {"bad_share": 0.2},
    "krum": {"bad_share": 0.2}, "multi_krum": {"bad_share": 0.2},
}  # fmt: skip


@pytest.mark.slow
def test_what_each_rule_protects_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prints the table of docs/deployment.md: two of ten clients are bad; accuracy of the others, shared model."""
    bad, columns = (2, 7), ("absent", "x10", "1e30", "sign flip")
    found: dict[tuple[str, str, str], float] = {}
    for data, partition in (("same", {"partition": "iid"}), ("two classes", {"classes_per_client": 2})):
        federation = ft.Federation.build(ft.data.load("digits"), clients=10, **partition)
        for rule in ("mean, screen = 3", *RULES):
            aggregator, screen = rule.split(",")[0], 3.0 if "screen" in rule else 0.0
            method = ft.fedavg(aggregator={"rule": aggregator, **RULES[aggregator]})
            for kind in columns:
                last, _ = _train(monkeypatch, federation, method, bad, kind, screen)
                found[data, rule, kind] = _accuracy(last, "fedavg", "shared", bad)
        print(f"\n| rule, {data} data | {' | '.join(columns)} |")
        for rule in ("mean, screen = 3", *RULES):
            print(f"| {rule} | {' | '.join(f'{found[data, rule, kind]:.1f}' for kind in columns)} |")
    for (data, rule, kind), accuracy in found.items():
        loss = found[data, rule, "absent"] - accuracy
        if rule == "mean" and kind == "1e30":
            assert loss > 50
        elif data == "same" and rule != "mean":
            assert loss < 2, (rule, kind)
        elif rule == "mean, screen = 3":  # where honest clients differ, screening does not recognise a sign flip
            assert loss > 10 if kind == "sign flip" else loss < 2


def test_settings_of_screening() -> None:
    with pytest.raises(ft.InputError, match=r"screen = 0.5 would clip ordinary updates; choose 0 \(none\)"):
        TrainSettings(screen=0.5)
