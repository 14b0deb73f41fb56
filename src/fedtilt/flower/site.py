"""One site of a federation: it trains on its own data, judges on its own data, and keeps its personal model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.flower.messages import Update, Verdict, spreads
from fedtilt.flower.site_report import write_report
from fedtilt.flower.site_states import Locker
from fedtilt.flower.task import Job, NodeConfig, Task, site_model
from fedtilt.locks import locked
from fedtilt.rounds.client_states import ClientStates, FederationState
from fedtilt.rounds.executors import BatchSchedule, InProcessExecutor
from fedtilt.rounds.round import invalid_reason, plan
from fedtilt.rounds.settings import pick_device
from fedtilt.training import choose_backend


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Everything a site has at hand while it answers one message."""

    number: int
    job: Job
    federation: Federation  # all rows but this site's are empty
    model: nn.Module
    home: Path  # where the site's personal models and report lie
    by_class: bool  # whether the server is told right answers by class

    @classmethod
    def open(cls, task: Task, run: NodeConfig, node: NodeConfig) -> "Site":
        """The site that a SuperNode's `--node-config` describes."""
        number = node.get("partition-id")
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"--node-config needs partition-id, the site's number from 0 up; got {number!r}")
        state = node.get("state-dir")
        if not isinstance(state, str) or not state:
            raise InputError(f"--node-config needs state-dir, a folder for the personal models; got {state!r}")
        by_class = node.get("declare-classes", True)
        if not isinstance(by_class, bool):
            raise InputError(f"declare-classes in --node-config must be true or false, got {by_class!r}")
        job = task.job(run)
        federation = task.federation(job, number, node)
        home = Path(state) / job.spec.name / job.method.name / f"seed-{job.spec.seed}" / f"site-{number:05d}"
        return cls(
            number=number,
            job=job,
            federation=federation,
            model=site_model(federation, number, task.source(job), job.spec.seed),
            home=home,
            by_class=by_class,
        )

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return len(self.federation.train_index[self.number])

    @contextmanager
    def _locker(self, history: str) -> Iterator[Locker]:
        """The site's personal models, for this process alone."""
        with locked(self.home):
            yield Locker(self.home, history)

    def train(self, received: Tensor, *, round: int, base: int, history: str) -> Update:
        """One round: the trained shared model goes out, the trained personal one stays."""
        method, training = self.job.method, self.job.training
        device = pick_device(training.device)
        w = received.to(device)
        with self._locker(history) as locker:
            last = locker.last(base) if method.personal else None
            steps = plan(
                method, w, None if last is None else last.to(device), lr=training.lr, lr_personal=training.personal_rate
            )
            sample = self.federation.clean_train(self.number)[0][:1]
            backend = choose_backend(self.model, device.type, training.backend, sample, training.precision)
            diet = BatchSchedule(seed=training.seed, epochs=training.epochs, batch_size=training.batch_size)
            here = InProcessExecutor(self.federation, self.model.to(device), backend, diet, device, training.precision)
            try:
                ((_, trained),) = here.train(round, {self.number: steps.jobs})
            finally:
                here.close()
            for job in trained:
                if why := invalid_reason(job, w):
                    raise InputError(
                        f"training diverged in round {round}: the model {why}; lower train.lr or the tilts"
                    )
            if method.personal:
                locker.keep(round, base, trained[1].cpu())
        return Update(trained[0].cpu(), self.samples)

    def judge(self, w: Tensor, *, round: int, history: str) -> Verdict:
        """Right answers of the shared and the personal model on the site's test data; the report is written here."""
        method, device = self.job.method, pick_device(self.job.training.device)
        client_states = ClientStates()
        with self._locker(history) as locker:
            standing = locker.standing(round) if method.personal else None
            if standing is not None:
                client_states.put((method.name, self.number), standing, locker.last(round))  # type: ignore[arg-type]
            evaluator = Evaluator(self.federation, self.model.to(device), device)
            counts = evaluator.all_counts([method], FederationState(round, {method.name: w.to(device)}, client_states))[
                method.name
            ]
            shared, total = counts.shared[self.number], evaluator.total[self.number]
            own = None if standing is None or counts.personal is None else counts.personal[self.number]
            model_file = None if standing is None else locker.path(standing)
            write_report(self.home, round, self.federation.class_names, shared, own, total, model_file, history)
        return Verdict(shared, own, total, spreads(shared, own, total))
