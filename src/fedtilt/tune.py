"""Which setting to take: the one that is best on validation data; test data is never looked at."""

from collections.abc import Mapping

from fedtilt.errors import InputError


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
