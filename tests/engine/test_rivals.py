"""Published methods against their papers' updates, written out with PyTorch alone, and their identities."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import Moreau
from fedtilt.methods.corrections import ClientStep, Correction, FedDyn, Scaffold, ServerStep
from fedtilt.models import parameters_to_vector, with_weights
from fedtilt.state import ClientState
from tests.helpers import plain_loop
from tests.helpers.plain_loop import last_round

CLIENTS, ROUNDS, EPOCHS, LR, STEPS = 4, 3, 1, 0.05, 4
FED = plain_loop.federation(clients=CLIENTS)
MODEL = partial(ft.models.mlp, hidden=(8,))
RECIPE = {"rounds": ROUNDS, "epochs": EPOCHS, "lr": LR, "participation": 0.5}
Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]  # of the loss at a model, on a batch


def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    net = with_weights(plain_loop.initial(FED, MODEL), theta, {})
    loss = F.cross_entropy(net(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def loss_of(theta: Tensor, client: int, number: int) -> Tensor:
    x, y = FED.train(client, seed=0, round=number)
    return F.cross_entropy(with_weights(plain_loop.initial(FED, MODEL), theta, {})(x), y).detach()


def descend(w: Tensor, client: int, number: int, extra: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """One client's round of plain SGD; `extra` is added to every gradient."""
    theta = w.clone()
    for x, y in plain_loop.batches(FED, client, number, EPOCHS):
        theta = theta - LR * (gradient(theta, x, y) + (0 if extra is None else extra(theta)))
    return theta


def rounds() -> list[tuple[int, list[int]]]:
    """The rounds, and the clients that take part."""
    return [(r.number, r.selected) for r in ft.simulate([ft.fedavg()], FED, MODEL, workers=0, **RECIPE)]


def start() -> Tensor:
    return parameters_to_vector(plain_loop.initial(FED, MODEL))


def simulated(method: ft.Method, **settings: object) -> ft.Round:
    return last_round([method], FED, MODEL, **(RECIPE | settings))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.float(), b.float(), rtol=1e-4, atol=2e-6)


def test_scaffold() -> None:
    w, c, own = start(), torch.zeros_like(start()), {n: torch.zeros_like(start()) for n in range(CLIENTS)}
    for number, selected in rounds():
        models, changes = [], []
        for n in selected:
            drift = c - own[n]
            models.append(descend(w, n, number, lambda _, drift=drift: drift))
            control = own[n] - c + (w - models[-1]) / (STEPS * LR)
            changes.append(control - own[n])
            own[n] = control
        w, c = torch.stack(models).mean(0), c + torch.stack(changes).sum(0) / CLIENTS
    last = simulated(ft.methods.scaffold())
    close(last.state.shared["scaffold"], w)
    close(last.state.server["scaffold"].slot("correction")["control"], c)
    for n in last.selected:
        close(last.state.client_states.get(("scaffold", n)).slot("correction")["control"], own[n])


def test_feddyn() -> None:
    alpha = 0.5
    w, h, own = start(), torch.zeros_like(start()), {n: torch.zeros_like(start()) for n in range(CLIENTS)}
    for number, selected in rounds():
        models = []
        for n in selected:
            models.append(descend(w, n, number, lambda theta, n=n, w=w: alpha * (theta - w) - own[n]))
            own[n] = own[n] - alpha * (models[-1] - w)
        h = h - alpha * (torch.stack(models) - w).sum(0) / CLIENTS
        w = torch.stack(models).mean(0) - h / alpha
    close(simulated(ft.methods.feddyn(alpha)).state.shared["feddyn"], w)


@pytest.mark.parametrize("correction", [Scaffold(), FedDyn(0.5)])
def test_a_corrected_optimum_of_quadratics_is_a_fixed_point(correction: Correction) -> None:
    """Clients with losses ½(θ − a_n)²: with the right vectors, nobody leaves the optimum of all, mean of a_n."""
    a, lr, steps = torch.tensor([1.0, 4.0]), 0.1, 5
    w = a.mean(0, keepdim=True)
    (name,), (of_server,) = correction.client_vectors, correction.server_vectors
    slots = [{name: w - a_n} for a_n in a]  # their gradients at w
    server = {of_server: torch.zeros(1)}
    models, sent = [], []
    for n, a_n in enumerate(a):
        drift, theta = correction.drift(server, slots[n]), w.clone()
        for _ in range(steps):
            theta = theta - lr * (theta - a_n + correction.prox * (theta - w) + drift)
        update, after = correction.client_step(ClientStep(w, theta, drift, slots[n], steps, lr))
        close(after[name], slots[n][name])
        assert set(update) == set(correction.sends)
        models.append(theta)
        sent.append(update)
    aggregated = torch.stack(models).mean(0)
    means = {name: torch.stack([each[name] for each in sent]).mean(0) for name in correction.sends}
    new, after = correction.server_step(ServerStep(aggregated, w, aggregated - w, means, server, 2, 2))
    close(new, w)
    assert after.keys() == server.keys()
    close(after[of_server], torch.zeros(1))


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_qffl(q: float) -> None:
    w = start()
    for number, selected in rounds():
        steps, weights = [], []
        for n in selected:
            loss, grad = loss_of(w, n, number), (w - descend(w, n, number)) / LR
            steps.append(loss**q * grad)
            weights.append(q * loss ** (q - 1) * grad.square().sum() + loss**q / LR)
        w = w - torch.stack(steps).sum(0) / torch.stack(weights).sum()
    close(simulated(ft.methods.qffl(q)).state.shared["qffl"], w)


def test_term_over_clients() -> None:
    w = start()
    for number, selected in rounds():
        share = torch.softmax(3.0 * torch.stack([loss_of(w, n, number) for n in selected]), 0)
        w = (share[:, None] * torch.stack([descend(w, n, number) for n in selected])).sum(0)
    close(simulated(ft.methods.term_clients(3.0)).state.shared["term_clients"], w)


def test_afl() -> None:
    w, weights = start(), torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    for number, selected in rounds():
        losses = torch.stack([loss_of(w, n, number) for n in selected]).double()
        weights[selected] += 0.1 * CLIENTS / len(selected) * (losses - losses.mean())
        assert weights.min() > 0  # so there is nothing to project
        share = weights[selected] / weights[selected].sum()
        w = (share[:, None] * torch.stack([descend(w, n, number) for n in selected])).sum(0)
    last = simulated(ft.methods.afl(0.1))
    close(last.state.server["afl"].slot("weighting")["weights"], weights)
    close(last.state.shared["afl"], w)


def test_pfedme() -> None:
    mu, inner, lr_personal = 2.0, 3, 0.1
    w, personal = start(), {}
    for number, selected in rounds():
        models = []
        for n in selected:
            theta, own = w.clone(), w.clone()
            for x, y in plain_loop.batches(FED, n, number, EPOCHS):
                for _ in range(inner):
                    theta = theta - lr_personal * (gradient(theta, x, y) + mu * (theta - own))
                own = own - LR * mu * (own - theta)
            personal[n] = theta
            models.append(own)
        w = torch.stack(models).mean(0)
    last = simulated(ft.methods.pfedme(mu, inner), lr_personal=lr_personal)
    close(last.state.shared["pfedme"], w)
    for n, theta in personal.items():
        close(last.state.client_states.get(("pfedme", n)).personal, theta)


def test_propfair() -> None:
    w = start()
    for number, selected in rounds():
        models = []
        for n in selected:
            theta = w.clone()
            for x, y in plain_loop.batches(FED, n, number, EPOCHS):
                net = with_weights(plain_loop.initial(FED, MODEL), theta, {})
                objective = -torch.log(4.0 - F.cross_entropy(net(x), y))
                grads = torch.autograd.grad(objective, list(net.parameters()))
                theta = theta - LR * torch.cat([g.flatten() for g in grads])
            models.append(theta)
        w = torch.stack(models).mean(0)
    close(simulated(ft.methods.propfair(4.0)).state.shared["propfair"], w)


@pytest.mark.parametrize("head_epochs", [None, 2])
def test_fedper_and_fedrep(head_epochs: int | None) -> None:
    """The last layer stays on its client; FedRep trains it first, then only the others."""
    head = 10 * 8 + 10
    body, heads = start()[:-head], {n: start()[-head:] for n in range(CLIENTS)}
    epochs = EPOCHS + (head_epochs or 0)
    for number, selected in rounds():
        bodies = []
        for n in selected:
            theta = torch.cat([body, heads[n]])
            for step, (x, y) in enumerate(plain_loop.batches(FED, n, number, epochs)):
                g = gradient(theta, x, y)
                if head_epochs is not None:
                    g[slice(None, -head) if step < STEPS * head_epochs else slice(-head, None)] = 0
                theta = theta - LR * g
            heads[n] = theta[-head:]
            bodies.append(theta[:-head])
        body = torch.stack(bodies).mean(0)
    method = ft.methods.fedper(name="m") if head_epochs is None else ft.methods.fedrep(head_epochs, name="m")
    last = simulated(method)
    close(last.state.shared["m"], body)
    for n in last.selected:
        close(last.state.client_states.get(("m", n)).local, heads[n])
        x, y = FED.test(n)
        net = with_weights(plain_loop.initial(FED, MODEL), torch.cat([body, heads[n]]), {})
        assert int((net(x).argmax(1) == y).sum()) == int(last.counts["m"].shared[n].sum())
        close(parameters_to_vector(last.model("m", n)), torch.cat([body, heads[n]]))


def test_identities() -> None:
    """Settings for which a method is FedAvg, or Ditto's relatives; and one client alone."""
    same = {
        "q": ft.methods.qffl(0.0, name="q"),
        "t": ft.methods.term_clients(0.0, name="t"),
        "w": ft.methods.afl(1e-12, name="w"),
    }
    last = last_round(
        [ft.fedavg(), *same.values(), ft.methods.propfair(1e6, lr=LR * 1e6, name="p")], FED, MODEL, **RECIPE
    )
    for name in (*same, "p"):
        torch.testing.assert_close(last.state.shared[name], last.state.shared["fedavg"], rtol=1e-4, atol=1e-5)
    one = plain_loop.federation(clients=1)
    methods = [ft.fedavg(), ft.methods.afl(), ft.methods.term_clients(5.0), ft.methods.scaffold()]
    last = last_round(methods, one, MODEL, **RECIPE)
    for m in methods:  # one client: all weights are 1, and its control variate is that of the server
        torch.testing.assert_close(last.state.shared[m.name], last.state.shared["fedavg"], rtol=1e-4, atol=1e-5)


def test_a_method_with_its_own_local_parts_beside_one_without() -> None:
    last = last_round([ft.fedavg(), ft.methods.fedper()], FED, MODEL, **RECIPE)
    alone = last_round([ft.methods.fedper()], FED, MODEL, **RECIPE)
    assert torch.equal(last.state.shared["fedper"], alone.state.shared["fedper"])
    assert len(last.state.shared["fedavg"]) == len(last.state.shared["fedper"]) + 90
    result = ft.run([ft.fedavg(), ft.methods.fedper()], FED, MODEL, workers=0, **RECIPE)
    assert isinstance(result["fedper"].model(0), nn.Module)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (lambda: ft.methods.scaffold(), {"momentum": 0.9}, "needs plain SGD on the clients"),
        (lambda: ft.methods.fedrep(2), {"local_steps": 3, "epochs": 10}, "first_epochs of the local parameters = 2 of"),
        (lambda: ft.methods.pfedme(50.0), {}, "past the personal one: lr · mu must be ≤ 1, got 2.5"),
        (lambda: ft.methods.fedper(["nothing"]), {}, "local = 'nothing' matches no trained parameter"),
        (lambda: ft.methods.qffl(-1.0), {}, "method 'qffl': q_ffl: exponent must be a number ≥ 0, got -1.0"),
        (lambda: ft.methods.feddyn(0.0), {}, "method 'feddyn': feddyn: alpha must be a number > 0, got 0.0"),
        (lambda: ft.methods.feddyn(prox=0.1), {}, "prox = 0.1 of method 'feddyn' has no effect beside correction"),
        (lambda: ft.methods.scaffold(tau=1), {}, "tau is not a setting of scaffold"),
        (lambda: ft.fedavg(weighting={"rule": "equal", "tilt": 1}), {}, "is not a setting of 'equal', which has none"),
        (lambda: ft.fedavg(aggregator={"rule": "mean", "bound": 1}), {}, "is not a setting of 'mean', which has none"),
        (lambda: ft.methods.afl(aggregator="krum"), {}, "aggregator 'krum' of method 'afl' takes no weights"),
        (lambda: ft.methods.fedmgda(2.0), {}, "method 'fedmgda': fedmgda: bound must be a number ≥ 0 and ≤ 1, got 2.0"),
        (lambda: ft.Method(name="a", correction="scafold"), {}, "unknown correction 'scafold' of method 'a'; choose"),
        (lambda: ft.Method(name="a", local={"names": "last"}), {}, "local of method 'a': local is a list of patterns"),
        (lambda: ft.methods.fedrep(2, correction="scaffold"), {}, "first_epochs = 2 of method 'fedrep' is for a"),
        (lambda: ft.Method(name="a", personal=Moreau(1), prox=1), {}, "prox of method 'a' has no effect beside"),
        (lambda: ft.methods.scaffold(), {"privacy": ft.Privacy(clip=1, noise=1, delta=1e-3)}, "no known sensitivity"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(
    method: Callable[[], ft.Method], settings: dict, message: str
) -> None:  # fmt: skip
    with pytest.raises(InputError) as error:
        last_round([method()], FED, MODEL, **(RECIPE | settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_state_without_what_the_method_keeps_is_refused() -> None:
    last = simulated(ft.methods.scaffold(), rounds=1)
    last.state.server["scaffold"] = last.state.server["scaffold"].without_slot("correction")
    with pytest.raises(InputError, match="the state of the server for method 'scaffold' has no 'correction.control'"):
        next(iter(ft.simulate([ft.methods.scaffold()], FED, MODEL, state=last.state, workers=0, **RECIPE)))
    last = simulated(ft.methods.scaffold(), rounds=1, participation=1.0)
    for client in range(CLIENTS):
        last.state.client_states.put(("scaffold", client), 1, ClientState(buffers=torch.zeros(1)))
    with pytest.raises(InputError, match="the slot 'correction' of a client for method 'scaffold' has no 'control'"):
        next(iter(ft.simulate([ft.methods.scaffold()], FED, MODEL, state=last.state, workers=0, **RECIPE)))
