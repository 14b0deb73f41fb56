"""One round of a simulation after another: select clients, plan their jobs, train, update the server, evaluate."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.attacks.forged_updates import forge
from fedtilt.auditing.collect import ClientRound, Collector
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun, make_executor
from fedtilt.engine.root_set import RootUpdate
from fedtilt.engine.server import RoundRule, ServerUpdate, server_update
from fedtilt.engine.updates import raise_if_diverged, start_finite_check
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.methods import ServerRound
from fedtilt.simulation.round import Round
from fedtilt.state import ClientState, ServerState
from fedtilt.storage.releases import Releases
from fedtilt.training import LocalJob, Trained, distinct_jobs

Updates = dict[str, dict[int, ClientUpdate]]  # method → client
States = dict[str, dict[int, ClientState]]
Models = dict[int, dict[str, dict[str, Trained]]]  # client → method → model


def merge_equal(server: Mapping[str, ServerState]) -> dict[str, ServerState]:
    """The server states, equal tensors as the same object, so that `distinct_jobs` finds their identical jobs."""
    distinct: list[Tensor] = []

    def merge(tensor: Tensor) -> Tensor:
        # some are always on the CPU; `torch.equal` of two types compares values alone
        alike = [other for other in distinct if (other.device, other.dtype) == (tensor.device, tensor.dtype)]
        equal = next((other for other in alike if torch.equal(other, tensor)), None)
        if equal is None:
            distinct.append(tensor)
        return tensor if equal is None else equal

    return {method: state.map(merge) for method, state in server.items()}


class _Client(NamedTuple):
    """What a client trains in a round."""

    plans: dict[str, dict[str, LocalJob]]  # method → model → its job
    states: dict[str, ClientState]  # by method, before the round


class Simulator:
    """Trains and evaluates one round at a time; everything that outlives a round is in `state`.

    Args:
        prepared: the checked inputs
        state: where to start, and what every round changes
        notice: called with messages for the user
        releases: counts models with secret noise
    """

    def __init__(
        self, prepared: PreparedRun, state: FederationState, notice: Callable[[str], None], releases: Releases
    ) -> None:
        self._prepared, self._methods, self._settings = prepared, prepared.methods, prepared.settings
        self._federation = federation = prepared.federation
        self.state, self._releases = state, releases
        model = prepared.net, prepared.parts, prepared.device
        has_validation = any(map(len, federation.validation_index))
        self._test = Evaluator(federation, *model)
        self._validation = Evaluator(federation, *model, "validation") if has_validation else None
        self._triggered = None
        if isinstance(federation, AttackedFederation) and federation.attack.kind == "backdoor":
            self._triggered = Evaluator(federation.with_triggers(), *model)
        self.executor = make_executor(prepared, notice)
        self._collector = Collector(prepared.net, prepared.parts) if self._settings.audit else None

    def run_round(self, *, evaluate: bool) -> Round:
        """Train one round; one that is trained again, after a loss, is not evaluated again."""
        state, started, number = self.state, time.perf_counter(), self.state.round + 1
        selected = self._settings.selected(number, self._federation.clients, self._federation.left_out)
        updated: dict[str, ServerUpdate] = {}
        made = number  # models with noise
        if selected:
            updated, made = self._train(selected, number)
        # else all of them are left out, and the models stay as they are
        state.round = number
        evaluate &= self._settings.evaluates(number)
        mechanism, validation = self._prepared.mechanism, self._validation
        return Round(
            number=number,
            selected=selected,
            state=state,
            counts=self._test.all_counts(self._methods, state) if evaluate else None,
            total=self._test.total,
            validation=validation.all_counts(self._methods, state) if evaluate and validation else None,
            validation_total=validation.total if validation else None,
            seconds=time.perf_counter() - started,
            backend=self._prepared.backend,
            screened={name: {**update.bounded, **update.rejected} for name, update in updated.items()},
            attack_success=self._attack_success() if evaluate else {},
            privacy=mechanism.loss(made) if mechanism and evaluate else None,
            _net=self._prepared.net,
            _parts={m.name: self._prepared.parts.keeping(m.local_names) for m in self._methods},
            client_names=self._federation.client_names,
            _target=self._federation.target,
        )

    def _train(self, selected: Sequence[int], number: int) -> tuple[dict[str, ServerUpdate], int]:
        """Train the selected clients and update the state; also returned: how many models with noise were made."""
        federation, state = self._federation, self.state
        server = merge_equal(state.server)
        clients = self._plan(server, selected, number)
        updates, kept, trained = self.train_clients(clients, number)
        # the state changes only after all models have been checked
        check = partial(
            raise_if_diverged, number, self._methods, start_finite_check(self._methods, server, updates, kept)
        )
        mechanism = self._prepared.mechanism and self._prepared.mechanism.for_round(number)
        is_attacked = isinstance(federation, AttackedFederation)
        if self._collector is not None or mechanism or is_attacked or self._prepared.roots:
            check()
        if self._collector is not None:
            self._collect(self._collector, clients, trained, kept, number)
        # noise of the seed is the same in a round that is repeated, so it is one model
        made = self._releases.add() if mechanism and mechanism.seed is None else number
        roots = self._train_on_root_sets(server, number)
        received = self._received(server, updates, roots, number)
        updated = {
            m.name: server_update(
                m,
                server[m.name],
                received[m.name],
                self._settings,
                mechanism,
                round=number,
                root=roots.get(m.name),
                clients=federation.clients,
                left_out=federation.left_out,
                check=check if received[m.name] is updates[m.name] else None,
            )
            for m in self._methods
        }
        state.server = {name: update.state for name, update in updated.items()}
        state.round = number
        for name, by_client in kept.items():
            for client, next_state in sorted(by_client.items()):
                # copies: a trained model may be a view into a stack of all models, which would stay in memory
                if not next_state.is_empty:
                    state.client_states.put((name, client), number, next_state.map(Tensor.clone))
        return updated, made

    def _plan(self, server: Mapping[str, ServerState], selected: Sequence[int], number: int) -> dict[int, _Client]:
        """The jobs of these clients for every method; those without a state have the same."""
        clients = {client: _Client({}, {}) for client in selected}
        for m in self._methods:
            without_state: dict[str, LocalJob] | None = None
            for client, found in clients.items():
                kept = self.state.client_states.get((m.name, client), fetch=False)
                jobs = without_state if kept.is_empty else None
                if jobs is None:
                    jobs = plan(
                        m, server[m.name], kept, parts=self._prepared.parts, settings=self._settings, round=number,
                        group=self._federation.group, net=self._prepared.net,
                    )  # fmt: skip
                    without_state = jobs if kept.is_empty else without_state
                found.plans[m.name], found.states[m.name] = jobs, kept
        return clients

    def train_clients(self, clients: Mapping[int, _Client], number: int) -> tuple[Updates, States, Models]:
        """Updates, next states and, for the audit, trained models; jobs that methods have in common train once."""
        jobs, positions = {}, {}  # by client: its distinct jobs, and for every planned job its position among them
        distinct: dict[tuple[int, ...], tuple[list[LocalJob], list[int]]] = {}  # clients without a state plan the same
        for client, (plans, _) in clients.items():
            planned = [job for p in plans.values() for job in p.values()]
            key = tuple(map(id, planned))
            if key not in distinct:
                distinct[key] = distinct_jobs(planned)
            jobs[client], positions[client] = distinct[key]
        updates: Updates = {m.name: {} for m in self._methods}
        kept: States = {m.name: {} for m in self._methods}
        all_trained: Models = {}
        for client, results in self.executor.train(number, jobs):
            by_job, (plans, states) = iter(results[i] for i in positions[client]), clients[client]
            rows, samples = len(self._federation.train_index[client]), self._federation.train_size(client)
            trained = {m.name: {model: next(by_job) for model in plans[m.name]} for m in self._methods}
            for m in self._methods:
                updates[m.name][client], kept[m.name][client] = finish(
                    m, plans[m.name], trained[m.name], states[m.name], parts=self._prepared.parts,
                    settings=self._settings, rows=rows, samples=samples, net=self._prepared.net,
                )  # fmt: skip
            if self._collector is not None:
                all_trained[client] = trained
        return updates, kept, all_trained

    def _collect(
        self, collector: Collector, clients: Mapping[int, _Client], trained: Models, kept: States, number: int
    ) -> None:
        """Add what the audit collects in this round to the states that clients keep."""
        federation, device = self._federation, self._prepared.device

        def client_round(client: int) -> ClientRound:
            x, y = federation.train(client, seed=self._settings.seed, round=number, device=device)
            before = {m.name: self.state.client_states.get((m.name, client)) for m in self._methods}
            groups = federation.train_groups(client, device=device)
            return ClientRound(clients[client].plans, trained[client], before, x, y, groups)

        order = sorted(trained)  # not as they arrive: those that share a forward pass must not depend on it
        for client, sums in zip(order, collector.collect(map(client_round, order)), strict=True):
            for name, found in sums.items():
                kept[name][client] = kept[name][client].with_slots({"audit": found})

    def _train_on_root_sets(self, server: Mapping[str, ServerState], number: int) -> dict[str, RootUpdate]:
        """For every method with a root set, what a client's round on it gives."""
        prepared = self._prepared
        return {
            m.name: prepared.roots[m.name].train(
                m, server[m.name], net=prepared.net, parts=prepared.parts, settings=prepared.settings,
                backend=prepared.backend.name, round=number,
            )
            for m in self._methods if m.name in prepared.roots
        }  # fmt: skip

    def _received(
        self, server: Mapping[str, ServerState], updates: Updates, roots: Mapping[str, RootUpdate], number: int
    ) -> Updates:
        """What the server receives: the updates, those of attackers forged."""
        federation = self._federation
        if not isinstance(federation, AttackedFederation):
            return updates
        forged: Updates = {}
        for m in self._methods:
            by_client, root = dict(sorted(updates[m.name].items())), roots.get(m.name)
            asked = ServerRound(
                received=server[m.name].parameters, population=federation.population, selected=len(by_client),
                round=number, root=root and root.parameters,
            )  # fmt: skip
            rule, _ = RoundRule.of(m, server[m.name], asked, by_client, self._settings, federation.left_out)
            forged[m.name] = forge(federation.attack, rule, by_client, federation.attackers)
        return forged

    def _attack_success(self) -> dict[str, float]:
        """By method, the share of test images with a backdoor's trigger that get its target class."""
        if self._triggered is None:
            return {}
        counts = self._triggered.all_counts(self._methods, self.state)
        return {n: compute_metrics(c.evaluated, self._triggered.total).accuracy for n, c in counts.items()}
