"""fedtilt: federated learning that is fair to clients and classes, and robust to bad data."""

from typing import TYPE_CHECKING

from fedtilt.errors import InputError
from fedtilt.lazy_imports import lazy_names
from fedtilt.version import __version__

if TYPE_CHECKING:
    from fedtilt import data, methods, models, testing
    from fedtilt.attacks.attack import Attack
    from fedtilt.auditing.labels import audit
    from fedtilt.auditing.samples import Audit
    from fedtilt.data import Federation
    from fedtilt.engine.settings import TrainSettings
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
    from fedtilt.privacy.privacy import Privacy
    from fedtilt.runs import trackers
    from fedtilt.runs.callback import Callback
    from fedtilt.runs.run import run
    from fedtilt.runs.spec_run import resume
    from fedtilt.simulation import Round, simulate
    from fedtilt.tuning.axes import Range
    from fedtilt.tuning.result import Tuning
    from fedtilt.tuning.tune import tune
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            "Attack": "fedtilt.attacks.attack:Attack",
            "Audit": "fedtilt.auditing.samples:Audit",
            "Callback": "fedtilt.runs.callback:Callback",
            "Federation": "fedtilt.data:Federation",
            "Method": "fedtilt.methods:Method",
            "Privacy": "fedtilt.privacy.privacy:Privacy",
            "Range": "fedtilt.tuning.axes:Range",
            "Result": "fedtilt.evaluation.results:Result",
            "Round": "fedtilt.simulation:Round",
            "TiltedLoss": "fedtilt.math.losses:TiltedLoss",
            "TrainSettings": "fedtilt.engine.settings:TrainSettings",
            "Tuning": "fedtilt.tuning.result:Tuning",
            "afl": "fedtilt.methods:afl",
            "aggregate": "fedtilt.math.aggregate",
            "audit": "fedtilt.auditing.labels:audit",
            "data": "fedtilt.data",
            "ditto": "fedtilt.methods:ditto",
            "fedavg": "fedtilt.methods:fedavg",
            "fedavg_finetuned": "fedtilt.methods:fedavg_finetuned",
            "feddyn": "fedtilt.methods:feddyn",
            "fedmgda": "fedtilt.methods:fedmgda",
            "fedper": "fedtilt.methods:fedper",
            "fedprox": "fedtilt.methods:fedprox",
            "fedrep": "fedtilt.methods:fedrep",
            "fedtilt": "fedtilt.methods:fedtilt",
            "local": "fedtilt.methods:local",
            "methods": "fedtilt.methods",
            "models": "fedtilt.models",
            "nested_tilt": "fedtilt.math.tilt:nested_tilt",
            "pfedme": "fedtilt.methods:pfedme",
            "propfair": "fedtilt.methods:propfair",
            "qffl": "fedtilt.methods:qffl",
            "resume": "fedtilt.runs.spec_run:resume",
            "run": "fedtilt.runs.run:run",
            "scaffold": "fedtilt.methods:scaffold",
            "simulate": "fedtilt.simulation:simulate",
            "term": "fedtilt.methods:term",
            "term_clients": "fedtilt.methods:term_clients",
            "testing": "fedtilt.testing",
            "tilted_mean": "fedtilt.math.tilt:tilted_mean",
            "trackers": "fedtilt.runs.trackers",
            "tune": "fedtilt.tuning.tune:tune",
        },
    )

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
    "TrainSettings",
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
    "methods",
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
    "testing",
    "tilted_mean",
    "trackers",
    "tune",
]
