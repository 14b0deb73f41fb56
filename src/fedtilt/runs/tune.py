"""Choose a method's settings on validation data: a grid, the front that nothing in it beats, and the setting to take.

Test data is never looked at. A grid is an ordinary run in which every setting is a method of its own: all are trained
together, what they have in common once, and an interrupted one is resumed.
"""

import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.results import Result
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.locks import locked
from fedtilt.runs.run import Notice, OnRound
from fedtilt.runs.spec_run import resume, run_spec

if TYPE_CHECKING:
    from fedtilt.spec import Spec

USUAL: dict[str, tuple[float, ...]] = {"tau": (0.0, 1.0, 10.0, 50.0), "lam": (-2.0, 0.0, 1.0, 10.0)}
WITHIN = 5.0  # points below the best accuracy, beyond which a setting is no choice
SHARE = 0.1  # of a client's training samples, set aside where the spec sets none aside

_LESS_IS_BETTER = ("client_fairness", "client_data_fairness_mean")


class Tuning(NamedTuple):
    """The candidates of a grid: methods of a run that are one method of a spec with other settings."""

    method: str  # its name in the spec
    settings: dict[str, dict[str, float]]  # of every candidate, by its name in the run
    command: str = ""  # that runs the spec as it was given
    diverged: tuple[str, ...] = ()  # candidates that had to be left out

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON has no infinities."""
        told = {name: {key: str(value) for key, value in own.items()} for name, own in self.settings.items()}
        return {"method": self.method, "settings": told, "command": self.command, "diverged": list(self.diverged)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Tuning":
        """Back from plain values."""
        told = values["settings"].items()
        settings = {name: {key: float(text) for key, text in own.items()} for name, own in told}
        return cls(values["method"], settings, values["command"], tuple(values["diverged"]))

    def verdict(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """What `over_seeds` says of the candidates: the one to take, how to run it, and the front."""
        held = {name: table["methods"][name]["validation"] for name in self.settings if name not in self.diverged}
        means = {name: {key: column["mean"] for key, column in columns.items()} for name, columns in held.items()}
        chosen = choose(means)
        options = "".join(f" --set {self._option(key, value)}" for key, value in self.settings[chosen].items())
        return {
            "method": self.method,
            "chosen": chosen,
            "run": self.command + options,
            "front": [chosen, *(name for name in front(means) if name != chosen)],
            "settings": self.to_json()["settings"],
            "diverged": list(self.diverged),
        }

    def _option(self, key: str, value: float) -> str:
        return shlex.quote(f"methods.{self.method}.{key}={_written(value)}")


def _written(value: float) -> str:
    """A number as short as it can be written without losing a digit.

    >>> _written(10.0), _written(0.0123456789), _written(float("-inf"))
    ('10', '0.0123456789', '-inf')
    """
    return repr(float(value)).removesuffix(".0")


def choose(candidates: Mapping[str, Mapping[str, float]]) -> str:
    """The setting with the highest validation accuracy (mean over clients); among equals, the fairer to clients.

    Accuracy comes first because a setting that collapsed onto one class per client has equal clients and classes: it
    would win on any fairness alone.

    >>> choose({
    ...     "good": {"accuracy": 97.0, "client_fairness": 3.0},
    ...     "fairer": {"accuracy": 97.0, "client_fairness": 2.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0},
    ... })
    'fairer'
    """
    if not candidates:
        raise InputError("there is no setting to choose from; give at least one")
    return min(candidates, key=lambda name: (-candidates[name]["accuracy"], candidates[name]["client_fairness"]))


def front(candidates: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The settings that no other beats in accuracy, client fairness and client data fairness, the most accurate first.

    Far below the best accuracy, fairness is no merit: a model that collapsed is fair.

    >>> front({
    ...     "fair": {"accuracy": 96.0, "client_fairness": 1.0, "client_data_fairness_mean": 2.0},
    ...     "accurate": {"accuracy": 97.0, "client_fairness": 3.0, "client_data_fairness_mean": 2.0},
    ...     "neither": {"accuracy": 95.0, "client_fairness": 3.0, "client_data_fairness_mean": 2.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0, "client_data_fairness_mean": 50.0},
    ... })
    ['accurate', 'fair']
    """
    costs = {name: (-m["accuracy"], *(m[key] for key in _LESS_IS_BETTER)) for name, m in candidates.items()}

    def beaten(name: str) -> bool:
        return any(
            other != costs[name] and all(a <= b for a, b in zip(other, costs[name], strict=True))
            for other in costs.values()
        )

    enough = max(m["accuracy"] for m in candidates.values()) - WITHIN
    shown = [name for name, m in candidates.items() if m["accuracy"] >= enough and not beaten(name)]
    return sorted(shown, key=lambda name: costs[name])


def axes_of(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """What to vary, from texts such as "tau=0,1,10"; without any, the usual tilts.

    >>> axes_of(["mu=0.01,1", "lam=-inf"])
    {'mu': (0.01, 1.0), 'lam': (-inf,)}
    """
    axes: dict[str, tuple[float, ...]] = {}
    for text in texts:
        key, _, written = (part.strip() for part in text.partition("="))
        try:
            values = tuple(dict.fromkeys(float(part) for part in written.split(",")))
        except ValueError:
            raise InputError(f"--over {text!r} is not KEY=NUMBER,…; write for example --over tau=0,1,10") from None
        if key in axes:
            raise InputError(f"--over {key} is given twice; write all its values in one, such as --over {key}=0,1,10")
        axes[key] = values
    return axes or dict(USUAL)


def grid_of(spec: "Spec", method: str | None, axes: Mapping[str, Sequence[float]]) -> tuple["Spec", Tuning]:
    """A spec in which one method stands with every combination of these settings, beside all others as they are.

    Without a name, it is the first method that takes these settings. The spec's own setting is a candidate too.
    """
    from fedtilt.spec import dump, parse
    from fedtilt.spec.method import settings_of

    raw = tomllib.loads(dump(spec))
    place = _place(spec, method, axes)
    own, name = raw["methods"][place], spec.methods[place].name
    defaults = settings_of(spec.methods[place].preset)
    settings = {name: {key: own.get(key, defaults[key].default) for key in axes}}
    grid = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        if setting not in settings.values():
            called = " ".join([name, *(f"{key}={_written(value)}" for key, value in setting.items())])
            settings[called] = setting
            grid.append(own | setting | {"name": called})
    raw["methods"][place + 1 : place + 1] = grid
    if not spec.clients.validation:
        raw.setdefault("clients", {})["validation"] = SHARE
    return parse(raw), Tuning(name, settings)


def search(
    spec: "Spec",
    tuning: Tuning,
    folder: Path,
    *,
    resuming: bool = False,
    on_seed: Callable[[int], None],
    on_round: OnRound,
    notice: Notice,
) -> dict[int, Result]:
    """Train a grid in a new folder, or go on in the one where it was begun; run.json has the `Tuning`.

    A setting that diverges is left out, and the others start again: they come to the same without it.
    """
    from fedtilt.spec import dump

    while True:
        try:
            if resuming:
                _drop_stale(folder, spec)
                return resume(folder, on_seed=on_seed, on_round=on_round, notice=notice)
            note = {"tuning": tuning.to_json()}
            return run_spec(spec, folder, on_seed=on_seed, on_round=on_round, notice=notice, note=note)
        except Diverged as error:
            left = tuple(m for m in spec.methods if m.name not in error.methods)
            if not set(error.methods) <= set(tuning.settings) or not any(m.name in tuning.settings for m in left):
                raise
            notice(f"{error}; starting again without {'it' if len(error.methods) == 1 else 'them'}")
            spec, resuming = spec.model_copy(update={"methods": left}), True
            tuning = tuning._replace(diverged=tuple(dict.fromkeys([*tuning.diverged, *error.methods])))
            # in this order, so that a kill in between is mended by the next resumption
            write_json(folder / "run.json", read_json(folder / "run.json") | {"tuning": tuning.to_json()})
            write_bytes(folder / "spec.toml", dump(spec).encode())


def _drop_stale(folder: Path, spec: "Spec") -> None:
    """Remove the seeds that were begun with settings which are left out by now."""
    names = [m.name for m in spec.methods]
    with locked(folder):
        for job in folder.glob("seed-*/fingerprint.json"):
            if list(read_json(job)["methods"]) != names:
                shutil.rmtree(job.parent)


def check_validation(spec: "Spec") -> None:
    """Refuse to search where nothing would decide."""
    from fedtilt.spec import federation_of

    federation = federation_of(spec, spec.seed)
    if not any(map(len, federation.validation_index)):
        largest = int(federation.train_sizes().max())
        raise InputError(
            f"clients.validation = {spec.clients.validation:g} sets no sample aside at any client, the largest having "
            f"{largest}; choose a larger share"
        )


def _place(spec: "Spec", method: str | None, axes: Mapping[str, object]) -> int:
    """Where the method to tune stands in the spec."""
    from fedtilt.spec.method import MethodSpec, settings_of

    numbers = [key for key, field in MethodSpec.model_fields.items() if field.annotation == float | None]
    takes = {i: [key for key in settings_of(m.preset) if key in numbers] for i, m in enumerate(spec.methods)}
    names = [m.name for m in spec.methods]
    if method is not None and method not in names:
        raise InputError(f"method {method!r} is not in the spec; choose from {', '.join(names)}")
    asked = [i for i in takes if method in (None, names[i])]
    for i in asked:
        if all(key in takes[i] for key in axes):
            return i
    wanted = " and ".join(axes)
    told = "; ".join(f"{names[i]} takes {', '.join(takes[i])}" for i in asked)
    raise InputError(f"no method to tune takes {wanted} ({told}); add one to the spec, or choose others with --over")
