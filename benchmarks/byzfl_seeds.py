"""ByzFL's own benchmark again, in the cells of its heat map that chance decides.

    pip install byzfl                                                  # only this benchmark needs it
    python -m benchmarks.byzfl_seeds --device cuda --data-dir DIR      # bench-results/byzfl_seeds.json
    python -m benchmarks.byzfl_seeds --record bench-results/byzfl_seeds.json   # record it, write docs/byzfl-seeds.md

A figure of the heat map is of three runs, which differ in the seed of their batches; the division of the data and the
first model have a seed of their own, the same for all. `--division-seeds` 1 trains with the published seeds alone.
Every run is saved when it ends; the same command continues after an interruption.
"""

import copy
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.options import require_package, result_file
from benchmarks.page import DOCS, add_page_options, machine_text, markdown_table, record_and_write
from reproduction import experiment

RECORD = DOCS / "byzfl-seeds" / "byzfl_seeds.json"
OUR_RUNS = DOCS / "reproduction" / "results" / "others"
PAGE = DOCS / "byzfl-seeds.md"
TEMPLATE = Path(__file__).parent / "byzfl_seeds.template.md"
KIND = "byzfl_seeds"
GAMMA, HONEST, ATTACKERS, BATCH_SEEDS = 0.0, 10, (3, 4), 3
METHODS = {"geometric-median": "GeometricMedian", "trimmed-mean": "TrMean"}
ATTACKS = {"sign-flip": "SignFlipping", "ipm": "Optimal_InnerProductManipulation"}


def measure(device: str, steps: int, data_dir: Path, case: Case) -> Case:
    """The case with the accuracy on the test data every 50 steps, from the first model on, in %."""
    from byzfl.benchmark.benchmark import default_config
    from byzfl.benchmark.train import start_training

    config = config_of(case, default_config)
    config["benchmark_config"] |= {"device": device, "nb_steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        config["evaluation_and_results"] |= {"data_folder": str(data_dir), "results_directory": folder}
        start_training(config)
        (file,) = Path(folder).rglob("test_accuracy_*.txt")
        curve = np.loadtxt(file, delimiter=",")
    return case | {"curve": [round(100 * value, 2) for value in curve.tolist()]}


def config_of(case: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """ByzFL's default configuration, which its heat maps were made with, narrowed down to one run."""
    config, bad = copy.deepcopy(dict(default)), case["attackers"]
    config["benchmark_config"] |= {
        "f": bad, "tolerated_f": bad, "nb_workers": HONEST + bad, "nb_honest_clients": HONEST,
        "data_distribution": {"name": "gamma_similarity_niid", "distribution_parameter": GAMMA},
        "training_seed": case["batch_seed"], "data_distribution_seed": case["division_seed"],
    }  # fmt: skip
    (rule,) = (rule for rule in config["aggregator"] if rule["name"] == METHODS[case["method"]])
    (attack,) = (attack for attack in config["attack"] if attack["name"] == ATTACKS[case["attack"]])
    config |= {"aggregator": rule, "attack": attack}
    for part in (rule, *config["pre_aggregators"]):
        part["parameters"]["f"] = bad
    return config


def best_of_mean(curves: Iterable[Sequence[float]]) -> float:
    """The best evaluation of the mean of several runs: a figure of the heat map under one attack."""
    return max(fmean(values) for values in zip(*curves, strict=True))


def figures(cases: Sequence[Mapping[str, Any]], attackers: int, method: str) -> dict[int, tuple[float, bool]]:
    """By division seed, the figure of the worst attack, and whether all attacks are measured.

    Where one is missing, the figure of the other is the most that it can be.
    """
    found = {}
    for division in sorted({case["division_seed"] for case in cases}):
        by_attack = [
            best_of_mean(curves) for attack in ATTACKS
            if len(curves := _curves(cases, attackers, method, attack, division)) == BATCH_SEEDS
        ]  # fmt: skip
        if by_attack:
            found[division] = (min(by_attack), len(by_attack) == len(ATTACKS))
    return found


def _curves(
    cases: Sequence[Mapping[str, Any]], attackers: int, method: str, attack: str, division: int | None = None
) -> list[list[float]]:
    wanted = {"attackers": attackers, "method": method, "attack": attack}
    wanted |= {} if division is None else {"division_seed": division}
    return [case["curve"] for case in cases if wanted.items() <= case.items()]


def our_runs(attackers: int, method: str, attack: str, folder: Path = OUR_RUNS) -> list[float]:
    """The best evaluation of each of our runs."""
    files = sorted(folder.glob(f"byzfl-mnist-gamma-0-f-{attackers}-{attack}-seed-*.json"))
    return [json.loads(file.read_text())["result"]["best"][method] for file in files]


def render(record: Mapping[str, Any], template: str) -> str:
    """The page: the template with its tables and the sentences on them."""
    published = experiment.load("others").published["byzfl"]["mnist"]["gamma-0"]
    cases, seeds = record["cases"], sorted({case["division_seed"] for case in record["cases"]})
    cells = [["attackers", "method", "published", *(f"division seed {seed}" for seed in seeds)]]
    runs = [["attackers", "method", "attack", "ByzFL, runs", "best evaluation", "ours, runs", "best evaluation",
             "difference", "standard error"]]  # fmt: skip
    again, errors = [], []
    for bad, method in product(ATTACKERS, METHODS):
        found, figure = figures(cases, bad, method), published[method][bad - 1]
        again += [abs(found[0][0] - figure)] if 0 in found and found[0][1] else []
        texts = [_figure(*found[seed]) if seed in found else "not measured" for seed in seeds]
        cells.append([str(bad), method, str(figure), *texts])
        for attack in ATTACKS:
            theirs = [max(curve) for curve in _curves(cases, bad, method, attack)]
            ours = our_runs(bad, method, attack)
            difference, error = difference_of_means(ours, theirs)
            errors.append(abs(difference) / error)
            runs.append([str(bad), method, attack, str(len(theirs)), _spread(theirs), str(len(ours)), _spread(ours),
                         f"{difference:+.1f}".replace("-", "−"), f"{error:.1f}"])  # fmt: skip
    near = sum(error < 2 for error in errors)
    same = " So our runs cannot be told from ByzFL's; several points between two figures of these cells are chance."
    values = {
        "{CHANGE}": f"{mean_change(cases):.0f}",
        "{CELLS}": markdown_table(cells, text_columns=2).strip(),
        "{AGAIN}": f"With the published seeds, division seed 0, ByzFL's own code differs from its published figures "
                   f"by up to {max(again):.1f} points.",
        "{RUNS}": markdown_table(runs, text_columns=3).strip(),
        "{NEAR}": f"{near} of {len(errors)} differences are smaller than two standard errors; the largest is "
                  f"{max(errors):.1f} of them." + same * (near == len(errors)),
        "{MACHINE}": f"ByzFL {record['byzfl']}, {machine_text(record)}.",
    }  # fmt: skip
    for key, value in values.items():
        template = template.replace(key, value)
    return template


def mean_change(cases: Sequence[Mapping[str, Any]]) -> float:
    """How far the accuracy of a run moves from one evaluation to the next, in points."""
    return fmean(abs(b - a) for case in cases for a, b in pairwise(case["curve"]))


def difference_of_means(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Of two groups of runs with deviations of their own, and its standard error."""
    return fmean(ours) - fmean(theirs), math.sqrt(sum(stdev(group) ** 2 / len(group) for group in (ours, theirs)))


def _figure(value: float, complete: bool) -> str:
    return f"{value:.1f}" if complete else f"at most {value:.1f}"


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def page() -> str:
    """docs/byzfl-seeds.md from the recorded result."""
    return render(json.loads(RECORD.read_text()), TEMPLATE.read_text())


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--division-seeds", type=int, default=2, help="how many, from 0 on (default: 2)")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="torchvision's folder of MNIST")
    add_page_options(parser, PAGE)
    options = parser.parse_args()
    if record_and_write(options, RECORD, PAGE, page):
        return
    require_package("byzfl", "pip install byzfl")
    steps = 50 if options.quick else options.steps
    cases = [
        {"division_seed": division, "attackers": bad, "method": method, "attack": attack, "batch_seed": batches}
        for division, attack, bad, method, batches in product(
            range(options.division_seeds), ATTACKS, ATTACKERS, METHODS, range(BATCH_SEEDS)
        )
    ][: 1 if options.quick else None]
    header = {"byzfl": metadata.version("byzfl"), "device": options.device, "steps": steps, "gamma": GAMMA}
    of_case = partial(measure, options.device, steps, options.data_dir)
    with result_file(options, KIND) as path:
        for case in run_cases(KIND, cases, of_case, header, options.jobs, path, options.device):
            where = ", ".join(f"{key} {value}" for key, value in case.items() if key != "curve")
            print(f"{where}: best {max(case['curve']):.1f}", flush=True)


if __name__ == "__main__":
    main()
