"""One site of a federation: it trains and evaluates on its own data, and stores its personal model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.flower.messages import EvaluationReply, TrainReply, class_spreads
from fedtilt.flower.private_files import private_files, private_folder
from fedtilt.flower.site_report import write_report
from fedtilt.flower.site_states import SiteStates
from fedtilt.flower.task import NodeConfig, ResolvedTask, Task, build_site_model
from fedtilt.locks import locked
from fedtilt.models import parameters_to_vector
from fedtilt.rounds.client_states import ClientStates, FederationState
from fedtilt.rounds.executors import BatchSettings, InProcessExecutor
from fedtilt.rounds.round import invalid_reason, plan
from fedtilt.rounds.settings import pick_device
from fedtilt.training import choose_backend


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Everything a site needs to reply to one message."""

    number: int
    task: ResolvedTask
    federation: Federation  # the rows of all other sites are empty
    model: nn.Module
    folder: Path  # of the site's personal models and report
    declare_classes: bool  # whether the server receives counts by class

    @classmethod
    def open(cls, task: Task, run_config: NodeConfig, node_config: NodeConfig) -> "Site":
        """The site that a SuperNode's `--node-config` describes."""
        number = node_config.get("partition-id")
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"--node-config needs partition-id, the site's number from 0 up; got {number!r}")
        state_dir = node_config.get("state-dir")
        if not isinstance(state_dir, str) or not state_dir:
            raise InputError(f"--node-config needs state-dir, a folder for the personal models; got {state_dir!r}")
        declare_classes = node_config.get("declare-classes", True)
        if not isinstance(declare_classes, bool):
            raise InputError(f"declare-classes in --node-config must be true or false, got {declare_classes!r}")
        resolved = task.resolve(run_config)
        spec = resolved.spec
        federation = task.site_federation(resolved, number, node_config)
        return cls(
            number=number,
            task=resolved,
            federation=federation,
            model=build_site_model(federation, number, task.model_source(resolved), spec.seed),
            folder=Path(state_dir) / spec.name / resolved.method.name / f"seed-{spec.seed}" / f"site-{number:05d}",
            declare_classes=declare_classes,
        )

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return len(self.federation.train_index[self.number])

    @contextmanager
    def _states(self, history_id: str) -> Iterator[SiteStates]:
        """The site's personal models, locked for this process; only the owner can read what is written."""
        with private_files(), locked(private_folder(self.folder)):
            yield SiteStates(self.folder, history_id)

    def train(self, received: Tensor, *, round: int, base_round: int, history_id: str) -> TrainReply:
        """Train one round: return the shared model, store the personal one.

        Args:
            received: the server's w
            round: the round to train
            base_round: the round w came from
            history_id: the id of the server's training history
        """
        method, settings = self.task.method, self.task.settings
        device = pick_device(settings.device)
        w = received.to(device)
        with self._states(history_id) as states:
            last = states.personal_model(base_round) if method.personal else None
            initial = parameters_to_vector(self.model).to(device)
            jobs = plan(method, w, None if last is None else last.to(device), settings, initial=initial).jobs
            sample = self.federation.clean_train(self.number)[0][:1]
            backend = choose_backend(self.model, device.type, settings.backend, sample, settings.precision)
            batch_settings = BatchSettings.of(settings)
            executor = InProcessExecutor(
                self.federation, self.model.to(device), backend, batch_settings, device, settings.precision
            )
            try:
                ((_, trained),) = executor.train(round, {self.number: jobs})
            finally:
                executor.close()
            for model in trained:
                if reason := invalid_reason(model, w):
                    raise InputError(
                        f"training diverged in round {round}: the model {reason}; lower train.lr or the tilts"
                    )
            if method.personal:
                states.save(round, base_round, trained[1].cpu())
        return TrainReply(trained[0].cpu(), self.samples)

    def evaluate(self, w: Tensor, *, round: int, history_id: str) -> EvaluationReply:
        """Evaluate the shared and the personal model on the site's test data, and write the site's report."""
        method, device = self.task.method, pick_device(self.task.settings.device)
        client_states = ClientStates()
        with self._states(history_id) as states:
            trained_in = states.current_round(round) if method.personal else None
            if trained_in is not None:
                model = states.personal_model(round)
                client_states.put((method.name, self.number), trained_in, model)  # type: ignore[arg-type]
            evaluator = Evaluator(self.federation, self.model.to(device), device)
            state = FederationState(round, {method.name: w.to(device)}, client_states)
            counts = evaluator.all_counts([method], state)[method.name]
            shared, total = counts.shared[self.number], evaluator.total[self.number]
            personal = None if trained_in is None or counts.personal is None else counts.personal[self.number]
            model_file = None if trained_in is None else states.path(trained_in)
            write_report(
                self.folder, round, self.federation.class_names, shared, personal, total, model_file, history_id
            )
        return EvaluationReply(shared, personal, total, class_spreads(shared, personal, total))
