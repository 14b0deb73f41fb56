"""Check a method of your own: what every built-in method holds too, as scikit-learn's `check_estimator` does."""

import contextlib
import dataclasses
import importlib.util
import logging
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtilt.data import Federation, load
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.server import server_update, trusting_slots
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import client_state_like, initial_server, messages_of
from fedtilt.errors import InputError
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.methods import Method, ditto, fedavg
from fedtilt.methods.aggregators import Rooted
from fedtilt.methods.component import Component, describe
from fedtilt.models import mlp
from fedtilt.simulation.loop import simulate_prepared
from fedtilt.state import ClientState, ServerState, flatten
from fedtilt.storage.run_folder import RunFolder
from fedtilt.toml_text import format_toml, parse_toml

_CLIENTS, _ROUNDS = 4, 3
_MOST_OF_A_LIE = 10.0  # times the length that is usual
_SPEC: dict[str, dict[str, Any]] = {
    "data": {"name": "digits"},
    "clients": {"count": _CLIENTS, "partition": "dirichlet", "alpha": 1.0, "max_train": 24},
    "model": {"name": "mlp", "hidden": [6]},
    "train": {"rounds": _ROUNDS, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.05, "eval_every": 3},
}
States = dict[str, dict[str, Tensor]]


def check_method(method: Method, *, deployment: bool | None = None) -> None:
    """Raise an AssertionError that says what a method does not hold; its components must be in a module.

    It is trained on a few clients for a few rounds. Checked: bit-identical twice, in worker processes, beside other
    methods, and when it is resumed after every round; finite models; state of the declared names and shapes; nothing
    undeclared is sent; with screening, a client that lies beside its model moves the server by a bounded length; and
    the simulator and a deployment end with the same state.

    Args:
        method: the method
        deployment: whether to compare with a deployment, in this process; default: if Flower is installed

    >>> check_method(ditto(0.1), deployment=False)
    """
    alone = _train(method)
    _check_states(method, alone)
    _same("trained twice", method, alone, _train(method))
    _same("trained by two worker processes", method, alone, _train(method, workers=2))
    _same("trained beside other methods", method, alone, _train(method, beside=True))
    for round in range(1, _ROUNDS):
        _same(f"resumed after round {round}", method, alone, _train(method, resume_after=round))
    _check_messages(method)
    _check_lies(method)
    if deployment if deployment is not None else importlib.util.find_spec("flwr") is not None:
        _check_deployment(method)


def _federation() -> Federation:
    return Federation.build(
        load("digits"), clients=_CLIENTS, partition="dirichlet", alpha=1.0, max_train=24, seed=0
    )  # fmt: skip


def _prepared(methods: list[Method], workers: int = 0) -> PreparedRun:
    settings = TrainSettings(**{**_SPEC["train"], "participation": 0.75, "workers": workers})
    return prepare(methods, _federation(), partial(mlp, hidden=(6,)), settings)


def _train(method: Method, *, workers: int = 0, beside: bool = False, resume_after: int = 0) -> States:
    others = [fedavg(name="another"), ditto(0.5, name="one more")] if beside else []
    prepared = _prepared([*others[:1], method, *others[1:]], workers)
    with tempfile.TemporaryDirectory() as folder:
        saved = RunFolder(Path(folder))
        for r in simulate_prepared(prepared, client_states=saved.client_states):
            if r.number == resume_after:
                saved.checkpoint(r.state)
                break
        else:
            return _states(method, r.state)
        *_, last = simulate_prepared(prepared, state=RunFolder(Path(folder)).latest())
        return _states(method, last.state)


def _states(method: Method, state: FederationState) -> States:
    owners = [owner for owner in state.client_states.owners() if owner[0] == method.name]
    clients = {f"client {n}": state.client_states.get((name, n)).to_tensors() for name, n in owners}
    return {"server": state.server[method.name].to_tensors()} | clients


def _same(
    what: str, method: Method, a: States, b: States, equal: Callable[[Tensor, Tensor], bool] = torch.equal
) -> None:
    _hold({*a} == {*b}, method, f"{what}: other clients keep a state, {sorted(b)} and not {sorted(a)}")
    for owner, tensors in a.items():
        _hold({*tensors} == {*b[owner]}, method, f"{what}: the {owner} keeps {sorted(b[owner])}, not {sorted(tensors)}")
        for name, tensor in tensors.items():
            _hold(equal(tensor, b[owner][name]), method, f"{what}: {name!r} of the {owner} has other values")


def _hold(holds: bool, method: Method, problem: str) -> None:
    if not holds:
        raise AssertionError(f"method {method.name!r}, {problem}")


def _check_states(method: Method, states: States) -> None:
    prepared = _prepared([method])
    like = {
        "server": initial_server(method, prepared.parts, _CLIENTS, prepared.net).to_tensors(),
        "client": client_state_like(method, prepared.parts, prepared.net).to_tensors(),
    }
    for owner, tensors in states.items():
        declared = like[owner.split()[0]]
        _hold({*tensors} == {*declared}, method, f"the {owner} keeps {sorted(tensors)}; declared is {sorted(declared)}")
        for name, tensor in tensors.items():
            shape, finite = declared[name].shape, bool(tensor.isfinite().all())
            _hold(
                tensor.shape == shape, method, f"{name!r} of the {owner} has shape {tuple(tensor.shape)}, not {shape}"
            )
            _hold(finite, method, f"{name!r} of the {owner} is not finite")


def _first_updates(prepared: PreparedRun, server: ServerState) -> dict[int, ClientUpdate]:
    """What all clients send after the first round."""
    (method,), parts, settings, net = prepared.methods, prepared.parts, prepared.settings, prepared.net
    federation, updates = prepared.federation, {}
    training = ClientTraining(federation, net, prepared.backend.name, BatchSettings.of(settings))
    executor = InProcessExecutor(training, prepared.device, "float32")
    for client in range(_CLIENTS):
        jobs = plan(
            method, server, ClientState(), parts=parts, settings=settings, round=1, group=federation.group, net=net
        )
        ((_, results),) = executor.train(1, {client: list(jobs.values())})
        rows = len(federation.train_index[client])
        updates[client], _ = finish(
            method, jobs, dict(zip(jobs, results, strict=True)), ClientState(), parts=parts, settings=settings,
            rows=rows, samples=rows, net=net,
        )  # fmt: skip
    return updates


def _check_messages(method: Method) -> None:
    """What one client sends after its round is what its components declare."""
    prepared = _prepared([method])
    server = initial_server(method, prepared.parts, _CLIENTS, prepared.net)
    declared = flatten(messages_of(method, prepared.parts, _CLIENTS, prepared.net).to_server)
    sent = flatten(_first_updates(prepared, server)[0].sent)
    found = {name: tuple(tensor.shape) for name, tensor in sent.items()}
    _hold(found == declared, method, f"a client sends {found}; declared is {declared}")


def _check_lies(method: Method) -> None:
    """With screening, one client that lies beside its model moves the server by a bounded length.

    Its lie is a million times what it should send, or a loss of 1e30. Trusted messages are not screened.
    """
    prepared = _prepared([method])
    server = initial_server(method, prepared.parts, _CLIENTS, prepared.net)
    updates = _first_updates(prepared, server)
    screened = {slot: sent for slot, sent in updates[0].sent.items() if slot not in trusting_slots(method)}
    lies = {slot: {name: 1e6 * t + 1e6 for name, t in sent.items()} for slot, sent in screened.items()}
    declared = dict.fromkeys(updates[0].declared, 1e30)
    if (not any(lies.values()) and not declared) or isinstance(method.aggregator, Rooted):  # which needs a root set
        return
    settings = dataclasses.replace(prepared.settings, screen=3.0)
    lying = {**updates, 0: updates[0]._replace(sent={**updates[0].sent, **lies}, declared=declared)}
    after = [server_update(method, server, each, settings, clients=_CLIENTS).state for each in (updates, lying)]
    honest, attacked = (state.without_slot("screening").to_tensors() for state in after)
    for name, tensor in attacked.items():
        length, usual = float(tensor.double().norm()), float(honest[name].double().norm())
        _hold(
            length <= _MOST_OF_A_LIE * (usual + 1), method,
            f"one client that lies beside its model makes {name!r} of the server {length:.3g} long, and it is "
            f"{usual:.3g} without the lie; let the component use what it is given, (C, …), as means over clients",
        )  # fmt: skip


def _check_deployment(method: Method) -> None:
    """A deployment in this process ends with the state of the simulator."""
    from fedtilt.flower import Task
    from fedtilt.flower.loopback import run_loopback
    from fedtilt.spec import federation_of, model_of, train_settings_of
    from fedtilt.spec import load as load_spec

    for part in method.components().values():
        _check_can_be_named(part)
    tables = {f"[{name}]": keys for name, keys in _SPEC.items()}
    tables["[[methods]]"] = {"name": method.name, **method.to_table()}
    lines = []
    for head, keys in tables.items():
        lines += [head, *(f"{key} = {format_toml(value)}" for key, value in keys.items())]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "check.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        with _quiet("flwr"):
            run_loopback(Task(spec=home / "check.toml"), _CLIENTS, home)
        spec = load_spec(home / "check.toml", overrides=["train.screen=3"])  # the default of a deployment
        prepared = prepare(
            [spec.methods[0].to_method()], federation_of(spec, 0), model_of(spec), train_settings_of(spec, 0)
        )
        *_, last = simulate_prepared(prepared)
        latest = RunFolder(home / "run/seed-0").latest()
        assert latest is not None
        expected, found = (state.server[method.name].to_tensors() for state in (last.state, latest))

    def close(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5)

    _same("deployed on Flower", method, {"server": expected}, {"server": found}, close)


def _check_can_be_named(part: Component) -> None:
    """Raise InputError if no spec can have this component: sites make it from its name and settings."""
    if "<" in part.label:  # <locals>, <lambda>
        raise InputError(f"{describe(part)} has no name in a module; put it there, or check with deployment=False")
    for key, value in part.settings().items():
        try:
            parse_toml(f"value = {format_toml(value)}")
        except tomllib.TOMLDecodeError:
            raise InputError(
                f"{describe(part)} has {key} = {value!r:.60}, which no spec can hold; expected numbers, text, true or "
                "false, or lists of them, or check with deployment=False"
            ) from None


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Without the log of every round."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(before)
