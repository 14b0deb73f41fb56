"""How often the audit of clients names exactly the bad ones: a quarter of the clients, with 60 % wrong labels.

    python -m benchmarks.audit_clients
    python -m benchmarks.page --record bench-results/audit-clients.json

The same federations without flips count how often anybody is named there. The seeds are not those that the limits of
`fedtilt.auditing.clients` were chosen with (0 to 9).
"""

from collections.abc import Iterator

from benchmarks.audit import JUDGE, METHODS, Setting, load
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.options import result_file

SETTINGS = {"digits": Setting(20, 60, 0.25, 20, 5, 0.05, 0), "mnist": Setting(20, 100, 0.25, 20, 5, 0.02, 0)}
BAD = {"outlier_rate": 0.6, "outlier_clients": 0.25}
FIRST_SEED = 100


def all_cases(seeds: int) -> Iterator[Case]:
    """Data set, partition, where labels flip to (or none) and seed."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for data in SETTINGS:
            for partition in ("classes", "dirichlet", "iid"):
                for flip_to in ("none", "client", "any", "nearest"):
                    if partition != "iid" or flip_to != "client":  # there the same as any
                        yield {"data": data, "partition": partition, "flip_to": flip_to, "seed": seed}


def measure(case: Case) -> Case:
    """The bad clients of one federation, and those that the audit names."""
    flip_to, seed = case["flip_to"], case["seed"]
    setting = Setting(**vars(SETTINGS[case["data"]]) | {"partition": case["partition"]})
    outliers = {"outlier_clients": 0.0} if flip_to == "none" else BAD | {"outlier_flip_to": flip_to}
    federation = setting.federation(load(case["data"]), seed, **outliers)
    audit = setting.run(METHODS[:1], federation, seed).audit_clients(JUDGE)
    return case | {
        "bad": [federation.client_names[n] for n in federation.has_outliers.nonzero()[:, 0].tolist()],
        "named": sorted(audit.bad, key=federation.client_names.index),
        "different": len(audit.different),
    }


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    header = {"settings": {name: vars(setting) for name, setting in SETTINGS.items()}}
    cases = list(all_cases(options.seeds))
    if options.quick:
        cases = [case for case in all_cases(1) if case["flip_to"] == "any"][:1]
    measured = []
    with result_file(options, "audit-clients") as path:
        for case in run_cases("audit-clients", cases, measure, header, options.jobs, path):
            measured.append(case)
            what = f"{case['data']}, {case['partition']}, {case['flip_to']}, seed {case['seed']}"
            print(f"{what}: bad {case['bad']}, named {case['named']}", flush=True)
    bad = [case for case in measured if case["bad"]]
    right = sum(case["bad"] == case["named"] for case in bad)
    print(f"exactly the bad clients are named in {right} of {len(bad)} federations")


if __name__ == "__main__":
    main()
