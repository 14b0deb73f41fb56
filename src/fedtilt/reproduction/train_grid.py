"""One federation, many settings of the methods, trained together: what comparisons and sweeps are made of.

All settings of a cell go through one simulation, so that equal lanes are trained once and a GPU sees them stacked.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from fedtilt import data, models
from fedtilt.errors import Diverged
from fedtilt.evaluation.results import Summary, summarised
from fedtilt.files import read_json, write_json
from fedtilt.methods import PRESETS, Method
from fedtilt.reproduction.experiment import OnProgress, Options
from fedtilt.reproduction.results_folder import rounded
from fedtilt.rounds.client_states import FederationState
from fedtilt.rounds.settings import TrainSettings, pick_device
from fedtilt.simulation import prepare, simulate_prepared
from fedtilt.storage.run_folder import RunFolder

POINTS = 13  # of a learning curve, no more
_MEMORY = 8 * 2**30  # personal models of thirty settings fit; beyond that they go to files

Setting = dict[str, Any]  # preset and its arguments, as JSON

PARTS = ("rounds", "methods", "settings", "diverged")  # of every result


def fedavg() -> tuple[str, Setting]:
    """FedAvg under its name."""
    return "fedavg", {"preset": "fedavg"}


def ditto(mu: float) -> tuple[str, Setting]:
    """Ditto under a name that tells its setting.

    >>> ditto(0.01)
    ('ditto mu=0.01', {'preset': 'ditto', 'mu': 0.01})
    """
    return f"ditto mu={mu:g}", {"preset": "ditto", "mu": mu}


def fedtilt(tau: float, lam: float, mu: float) -> tuple[str, Setting]:
    """FedTilt under a name that tells its tilts."""
    return f"fedtilt tau={tau:g} lam={lam:g}", {"preset": "fedtilt", "tau": tau, "lam": lam, "mu": mu}


def federation_settings(settings: Mapping[str, Any], name: str, outliers: str, **train: Any) -> dict[str, Any]:
    """What every cell of a kind says of its federation, from an experiment's settings and those of one data set."""
    own = settings[name]
    keys = ("rounds", "participation", "epochs", "batch_size", "lr", "precision")
    return {
        "data": name,
        "outliers": outliers,
        "clients": {
            key: value for key in ("count", "classes_per_client", "validation", "max_train")
            if (value := own.get(key, settings["clients"].get(key))) is not None
        },
        "model": own["model"],
        "train": {
            key: value for key in keys if (value := own.get(key, settings["train"].get(key))) is not None
        } | train,
    }  # fmt: skip


def train_grid(settings: Mapping[str, Any], options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train every method of a cell's settings and tell what each came to; one that diverges is named and left out."""
    federation = data.Federation.build(
        _dataset(settings["data"], options.data_dir),
        clients=settings["clients"]["count"],
        classes_per_client=settings["clients"]["classes_per_client"],
        validation=settings["clients"].get("validation", 0.0),
        max_train=settings["clients"].get("max_train"),
        outliers=settings["outliers"],
        seed=settings["seed"],
    )
    methods = {name: method_of(name, setting) for name, setting in settings["methods"].items()}
    diverged: dict[str, str] = {}
    while True:
        kept = [method for name, method in methods.items() if name not in diverged]
        if not kept:
            found: dict[str, Any] = {"rounds": [], "methods": {}, "train_seconds": 0.0}
            return found | {"settings": settings["methods"], "diverged": diverged}
        try:
            found = _trained(kept, federation, settings, options, on_progress)
        except Diverged as error:  # lanes are independent: without it, the others come to the same
            diverged |= dict.fromkeys(error.methods, str(error))
            options.notice(f"{error}; the cell starts again without it")
            continue
        return rounded(found | {"settings": settings["methods"], "diverged": diverged})


@lru_cache(maxsize=1)
def _dataset(name: str, folder: str | None) -> data.Dataset:
    """Read once for all cells of a data set, which come one after the other."""
    return data.load(name, folder)


def method_of(name: str, setting: Setting) -> Method:
    """The method of that name with these settings."""
    rest = {key: value for key, value in setting.items() if key != "preset"}
    preset = cast(Callable[..., Method], PRESETS[setting["preset"]])
    return preset(name=name, **rest)


def _trained(
    methods: Sequence[Method], federation: data.Federation, settings: Mapping[str, Any], options: Options,
    on_progress: OnProgress,
) -> dict[str, Any]:  # fmt: skip
    rounds = settings["train"]["rounds"]
    train = settings["train"]
    if pick_device(options.device).type != "cuda":
        train = {key: value for key, value in train.items() if key != "precision"}  # which is CUDA's alone
    training = TrainSettings(
        **train, seed=settings["seed"], device=options.device, eval_every=math.ceil(rounds / POINTS)
    )
    desk = _Desk(options, {"settings": dict(settings), "methods": [m.name for m in methods]})
    model = models.MODELS[settings["model"]]
    last: dict[str, dict[str, Summary]] = {}
    work = prepare(methods, federation, model, training)
    for r in simulate_prepared(work, state=desk.state, client_states=desk.client_states):
        seen = ""
        if r.counts is not None:
            tests = summarised(r.counts, r.total, federation.has_outliers)
            last = {name: {"test": summary} for name, summary in tests.items()}
            for name, summary in summarised(r.validation, r.validation_total, federation.has_outliers).items():
                last[name]["validation"] = summary
            desk.note(r.number, {name: summary.evaluated.accuracy for name, summary in tests.items()})
            best = max(tests, key=lambda name: tests[name].evaluated.accuracy)
            seen = f"best so far: {best}, {tests[best].evaluated.accuracy:.1f} %"
        desk.keep(r.state, final=r.number == rounds)
        on_progress(r.number, rounds, seen)
    return {
        "rounds": [number for number, _ in desk.curve],
        "methods": {
            m.name: {split: _plain(summary) for split, summary in last[m.name].items()}
            | {"curve": [accuracy[m.name] for _, accuracy in desk.curve]}
            for m in methods
        },
        "train_seconds": desk.seconds(),
    }


def _plain(summary: Summary) -> dict[str, Any]:
    personal = summary.personal and summary.personal.by_name()
    return {"shared": summary.shared.by_name(), "personal": personal, "never_selected": summary.never_selected}


def evaluated(method: Mapping[str, Any], split: str = "test") -> dict[str, float]:
    """The metrics that count of one method's part of a result: v's where it has them, otherwise w's."""
    return method[split]["personal"] or method[split]["shared"]


class _Desk:
    """What a long cell needs to go on after an interruption; nothing is written before it has taken a while."""

    def __init__(self, options: Options, job: dict[str, Any]) -> None:
        self._folder: Path | None = options.work
        self._every = options.checkpoint_seconds
        self._job = job
        self._store = RunFolder(options.work, _MEMORY) if options.work else None
        self.client_states = self._store.client_states if self._store else None
        self.state: FederationState | None = None
        self.curve: list[tuple[int, dict[str, float]]] = []
        self._before = 0.0
        self._begun = self._saved = time.monotonic()
        if self._folder is not None and self._folder.exists():
            self._resume(options)

    def _resume(self, options: Options) -> None:
        assert self._folder is not None
        assert self._store is not None
        notes = self._folder / "notes.json"
        if not notes.exists() or read_json(notes)["job"] != self._job:
            shutil.rmtree(self._folder)
            return
        self.state = self._store.resume(options.notice)
        if self.state is not None:
            written = read_json(notes)
            self.curve = [(number, values) for number, values in written["curve"] if number <= self.state.round]
            self._before = written["seconds"]
            options.notice(f"goes on after round {self.state.round}")

    def note(self, number: int, accuracy: dict[str, float]) -> None:
        """Add a point to the curves."""
        self.curve.append((number, accuracy))

    def seconds(self) -> float:
        """How long the cell has taken, interruptions left out."""
        return self._before + time.monotonic() - self._begun

    def keep(self, state: FederationState, *, final: bool) -> None:
        """A checkpoint now and then; none at the end, when the result itself is about to be written."""
        if self._store is None or final or time.monotonic() - self._saved < self._every:
            return
        assert self._folder is not None
        write_json(
            self._folder / "notes.json", {"job": self._job, "curve": self.curve, "seconds": self.seconds()}, sync=False
        )
        self._store.checkpoint(state)
        self._saved = time.monotonic()
