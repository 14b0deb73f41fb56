"""fedtilt: federated learning that is fair to every client and class, and unharmed by bad data."""

from fedtilt import aggregate, data, models
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.losses import TiltedLoss
from fedtilt.methods import Method, ditto, fedavg, fedprox, fedtilt, term
from fedtilt.results import Result
from fedtilt.runs import resume, run
from fedtilt.simulate import Round, simulate
from fedtilt.tilt import nested_tilt, tilted_mean
from fedtilt.version import __version__

__all__ = [
    "Federation",
    "InputError",
    "Method",
    "Result",
    "Round",
    "TiltedLoss",
    "__version__",
    "aggregate",
    "data",
    "ditto",
    "fedavg",
    "fedprox",
    "fedtilt",
    "models",
    "nested_tilt",
    "resume",
    "run",
    "simulate",
    "term",
    "tilted_mean",
]
