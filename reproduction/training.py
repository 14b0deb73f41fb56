"""Train many settings of the methods together on one federation, for comparisons and sweeps.

All settings of a case go through one simulation, so equal local jobs are trained once and a GPU trains them stacked.
"""

import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from fedtilt import data, models
from fedtilt.attacks.attack import Attack
from fedtilt.devices import pick_device
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.round_metrics import RoundMetrics, metrics_by_method
from fedtilt.files import read_json, write_json
from fedtilt.imports import import_function
from fedtilt.methods import COMPONENTS, PRESETS, Method
from fedtilt.runs.checkpointing import train_rounds
from fedtilt.simulation import Round
from fedtilt.storage.run_folder import InMemoryRun, RunFolder
from reproduction.experiment import Case, OnProgress, Options
from reproduction.results import round_floats

MAX_CURVE_POINTS = 13
_MEMORY_LIMIT = 8 * 2**30  # bytes: personal models of thirty settings fit; beyond that they go to files

Details = Callable[[PreparedRun, Round, Mapping[str, Mapping[str, RoundMetrics]]], dict[str, Any]]
Setting = dict[str, Any]  # preset or use, and its arguments, as JSON; the settings of rules stand beside the rule
_OF_RULES = {"bad_share": "bad_share", "clip_radius": "radius", "root_samples": "root_samples"}

PARTS = ("rounds", "methods", "settings", "diverged")  # keys that every result has


def fedavg() -> tuple[str, Setting]:
    """Name and setting of FedAvg."""
    return "fedavg", {"preset": "fedavg"}


def ditto(mu: float) -> tuple[str, Setting]:
    """Name and setting of Ditto; the name contains mu.

    >>> ditto(0.01)
    ('ditto mu=0.01', {'preset': 'ditto', 'mu': 0.01})
    """
    return f"ditto mu={mu:g}", {"preset": "ditto", "mu": mu}


def fedtilt(tau: float, lam: float, mu: float) -> tuple[str, Setting]:
    """Name and setting of FedTilt; the name contains the tilts."""
    return f"fedtilt tau={tau:g} lam={lam:g}", {"preset": "fedtilt", "tau": tau, "lam": lam, "mu": mu}


def federation_settings(settings: Mapping[str, Any], name: str, outliers: str, **train: Any) -> dict[str, Any]:
    """The federation's part of a case's settings.

    Args:
        settings: The experiment's settings; those of the data set override them.
        name: The data set.
        outliers: The kind of outliers, or the name of one of the experiment's conditions.
        **train: Training settings that override both.
    """
    data_settings = settings[name]
    keys = ("rounds", "participation", "epochs", "batch_size", "last_batch", "lr", "precision")
    return {
        "data": name,
        "outliers": settings.get("conditions", {}).get(outliers, outliers),
        "clients": {
            key: value for key in ("count", "classes_per_client", "validation", "max_train")
            if (value := data_settings.get(key, settings["clients"].get(key))) is not None
        },
        "model": data_settings["model"],
        **({"hidden": data_settings["hidden"]} if "hidden" in data_settings else {}),
        "train": {
            key: value for key in keys if (value := data_settings.get(key, settings["train"].get(key))) is not None
        } | train,
    }  # fmt: skip


def grid_case(
    name: str,
    federation: Mapping[str, Any],
    seed: int,
    methods: Mapping[str, Setting],
    *,
    what: str,
    parts: tuple[str, ...] = PARTS,
    grid: str = "",
) -> Case:
    """The case that trains these methods together with one seed, which its name and description end with.

    Args:
        name: The name of the case without the seed.
        federation: See `federation_settings`.
        seed: The seed.
        methods: Name → setting.
        what: The description of the case without the seed.
        parts: The keys that its result must have.
        grid: The settings in one line.
    """
    return Case(
        name=f"{name}-seed-{seed}",
        what=f"{what}, seed {seed}: {len(methods)} settings, {federation['train']['rounds']} rounds",
        settings={**federation, "seed": seed, "methods": dict(methods)},
        needs=federation["data"],
        parts=parts,
        grid=grid,
    )


def measure_grid(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train all settings of one case together, with learning curves."""
    return train_grid(case.settings, options, on_progress)


def train_grid(
    settings: Mapping[str, Any], options: Options, on_progress: OnProgress, *,
    curves: bool = True, noisy_validation: bool = False, federation: data.Federation | None = None,
    details: Details | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train every method in a case's settings and return the metrics; one that diverges is listed and skipped.

    Args:
        settings: The federation (see `federation_settings`), the seed, and methods by name.
        options: Device, data folder and checkpoints.
        on_progress: Called after every round.
        curves: Evaluate on the way too; otherwise after the last round alone.
        noisy_validation: Evaluate also on validation data with the outliers of the training data.
        federation: The federation, if the settings do not describe it.
        details: What else the result has, as `details`, from the last round and its metrics by method and split.
    """
    federation = _federation(settings, options) if federation is None else federation
    methods = {name: method_of(name, setting) for name, setting in settings["methods"].items()}
    recorder = CaseRecorder(options, dict(settings))
    diverged = recorder.diverged
    result: dict[str, Any] = {"rounds": [], "methods": {}, "train_seconds": 0.0}
    while remaining := [method for name, method in methods.items() if name not in diverged]:
        try:
            result = _train(
                remaining, federation, settings, options, on_progress, recorder, curves, noisy_validation, details
            )
            break
        except Diverged as error:  # methods are independent: the others continue where they are
            diverged |= dict.fromkeys(error.methods, str(error))
            options.notice(f"{error}; the case continues without it")
    return round_floats(result | {"settings": settings["methods"], "diverged": diverged})


def _federation(settings: Mapping[str, Any], options: Options) -> data.Federation:
    outliers = settings["outliers"]
    return data.Federation.build(
        _dataset(settings["data"], options.data_dir),
        clients=settings["clients"]["count"],
        classes_per_client=settings["clients"]["classes_per_client"],
        validation=settings["clients"].get("validation", 0.0),
        max_train=settings["clients"].get("max_train"),
        outliers=outliers if isinstance(outliers, str) else data.Outliers(**outliers),
        seed=settings["seed"],
    )


@lru_cache(maxsize=1)
def _dataset(name: str, folder: str | None) -> data.Dataset:
    """Load a data set once for its cases, which run one after the other."""
    return data.load(name, folder)


def trial_name(setting: Setting) -> str:
    """A name that tells the setting.

    >>> trial_name({"preset": "ditto", "mu": 0.1, "personal_start": "initial"})
    'ditto mu=0.1 personal_start=initial'
    """
    made_by = setting.get("preset") or setting["use"]
    settings = {key: value for key, value in setting.items() if key not in ("preset", "use")}
    texts = [f"{key}={value if isinstance(value, str) else f'{value:g}'}" for key, value in settings.items()]
    return " ".join([made_by, *texts])


def method_of(name: str, setting: Setting) -> Method:
    """The method of a setting under this name: of a preset, or of the user's own function (use = "module:function").

    >>> setting = {"preset": "fedavg", "aggregator": "krum", "pre_aggregators": ["clipping"], "bad_share": 0.2}
    >>> method_of("a", setting).to_table()
    {'before': [{'rule': 'clipping'}], 'aggregator': {'rule': 'krum', 'bad_share': 0.2}}
    """
    flat = {key: value for key, value in setting.items() if key in _OF_RULES}
    arguments = {key: value for key, value in setting.items() if key not in ("preset", "pre_aggregators", *flat)}
    if "aggregator" in arguments:
        arguments["aggregator"] = _component("aggregator", arguments["aggregator"], flat)
    if "pre_aggregators" in setting:
        arguments["before"] = [_component("before", rule, flat) for rule in setting["pre_aggregators"]]
    if "use" not in setting:
        return PRESETS[setting["preset"]](name=name, **arguments)
    make = import_function(arguments.pop("use"), "use")
    method = make(name=name, **arguments)
    if not isinstance(method, Method):
        raise InputError(f"use = {setting['use']!r} returns {type(method).__name__}; return a Method")
    return method


def _component(kind: str, rule: str, flat: Setting) -> dict[str, Any]:
    names = [field.name for field in fields(COMPONENTS[kind][rule])]
    return {"rule": rule} | {_OF_RULES[key]: value for key, value in flat.items() if _OF_RULES[key] in names}


def _train(
    methods: Sequence[Method], federation: data.Federation, settings: Mapping[str, Any], options: Options,
    on_progress: OnProgress, recorder: "CaseRecorder", curves: bool, noisy_validation: bool, details: Details | None,
) -> dict[str, Any]:  # fmt: skip
    rounds = settings["train"]["rounds"]
    train = settings["train"]
    if pick_device(options.device).type != "cuda":
        train = {key: value for key, value in train.items() if key != "precision"}  # only CUDA supports it
    eval_every = math.ceil(rounds / MAX_CURVE_POINTS) if curves else rounds
    attack = Attack(**settings["attack"]) if settings.get("attack") else None
    training = TrainSettings(
        **train, seed=settings["seed"], device=options.device, eval_every=eval_every, attack=attack
    )
    model = models.MODELS[settings["model"]]
    if "hidden" in settings:
        model = partial(model, hidden=settings["hidden"])
    prepared = prepare(methods, federation, model, training)
    last: dict[str, dict[str, RoundMetrics]] = {}
    more: dict[str, Any] = {}
    correct: dict[str, dict[str, Any]] = {}

    def evaluate(r: Round) -> tuple[dict[str, float], str]:
        tests = metrics_by_method(r.counts, r.total, federation.has_outliers, attack_success=r.attack_success)
        validation = metrics_by_method(r.validation, r.validation_total, federation.has_outliers)
        noisy = _on_noisy_validation(prepared, r) if noisy_validation and r.number == rounds else {}
        for name, summary in tests.items():
            splits = {"test": summary, "validation": validation.get(name), "noisy_validation": noisy.get(name)}
            last[name] = {split: found for split, found in splits.items() if found is not None}
        if r.counts is not None and r.total is not None and r.number == rounds:
            has_samples, more["samples"] = r.total > 0, _by_client(r.total, r.total > 0)
            for name, counts in r.counts.items():
                models = {"shared": counts.shared, "personal": counts.personal}
                correct[name] = {
                    view: None if sums is None else _by_client(sums, has_samples) for view, sums in models.items()
                }
        if details is not None and r.number == rounds:
            more["details"] = details(prepared, r, last)
        accuracy = {name: summary.evaluated.accuracy for name, summary in tests.items()}
        best = max(accuracy, key=lambda name: accuracy[name])
        return accuracy, f"best so far: {best}, {accuracy[best]:.1f} %"

    train_case(prepared, recorder, options, on_progress, evaluate)
    return {
        "rounds": [number for number, _ in recorder.curve],
        "methods": {
            m.name: {
                split: _to_json(summary) | ({"correct": correct[m.name]} if split == "test" else {})
                for split, summary in last[m.name].items()
            }
            | {"curve": [accuracy[m.name] for _, accuracy in recorder.curve]}
            for m in methods
        },
        "train_seconds": recorder.seconds(),
        **more,
    }


def _by_client(counts: Tensor, has_samples: Tensor) -> list[list[int]]:
    """Counts (clients, classes) of every client, of the classes of which it has test samples; others are left out."""
    pairs = zip(counts, has_samples, strict=True)
    return [of_client[found].tolist() for of_client, found in pairs if found.any()]


def _on_noisy_validation(prepared: PreparedRun, r: Round) -> dict[str, RoundMetrics]:
    """The metrics on validation data with the outliers of the training data."""
    federation = replace(prepared.federation, validation_outliers=True)
    evaluator = Evaluator(federation, prepared.net, prepared.parts, prepared.device, "validation")
    counts = evaluator.all_counts(prepared.methods, r.state)
    return metrics_by_method(counts, evaluator.total, federation.has_outliers)


def _to_json(summary: RoundMetrics) -> dict[str, Any]:
    personal = summary.personal and summary.personal.by_name()
    success = {} if summary.attack_success is None else {"attack_success": summary.attack_success}
    return {
        "shared": summary.shared.by_name(), "personal": personal, "never_selected": summary.never_selected, **success,
    }  # fmt: skip


def evaluated(method: Mapping[str, Any], split: str = "test") -> dict[str, float]:
    """Metrics of the evaluated models in one method's result: v where the method has them, otherwise w."""
    return method[split]["personal"] or method[split]["shared"]


class CaseRecorder(InMemoryRun):
    """Checkpoints and learning curves of a case; a short case writes no files."""

    def __init__(self, options: Options, settings: dict[str, Any]) -> None:
        super().__init__(_MEMORY_LIMIT)
        self._settings = settings
        self.state: FederationState | None = None
        self.curve: list[tuple[int, dict[str, float]]] = []
        self.diverged: dict[str, str] = {}  # method → why
        self._earlier_seconds, self._started = 0.0, time.monotonic()
        self._run_folder = RunFolder(options.work, _MEMORY_LIMIT) if options.work else None
        if self._run_folder is not None:
            self.client_states = self._run_folder.client_states
            self._resume(self._run_folder, options)

    def _resume(self, run_folder: RunFolder, options: Options) -> None:
        progress_file = run_folder.folder / "progress.json"
        progress = read_json(progress_file) if progress_file.exists() else {}
        if progress.get("settings") != self._settings:
            shutil.rmtree(run_folder.folder, ignore_errors=True)
            return
        self.state = run_folder.resume(options.notice)
        if self.state is not None:
            self.curve = [(number, values) for number, values in progress["curve"] if number <= self.state.round]
            self.diverged, self._earlier_seconds = progress["diverged"], progress["seconds"]
            options.notice(f"resumes after round {self.state.round}")

    def seconds(self) -> float:
        """Running time of the case, without interruptions."""
        return self._earlier_seconds + time.monotonic() - self._started

    def checkpoint(self, state: FederationState, keep: Collection[int] = ()) -> None:
        """Write a checkpoint; not after the final round, whose result is written next."""
        if self._run_folder is None or state.round == self._settings["train"]["rounds"]:
            return
        progress = {
            "settings": self._settings, "curve": self.curve, "diverged": self.diverged, "seconds": self.seconds(),
        }  # fmt: skip
        write_json(self._run_folder.folder / "progress.json", progress, sync=False)
        self._run_folder.checkpoint(state, keep)


def train_case(
    prepared: PreparedRun,
    recorder: CaseRecorder,
    options: Options,
    on_progress: OnProgress,
    evaluate: Callable[[Round], tuple[dict[str, float], str]],
) -> None:
    """Train to the last round, from where the case stopped; `evaluate` returns accuracies by method, and a message."""
    messages: dict[int, str] = {}

    def record(r: Round) -> None:
        recorder.state = r.state  # where the others continue if a method diverges
        if r.counts is not None:
            accuracy, messages[r.number] = evaluate(r)
            recorder.curve.append((r.number, accuracy))

    train_rounds(
        prepared, recorder, recorder.state, record=record, checkpoint_seconds=options.checkpoint_seconds,
        on_round=lambda r, _: on_progress(r.number, prepared.settings.rounds, messages.get(r.number, "")),
        notice=options.notice,
    )  # fmt: skip
