"""Choose a method's settings on validation data: a grid, its Pareto front, and a recommendation.

Test data is not used. A grid is an ordinary run in which every setting is a method with its own name: all are trained
together, identical jobs once, and an interrupted search can be resumed.
"""

import shlex
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.results import Result
from fedtilt.files import write_json, write_toml
from fedtilt.locks import locked
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.spec_run import resume, run_spec
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.provenance import read_record

if TYPE_CHECKING:
    from fedtilt.spec import Spec

DEFAULT_AXES: dict[str, tuple[float, ...]] = {"tau": (0.0, 1.0, 10.0, 50.0), "lam": (-2.0, 0.0, 1.0, 10.0)}
MAX_ACCURACY_LOSS = 5.0  # points below the best accuracy; settings below that are not on the Pareto front
VALIDATION_SHARE = 0.1  # of a client's training samples, if the spec has no validation data

_LOWER_IS_BETTER = ("client_fairness", "client_data_fairness_mean")


class Tuning(NamedTuple):
    """The candidates of a search: one method of a spec with different settings."""

    method: str  # its name in the spec
    settings: dict[str, dict[str, float]]  # name of the candidate in the run → its settings
    command: str = ""  # to run the spec without the search
    diverged: tuple[str, ...] = ()  # names of candidates that diverged and were left out

    def to_json(self) -> dict[str, Any]:
        """As JSON values, numbers as text: JSON has no infinities."""
        settings = {name: {key: str(value) for key, value in values.items()} for name, values in self.settings.items()}
        return {"method": self.method, "settings": settings, "command": self.command, "diverged": list(self.diverged)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Tuning":
        """From JSON values."""
        settings = {
            name: {key: float(text) for key, text in texts.items()} for name, texts in values["settings"].items()
        }
        return cls(values["method"], settings, values["command"], tuple(values["diverged"]))

    def recommendation(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The candidate to use, the command that runs it, and the Pareto front, from the table of `over_seeds`."""
        columns = {name: table["methods"][name]["validation"] for name in self.settings if name not in self.diverged}
        means = {name: {key: column["mean"] for key, column in metrics.items()} for name, metrics in columns.items()}
        chosen = choose(means)
        options = "".join(f" --set {self._option(key, value)}" for key, value in self.settings[chosen].items())
        return {
            "method": self.method,
            "chosen": chosen,
            "run": self.command + options,
            "pareto_front": [chosen, *(name for name in pareto_front(means) if name != chosen)],
            "settings": self.to_json()["settings"],
            "diverged": list(self.diverged),
        }

    def _option(self, key: str, value: float) -> str:
        return shlex.quote(f"methods.{self.method}.{key}={_format_number(value)}")


def _format_number(value: float) -> str:
    """The shortest text that keeps every digit.

    >>> _format_number(10.0), _format_number(0.0123456789), _format_number(float("-inf"))
    ('10', '0.0123456789', '-inf')
    """
    return repr(float(value)).removesuffix(".0")


def choose(candidates: Mapping[str, Mapping[str, float]]) -> str:
    """The candidate with the highest accuracy (mean over clients); among equals, the one with the best client fairness.

    Accuracy comes first: a model that predicts one class per client is perfectly fair, and would win on fairness alone.

    >>> choose({
    ...     "good": {"accuracy": 97.0, "client_fairness": 3.0},
    ...     "fairer": {"accuracy": 97.0, "client_fairness": 2.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0},
    ... })
    'fairer'
    """
    if not candidates:
        raise InputError("there is no candidate to choose from; give at least one")
    return min(candidates, key=lambda name: (-candidates[name]["accuracy"], candidates[name]["client_fairness"]))


def pareto_front(candidates: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The Pareto front of accuracy, client fairness and client data fairness, the most accurate candidate first.

    Candidates more than `MAX_ACCURACY_LOSS` below the best accuracy are left out: a collapsed model is fair.

    >>> pareto_front({
    ...     "fair": {"accuracy": 96.0, "client_fairness": 1.0, "client_data_fairness_mean": 2.0},
    ...     "accurate": {"accuracy": 97.0, "client_fairness": 3.0, "client_data_fairness_mean": 2.0},
    ...     "neither": {"accuracy": 95.0, "client_fairness": 3.0, "client_data_fairness_mean": 2.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0, "client_data_fairness_mean": 50.0},
    ... })
    ['accurate', 'fair']
    """
    costs = {name: (-m["accuracy"], *(m[key] for key in _LOWER_IS_BETTER)) for name, m in candidates.items()}

    def dominated(name: str) -> bool:
        return any(
            other != costs[name] and all(a <= b for a, b in zip(other, costs[name], strict=True))
            for other in costs.values()
        )

    least = max(m["accuracy"] for m in candidates.values()) - MAX_ACCURACY_LOSS
    front = [name for name, m in candidates.items() if m["accuracy"] >= least and not dominated(name)]
    return sorted(front, key=lambda name: costs[name])


def axes_of(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """The axes of the grid from texts such as "tau=0,1,10"; without any, `DEFAULT_AXES`.

    >>> axes_of(["mu=0.01,1", "lam=-inf"])
    {'mu': (0.01, 1.0), 'lam': (-inf,)}
    """
    axes: dict[str, tuple[float, ...]] = {}
    for text in texts:
        key, _, numbers = (part.strip() for part in text.partition("="))
        try:
            values = tuple(dict.fromkeys(float(part) for part in numbers.split(",")))
        except ValueError:
            raise InputError(f"--over {text!r} is not KEY=NUMBER,…; write for example --over tau=0,1,10") from None
        if key in axes:
            raise InputError(f"--over {key} is given twice; write all its values in one, such as --over {key}=0,1,10")
        axes[key] = values
    return axes or dict(DEFAULT_AXES)


def grid_of(spec: "Spec", method: str | None, axes: Mapping[str, Sequence[float]]) -> tuple["Spec", Tuning]:
    """A spec with every combination of settings of one method, next to its other methods.

    Args:
        spec: the spec; its own setting of the method is a candidate too
        method: the name of the method; None: the first that takes all these settings
        axes: setting → values
    """
    from fedtilt.spec import dump, parse
    from fedtilt.spec.method import preset_settings

    raw = tomllib.loads(dump(spec))
    index = _index_of(spec, method, axes)
    base, name = raw["methods"][index], spec.methods[index].name
    rates = spec.methods[index].to_method().rates(spec.train.lr, spec.train.lr_personal)
    defaults = {key: p.default for key, p in preset_settings(spec.methods[index].preset).items()}
    current = defaults | dict(zip(("lr", "lr_personal"), rates, strict=True)) | base
    settings = {name: {key: current[key] for key in axes}}
    grid = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        if setting not in settings.values():
            candidate = " ".join([name, *(f"{key}={_format_number(value)}" for key, value in setting.items())])
            settings[candidate] = setting
            grid.append(base | setting | {"name": candidate})
    raw["methods"][index + 1 : index + 1] = grid
    if not spec.clients.validation:
        raw.setdefault("clients", {})["validation"] = VALIDATION_SHARE
    return parse(raw), Tuning(name, settings)


def search(
    spec: "Spec",
    tuning: Tuning,
    folder: Path,
    *,
    resuming: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[int, Result]:
    """Train a grid in a new folder, or resume it; the results by seed.

    A candidate that diverges is left out, and the others start again; their results do not depend on it.

    Args:
        spec: the grid
        tuning: its candidates; written into run.json
        folder: the run folder
        resuming: whether to continue in an existing folder
        callbacks: called before, after and between the rounds of every seed: see `Callback`
    """
    from fedtilt.spec import dump

    while True:
        try:
            if resuming:
                _delete_outdated_seeds(folder, spec)
                return resume(folder, callbacks=callbacks)
            note = {"tuning": tuning.to_json()}
            return run_spec(spec, folder, callbacks=callbacks, note=note)
        except Diverged as error:
            methods = tuple(m for m in spec.methods if m.name not in error.methods)
            if not set(error.methods) <= set(tuning.settings) or not any(m.name in tuning.settings for m in methods):
                raise
            them = "it" if len(error.methods) == 1 else "them"
            Callbacks(callbacks).on_notice(f"{error}; starting again without {them}")
            spec, resuming = spec.model_copy(update={"methods": methods}), True
            tuning = tuning._replace(diverged=tuple(dict.fromkeys([*tuning.diverged, *error.methods])))
            # in this order, so that after a kill in between, the next resume completes it
            write_json(folder / "run.json", read_record(folder) | {"tuning": tuning.to_json()})
            write_toml(folder / "spec.toml", dump(spec))


def _delete_outdated_seeds(folder: Path, spec: "Spec") -> None:
    """Delete the seeds that were started with candidates which are now left out."""
    names = [m.name for m in spec.methods]
    with locked(folder):
        for path in folder.glob("seed-*/fingerprint.json"):
            if list(read_fingerprint(path)["methods"]) != names:
                shutil.rmtree(path.parent)


def check_validation(spec: "Spec") -> None:
    """Refuse a search without validation samples."""
    from fedtilt.spec import federation_of

    federation = federation_of(spec, spec.seed)
    if not any(map(len, federation.validation_index)):
        largest = int(federation.train_sizes().max())
        raise InputError(
            f"clients.validation = {spec.clients.validation:g} gives no client a validation sample (the largest has "
            f"{largest} training samples); choose a larger share"
        )


def _index_of(spec: "Spec", method: str | None, axes: Mapping[str, object]) -> int:
    """The index of the method to tune in the spec."""
    from fedtilt.spec.method import MethodSpec, preset_settings

    numeric = [key for key, field in MethodSpec.model_fields.items() if field.annotation == float | None]
    settings = {i: [key for key in preset_settings(m.preset) if key in numeric] for i, m in enumerate(spec.methods)}
    names = [m.name for m in spec.methods]
    if method is not None and method not in names:
        raise InputError(f"method {method!r} is not in the spec; choose from {', '.join(names)}")
    candidates = [i for i in settings if method in (None, names[i])]
    for i in candidates:
        if all(key in settings[i] for key in axes):
            return i
    missing = [key for key in axes if not any(key in settings[i] for i in candidates)]
    keys = " and ".join(missing or axes)
    together = "" if missing else " together"
    possible = "; ".join(f"{names[i]} has {', '.join(settings[i])}" for i in candidates)
    raise InputError(
        f"--over {keys}: no method to tune has {'this setting' if len(missing or axes) == 1 else 'these settings'}"
        f"{together}; choose among those that can be tuned: {possible}"
    )
