"""Plans and server updates: the local jobs of every method, and no invalid model in an average."""

import math

import pytest
import torch
from torch import Tensor

from fedtilt.engine.client import ClientUpdate, plan
from fedtilt.engine.server import ServerUpdate, server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.engine.updates import FiniteCheck, invalid_updates, start_finite_check
from fedtilt.errors import Diverged, InputError
from fedtilt.math.fair import q_ffl
from fedtilt.methods import Method, ditto, fedavg, fedavg_finetuned, fedprox, fedtilt, local, scaffold, term
from fedtilt.methods.aggregators import Tilted
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState
from fedtilt.training import LocalJob
from tests.helpers.object_store import Store

W, V = torch.zeros(4), torch.ones(4)
INITIAL = torch.full((4,), 9.0)
SETTINGS = TrainSettings(lr=0.1, lr_personal=0.2, epochs=3)


def jobs_of(method: Method, personal: Tensor | None, settings: TrainSettings = SETTINGS) -> dict[str, LocalJob]:
    """The jobs of a client that received W and keeps this personal model."""
    return plan(
        method, ServerState(W), ClientState(personal=personal), parts=Parts.plain(INITIAL), settings=settings, round=1
    )


def aggregate(method: Method, received: Tensor, models: dict[int, Tensor], samples: int | dict = 1) -> ServerUpdate:
    """The server's update from these client models."""
    counts = samples if isinstance(samples, dict) else dict.fromkeys(models, samples)
    updates = {client: ClientUpdate(model, counts[client]) for client, model in models.items()}
    return server_update(method, ServerState(received), updates, SETTINGS)


def settings_of(job: LocalJob) -> tuple:
    return job.start is W, job.anchor is W, job.prox, job.tau, job.lam, job.lr


def test_the_local_jobs_of_every_method() -> None:
    """Start is w, anchor is w, prox, tau, lam, lr."""
    shared = {
        fedavg(): (True, True, 0.0, 0.0, 0.0, 0.1),
        fedprox(0.3): (True, True, 0.3, 0.0, 0.0, 0.1),
        term(2.0): (True, True, 0.0, 2.0, 2.0, 0.1),
        ditto(0.5): (True, True, 0.0, 0.0, 0.0, 0.1),
        fedtilt(5.0, -2.0, mu=0.5): (True, True, 0.0, 5.0, -2.0, 0.1),
    }
    personal = {
        ditto(0.5): (False, True, 0.5, 0.0, 0.0, 0.2),
        fedtilt(5.0, -2.0, mu=0.5): (False, True, 0.5, 5.0, -2.0, 0.2),
    }
    for method, expected in shared.items():
        planned = jobs_of(method, V if method.has_personal else None)
        assert settings_of(planned["shared"]) == expected
        if method in personal:
            assert settings_of(planned["personal"]) == personal[method]
            assert planned["personal"].start is V
            assert jobs_of(method, None)["personal"].start is W  # the first time, v starts at w
        else:
            assert list(planned) == ["shared"]


def test_a_methods_own_rates_and_epochs_come_first() -> None:
    planned = jobs_of(ditto(0.5, lr=0.05, lr_personal=0.01, epochs_personal=7), V)
    assert (planned["shared"].lr, planned["shared"].epochs) == (0.05, 3)
    assert (planned["personal"].lr, planned["personal"].epochs) == (0.01, 7)
    assert jobs_of(ditto(0.5, lr=0.05), V)["personal"].lr == 0.2  # the run's own personal rate
    only_shared = jobs_of(ditto(0.5, lr=0.05), V, TrainSettings(lr=0.1))
    assert only_shared["personal"].lr == 0.05  # else that of the shared model


def test_where_personal_models_start() -> None:
    def starts(method: Method) -> list[Tensor]:
        return [jobs_of(method, last)["personal"].start for last in (None, V)]

    for method, expected in (
        (ditto(0.5), [W, V]),
        (ditto(0.5, personal_start="initial"), [INITIAL, V]),
        (local(), [INITIAL, V]),
        (fedavg_finetuned(), [W, W]),
    ):
        assert all(a is b for a, b in zip(starts(method), expected, strict=True))
    assert [jobs_of(method, V)["personal"].prox for method in (local(), fedavg_finetuned())] == [0, 0]


def test_fedavg_takes_the_mean_in_any_order_of_arrival() -> None:
    updates = {n: torch.randn(50) for n in (5, 1, 9)}
    update = aggregate(fedavg(), torch.zeros(50), updates)
    torch.testing.assert_close(update.state.parameters, torch.stack(list(updates.values())).mean(0))
    assert update.rejected == {}
    assert torch.equal(
        aggregate(fedavg(), torch.zeros(50), dict(reversed(updates.items()))).state.parameters,
        update.state.parameters,
    )


def test_weighting_by_samples() -> None:
    updates, samples = {0: torch.zeros(3), 1: torch.ones(3)}, {0: 100, 1: 300}
    assert aggregate(fedavg(weighting="samples"), W[:3], updates, samples).state.parameters.tolist() == [0.75] * 3
    assert aggregate(fedavg(), W[:3], updates, samples).state.parameters.tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "aggregator",
    ["tilted", "mean", "median", "geometric_median", "trimmed_mean", "krum", "multi_krum", "norm_clipped"],
)
def test_a_method_may_use_any_aggregator(aggregator: str) -> None:
    updates = {n: torch.randn(20) for n in range(10)} | {10: torch.full((20,), 1e6)}
    shared = aggregate(fedavg(aggregator=aggregator), torch.zeros(20), updates).state.parameters
    assert (shared.abs().max() < 5) == (aggregator not in ("tilted", "mean"))


@pytest.mark.parametrize("aggregator", ["trimmed_mean", "multi_krum"])
def test_a_rule_leaves_out_as_many_models_if_some_are_missing(aggregator: str) -> None:
    """One of five may be bad, and the bad one replies: 0.2 of four replies would be nobody, and the rule a mean."""
    method, good = (
        fedavg(aggregator={"rule": aggregator, "bad_share": 0.2}),
        [torch.tensor([x]) for x in (1.0, 1.1, 1.2)],
    )

    def shared(*models: Tensor, selected: int) -> float:
        updates = {n: ClientUpdate(model, 1) for n, model in enumerate(models)}
        update = server_update(method, ServerState(torch.zeros(1)), updates, SETTINGS, selected=selected)
        return update.state.parameters.item()

    assert 1 <= shared(*good, torch.tensor([1e6]), selected=5) <= 1.2
    assert shared(*good, torch.tensor([1e6]), selected=4) > 1e5  # nobody is left out: refused before a run starts
    rejected = aggregate(
        method, torch.zeros(1), dict(enumerate([*good, torch.tensor([1e6]), torch.tensor([math.nan])]))
    )
    assert 1 <= rejected.state.parameters.item() <= 1.2
    message = f"2 of 5 models can be aggregated, and {aggregator} with bad_share = 0.2 needs 3, because 1 may be bad"
    with pytest.raises(InputError, match=message):
        shared(*good[:2], selected=5)


def test_a_check_reads_its_looks_in_their_order() -> None:
    check, one = FiniteCheck(), torch.ones(1)
    check.add({3: one, 1: one / 0, 2: one[0]}, one)
    check.add_known({1: "is late", 4: "is late"})
    check.add({3: one * math.nan, 4: one * math.nan}, one, "has a vector that ")
    check.add({5: torch.tensor(2), 6: torch.tensor(2.0)}, torch.tensor(2))
    assert list(check.reasons().items()) == [
        (1, "is not finite"), (2, "has shape () instead of (1,)"), (3, "has a vector that is not finite"),
        (4, "is late"), (6, "has type torch.float32 instead of torch.int64"),
    ]  # fmt: skip
    assert FiniteCheck().reasons() == {}


def test_an_aggregate_that_is_not_finite_is_refused() -> None:
    far = {0: torch.full((3,), -3e38), 1: torch.full((3,), 3e38)}
    with pytest.raises(
        Diverged, match=r"'fedavg' diverged on the server: .* is not finite; check its aggregation rule"
    ):
        aggregate(fedavg(), W[:3], far)
    with pytest.raises(Diverged, match=r"lower the size in steps = \(300, 10.0\)"):
        aggregate(fedavg(aggregator=Tilted(steps=(300, 10))), W[:3], {0: torch.ones(3), 1: 3 * torch.ones(3)})


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (torch.tensor([1.0, math.nan, 0.0]), "is not finite"),
        (torch.tensor([1.0, math.inf, 0.0]), "is not finite"),
        (torch.ones(1), "has shape (1,) instead of (3,)"),
        (torch.ones(3, 1), "has shape (3, 1) instead of (3,)"),
        (torch.tensor(1.0), "has shape () instead of (3,)"),
        (torch.ones(3, dtype=torch.float64), "has type torch.float64 instead of torch.float32"),
        (torch.ones(3, dtype=torch.long), "has type torch.int64 instead of torch.float32"),
    ],
)
def test_an_invalid_model_never_enters_an_average(invalid: Tensor, reason: str) -> None:
    valid = {0: torch.ones(3), 2: 3 * torch.ones(3)}
    update = aggregate(fedavg(), W[:3], valid | {1: invalid})
    assert update.rejected == {1: reason}
    assert torch.equal(update.state.parameters, aggregate(fedavg(), W[:3], valid).state.parameters)
    with pytest.raises(InputError, match="no client model to aggregate"):
        aggregate(fedavg(), W[:3], {1: invalid})


BAD = torch.tensor([1.0, math.nan, 0.0, 0.0])


def test_a_vector_on_a_node_is_finite_if_its_worker_says_so() -> None:
    store, check = Store(), FiniteCheck()
    vectors = {0: store.put(W), 1: store.put(BAD), 2: BAD, 3: W}
    store.blocks.clear()  # the values stay where they are
    check.add(vectors, W)
    assert check.reasons() == {1: "is not finite", 2: "is not finite"}


@pytest.mark.parametrize(
    ("method", "change", "reason"),
    [
        (
            scaffold(),
            {"sent": {"correction": {"control": BAD}}},
            "has a vector 'control' that is wrong: it is not finite",
        ),
        (scaffold(), {"sent": {}}, "has a vector 'control' that is wrong: it has shape (0,) instead of (4,)"),
        (fedavg(), {"sent": {"training": {"mask": BAD}}}, "sent 'mask', which is not finite"),
        *(
            (fedavg(weighting="loss"), {"declared": declared}, "declares no loss ≥ 0 of the received model")
            for declared in ({}, {"loss": math.nan}, {"loss": math.inf}, {"loss": -0.1})
        ),
        (fedavg(), {"buffers": BAD}, "has buffers that are wrong: the vector is not finite"),
        (fedavg(), {"buffers": None}, "has no buffers"),
    ],
)
def test_an_update_is_invalid_for_anything_beside_its_model(method: Method, change: dict, reason: str) -> None:
    sent = {"correction": {"control": W}} if method.correction is not None else {}
    valid = ClientUpdate(W, 1, W, {"loss": 0.0}, sent)
    invalid = valid._replace(**change)
    assert invalid_updates(method, {0: valid, 1: invalid}, ServerState(W, W)) == {1: reason}


@pytest.mark.parametrize("name", ["local", "buffers", "personal", "personal_buffers", "client_momentum.average"])
def test_every_tensor_that_a_client_keeps_must_be_finite(name: str) -> None:
    def state(values: Tensor) -> ClientState:
        return ClientState.from_tensors({"personal": W, "audit.sums": W, name: values})

    kept = {0: state(W), 1: state(BAD), 2: ClientState()}
    updates = {"fedavg": dict.fromkeys(kept, ClientUpdate(W, 1))}
    checks = start_finite_check([fedavg()], {"fedavg": ServerState(W)}, updates, {"fedavg": kept})
    assert checks["fedavg"].reasons() == {1: "is not finite"}


def test_averaged_buffers_have_the_weights_of_their_models() -> None:
    updates = {0: ClientUpdate(W, 1, buffers=W[:2]), 1: ClientUpdate(4 * V, 3, buffers=4 * V[:2])}
    state = server_update(fedavg(weighting="samples"), ServerState(W, W[:2]), updates, SETTINGS).state
    assert torch.equal(state.parameters, 3 * V)
    assert torch.equal(state.buffers, 3 * V[:2])


def test_clients_that_are_left_out_have_no_number_and_do_not_count() -> None:
    """Of three clients the second is left out: components see two, with the numbers 0 and 1."""
    updates = {
        n: ClientUpdate(W, 1, declared={"loss": loss}, sent={"correction": {"control": V}})
        for n, loss in ((0, 1.0), (2, 2.0))
    }
    slots = []
    for method in (fedavg(weighting={"rule": "afl", "lr": 0.5}), scaffold()):
        server = initial_server(method, Parts.plain(W), 2)
        slots.append(server_update(method, server, updates, SETTINGS, clients=3, left_out=[1]).state.slots)
    assert slots[0]["weighting"]["weights"].tolist() == pytest.approx([0.25, 0.75])
    assert torch.equal(slots[1]["correction"]["control"], V)  # 1/2 · (1 + 1)


def test_a_schedule_scales_every_rate_of_a_method() -> None:
    """The rates of pFedMe, and the one that q-FFL divides by, in the second round of a schedule that halves them."""
    settings = TrainSettings(lr=0.4, lr_personal=0.2, schedule={"name": "exponential", "decay": 0.5}, rounds=3)
    moreau = fedavg(personal={"rule": "moreau", "mu": 2.0})
    job = plan(moreau, ServerState(W), ClientState(), parts=Parts.plain(W), settings=settings, round=2)["shared"]
    assert (job.lr, job.anchor_rate) == pytest.approx((0.1, 0.4))  # 0.2 / 2, 0.4 / 2 · 2
    method, losses = fedavg(aggregator={"rule": "q_ffl", "exponent": 1.0}), torch.tensor([1.0, 2.0])
    updates = {n: ClientUpdate((n + 1) * V, 1, declared={"loss": float(losses[n])}) for n in (0, 1)}
    state = server_update(method, initial_server(method, Parts.plain(W), 2), updates, settings, round=2).state
    models = torch.stack([update.parameters for update in updates.values()])
    torch.testing.assert_close(state.parameters, q_ffl(models, W, losses, 1.0, lr=0.2))
