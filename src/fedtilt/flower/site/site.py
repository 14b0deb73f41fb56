"""One site of a federation: it trains and evaluates on its own data, and stores what it keeps."""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fedtilt.auditing.collect import ClientRound, Collector
from fedtilt.data import Federation, Schema
from fedtilt.data.inputs import take
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.state import Messages, client_state_like, messages_of
from fedtilt.engine.validity import invalid_reason
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.groups import Grouping, group_names, groupings
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.executors.devices import pick_device
from fedtilt.executors.in_process import BatchSettings, ClientTraining, InProcessExecutor
from fedtilt.flower.declared import Declared, group_sums, own_metrics
from fedtilt.flower.messages import EvaluationReply, class_spreads
from fedtilt.flower.private_files import private_files, private_folder
from fedtilt.flower.site.report import write_report, write_suspects
from fedtilt.flower.site.states import DamagedState, SiteState, SiteStates
from fedtilt.flower.site_federation import build_site_model
from fedtilt.flower.task import NodeConfig, ResolvedTask, Task, site_number, yes_or_no
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.locks import locked
from fedtilt.parts import Parts, Tensors
from fedtilt.training import LocalJob, Trained, choose_backend

_log = logging.getLogger("flwr")


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Everything a site needs to reply to one message."""

    number: int
    task: ResolvedTask
    federation: Federation  # the rows of all other sites are empty
    model: nn.Module
    parts: Parts
    folder: Path  # of what the site keeps, and its report
    declare_classes: bool  # whether the server receives counts by class
    declare_groups: bool  # whether the server receives sums by group
    declare_metrics: bool  # whether the server receives the site's own metrics
    declare_suspects: bool  # whether the server receives the number of suspects, if there is an audit
    schema: Schema | None  # of the sites' tables, if they have tables

    @classmethod
    def open(
        cls, task: Task, run_config: NodeConfig, node_config: NodeConfig, schema: Schema | None = None
    ) -> "Site":  # fmt: skip
        """The site that a SuperNode's `--node-config` describes, with the schema that the server sends."""
        number = site_number(node_config)
        state_dir = node_config.get("state-dir")
        if not isinstance(state_dir, str) or not state_dir:
            raise InputError(
                f"--node-config needs state-dir, a folder for what the site keeps, such as its personal model; "
                f"got {state_dir!r}"
            )
        declare_classes = yes_or_no(node_config, "declare-classes")
        resolved = task.resolve(run_config)
        spec = resolved.spec
        federation = task.site_federation(resolved, number, node_config, schema)
        model, parts = build_site_model(federation, number, task.model_source(resolved), resolved.settings)
        return cls(
            number=number,
            task=resolved,
            federation=federation,
            model=model,
            parts=parts.keeping(resolved.method.local_names),
            folder=Path(state_dir) / spec.name / resolved.method.name / f"seed-{spec.seed}" / f"site-{number:05d}",
            declare_classes=declare_classes,
            declare_groups=yes_or_no(node_config, "declare-groups", default=False),
            declare_metrics=yes_or_no(node_config, "declare-metrics", default=False),
            declare_suspects=yes_or_no(node_config, "declare-suspects", default=False),
            schema=schema,
        )

    @property
    def messages(self) -> Messages:
        """What travels beside the model."""
        return messages_of(self.task.method, self.parts, self.federation.clients, self.model)

    @contextmanager
    def _states(self, history: TrainingHistory) -> Iterator[SiteStates]:
        """What the site keeps, locked for this process; only the owner can read what is written."""
        with private_files(), locked(private_folder(self.folder)):
            if self.schema is not None:
                self.schema.write(self.folder / "schema.json")  # to use the personal model: ft.data.transform(like=…)
            yield SiteStates(self.folder, history)

    def _read(self, stored: SiteState | None) -> tuple[dict[str, Tensor], str | None]:
        """What the site kept, and why it starts again with nothing if that is damaged."""
        if stored is None:
            return {}, None
        try:
            return stored.read(client_state_like(self.task.method, self.parts, self.model)), None
        except DamagedState as damage:
            _log.warning("%s", damage)
            return {}, str(damage)

    def train(
        self, received: Tensors, *, round: int, base_round: int, history: TrainingHistory, keep: Collection[int] = ()
    ) -> ClientUpdate:
        """Train one round: return what is sent, store what is kept.

        Args:
            received: what the server sends: parameters and, if they are averaged, buffers
            round: the round to train
            base_round: the round that they came from
            history: the server's training history
            keep: the rounds that the server can go back to
        """
        method, settings, parts = self.task.method, self.task.settings, self.parts
        device = pick_device(settings.device)
        received = {name: tensor.to(device) for name, tensor in received.items()}
        with self._states(history) as states:
            before, _ = self._read(states.current(base_round))
            group = self.federation.group
            jobs = plan(
                method, received, before, parts=parts, settings=settings, round=round, group=group, net=self.model
            )
            sample = take(self.federation.clean_train(self.number)[0], slice(0, 1))
            backend = choose_backend(
                self.model, list(jobs.values()), device.type, settings.backend, sample, settings.precision,
                self.federation.dataset.weight_train is not None,
            )  # fmt: skip
            training = ClientTraining(self.federation, self.model.to(device), backend.name, BatchSettings.of(settings))
            executor = InProcessExecutor(training, device, settings.precision)
            try:
                ((_, results),) = executor.train(round, {self.number: list(jobs.values())})
            finally:
                executor.close()
            for trained in results:
                models = (trained.parameters, parts.initial), (trained.anchor, parts.initial)
                for values, initial in (*models, (trained.buffers, parts.initial_buffers)):
                    if values is not None and initial is not None and (reason := invalid_reason(values, initial)):
                        raise InputError(
                            f"training diverged in round {round}: the model {reason}; lower train.lr or the tilts"
                        )
            by_model = dict(zip(jobs, results, strict=True))
            update, kept = finish(
                method, jobs, by_model, before, parts=parts, settings=settings,
                rows=len(self.federation.train_index[self.number]), samples=self.federation.train_size(self.number),
                net=self.model,
            )  # fmt: skip
            if settings.audit:
                kept |= self._collect(jobs, by_model, before, round)
                suspects = write_suspects(self.folder, self.federation, self.number, method.name, kept)
                if self.declare_suspects:
                    update = update._replace(declared={**update.declared, "suspects": float(suspects)})
            if kept:
                states.save(round, base_round, kept, keep)
        return update

    def _collect(
        self, jobs: Mapping[str, LocalJob], trained: Mapping[str, Trained], before: Tensors, round: int
    ) -> dict[str, Tensor]:
        """What the audit collects about the site's samples; it starts again if their number has changed."""
        settings, name = self.task.settings, self.task.method.name
        device = pick_device(settings.device)
        x, y = self.federation.train(self.number, seed=settings.seed, round=round, device=device)
        groups = self.federation.train_groups(self.number, device=device)
        if len(before.get("audit_p", y)) != len(y):
            _log.warning("the site has other samples than before: its audit starts again")
            before = {}
        client = ClientRound({name: jobs}, {name: trained}, {name: before}, x, y, groups)
        (sums,) = Collector(self.model, self.parts).collect([client])
        return sums[name]

    def evaluate(self, received: Tensors, *, round: int, history: TrainingHistory) -> EvaluationReply:
        """Evaluate the shared and the personal model on the site's test data, and write the site's report."""
        method, device = self.task.method, pick_device(self.task.settings.device)
        client_states = ClientStates()
        with self._states(history) as states:
            stored = states.current(round)
            kept, damage = self._read(stored)
            if stored is not None and kept:
                client_states.put((method.name, self.number), stored.round, kept)
            by = self.federation.label_group
            evaluator = Evaluator(self.federation, self.model.to(device), self.parts, device, by=by)
            server = {name: tensor.to(device) for name, tensor in received.items()}
            state = FederationState(round, {method.name: server}, client_states)
            counts = evaluator.all_counts([method], state)[method.name]
            declared = self._declared(evaluator, counts, state)
            shared, total = counts.shared[self.number], evaluator.total[self.number]
            personal = counts.personal[self.number] if kept and counts.personal is not None else None
            write_report(
                self.folder, round, self.federation.class_names, shared, personal, total, history.id,
                kept=list(kept), file=stored.path if stored is not None and kept else None, damage=damage,
            )  # fmt: skip
        return EvaluationReply(shared, personal, total, class_spreads(shared, personal, total), declared)

    def _declared(self, evaluator: Evaluator, counts: Counts, state: FederationState) -> Declared:
        """What the site declares beside its counts by class."""
        found, federation = Declared(), self.federation
        if self.declare_groups:
            names = {name: n for name, n in group_names(federation).items() if name != federation.label_group}
            by_group = dict(zip(names, counts.groups, strict=True))
            found = found._replace(groups=group_sums(names, by_group, self.number))
        if self.declare_metrics and len(federation.test_index[self.number]):
            _, y, clients = federation.evaluation("test")
            by = {CLIENT: Grouping(CLIENT, federation.client_names, clients)} | groupings(federation)
            predictions = Predictions(
                outputs=evaluator.predictions(self.task.method, state),
                groupings=by,
                numbers=None if federation.target is None else y,
            )
            found = found._replace(metrics=own_metrics(predictions))
        return found
