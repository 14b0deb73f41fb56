"""One site of a federation: it trains and evaluates on its own data, and stores its state."""

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fedtilt.auditing.collect import ClientRound, Collector
from fedtilt.data import Schema
from fedtilt.data.tables.schema import MIN_COUNT
from fedtilt.devices import pick_device
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.prepare import backend_for
from fedtilt.engine.state import Messages, client_state_like, messages_of
from fedtilt.engine.updates import invalid_reason
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator, Grouping, group_names
from fedtilt.evaluation.metrics import Counts, GroupCounts
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.evaluation.prediction_sets import counts_of
from fedtilt.evaluation.predictions import CLIENT, Predictions, conformity_scores, has_prediction_sets, predictions_of
from fedtilt.evaluation.round_metrics import round_metrics
from fedtilt.evaluation.scores import no_sums
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.files import private_files, private_folder, write_json, write_tensors
from fedtilt.flower.evaluation import Declared, EvaluationReply, class_spreads
from fedtilt.flower.messages import Instruction
from fedtilt.flower.run_folder import task_fingerprint
from fedtilt.flower.site_data import check_groups, is_on, site_federation, site_number
from fedtilt.flower.site_files import DamagedState, SiteState, SiteStates, write_site_report, write_suspects
from fedtilt.flower.task import NodeConfig, Task
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.locks import locked
from fedtilt.models import recipe
from fedtilt.parts import constants_of
from fedtilt.state import ClientState, ServerState, Slot
from fedtilt.storage.evaluations import write_counts
from fedtilt.storage.predictions import write_predictions
from fedtilt.storage.run_folder import RunFolder, model_description
from fedtilt.training import LocalJob, Trained

_log = logging.getLogger("flwr")
DECLARES = {  # of `declare-…` in --node-config: the default, and what the server receives with true and with false
    "classes": (
        True,
        "correct predictions, or errors, and test samples by class or range",
        "correct predictions, or errors, and test samples in total, and their spread over classes",
    ),
    "groups": (False, "the same by group of data.group, of groups with enough test samples", ""),
    "metrics": (False, "the site's own metrics, such as AUROC", ""),
    "scores": (False, "counts of its scores on validation data, for prediction sets", ""),
    "suspects": (False, "the number of samples whose labels look wrong", ""),
}


class Site:
    """Everything a site needs to reply to one message, by its `--node-config` and the schema that the server sends."""

    def __init__(
        self, task: Task, run_config: NodeConfig, node_config: NodeConfig, schema: Schema | None = None
    ) -> None:
        self.task, self._schema = task.resolve(run_config), schema
        spec, method = self.task.spec, self.task.method
        self.federation = site_federation(task, spec, node_config, schema)  # the rows of all other sites are empty
        self.number = site_number(node_config)
        state_dir = node_config.get("state-dir")
        if not isinstance(state_dir, str) or not state_dir:
            raise InputError(
                f"--node-config needs state-dir, a folder for the site's state, such as its personal model; "
                f"got {state_dir!r}"
            )
        site = f"site-{self.number:05d}"
        self._folder = Path(state_dir) / spec.name / method.name / f"seed-{spec.seed}" / site  # its states and report
        self.declares = {key: is_on(node_config, f"declare-{key}", entry[0]) for key, entry in DECLARES.items()}
        checked_on = dataclasses.replace(self.federation, train_index=[self.federation.train_index[self.number]])
        source = task.model_source(self.task)
        self._model, parts = initial_model(checked_on, source, self.task.settings)
        self.parts = parts.keeping(method.local_names)
        if task.has_own_data:
            check_groups(self.federation, method, self._model)
        self._recipe = recipe(source, self.federation.input_shape, self.federation.outputs)

    @property
    def messages(self) -> Messages:
        """What travels beside the model."""
        population = self.federation.clients - len(self.task.spec.clients.leave_out)
        return messages_of(self.task.method, self.parts, population, self._model)

    @contextmanager
    def _states(self, history: TrainingHistory) -> Iterator[SiteStates]:
        """The states of the site, locked for this process; only the owner can read what is written."""
        with private_files(), locked(private_folder(self._folder)):
            if self._schema is not None:
                # to use the personal model: ft.data.transform(like=…)
                write_json(self._folder / "schema.json", self._schema.to_json())
            yield SiteStates(self._folder, history)

    def _read(self, stored: SiteState | None) -> tuple[ClientState, str | None]:
        """A state, and why the site starts again with nothing if it is damaged."""
        if stored is None:
            return ClientState(), None
        try:
            return stored.read(client_state_like(self.task.method, self.parts, self._model)), None
        except DamagedState as damage:
            _log.warning("%s", damage)
            return ClientState(), str(damage)

    def train(self, instruction: Instruction) -> ClientUpdate:
        """Train one round: return what is sent, store the state."""
        method, settings, parts, round = self.task.method, self.task.settings, self.parts, instruction.round
        device = pick_device(settings.device)
        received = instruction.received.to(device)
        with self._states(instruction.history) as states:
            before, _ = self._read(states.current(instruction.base_round, instruction.used_round))
            group = self.federation.group
            jobs = plan(
                method, received, before, parts=parts, settings=settings, round=round, group=group, net=self._model
            )
            trained = self._train(jobs, device, round)
            update, state = finish(
                method, jobs, trained, before, parts=parts, settings=settings,
                rows=len(self.federation.train_index[self.number]), samples=self.federation.train_size(self.number),
                net=self._model,
            )  # fmt: skip
            if settings.audit:
                state = state.with_slots({"audit": self._collect(jobs, trained, before, round)})
                suspects = write_suspects(self._folder, self.federation, self.number, method.name, state)
                if self.declares["suspects"]:
                    update = update._replace(declared={**update.declared, "suspects": float(suspects)})
            if not state.is_empty:
                states.save(round, instruction.used_round, state, instruction.keep)
        return update

    def _train(self, jobs: Mapping[str, LocalJob], device: torch.device, round: int) -> dict[str, Trained]:
        """The trained models by name; raises InputError if one diverged."""
        settings, parts, all_jobs = self.task.settings, self.parts, list(jobs.values())
        backend = backend_for(all_jobs, self._model, settings, self.federation, device, self.number)
        training = ClientTraining(self.federation, self._model.to(device), backend.name, BatchSettings.of(settings))
        executor = InProcessExecutor(training, device, settings.precision)
        try:
            ((_, results),) = executor.train(round, {self.number: all_jobs})
        finally:
            executor.close()
        for trained in results:
            models = (trained.parameters, parts.initial), (trained.anchor, parts.initial)
            for values, initial in (*models, (trained.buffers, parts.initial_buffers)):
                if values is not None and initial is not None and (reason := invalid_reason(values, initial)):
                    raise InputError(
                        f"training diverged in round {round}: the model {reason}; lower train.lr or the tilts"
                    )
        return dict(zip(jobs, results, strict=True))

    def _collect(
        self, jobs: Mapping[str, LocalJob], trained: Mapping[str, Trained], before: ClientState, round: int
    ) -> Slot:
        """What the audit collects about the site's samples; it starts again if their number has changed."""
        settings, name = self.task.settings, self.task.method.name
        device = pick_device(settings.device)
        x, y = self.federation.train(self.number, seed=settings.seed, round=round, device=device)
        groups = self.federation.train_groups(self.number, device=device)
        if len(before.slot("audit").get("p", y)) != len(y):
            _log.warning("the site has other samples than before: its audit starts again")
            before = ClientState()
        client = ClientRound({name: jobs}, {name: trained}, {name: before}, x, y, groups)
        (sums,) = Collector(self._model, self.parts).collect([client])
        return sums[name]

    def evaluate(self, instruction: Instruction) -> EvaluationReply:
        """Evaluate the shared and the personal model on the site's test data, and write the site's report."""
        method, device, round = self.task.method, pick_device(self.task.settings.device), instruction.round
        client_states = ClientStates()
        with self._states(instruction.history) as states:
            stored = states.current(round, instruction.used_round)
            kept, damage = self._read(stored)
            if stored is not None and not kept.is_empty:
                client_states.put((method.name, self.number), stored.round, kept)
            by = self.federation.label_group
            evaluator = Evaluator(self.federation, self._model.to(device), self.parts, device, by=by)
            state = FederationState(round, {method.name: instruction.received.to(device)}, client_states)
            counts = evaluator.all_counts([method], state)[method.name]
            shared, total = counts.shared[self.number], evaluator.total[self.number]
            personal = None if kept.is_empty or counts.personal is None else counts.personal[self.number]
            spreads = class_spreads(shared, personal, total)
            predictions = self._predictions(evaluator, state)
            validation = None if self.task.settings.stop is None else self._validation(state)
            declared = self._declared(counts, predictions)
            reply = EvaluationReply(shared, personal, total, spreads, declared, validation)
            write_site_report(
                self._folder, round, self.federation.class_names, reply, instruction.history,
                kept=list(kept.to_tensors()), damage=damage,
                file=None if stored is None or kept.is_empty else stored.path,
            )  # fmt: skip
            self._write_run(round, instruction.received, counts, evaluator.total)
            if predictions is not None and predictions.scores is not None:
                write_predictions(self._folder, round, {method.name: predictions})
        return reply

    def _validation(self, state: FederationState) -> GroupCounts:
        """The sums of the evaluated model on the site's validation data, and its samples; all zero if it has none."""
        if not len(self.federation.validation_index[self.number]):
            return GroupCounts(no_sums(self.federation.target, 1), torch.zeros(1, dtype=torch.int64))
        device, method = pick_device(self.task.settings.device), self.task.method
        evaluator = Evaluator(self.federation, self._model, self.parts, device, "validation")
        sums = evaluator.all_counts([method], state)[method.name].evaluated
        return GroupCounts(*(of_site[self.number].sum(0, keepdim=True).cpu() for of_site in (sums, evaluator.total)))

    def _write_run(self, round: int, received: ServerState, counts: Counts, total: Tensor) -> None:
        """Write what `fedtilt export` needs of the site's model, as in the folder of a simulated run."""
        method, data, own = self.task.method, self.federation.dataset, slice(self.number, self.number + 1)
        names, has_outliers = self.federation.class_names, self.federation.has_outliers[own]
        fingerprint = task_fingerprint(self.task, data.name, self.federation.clients, names, self._model, self.parts)
        write_json(self._folder / "fingerprint.json", fingerprint)
        RunFolder(self._folder).describe(
            clients=[self.federation.client_names[self.number]],
            classes=names,
            group=self.federation.label_group,
            has_outliers=has_outliers.nonzero()[:, 0].tolist(),
            about_data=self.federation.about_data,
            drawn=self.federation.drawn,
            constants=constants_of(self._model, self.parts),
            model=model_description(self._recipe, data),
        )
        if not method.has_personal:  # the site uses the shared model, with parts of its own
            write_tensors(self._folder / "shared.safetensors", received.to_tensors())
        evaluation = self._folder / "evaluation.json"
        evaluation.unlink(missing_ok=True)
        if total[own].any():
            of_site = counts.of_clients(own)
            groups = {self.federation.label_group: names} | group_names(self.federation)  # in the order of the counts
            summary = round_metrics(of_site, total[own], has_outliers, groups)
            write_counts(self._folder / "counts.safetensors", {method.name: of_site}, total[own])
            write_json(evaluation, summary.to_json())

    def _predictions(self, evaluator: Evaluator, state: FederationState) -> Predictions | None:
        """What the site's model predicts on its test data, as its only client, and its scores on validation data."""
        federation, method, own = self.federation, self.task.method, slice(self.number, self.number + 1)
        if not (len(federation.test_index[self.number]) and (self.declares["metrics"] or self._has_validation)):
            return None
        scores = None
        if self._has_validation:
            device = pick_device(self.task.settings.device)
            validation = Evaluator(federation, self._model, self.parts, device, "validation")
            every = conformity_scores(federation, validation.predictions(method, state))
            scores = dataclasses.replace(every, validation=every.validation[own])
        (found,) = predictions_of(federation, {"": evaluator.predictions(method, state)}).values()
        client = found.groupings[CLIENT]
        name = Grouping(CLIENT, (federation.client_names[self.number],), torch.zeros_like(client.codes))
        return dataclasses.replace(found, groupings={**found.groupings, CLIENT: name}, scores=scores)

    @property
    def _has_validation(self) -> bool:
        return len(self.federation.validation_index[self.number]) > 0 and has_prediction_sets(self.federation)

    def _declared(self, counts: Counts, predictions: Predictions | None) -> Declared:
        """What the site declares beside its counts by class: sums of groups that are not too small, own metrics."""
        found, federation = Declared(), self.federation
        if self.declares["groups"]:
            names = {name: n for name, n in group_names(federation).items() if name != federation.label_group}
            groups = {}
            for (column, of_column), (sums, total) in zip(names.items(), counts.groups, strict=True):
                groups[column] = {
                    group: [int(total[self.number, k]), *sums[self.number, k].reshape(-1).tolist()]
                    for k, group in enumerate(of_column)
                    if total[self.number, k] >= MIN_COUNT
                }
            found = found._replace(groups=groups)
        if self.declares["metrics"] and predictions is not None:
            frame = metrics_frame(predictions, by=None, resamples=0)
            values = {name: estimate.value for name, estimate in frame.overall_estimates.items()}
            found = found._replace(metrics={name: value for name, value in values.items() if math.isfinite(value)})
        if self.declares["scores"] and predictions is not None and predictions.scores is not None:
            bins = {"validation": predictions.scores.validation[0], "test": predictions.prediction_sets().test[0]}
            found = found._replace(scores={split: counts_of(of_split) for split, of_split in bins.items()})
        return found
