"""What collecting for the audit costs: processor time of the same rounds with and without it, workers included.

    python -m benchmarks.audit_cost [mnist|digits] [rounds]

Processor time, in turns, and the least of several repeats: other load on the machine only adds to it.
"""

import resource
import sys
from functools import partial

import fedtilt as ft

METHODS = [ft.fedavg(), ft.ditto(0.01), ft.fedtilt(tau=0.0, lam=-2.0, mu=0.01)]
HIDDEN = {"mnist": (200, 200), "digits": (64, 64)}
REPEATS = 7


def cost(data: str, rounds: int) -> tuple[float, float]:
    """Least processor seconds of so many rounds, without the audit and with it."""
    clients = 100 if data == "mnist" else 20
    federation = ft.Federation.build(ft.data.load(data), clients=clients, classes_per_client=2)
    model = partial(ft.models.mlp, hidden=HIDDEN[data])
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(REPEATS):
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
    names = [argument for argument in sys.argv[1:] if argument in HIDDEN] or list(HIDDEN)
    rounds = next((int(argument) for argument in sys.argv[1:] if argument.isdecimal()), 10)
    for name in names:
        plain, audited = cost(name, rounds)
        share = audited / plain - 1
        print(f"{name}, {rounds} rounds: {plain:.2f} s, with the audit {audited:.2f} s; the audit costs {share:+.1%}")


if __name__ == "__main__":
    main()
