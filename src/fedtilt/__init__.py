"""fedtilt: federated learning that is fair to clients and classes, and robust to bad data."""

from fedtilt import data, models
from fedtilt.auditing.labels import audit
from fedtilt.auditing.samples import Audit
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result
from fedtilt.math import aggregate
from fedtilt.math.losses import TiltedLoss
from fedtilt.math.tilt import nested_tilt, tilted_mean
from fedtilt.methods import (
    Method,
    afl,
    ditto,
    fedavg,
    fedavg_finetuned,
    feddyn,
    fedmgda,
    fedper,
    fedprox,
    fedrep,
    fedtilt,
    local,
    pfedme,
    propfair,
    qffl,
    scaffold,
    term,
    term_clients,
)
from fedtilt.rounds.attack import Attack
from fedtilt.rounds.privacy import Privacy
from fedtilt.runs import trackers
from fedtilt.runs.callback import Callback
from fedtilt.runs.run import run
from fedtilt.runs.spec_run import resume
from fedtilt.runs.tuning.axes import Range
from fedtilt.runs.tuning.result import Tuning
from fedtilt.runs.tuning.tune import tune
from fedtilt.simulation import Round, simulate
from fedtilt.version import __version__

__all__ = [
    "Attack",
    "Audit",
    "Callback",
    "Federation",
    "InputError",
    "Method",
    "Privacy",
    "Range",
    "Result",
    "Round",
    "TiltedLoss",
    "Tuning",
    "__version__",
    "afl",
    "aggregate",
    "audit",
    "data",
    "ditto",
    "fedavg",
    "fedavg_finetuned",
    "feddyn",
    "fedmgda",
    "fedper",
    "fedprox",
    "fedrep",
    "fedtilt",
    "local",
    "models",
    "nested_tilt",
    "pfedme",
    "propfair",
    "qffl",
    "resume",
    "run",
    "scaffold",
    "simulate",
    "term",
    "term_clients",
    "tilted_mean",
    "trackers",
    "tune",
]
