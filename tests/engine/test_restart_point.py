"""Models that stay on nodes: bit-identical to one process, and again after a node dies with them."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedtilt as ft
from fedtilt.cluster.remote_tensor import LostTensorError, RemoteTensor
from fedtilt.engine.client_states import ClientStates
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputWarning
from fedtilt.executors import sharded_models
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.math import client_models
from fedtilt.math.client_models import column_blocks
from fedtilt.simulation import loop, simulator
from fedtilt.state import ClientState
from fedtilt.training import LocalJob
from tests.helpers import plain_loop
from tests.helpers.digests import digest
from tests.helpers.object_store import Store, StoringExecutor

FED = plain_loop.federation()
METHODS = [
    ft.fedtilt(tau=2, lam=1, mu=0.1),
    ft.fedavg(),
    ft.ditto(name="krum", aggregator={"rule": "krum", "bad_share": 0.0}),
    ft.ditto(0.5, name="median", aggregator="median"),
]
SETTINGS = {"rounds": 4, "participation": 0.8, "epochs": 1, "seed": 3}


def small_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(32,))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Where the models of all runs of a test stay, in several blocks."""
    monkeypatch.setattr(sharded_models, "SHARDED_BYTES", 0)
    monkeypatch.setattr(client_models, "_CHUNK_BYTES", 2**14)
    monkeypatch.setattr(client_models, "BLOCK_BYTES", 2**13)
    return Store()


def use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_executor(prepared: PreparedRun, notice: object) -> StoringExecutor:
        batches = BatchSettings.of(prepared.settings)
        training = ClientTraining(prepared.federation, prepared.net, prepared.backend.name, batches)
        inner = InProcessExecutor(training, prepared.device, "float32")
        clients = prepared.settings.clients_per_round(prepared.federation.clients)
        columns = column_blocks(clients, prepared.parts.shared_size)
        assert len(columns) > 1
        return StoringExecutor(inner, store, columns)

    monkeypatch.setattr(simulator, "make_executor", make_executor)


@functools.cache
def digests_of_one_process() -> list[str]:
    """Of every round, with the grid of `store`."""
    return [digest(r) for r in ft.simulate(METHODS, FED, small_mlp, **SETTINGS, workers=0)]


@pytest.mark.parametrize("lost_in_round", [None, 1, 3])
def test_bit_identical_with_models_on_nodes(
    store: Store, monkeypatch: pytest.MonkeyPatch, lost_in_round: int | None
) -> None:
    expected = digests_of_one_process()
    use(store, monkeypatch)
    digests, notices = [], []
    prepared = prepare(METHODS, FED, small_mlp, TrainSettings(**SETTINGS))
    for r in loop.simulate_prepared(prepared, notice=notices.append):
        digests.append(digest(r))
        kept = r.state.client_states.get(("fedtilt", r.selected[0]), fetch=False)
        assert isinstance(kept.personal, RemoteTensor) == (r.number < SETTINGS["rounds"])
        if r.number == lost_in_round:
            store.blocks.clear()
    assert digests == expected
    lost = "a node died with models that were only there; the rounds after 0 are trained again"
    assert notices == ([lost] if lost_in_round else [])


def test_a_checkpoint_is_where_the_run_goes_back_to(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notices: list[str] = []
    digests: list[str] = []

    class Lose(ft.Callback):
        def on_round(self, round: ft.Round, metrics: object) -> None:
            digests.append(digest(round))
            if round.number in (2, 3):
                store.blocks.clear()

        def on_notice(self, text: str) -> None:
            notices.append(text)

    expected = digests_of_one_process()
    use(store, monkeypatch)
    ft.run(METHODS, FED, small_mlp, **SETTINGS, out=tmp_path / "run", checkpoint_seconds=0, callbacks=[Lose()])
    assert [text.split("; ")[1] for text in notices if "a node died" in text] == [
        "the rounds after 2 are trained again",
        "the rounds after 3 are trained again",
    ]
    assert digests == expected


def test_a_run_that_loses_its_models_again_and_again_stops(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(store, monkeypatch)
    original = StoringExecutor.train

    def forgetful(self: StoringExecutor, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[Any]:
        yield from original(self, round, jobs)
        store.blocks.clear()

    monkeypatch.setattr(StoringExecutor, "train", forgetful)
    with pytest.warns(InputWarning, match="after 0"), pytest.raises(LostTensorError):
        list(ft.simulate(METHODS, FED, small_mlp, **SETTINGS))


def test_states_that_are_in_a_file_outlive_their_node(tmp_path: Path) -> None:
    states, store = ClientStates(tmp_path), Store()
    values = plain_loop.federation().dataset.x_train.flatten()[:10].float()
    states.put(("m", 0), 1, ClientState(personal=store.put(values)))
    states.save_all()
    states.put(("m", 1), 2, ClientState(personal=store.put(values)))
    store.blocks.clear()
    assert states.get(("m", 0)).personal.equal(values)
    with pytest.raises(LostTensorError):
        states.get(("m", 1))
