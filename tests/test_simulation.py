"""Simulations: the special cases of the paper; bit-identical with any executor, threads and global settings."""

import gc
import math
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedtilt as ft
from fedtilt import seeds
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.executors import forked
from fedtilt.methods import Aggregator, ServerRound
from fedtilt.models import parameters_to_vector, vector_to_parameters
from fedtilt.simulation.simulator import merge_equal
from fedtilt.state import ClientState, ServerState, Slot
from fedtilt.training.stacked import stackable_copy

TRAIN = {"rounds": 3, "participation": 0.5, "epochs": 2, "batch_size": 10, "lr": 0.1}


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(
        ft.data.load("digits"), clients=6, partition="dirichlet", alpha=0.5, outliers="flips",
        outlier_clients=0.5, max_train=50, seed=1,
    )  # fmt: skip


def small(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(12,))


def train(methods: Sequence[ft.Method], federation: ft.Federation, model=small, **settings) -> FederationState:
    for r in ft.simulate(methods, federation, model, **(TRAIN | settings)):
        state = r.state
    return state


def same(a: FederationState, b: FederationState, name: str, other: str | None = None) -> bool:
    return same_tensors(a.server[name], b.server[other or name]) and all(
        same_tensors(a.client_states.get((name, n)), b.client_states.get((other or name, n)))
        for m, n in a.client_states.owners()
        if m == name
    )


def same_tensors(a: ServerState | ClientState, b: ServerState | ClientState) -> bool:
    one, other = a.to_tensors(), b.to_tensors()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def personal_of(state: FederationState, method: str, client: int) -> torch.Tensor | None:
    return state.client_states.get((method, client)).personal


def test_special_cases_are_the_same_bits(federation: ft.Federation) -> None:
    avg = train([ft.fedavg()], federation)
    for method in (ft.fedprox(0.0, name="x"), ft.fedtilt(0, 0, mu=math.inf, name="x"), ft.term(0.0, name="x")):
        assert same(avg, train([method], federation), "fedavg", "x")
    for mu in (0.0, 0.01, 3.0):  # the shared model of fedtilt(0, 0, 0, any mu) is FedAvg's
        assert torch.equal(train([ft.fedtilt(0, 0, mu=mu)], federation).shared["fedtilt"], avg.shared["fedavg"])
    assert same(
        train([ft.ditto(0.3)], federation),
        train([ft.fedtilt(0, 0, mu=0.3)], federation),
        "ditto",
        "fedtilt",
    )
    one_level = train([ft.fedtilt(2.0, 2.0, mu=math.inf)], federation)
    assert same(train([ft.term(2.0)], federation), one_level, "term", "fedtilt")


def test_ditto_is_an_independent_loop_with_torch_optim(federation: ft.Federation) -> None:
    mu, lr = 0.3, 0.1
    net = ft.models.build(small, federation.input_shape, federation.classes, seeds.key(0, "init"))
    w, personal = parameters_to_vector(net), {}
    for number in (1, 2, 3):
        received = []
        for client in seeds.choose(seeds.key(0, "selection", round=number), 6, 3):
            x, y = federation.train(client, seed=0, round=number)
            order = seeds.permutations(seeds.key(0, "order", round=number, client=client), 2, len(y))
            models = [ft.models.with_weights(net, w), ft.models.with_weights(net, personal.get(client, w))]
            anchor = list(vector_to_parameters(net, w).values())
            optimizers = [torch.optim.SGD(m.parameters(), lr=lr) for m in models]
            for rows in (batch for epoch in order for batch in epoch.split(10)):
                for model, optimizer, prox in zip(models, optimizers, (0.0, mu), strict=True):
                    optimizer.zero_grad()
                    sq_dist = sum((p - a).square().sum() for p, a in zip(model.parameters(), anchor, strict=True))
                    (F.cross_entropy(model(x[rows]), y[rows]) + prox / 2 * sq_dist).backward()
                    optimizer.step()
            received.append(parameters_to_vector(models[0]))
            personal[client] = parameters_to_vector(models[1])
        w = torch.stack(received).mean(0)
    state = train([ft.ditto(mu)], federation)
    torch.testing.assert_close(state.shared["ditto"], w, rtol=1e-4, atol=1e-5)
    assert sorted(n for _, n in state.client_states.owners()) == sorted(personal)
    for client, expected in personal.items():
        torch.testing.assert_close(personal_of(state, "ditto", client), expected, rtol=1e-4, atol=1e-5)


def test_ditto_without_proximal_term_is_local_training(federation: ft.Federation) -> None:
    """With mu = 0, the personal models depend on the shared one only through their start."""
    full = {"participation": 1.0}
    alone = train([ft.ditto(0.0)], federation, **full)
    other_server = train([ft.ditto(0.0, aggregator={"rule": "tilted", "q": -math.inf})], federation, **full)
    assert not torch.equal(alone.shared["ditto"], other_server.shared["ditto"])
    for client in range(6):
        assert torch.equal(personal_of(alone, "ditto", client), personal_of(other_server, "ditto", client))


METHODS = [ft.fedavg(), ft.ditto(0.1), ft.fedtilt(tau=5, lam=-2, q=1.0, mu=0.1)]


def test_methods_give_the_same_bits_together_or_alone_and_with_any_executor(federation: ft.Federation) -> None:
    together = train(METHODS, federation, workers=2)
    in_process = train(METHODS, federation, workers=0)
    three_workers = train(METHODS[::-1], federation, workers=3)
    for method in METHODS:
        alone = train([method], federation, workers=0)
        assert same(together, alone, method.name)
        assert same(together, in_process, method.name)
        assert same(together, three_workers, method.name)


def test_rates_epochs_and_starts_of_a_method_reach_every_executor(federation: ft.Federation) -> None:
    """Personal models of their own length and start, for which the anchor of a client is not its start."""
    methods = [
        ft.fedavg(),
        ft.ditto(lr_personal=0.01, epochs_personal=5),
        ft.methods.fedavg_finetuned(lr_personal=0.02, epochs_personal=1),
        ft.methods.local(),
    ]
    in_process, forked = (train(methods, federation, workers=n) for n in (0, 2))
    for method in methods:
        assert same(in_process, forked, method.name)
        assert torch.equal(in_process.shared[method.name], in_process.shared["fedavg"])  # w is FedAvg's in all of them
    alone = train([ft.methods.local(lr=0.5, lr_personal=0.1), ft.fedavg()], federation, workers=0)
    for owner in in_process.client_states.owners():  # what w does is nothing to local training
        if owner[0] == "local":
            assert torch.equal(personal_of(in_process, *owner), personal_of(alone, *owner))


@pytest.mark.parametrize("backend", ["autograd", "stacked"])
def test_backends_agree_over_rounds(federation: ft.Federation, backend: str) -> None:
    fused, other = train(METHODS, federation, backend="fused"), train(METHODS, federation, backend=backend)
    for method in METHODS:
        torch.testing.assert_close(fused.shared[method.name], other.shared[method.name], rtol=1e-3, atol=2e-5)


class Recurrent(nn.Module):
    """An LSTM with dropout: only the autograd backend supports it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.drop, self.head = nn.LSTM(8, 6, batch_first=True), nn.Dropout(0.2), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.lstm(x.squeeze(1))[0][:, -1]))


def test_any_module_trains_and_gives_the_same_bits_with_any_executor(federation: ft.Federation) -> None:
    in_process, forked = (train([ft.ditto()], federation, model=Recurrent, workers=n, rounds=2) for n in (0, 2))
    assert same(in_process, forked, "ditto")


def test_nothing_reads_or_changes_the_global_random_state(federation: ft.Federation) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = train(METHODS[1:2], federation, workers=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, train(METHODS[1:2], federation, workers=0), "ditto")
    assert not torch.equal(first.shared["ditto"], train(METHODS[1:2], federation, workers=0, seed=5).shared["ditto"])


def test_a_round_has_its_clients_and_counts(federation: ft.Federation) -> None:
    rounds = list(ft.simulate([ft.fedavg(), ft.ditto()], federation, small, **(TRAIN | {"rounds": 5, "eval_every": 2})))
    assert [r.number for r in rounds] == [1, 2, 3, 4, 5]
    assert [r.counts is not None for r in rounds] == [False, True, False, True, True]  # the last always
    assert all(len(r.selected) == 3 for r in rounds)
    ever_selected = {n for r in rounds for n in r.selected}
    counts = rounds[-1].counts["ditto"]
    assert counts.never_selected.nonzero()[:, 0].tolist() == [n for n in range(6) if n not in ever_selected]
    assert (counts.personal <= rounds[-1].total).all()
    assert rounds[-1].counts["fedavg"].personal is None


def test_counts_agree_with_a_plain_evaluation(federation: ft.Federation) -> None:
    for r in ft.simulate([ft.ditto()], federation, small, **TRAIN):
        state, counts = r.state, r.counts
    net = ft.models.build(small, federation.input_shape, federation.classes, 0)
    for client in range(federation.clients):
        x, y = federation.test(client)
        personal = personal_of(state, "ditto", client)
        for weights, table in ((state.shared["ditto"], counts["ditto"].shared), (personal, counts["ditto"].personal)):
            model = ft.models.with_weights(net, state.shared["ditto"] if weights is None else weights)
            correct = (model(x).argmax(1) == y).long()
            expected = torch.zeros(10, dtype=torch.long).index_add_(0, y, correct)
            assert torch.equal(table[client], expected)


def test_threads_do_not_disturb_each_other(federation: ft.Federation) -> None:
    alone = train([ft.ditto()], federation, model=Recurrent, workers=0, rounds=2)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(train, [ft.ditto()], federation, model=Recurrent, workers=0, rounds=2) for _ in range(4)]
        assert all(same(future.result(), alone, "ditto") for future in futures)


@pytest.mark.parametrize("backend", ["autograd", "native", "fused", "stacked"])
@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_independent_of_global_torch_settings(
    federation: ft.Federation, backend: str, workers: int
) -> None:
    alone = train([ft.ditto()], federation, backend=backend, workers=workers, rounds=2)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert same(train([ft.ditto()], federation, backend=backend, workers=workers, rounds=2), alone, "ditto")
    with torch.inference_mode(), pytest.raises(ft.InputError, match=r"not possible in torch.inference_mode\(\)"):
        train([ft.ditto()], federation, backend=backend)


def test_workers_need_autograd_to_work_after_a_fork(monkeypatch: pytest.MonkeyPatch, federation: ft.Federation) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert forked.can_fork("autograd")  # tested in a child: without a GPU autograd starts no threads
    monkeypatch.setattr(forked, "_autograd_works_after_fork", lambda: False)
    assert forked.can_fork("fused")
    assert not forked.can_fork("autograd")
    with pytest.raises(ft.InputError, match="workers = 2 cannot be forked here"):
        train([ft.ditto()], federation, device="cpu", backend="autograd", workers=2)
    assert same(
        train([ft.ditto()], federation, device="cpu", backend="autograd"),
        train([ft.ditto()], federation, device="cpu", backend="autograd", workers=0),
        "ditto",
    )


def test_an_early_stop_ends_the_workers(federation: ft.Federation) -> None:
    import multiprocessing

    rounds = ft.simulate([ft.fedavg()], federation, small, **(TRAIN | {"rounds": 100, "workers": 2}))
    for r in rounds:
        if r.number == 2:
            break
    rounds.close()
    assert not multiprocessing.active_children()


def test_rounds_that_a_program_holds_until_its_end_end_with_it() -> None:
    lines = """
        import fedtilt as ft
        fed = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)
        held = [ft.simulate([ft.fedavg()], fed, ft.models.logistic, rounds=3, workers=n) for n in (0, 2)]
        print(*(next(rounds).number for rounds in held))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1 1\n", "")


def test_a_round_has_metrics_and_models() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=50, validation=0.2)
    methods = [ft.fedavg(), ft.ditto()]
    copies = {}
    for r in ft.simulate(methods, federation, small, **(TRAIN | {"eval_every": 3})):
        if r.number == 1:
            copies = {client: r.model("ditto", client) for client in (None, *r.selected)}
            with pytest.raises(ft.InputError, match="round 1 was not evaluated; use eval_every = 1"):
                r.metrics("ditto")
    result = ft.run(methods, federation, small, **TRAIN)
    for name in result:
        assert r.metrics(name) == result[name].metrics
        assert r.metrics(name, validation=True) == result[name].validation
        for client in (0, "3"):
            assert same_weights(r.model(name, client), result[name].model(client))
    first = ft.run(methods, federation, small, **(TRAIN | {"rounds": 1}))["ditto"]
    for client, model in copies.items():  # two rounds later, they have not changed
        expected = first.shared if client is None else first.personal(client)
        assert same_weights(model, expected)
    with pytest.raises(ft.InputError, match="there is no method 'other' in this run; it has fedavg, ditto"):
        r.model("other")


def test_results_have_models_and_clients(federation: ft.Federation) -> None:
    result = ft.run([ft.fedavg(), ft.ditto()], federation, small, **TRAIN)
    assert list(result) == ["fedavg", "ditto"]
    table = result.to_pandas()
    assert list(table) == ["method", "client", "class", "client_name", "class_name", "correct", "samples", "accuracy"]
    assert list(table.client_name) == [federation.client_names[n] for n in table.client]
    assert list(table.class_name) == [federation.class_names[k] for k in table["class"]]
    for name, r in result.items():
        by_client = table[table.method == name].groupby("client")[["correct", "samples"]].sum()
        assert r.accuracy == pytest.approx((100 * by_client.correct / by_client.samples).mean())
        x, y = federation.test(2)
        correct = (r.model(2)(x).argmax(1) == y).sum()
        assert correct == r.sums[2].sum()
    with pytest.raises(KeyError, match="it has fedavg, ditto"):
        result["fedprox"]
    with pytest.raises(ft.InputError, match="method 'fedavg' has no personal models; use shared, or model"):
        result["fedavg"].personal(2)
    ditto = result["ditto"]
    selected = next(i for i in range(6) if not same_weights(ditto.personal(i), ditto.shared))
    for client in (
        torch.tensor(selected),
        np.int64(selected),
        str(selected),
        federation.client_names[selected],
    ):
        assert same_weights(ditto.personal(client), ditto.personal(selected))
    for client, message in ((6, "clients are 0 to 5"), (-1, "client -1 does not exist"), (2.5, "whole number, got 2.5"),
                          ("bob", "client bob does not exist; the clients are 0 to 5")):  # fmt: skip
        with pytest.raises(ft.InputError, match=message):
            ditto.personal(client)
    assert ditto.validation is None


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return torch.equal(ft.models.parameters_to_vector(a), ft.models.parameters_to_vector(b))


@pytest.mark.parametrize("limit", [0, 10**9])
def test_a_result_can_be_pickled(federation: ft.Federation, limit: int) -> None:
    result = ft.run([ft.ditto()], federation, small, memory_limit=limit, **TRAIN)
    unpickled = pickle.loads(pickle.dumps(result))
    personal = [ft.models.parameters_to_vector(result["ditto"].personal(n)) for n in range(6)]
    del result  # and with it its temporary files
    gc.collect()
    assert all(
        torch.equal(ft.models.parameters_to_vector(unpickled["ditto"].personal(n)), personal[n]) for n in range(6)
    )


def test_a_result_has_the_metrics_on_validation_data(tmp_path: Path) -> None:
    fed = ft.Federation.build(ft.data.load("digits"), clients=5, validation=0.2)
    settings = {"rounds": 2, "participation": 0.4, "epochs": 1, "workers": 0}
    *_, last = ft.simulate([ft.ditto()], fed, small, **settings)
    counts, total = last.validation["ditto"].personal, last.validation_total
    result = ft.run([ft.ditto()], fed, small, out=tmp_path / "run", **settings)
    assert result["ditto"].validation == compute_metrics(counts, total)
    again = ft.run([ft.ditto()], fed, small, out=tmp_path / "run", **settings)  # finished: read, not trained
    assert again["ditto"].validation == result["ditto"].validation
    assert ft.run([ft.ditto()], fed, small, **settings)["ditto"].validation == result["ditto"].validation


def test_numbers_may_be_numpy_scalars_and_methods_any_iterable(federation: ft.Federation) -> None:
    settings = {"rounds": np.int64(1), "lr": np.float32(0.5), "seed": torch.tensor(3), "participation": np.float64(0.5)}
    methods = (ft.fedtilt(tau=tau, lam=np.float32(1), name=f"tau {tau}") for tau in np.arange(2))
    result = ft.run(methods, federation, small, epochs=1, workers=0, **settings)
    assert list(result) == ["tau 0", "tau 1"]
    assert [r.method.objective.tau for r in result.values()] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number ≥ 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number ≥ 1, got 1.5"),
        ({"participation": 0.0}, "participation must be a number > 0 and ≤ 1, got 0.0"),
        ({"lr": math.inf}, "lr must be a number > 0, got inf"),
        ({"lr_personal": -1.0}, "lr_personal must be a number > 0, got -1.0"),
        ({"device": "tpu"}, "unknown device 'tpu'; choose auto, cpu, cuda, cuda:N or cuda:all"),
        ({"device": "mps"}, "unknown device 'mps'; choose"),
        ({"workers": -1}, "workers must be a whole number ≥ 0, got -1"),
        ({"backend": "best"}, "unknown backend 'best'"),
        ({"seed": 1.5}, "seed must be a whole number ≥ 0, got 1.5"),
        ({"seed": -1}, "seed must be a whole number ≥ 0, got -1"),
        ({"participation": "a"}, "participation must be a number, got 'a'"),
        ({"lr": 1e30}, "method 'fedavg' diverged in round 1 on client"),
        ({"lr": 1e30}, "lower lr (train.lr in a spec) or the tilts"),
    ],
)
def test_bad_settings_are_rejected_in_one_line(federation: ft.Federation, settings: dict, message: str) -> None:
    with pytest.raises(ft.InputError) as error:
        train([ft.fedavg()], federation, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class OfFiniteModels(Aggregator):
    """Cannot aggregate models that are not finite."""

    def aggregate(self, models: torch.Tensor, round: ServerRound, slot: Slot) -> tuple[torch.Tensor, Slot]:
        assert models.isfinite().all()
        return models.mean(0), {}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ft.fedavg(), {"lr": 1e30}),
        (ft.ditto(0.0), {"lr_personal": 1e30}),
        (ft.fedavg(aggregator=OfFiniteModels()), {"lr": 1e30}),
        (ft.fedavg(aggregator="geometric_median"), {"lr": 1e30}),
    ],
)
def test_a_round_that_diverges_changes_nothing(method: ft.Method, settings: dict, federation: ft.Federation) -> None:
    state = train([method], federation, rounds=1)
    model, owners = state.server[method.name].parameters.clone(), state.client_states.owners()
    with pytest.raises(Diverged, match=f"'{method.name}' diverged in round 2 on client") as error:
        train([method], federation, state=state, rounds=2, **settings)
    assert error.value.__context__ is None
    assert state.round == 1
    assert torch.equal(state.server[method.name].parameters, model)
    assert state.client_states.owners() == owners
    assert all(state.client_states.round_of(owner) == 1 for owner in owners)


def test_cuda_that_is_not_available_is_rejected(federation: ft.Federation) -> None:
    with pytest.raises(ft.InputError, match="device 'cuda' is not available"):
        train([ft.fedavg()], federation, device="cuda")


class Squeezing(nn.Linear):
    """Drops the batch dimension of a batch of one."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1)).squeeze()


class AlwaysDropout(nn.Linear):
    """Applies dropout in evaluation mode, too."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.dropout(x.flatten(1)))


class WithHiddenState(nn.LSTM):
    """Returns its hidden state too."""

    def __init__(self) -> None:
        super().__init__(8, 10)

    def forward(self, x: torch.Tensor) -> tuple:
        return super().forward(x.squeeze(1))


@pytest.mark.parametrize(
    ("model", "message"),
    [(lambda: nn.Linear(3, 10), "does not take samples of shape"), (lambda: nn.Flatten(0), "has no parameters"),
     (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), r"expected \(2, 10\), a logit per class"),
     (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 11)), r"the model returns \(2, 11\) for 2 samples"),
     (AlwaysDropout, "gives different outputs for the same sample in evaluation mode"),
     (Squeezing, r"returns \(10,\) for 1 samples; expected \(1, 10\)"),
     (WithHiddenState, r"the model returns \(2, 8, 10\) for 2 samples")],  # the first of a tuple is its output
)  # fmt: skip
def test_a_model_that_does_not_fit_the_data_is_rejected(federation: ft.Federation, model, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        train([ft.fedavg()], federation, model=model)


def test_arguments_of_the_wrong_kind_are_rejected(federation: ft.Federation) -> None:
    with pytest.raises(ft.InputError, match="federation must be a Federation, such as .*, got Dataset"):
        ft.run([ft.fedavg()], federation.dataset, small)
    with pytest.raises(ft.InputError, match="federation must be a Federation, such as .*, got function"):
        ft.run([ft.fedavg()], small, federation)
    *_, last_round = ft.simulate([ft.fedavg()], federation, small, rounds=1, epochs=1, workers=0)
    with pytest.raises(ft.InputError, match="state has no method 'ditto'; it has fedavg"):
        ft.simulate([ft.ditto()], federation, small, state=last_round.state)
    assert list(last_round.state.shared) == ["fedavg"]


def test_models_are_evaluated_on_validation_data_too() -> None:
    fed = ft.Federation.build(ft.data.load("digits"), clients=5, validation=0.2)
    *_, last = ft.simulate([ft.ditto()], fed, ft.models.logistic, rounds=2, participation=0.4, epochs=1, workers=0)
    assert last.validation is not None
    assert last.validation_total is not None
    assert torch.equal(last.validation_total, fed.class_counts("validation"))
    personal = last.validation["ditto"].personal
    assert personal is not None
    assert (personal <= last.validation_total).all()
    assert personal.sum() > 0
    for client in last.selected:
        x, y = fed.validation(client)
        weights = personal_of(last.state, "ditto", client)
        assert weights is not None
        correct = ft.models.with_weights(ft.models.logistic(fed.input_shape, 10), weights)(x).argmax(1) == y
        assert torch.equal(torch.bincount(y[correct], minlength=10), personal[client])


def test_without_validation_data_there_are_no_validation_counts() -> None:
    fed = ft.Federation.build(ft.data.load("digits"), clients=5)
    *_, last = ft.simulate([ft.fedavg()], fed, ft.models.logistic, rounds=1, participation=0.4, epochs=1, workers=0)
    assert last.validation is None
    assert last.validation_total is None


def test_stacked_and_single_evaluation_of_personal_models_agree(federation: ft.Federation) -> None:
    *_, last = ft.simulate([ft.ditto(), ft.fedtilt(tau=1, lam=1)], federation, ft.models.mlp, **TRAIN, workers=0)
    model, parts = initial_model(federation, ft.models.mlp, TrainSettings())
    single = Evaluator(federation, model, parts, torch.device("cpu"))
    stacked = Evaluator(federation, model, parts, torch.device("cpu"))
    stacked._stackable_model = stackable_copy(model)  # as on a GPU
    methods = [ft.ditto(), ft.fedtilt(tau=1, lam=1)]
    for a, b in zip(
        single.all_counts(methods, last.state).values(), stacked.all_counts(methods, last.state).values(),
        strict=True,
    ):  # fmt: skip
        assert a.personal is not None
        assert b.personal is not None
        assert torch.equal(a.personal, b.personal)
        assert torch.equal(a.shared, b.shared)


def test_equal_tensors_of_servers_become_one_object_on_each_device() -> None:
    a, b, other = torch.ones(3), torch.ones(3), torch.empty(3, device="meta")
    merged = merge_equal({"fedavg": ServerState(a, slots={"audit": {"distances": other}}), "ditto": ServerState(b)})
    assert merged["ditto"].parameters is a
    assert merged["fedavg"].slot("audit")["distances"] is other
