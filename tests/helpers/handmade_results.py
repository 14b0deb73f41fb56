"""Small results of cases, written by hand."""

import random
from typing import Any

from reproduction import Options, load
from reproduction.results import CaseResult, ResultsFolder, round_floats
from reproduction.training import Setting, ditto, fedavg, fedtilt

KEYS = ("accuracy", "client_fairness", "client_data_fairness_mean", "client_data_fairness_std")


def metrics(accuracy: float, client: float = 1.0, mean: float = 4.0, std: float = 3.0) -> dict[str, float]:
    values = dict(zip(KEYS, (accuracy, client, mean, std), strict=True))
    return values | {"worst": accuracy, "best": accuracy, "minimum": accuracy}


def part(
    test: dict[str, float], validation: dict[str, float] | None = None, *, personal: bool = True
) -> dict[str, Any]:
    """One method's part of a result; `validation` metrics equal those on test data by default."""

    def split(values: dict[str, float]) -> dict[str, Any]:
        return {"shared": values, "personal": values if personal else None, "never_selected": 0}

    curve = [test["accuracy"] - 1, test["accuracy"]]
    return {"test": split(test), "validation": split(validation or test), "curve": curve}


def case_result(*entries: tuple[tuple[str, Setting], dict[str, Any]]) -> dict[str, Any]:
    """A case's result from pairs: (name, setting) and the method's part."""
    return {
        "rounds": [1, 2],
        "methods": {name: method for (name, _), method in entries},
        "settings": {name: setting for (name, setting), _ in entries},
        "diverged": {},
        "train_seconds": 1.0,
    }


def comparison_result(
    fedavg_test: dict[str, float], ditto_test: dict[str, float], fedtilt_test: dict[str, float],
    tilts: tuple[float, float] = (50.0, 100.0),
) -> dict[str, Any]:  # fmt: skip
    """The result of a comparison's case with one setting of each method."""
    return case_result(
        (fedavg(), part(fedavg_test, personal=False)),
        (ditto(0.01), part(ditto_test)),
        (fedtilt(*tilts, 0.01), part(fedtilt_test)),
    )


def write_tuned_results(folder: ResultsFolder, seeds: int, *, quick: bool = False) -> None:
    """Results of every case of the tuned comparison, with random metrics; methods differ by up to two points."""
    from reproduction.experiments.tuned import cases

    experiment = load("tuned").quick_version() if quick else load("tuned")
    for case in cases(experiment, Options(seeds=seeds, quick=quick)):
        methods = {}
        for name, setting in case.settings["methods"].items():
            level = random.Random(f"{case.name.partition('-seed-')[0]} {name}").uniform(94.0, 96.0)
            noise = random.Random(f"{case.name} {name}")
            values = [noise.gauss(mean, 0.5) for mean in (level, 100 - level, 99 - level, 98 - level)]
            test = part(round_floats(metrics(*values)), personal=setting["preset"] not in ("fedavg", "fedprox", "term"))
            methods[name] = {"test": test["test"]}
        result = {"methods": methods, "settings": case.settings["methods"], "diverged": {}}
        folder.append(
            "tuned",
            CaseResult(
                case=case.name, what=case.what, quick=quick, seeds=seeds, settings=case.settings, seconds=1.0,
                environment={"device": "cpu", "torch": "2", "fedtilt": "0"}, result=result,
            ),
        )  # fmt: skip
