"""What collecting for the audit costs: processor time of the same rounds with and without it, workers included.

    python -m benchmarks.audit_cost [--data mnist|digits] [--rounds 10]

Processor time, in turns, and the least of several repeats: other load on the machine only adds to it.
"""

import resource
from functools import partial

import fedtilt as ft
from benchmarks.options import make_parser

METHODS = [ft.fedavg(), ft.ditto(0.01), ft.fedtilt(tau=0.0, lam=-2.0, mu=0.01)]
HIDDEN = {"mnist": (200, 200), "digits": (64, 64)}
REPEATS = 7


def cost(data: str, rounds: int, repeats: int) -> tuple[float, float]:
    """Least processor seconds of this many rounds, without the audit and with it."""
    clients = 100 if data == "mnist" else 20
    federation = ft.Federation.build(ft.data.load(data), clients=clients, classes_per_client=2)
    model = partial(ft.models.mlp, hidden=HIDDEN[data])
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for audit, measured in seconds.items():
            before = _processor_seconds()
            list(
                ft.simulate(
                    METHODS,
                    federation,
                    model,
                    rounds=rounds,
                    participation=10 / clients,
                    eval_every=rounds,
                    audit=audit,
                )
            )  # the workers have ended, so that their time counts
            measured.append(_processor_seconds() - before)
    return min(seconds[False]), min(seconds[True])


def _processor_seconds() -> float:
    """Of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Print one line per data set."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", choices=HIDDEN, help="only this one")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    names, rounds, repeats = [options.data] if options.data else list(HIDDEN), options.rounds, REPEATS
    if options.quick:
        names, rounds, repeats = ["digits"], 1, 1
    for name in names:
        plain, audited = cost(name, rounds, repeats)
        share = audited / plain - 1
        print(f"{name}, {rounds} rounds: {plain:.2f} s, with the audit {audited:.2f} s; the audit costs {share:+.1%}")


if __name__ == "__main__":
    main()
