"""Successive halving: all settings train for a few rounds, the best quarter goes on for four times as many.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016, arXiv
1502.07943.
"""

import math
from typing import NamedTuple

REDUCTION = 4  # a quarter of the settings goes on
FINALISTS = 2  # settings that are trained to the end, beside the one the user has


class Rung(NamedTuple):
    """A stage of the search."""

    settings: int  # how many train, without the one that the user has
    rounds: int  # until which round


def rungs(settings: int, rounds: int, *, halving: bool = True) -> list[Rung]:
    """The stages of a search over so many settings, besides the user's own, which is in all of them.

    >>> rungs(64, 50)
    [Rung(settings=64, rounds=1), Rung(settings=16, rounds=3), Rung(settings=4, rounds=12), Rung(settings=2, rounds=50)]
    >>> rungs(2, 50), rungs(16, 3)
    ([Rung(settings=2, rounds=50)], [Rung(settings=16, rounds=1), Rung(settings=2, rounds=3)])
    """
    sizes = [settings]
    while halving and sizes[-1] > FINALISTS:
        sizes.append(max(FINALISTS, math.ceil(sizes[-1] / REDUCTION)))
    found: list[Rung] = []
    for i, size in enumerate(sizes):
        until = max(1, round(rounds / REDUCTION ** (len(sizes) - 1 - i)))
        if not found or until > found[-1].rounds:  # a run of few rounds has fewer stages
            found.append(Rung(size, until))
    return found
