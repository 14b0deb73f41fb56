"""What all methods together cost on MNIST: python -m benchmarks.methods [--rounds 50] [--clients 100].

A run of all methods is compared with a run of three, FedAvg, Ditto and FedTilt. Both train the same clients on the same
batches; the bound is 1.3 times the number of methods times the time per method of the three.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import fedtilt as ft
from benchmarks.options import make_result_parser, save_result
from fedtilt.methods import PRESETS, Method

THREE = ("fedavg", "ditto", "fedtilt")
REQUIRED = {"fedtilt": {"tau": 50.0, "lam": 100.0}, "term": {"t": 5.0}}
BOUND = 1.3


def method(name: str) -> Method:
    """A published method with the settings that it requires."""
    return PRESETS[name](**REQUIRED.get(name, {}))


def seconds(names: Sequence[str], federation: ft.Federation, rounds: int) -> float:
    """The time of all rounds of one run, evaluations included."""
    start = time.perf_counter()
    for _ in ft.simulate([method(name) for name in names], federation, ft.models.mlp, rounds=rounds):
        pass
    return time.perf_counter() - start


def measure(data: str, rounds: int, clients: int, *, one_by_one: bool = False) -> dict[str, Any]:
    """Seconds of the two runs and the ratio of their costs per method; with `one_by_one`, of every method alone."""
    federation = ft.Federation.build(ft.data.load(data), clients=clients, seed=0)
    seconds(THREE, federation, 1)  # compile and warm up
    three = seconds(THREE, federation, rounds)
    together = seconds(list(PRESETS), federation, rounds)
    ratio = (together / len(PRESETS)) / (three / len(THREE))
    result: dict[str, Any] = {
        "rounds": rounds, "clients": clients, "methods": len(PRESETS), "three_seconds": round(three, 2),
        "all_seconds": round(together, 2), "ratio_per_method": round(ratio, 3), "bound": BOUND,
    }  # fmt: skip
    if one_by_one:
        result["seconds"] = {name: round(seconds([name], federation, rounds), 2) for name in PRESETS}
    return result


def main() -> None:
    """Measure, print and store the result."""
    parser = make_result_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--one-by-one", action="store_true", help="also every method alone")
    arguments = parser.parse_args()
    size = ("digits", 1, 10) if arguments.quick else ("mnist", arguments.rounds, arguments.clients)
    result = measure(*size, one_by_one=arguments.one_by_one)
    print(json.dumps(result, indent=1))
    save_result(arguments, "methods", result)


if __name__ == "__main__":
    main()
