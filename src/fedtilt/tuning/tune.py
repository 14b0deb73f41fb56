"""`ft.tune`, and the search over the settings of a spec that `fedtilt tune` runs."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtilt.checks import number, whole
from fedtilt.data import Federation
from fedtilt.engine.prepare import check_effects
from fedtilt.engine.setting_arguments import given_settings, takes_train_settings, train_settings
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.files import first_difference, write_json, write_toml
from fedtilt.locks import locked
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.run import check_cluster_of_new_run, check_out_folder, compare_environment
from fedtilt.storage.provenance import is_started, read_record, record_environment
from fedtilt.storage.run_folder import Notice
from fedtilt.tuning.axes import Axis, axes_of, texts_of
from fedtilt.tuning.objectives import Objective, constraints_of, find_objective, main_objective, task_of
from fedtilt.tuning.plan import Plan
from fedtilt.tuning.result import Tuning, result_of
from fedtilt.tuning.search import Search
from fedtilt.tuning.subject import VALIDATION_SHARE, PythonSubject, SpecSubject, Subject, check_validation
from fedtilt.tuning.training import Storage

if TYPE_CHECKING:
    from fedtilt.spec import Spec

TRIALS = 64
RECOMMENDED = "recommended.toml"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


@takes_train_settings
def tune(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    over: Mapping[str, object] | None = None,
    by: str | None = None,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
    method: str | None = None,
    seeds: int = 1,
    trials: int = TRIALS,
    halving: bool = True,
    budget: float | str | None = None,
    out: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    settings: TrainSettings | None = None,
    **keywords: Any,
) -> Tuning:
    """Search the settings of a method on validation data, and recommend one, or to keep the one it has.

    Lists with at most `trials` combinations are a grid; otherwise Optuna samples so many settings. Settings train
    together. Weak ones are stopped early (successive halving). Test data is not used to choose.

        tuning = ft.tune([ft.fedtilt(tau=0, lam=0)], federation, ft.models.mlp, over={"lam": [-2, 0, 1]}, by="worst")
        result = ft.run(tuning.methods, federation, ft.models.mlp, **tuning.train)

    Args:
        methods: the method that is tuned, in a list; beside others, `method` names it
        federation: the clients and their data, with validation data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        over: setting of the method or of the training → a list of values, or an `ft.Range`; left out: some tilts
        by: what to improve: "accuracy", "worst", "client_fairness", "class_fairness" or "group:COLUMN"; of numbers as
            targets "mae" or "rmse" in place of accuracy; left out: accuracy or mae
        at_least: objective → the least value that the recommended setting may have; 0.9 is 90 %
        at_most: objective → the largest value that it may have
        method: the name of the method that is tuned; left out: the only one
        seeds: how many seeds of the training, counted from `seed`
        trials: the most settings
        halving: whether weak settings are stopped early
        budget: seconds, or text such as "5m", after which the search stops with what it has
        out: a folder for checkpoints and results, in which a search with the same arguments goes on; None: none
        callbacks: called after every round and every stage: see `Callback`; trackers are in `fedtilt.trackers`
        settings: training settings as an object, such as `ft.TrainSettings(rounds=5)`; keywords beside it override it
        **keywords: the training settings:
    """
    axes = axes_of(over)
    train = train_settings(keywords, settings)
    given = {name: getattr(train, name) for name in given_settings(keywords, settings)}
    subject = PythonSubject.of(methods, method, federation, model, train, given, axes, whole(seeds, "seeds", 1))
    check_rates_used(subject.methods, given)
    wishes = _wishes(axes, by, at_least or {}, at_most or {}, trials, halving, budget)
    folder, callback = None if out is None else Path(out), Callbacks(callbacks)
    search = Search(subject, _plan(subject, axes, wishes), Storage(folder), callback)
    _check_effects(subject)
    with _folder(folder, subject.settings.device, subject, wishes, callback.on_notice):
        return _run(search, folder)


def tune_spec(
    spec: "Spec",
    out: Path,
    *,
    over: Mapping[str, object] | None = None,
    by: str | None = None,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
    method: str | None = None,
    trials: int = TRIALS,
    halving: bool = True,
    budget: float | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Tuning:
    """Search the settings of a method of a spec in a new folder, and write the recommended spec into it; see `tune`."""
    from fedtilt.spec import check_clients_used, dump

    axes = axes_of(over)
    subject = SpecSubject(spec, method, axes)
    wishes = _wishes(axes, by, at_least or {}, at_most or {}, trials, halving, budget) | {"method": subject.name}
    check_out_folder(out, may_resume=False)
    callback = Callbacks(callbacks)
    search = _spec_search(subject, _plan(subject, axes, wishes), out, callback)
    check_clients_used(subject.with_validation, subject.federation)
    _check_effects(subject)
    if not spec.clients.validation:
        share = f"{VALIDATION_SHARE:.0%} of every client's training data"
        callback.on_notice(f"clients.validation is 0; {share} is used for validation")
    with _folder(out, spec.device, subject, wishes, callback.on_notice):
        write_toml(out / "spec.toml", dump(spec))
        return _run_spec(search, subject, out)


def resume_tuning(folder: Path, spec: "Spec", *, callbacks: Sequence[Callback] = ()) -> Tuning:
    """Go on with the search in a folder, whose spec this is; a finished one gives its result again."""
    wishes = read_record(folder)["tuning"]
    axes = axes_of(wishes["over"])
    subject = SpecSubject(spec, wishes["method"], axes)
    callback = Callbacks(callbacks)
    search = _spec_search(subject, _plan(subject, axes, wishes), folder, callback)
    with _folder(folder, spec.device, subject, wishes, callback.on_notice):
        return _run_spec(search, subject, folder)


def _check_effects(subject: Subject) -> None:
    """Refuse settings that have no effect on the model and the clients, in the setting that the user has."""
    recipe = subject.recipe(subject.yours)
    check_effects(subject.prepare(subject.seeds[0], [recipe.method], recipe.settings))


def _wishes(
    axes: Mapping[str, Axis], by: str | None, at_least: Mapping[str, float], at_most: Mapping[str, float], trials: int,
    halving: bool, budget: float | str | None,
) -> dict[str, Any]:  # fmt: skip
    """What the user asked for, as JSON values: a search that is resumed has the same."""
    return {
        "over": texts_of(axes), "by": by, "at_least": dict(at_least), "at_most": dict(at_most),
        "trials": whole(trials, "trials", 1), "halving": bool(halving), "budget": parse_duration(budget),
    }  # fmt: skip


def parse_duration(text: float | str | None) -> float | None:
    """A duration in seconds.

    >>> parse_duration("5m"), parse_duration("90"), parse_duration(1.5), parse_duration(None)
    (300.0, 90.0, 1.5, None)
    """
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if isinstance(text, str) and match is None:
        raise InputError(f"budget = {text!r} is not a duration; write for example 90s, 5m or 1.5h")
    seconds = float(match[1]) * _SECONDS[match[2]] if match else number(text, "budget")
    if not seconds > 0:
        raise InputError(f"budget = {text} leaves no time; give more than 0 seconds")
    return seconds


def _plan(subject: Subject, axes: Mapping[str, Axis], wishes: Mapping[str, Any]) -> Plan:
    check_validation(subject, axes)

    def find(name: str) -> Objective:
        return find_objective(name, subject.federation)

    return Plan(
        axes=axes,
        task=task_of(subject.federation),
        by=find(wishes["by"]) if wishes["by"] else main_objective(task_of(subject.federation)),
        constraints=constraints_of(wishes["at_least"], wishes["at_most"], find),
        trials=wishes["trials"],
        halving=wishes["halving"],
        budget=wishes["budget"],
    )


@contextlib.contextmanager
def _folder(
    folder: Path | None, device: str, subject: Subject, wishes: Mapping[str, Any], notice: Notice
) -> Iterator[None]:
    """Lock the folder of a search, and refuse the folder of another one."""
    if folder is None:
        yield
        return
    check_out_folder(folder, may_resume=True)
    check_cluster_of_new_run(subject.recipe(subject.yours).settings, folder)
    with locked(folder):
        if is_started(folder):
            difference = first_difference(read_record(folder).get("tuning"), dict(wishes))
            if difference:
                key, was, now = difference
                raise InputError(f"{folder} is a search with {key} = {was}, and now it is {now}; choose another folder")
            compare_environment(folder, device, notice)
        else:
            record_environment(folder, device, subject.seeds, tuning=dict(wishes))
        yield


def _spec_search(subject: SpecSubject, plan: Plan, folder: Path, callback: Callback) -> Search:
    limits = subject.spec.storage
    storage = Storage(folder, limits.checkpoint_seconds, limits.memory_limit_mb * 2**20)
    return Search(subject, plan, storage, callback)


def _run(search: Search, folder: Path | None) -> Tuning:
    search.run()
    tuning = result_of(search)
    search.end()
    if folder is not None:
        write_json(folder / "results.json", {"tuning": tuning.to_json()})
    return tuning


def _run_spec(search: Search, subject: SpecSubject, folder: Path) -> Tuning:
    from fedtilt.spec import dump

    tuning = _run(search, folder)
    if tuning.is_possible:
        write_toml(folder / RECOMMENDED, dump(subject.spec_with(tuning.setting)))
    return tuning
