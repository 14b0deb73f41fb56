"""How often the audit of clients names exactly the bad ones: a quarter of the clients, with 60 % wrong labels.

    python -m benchmarks.audit_clients
    python -m benchmarks.audit_page --record bench-results/audit-clients.json

The same federations without flips count how often anybody is named there. The seeds are not those that the limits of
`fedtilt.audit.clients` were chosen with (0 to 9).
"""

import argparse
from collections.abc import Iterator
from typing import Any

import fedtilt as ft
from benchmarks.audit import JUDGE, METHODS, Setting
from benchmarks.measure import write_result

SETTINGS = {"digits": Setting(20, 60, 0.25, 20, 5, 0.05, 0), "mnist": Setting(20, 100, 0.25, 20, 5, 0.02, 0)}
BAD = {"outlier_rate": 0.6, "outlier_clients": 0.25}
FIRST_SEED = 100


def cases(seeds: int) -> Iterator[tuple[str, str, str, int]]:
    """Data set, partition, where labels flip to (or none) and seed."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for data in SETTINGS:
            for partition in ("classes", "dirichlet", "iid"):
                for flip_to in ("none", "client", "any", "nearest"):
                    if partition != "iid" or flip_to != "client":  # there the same as any
                        yield data, partition, flip_to, seed


def measure(data: ft.data.Dataset, setting: Setting, flip_to: str, seed: int) -> dict[str, Any]:
    """The bad clients of one federation, and those that the audit names."""
    outliers = {"outlier_clients": 0.0} if flip_to == "none" else BAD | {"outlier_flip_to": flip_to}
    federation = setting.federation(data, seed, **outliers)
    audit = setting.run(METHODS[:1], federation, seed, workers=0).audit_clients(JUDGE)
    return {
        "bad": [federation.client_names[n] for n in federation.has_outliers.nonzero()[:, 0].tolist()],
        "named": sorted(audit.bad, key=federation.client_names.index),
        "different": len(audit.different),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    data = {name: ft.data.load(name) for name in SETTINGS}
    measured = []
    for name, partition, flip_to, seed in cases(options.seeds):
        setting = Setting(**vars(SETTINGS[name]) | {"partition": partition})
        case = {"data": name, "partition": partition, "flip_to": flip_to, "seed": seed}
        case |= measure(data[name], setting, flip_to, seed)
        measured.append(case)
        print(f"{name}, {partition}, {flip_to}, seed {seed}: bad {case['bad']}, named {case['named']}", flush=True)
        settings = {name: vars(setting) for name, setting in SETTINGS.items()}
        write_result("audit-clients", {"settings": settings, "cases": measured})
    right = sum(case["bad"] == case["named"] for case in measured if case["bad"])
    print(f"exactly the bad clients are named in {right} of {sum(bool(case['bad']) for case in measured)} federations")


if __name__ == "__main__":
    main()
