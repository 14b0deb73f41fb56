"""Train to the last round: simulate, record, checkpoint, resume."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.cluster.connection import check_cluster
from fedtilt.data import Federation
from fedtilt.engine.prepare import PreparedRun, check_effects, prepare
from fedtilt.engine.settings import TrainSettings, given_settings, takes_train_settings, train_settings
from fedtilt.errors import InputError, NoEffect
from fedtilt.evaluation.evaluator import group_names
from fedtilt.evaluation.results import Result
from fedtilt.evaluation.round_metrics import StopCheck, metrics_by_method
from fedtilt.locks import locked
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource
from fedtilt.parts import constants_of
from fedtilt.runs.callback import Callback, Callbacks, RunStart, started
from fedtilt.runs.checkpointing import CHECKPOINT_SECONDS, MEMORY_LIMIT, Summaries, train_rounds
from fedtilt.runs.notebook import with_notebook_progress
from fedtilt.runs.run_result import run_result
from fedtilt.simulation import Round
from fedtilt.storage.fingerprint import check_other_seeds, continued, fingerprint_of, test_rows_digest
from fedtilt.storage.provenance import environment, is_started, read_record, record_environment, seed_folder
from fedtilt.storage.releases import Releases
from fedtilt.storage.run_folder import InMemoryRun, Notice, Recorder, RunFolder, model_description


@takes_train_settings
def run(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    out: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    memory_limit: int = MEMORY_LIMIT,
    settings: TrainSettings | None = None,
    **keywords: Any,
) -> Result:
    """Train every method to the last round; the defaults are the setting of the paper.

    With `out`, metrics, counts, checkpoints and models are written into that folder. Called again with the same
    arguments, an interrupted run continues from its last checkpoint, bit-identical to an uninterrupted run. Called with
    more rounds, it continues beyond its end, bit-identical to a run planned with these rounds; the default of
    `eval_every` is then the interval that the run has.

    Args:
        methods: the methods to compare, with unique names
        federation: the clients and their data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        out: the run folder; None: nothing is written
        callbacks: called before, after and between rounds: see `Callback`; trackers are in `fedtilt.trackers`
        progress: whether a notebook shows the progress; elsewhere nothing is shown
        checkpoint_seconds: the least time between two checkpoints; 0: a checkpoint every round
        memory_limit: bytes of personal models in memory, beyond which they are stored in files
        settings: training settings as an object, such as `ft.TrainSettings(rounds=5)`; keywords beside it override it
        **keywords: the training settings:
    """
    train = train_settings(keywords, settings)
    if out is None and checkpoint_seconds != CHECKPOINT_SECONDS:
        raise NoEffect(
            f"checkpoint_seconds = {checkpoint_seconds} has no effect here; set out, or leave it out",
            key="checkpoint_seconds",
        )
    if out is not None:
        check_out_folder(Path(out), may_resume=True)
        train = continued(seed_folder(Path(out), train.seed), train)
    prepared = prepare(methods, federation, model, train)
    check_rates_used(prepared.methods, given_settings(keywords, settings))
    if out is None or not is_started(Path(out)):
        check_effects(prepared)
    fingerprint = fingerprint_of(prepared)
    callback = Callbacks(with_notebook_progress(callbacks, progress))
    if out is None:
        return train_to_end(prepared, fingerprint, InMemoryRun(memory_limit), checkpoint_seconds, callback)
    folder = Path(out)
    check_cluster_of_new_run(train, folder)
    with locked(folder):
        run_folder = RunFolder(seed_folder(folder, train.seed), memory_limit)
        check_other_seeds(run_folder.folder, fingerprint)
        record_environment(folder, train.device, [train.seed])
        compare_environment(folder, train.device, callback.on_notice)
        return train_to_end(prepared, fingerprint, run_folder, checkpoint_seconds, callback)


def check_out_folder(folder: Path, *, may_resume: bool) -> None:
    """Raise InputError for a file, and for a folder that is not empty unless it is a run that may be resumed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another folder")
    is_run = is_started(folder)
    if not folder.exists() or (is_run and may_resume):
        return
    if (folder / "run.json").exists():
        read_record(folder)  # it is replaced, so it must be one
    # a run that is killed before it writes its second file leaves these
    others = [path for path in folder.iterdir() if path.name not in (".lock", "run.json") and path.suffix != ".part"]
    if others:
        resume = f"use fedtilt resume {shlex.quote(str(folder))}, or another folder"
        raise InputError(f"{folder} is not empty; {resume if is_run else 'choose another folder'}")


def check_cluster_of_new_run(settings: TrainSettings, folder: Path) -> None:
    """Raise InputError for a wrong cluster before the folder is created; a resumed run may need none any more."""
    if settings.on_cluster and not is_started(folder):
        check_cluster(settings.cluster or "local")


def compare_environment(folder: Path, device: str, notice: Notice) -> None:
    """Report what has changed since the run was started."""
    before, now = read_record(folder)["environment"], environment(device)
    for key, was in before.items():
        if now.get(key) != was:
            notice(f"{key} was {was} and is {now.get(key)} now: the last bits may differ")


def train_to_end(
    prepared: PreparedRun,
    fingerprint: Mapping[str, Any],
    recorder: Recorder,
    checkpoint_seconds: float,
    callback: Callback,
) -> Result:
    """Train one seed from its last checkpoint, or from the start, to the last round."""
    for text in prepared.notices:
        callback.on_notice(text)
    state = recorder.begin(fingerprint, callback.on_notice)
    prepared, releases = _within_releases(prepared, recorder, 0 if state is None else state.round, callback.on_notice)
    _describe(prepared, recorder)
    run_start = RunStart(
        seed=prepared.settings.seed,
        round=state.round if state else 0,
        rounds=prepared.settings.rounds,
        settings=fingerprint,
        folder=recorder.folder.parent if isinstance(recorder, RunFolder) else None,
    )
    trained, rounds = _TrainedRounds(prepared, recorder, callback), prepared.settings.rounds
    check = trained.check
    if state is not None and (reason := recorder.end_reason(state.round, rounds)) is not None:
        callback.on_notice(reason)
    else:
        if not check.is_over:  # else the run was killed before it recorded its end
            with started(callback, run_start):
                last = train_rounds(
                    prepared, recorder, state, record=trained.record, on_round=trained.report,
                    kept_round=lambda: check.kept_round, notice=callback.on_notice,
                    checkpoint_seconds=checkpoint_seconds, releases=releases,
                )  # fmt: skip
            state = state if last is None else last.state
        assert state is not None  # there is at least one round, trained now or before
        if (ending := check.ending(state.round, rounds)) is not None:
            if ending.round < state.round:
                state = recorder.go_back(ending.round, callback.on_notice)
            recorder.record_end(*ending)
            callback.on_notice(ending.reason)
    return run_result(prepared, recorder, state, fingerprint, callback.on_notice)


def _within_releases(
    prepared: PreparedRun, recorder: Recorder, done: int, notice: Notice
) -> tuple[PreparedRun, Releases | None]:
    """With secret noise: the run up to the round that the budget still allows, and the count of its models."""
    mechanism = prepared.mechanism
    if mechanism is None or mechanism.seed is not None:
        return prepared, None
    releases = Releases(recorder.privacy_file, done)
    settings, notices = mechanism.within_budget(prepared.settings, done=done, releases=releases.count)
    for text in notices:
        notice(text)
    evaluated = {round for rounds in recorder.evaluations.history.values() for round, _ in rounds}
    if settings.rounds <= done < prepared.settings.rounds and done not in evaluated:
        raise InputError(
            f"privacy: rounds that were repeated have used up the budget epsilon = {mechanism.budget:g} before the "
            f"evaluation of round {done}; start again in another folder"
        )
    return prepared._replace(settings=settings), releases


class _TrainedRounds:
    """Records the rounds of a run one after the other, and says which one is the last."""

    def __init__(self, prepared: PreparedRun, recorder: Recorder, callback: Callback) -> None:
        self._has_outliers, self._groups = prepared.federation.has_outliers, group_names(prepared.federation)
        self._evaluations, self._callback = recorder.evaluations, callback
        self._screened: set[tuple[str, int]] = set()  # methods and clients that were named
        self._is_asked_to_end = False  # by a callback
        self.check = StopCheck(prepared.settings.stop)
        for round, found in recorder.evaluations.validations:  # before a kill
            self._check(round, found)

    def record(self, r: Round) -> Summaries | None:
        """Record the metrics of a round, if it was evaluated."""
        self._name_screened(r)
        if r.counts is None:
            return None
        has_outliers, groups = self._has_outliers, self._groups
        summaries = metrics_by_method(r.counts, r.total, has_outliers, r.privacy, groups, r.attack_success)
        validation = metrics_by_method(r.validation, r.validation_total, has_outliers, None, groups)
        self._evaluations.record(r.number, summaries, r.counts, r.total, validation)
        self._check(r.number, validation)
        return summaries

    def report(self, r: Round, summaries: Summaries | None) -> bool:
        """Call the callbacks; whether the run ends with this round, which must be an evaluated one."""
        self._is_asked_to_end |= bool(self._callback.on_round(r, summaries))
        return summaries is not None and (self._is_asked_to_end or self.check.is_over)

    def _check(self, round: int, validation: Summaries) -> None:
        self.check.update(round, {name: found.evaluated for name, found in validation.items()})

    def _name_screened(self, r: Round) -> None:
        """Name every client whose update stands out, the first time that it does."""
        for method, reasons in r.screened.items():
            for client, reason in sorted(reasons.items()):
                if (method, client) not in self._screened:
                    self._screened.add((method, client))
                    client_name = r.client_names[client]
                    self._callback.on_notice(f"round {r.number}, method {method!r}: client {client_name} {reason}")


def _describe(prepared: PreparedRun, recorder: Recorder) -> None:
    """Record what readers of the run need besides its metrics: names, roles of clients, constants, the model."""
    federation = prepared.federation
    recorder.describe(
        clients=federation.client_names,
        group=federation.group,
        classes=group_names(federation)[federation.group],
        has_outliers=federation.has_outliers.nonzero()[:, 0].tolist(),
        attackers=federation.attackers if isinstance(federation, AttackedFederation) else (),
        left_out=federation.left_out,
        about_data=federation.about_data,
        drawn=federation.drawn,
        test_rows=test_rows_digest(federation),
        constants=_constants(prepared),
        model=model_description(prepared.recipe, federation.dataset),
        backend=prepared.backend.describe(),
    )


def _constants(prepared: PreparedRun) -> dict[str, torch.Tensor]:
    """The initial values of everything that is not shared by some method."""
    return {
        name: tensor
        for m in prepared.methods
        for name, tensor in constants_of(prepared.net, prepared.parts.keeping(m.local_names)).items()
    }
