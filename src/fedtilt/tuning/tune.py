"""`ft.tune`, and the search over the settings of a spec that `fedtilt tune` runs."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtilt.checks import number, whole
from fedtilt.data import Federation
from fedtilt.engine.prepare import check_effects
from fedtilt.engine.settings import TrainSettings, given_settings, takes_train_settings, train_settings
from fedtilt.errors import InputError
from fedtilt.files import first_difference, write_json, write_toml
from fedtilt.locks import locked
from fedtilt.methods import Method, check_rates_used
from fedtilt.models import ModelSource
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.run import check_cluster_of_new_run, check_out_folder, compare_environment
from fedtilt.spec import Spec, dump
from fedtilt.storage.provenance import is_started, read_record, record_environment
from fedtilt.tuning.axes import Axis, axes_of, texts_of
from fedtilt.tuning.objectives import constraints_of, find_objective, objectives_of
from fedtilt.tuning.plan import Plan
from fedtilt.tuning.result import Tuning, result_of
from fedtilt.tuning.search import Search
from fedtilt.tuning.trial import Storage
from fedtilt.tuning.tuned_method import VALIDATION_SHARE, SpecMethod, TunedMethod, find_method

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
    """Search the settings of a method on validation data, and recommend one of them or the current one.

    Lists with at most `trials` combinations are a grid; otherwise Optuna samples `trials` settings. Settings train
    together. Weak ones are stopped early (successive halving). Test data is not used to choose.

        tuning = ft.tune([ft.fedtilt(tau=0, lam=0)], federation, ft.models.mlp, over={"lam": [-2, 0, 1]}, by="worst")
        result = ft.run(tuning.methods, federation, ft.models.mlp, **tuning.train)

    Args:
        methods: the method that is tuned, in a list; beside others, `method` names it
        federation: the clients and their data, with validation data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        over: setting of the method or of the training → a list of values, or an `ft.Range`; default: some tilts
        by: what to improve: "accuracy", "worst", "client_fairness", "class_fairness" or "group:COLUMN"; of numbers as
            targets "mae" or "rmse" in place of accuracy; default: accuracy or mae
        at_least: objective → the least value that the recommended setting may have; 0.9 is 90 %
        at_most: objective → the largest value that it may have
        method: the name of the method that is tuned; default: the only one
        seeds: the number of seeds of the training, counted from `seed`
        trials: the most settings
        halving: whether weak settings are stopped early
        budget: seconds, or text such as "5m", after which the search stops with what it has
        out: a folder for checkpoints and results, in which a search with the same arguments continues; None: none
        callbacks: called after every round and every stage: see `Callback`; trackers are in `fedtilt.trackers`
        settings: training settings as an object, such as `ft.TrainSettings(rounds=5)`; keywords beside it override it
        **keywords: the training settings:
    """
    axes = axes_of(over)
    train = train_settings(keywords, settings)
    given = {name: getattr(train, name) for name in given_settings(keywords, settings)}
    methods = train.check_methods(methods)
    check_rates_used(methods, given)
    if method is None and len(methods) > 1:
        raise InputError(f"there are {len(methods)} methods; name the one to tune, such as method={methods[0].name!r}")
    index, last = find_method(methods, method, tuple(axes)), train.seed + whole(seeds, "seeds", 1)
    tuned = TunedMethod(
        methods, index, axes, range(train.seed, last), train, given=given, federation=federation, model=model
    )
    request = _request(axes, by, at_least, at_most, trials, halving, budget)
    folder, callback = None if out is None else Path(out), Callbacks(callbacks)
    search = Search(tuned, _plan(tuned, axes, request), Storage(folder), callback)
    _check_effects(tuned)
    with _search_folder(folder, train, tuned, request, callback):
        return _run(search, folder)


def tune_spec(
    spec: Spec,
    out: Path,
    *,
    over: Mapping[str, object] | None = None,
    method: str | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Tuning:
    """Search the settings of a method of a spec in a new folder, and write the recommended spec into it.

    The other options are those of `tune`: by, at_least, at_most, trials, halving and budget.
    """
    axes = axes_of(over)
    request = _request(axes, **options)
    check_out_folder(out, may_resume=False)
    return _tune_spec(spec, method, axes, request, out, Callbacks(callbacks))


def resume_tuning(folder: Path, spec: Spec, *, callbacks: Sequence[Callback] = ()) -> Tuning:
    """Continue the search in a folder, whose spec this is; a finished one gives its result again."""
    request = read_record(folder)["tuning"]
    return _tune_spec(spec, request["method"], axes_of(request["over"]), request, folder, Callbacks(callbacks))


def _tune_spec(
    spec: Spec, method: str | None, axes: Mapping[str, Axis], request: Mapping[str, Any], folder: Path,
    callback: Callback,
) -> Tuning:  # fmt: skip
    tuned, is_new, limits = SpecMethod(spec, method, axes), not is_started(folder), spec.storage
    storage = Storage(folder, limits.checkpoint_seconds, limits.memory_limit_mb * 2**20)
    search = Search(tuned, _plan(tuned, axes, request), storage, callback)
    if is_new:
        _check_effects(tuned)
        if not spec.clients.validation:
            share = f"{VALIDATION_SHARE:.0%} of every client's training data"
            callback.on_notice(f"clients.validation is 0; {share} is used for validation")
    train = tuned.candidate(tuned.current).settings
    with _search_folder(folder, train, tuned, {**request, "method": tuned.name}, callback):
        if is_new:
            write_toml(folder / "spec.toml", dump(spec))
        tuning = _run(search, folder)
        if tuning.is_possible:
            write_toml(folder / RECOMMENDED, dump(tuned.spec_with(tuning.setting)))
        return tuning


def _check_effects(tuned: TunedMethod) -> None:
    """Raise InputError for settings that have no effect on the model and the clients, in the current setting."""
    candidate = tuned.candidate(tuned.current)
    if candidate.settings.stop is not None:
        raise InputError("stop has no effect on a search, which ends settings that are worse than others; leave it out")
    check_effects(tuned.prepare(tuned.seeds[0], [candidate.method], candidate.settings))


def _request(
    axes: Mapping[str, Axis], by: str | None = None, at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None, trials: int = TRIALS, halving: bool = True,
    budget: float | str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options of a search as JSON values, for run.json: a search that is resumed has the same."""
    return {
        "over": texts_of(axes), "by": by, "at_least": dict(at_least or {}), "at_most": dict(at_most or {}),
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


def _plan(tuned: TunedMethod, axes: Mapping[str, Axis], request: Mapping[str, Any]) -> Plan:
    """The plan of a search, if there is data and an objective for it."""
    federation = tuned.federation(tuned.seeds[0])
    if not any(map(len, federation.validation_index)):
        largest = int(federation.train_sizes().max())
        raise InputError(
            f"no client has a validation sample to tune {' and '.join(axes)} on (the largest has {largest} training "
            "samples); give the federation validation = 0.1 (clients.validation in a spec) or a larger share"
        )
    objectives, by = objectives_of(federation), request["by"]
    return Plan(
        axes=axes,
        objectives=objectives,
        by=find_objective(by, federation) if by else next(iter(objectives.values())),
        constraints=constraints_of(request["at_least"], request["at_most"], federation),
        trials=request["trials"],
        halving=request["halving"],
        budget=request["budget"],
    )


@contextlib.contextmanager
def _search_folder(
    folder: Path | None, train: TrainSettings, tuned: TunedMethod, request: Mapping[str, Any], callback: Callback
) -> Iterator[None]:
    """Lock the folder of a search; InputError if it has another one."""
    if folder is None:
        yield
        return
    check_out_folder(folder, may_resume=True)
    check_cluster_of_new_run(train, folder)
    with locked(folder):
        if is_started(folder):
            difference = first_difference(read_record(folder).get("tuning"), dict(request))
            if difference:
                key, was, now = difference
                raise InputError(f"{folder} is a search with {key} = {was}, and now it is {now}; choose another folder")
            compare_environment(folder, train.device, callback.on_notice)
        else:
            record_environment(folder, train.device, tuned.seeds, tuning=dict(request))
        yield


def _run(search: Search, folder: Path | None) -> Tuning:
    search.run()
    tuning = result_of(search)
    search.end()
    if folder is not None:
        write_json(folder / "results.json", {"tuning": tuning.to_json()})
    return tuning
