"""Methods as settings of one dataclass, published ones by name, and the checks of those of a run."""

from fedtilt.methods.bad_share import check_bad_share
from fedtilt.methods.corrections import CORRECTIONS
from fedtilt.methods.method import PERSONAL_START, WEIGHTINGS, Levels, Method
from fedtilt.methods.presets import (
    CLIENT_SETTINGS,
    PRESETS,
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
from fedtilt.methods.run_checks import check_levels, check_methods, check_rates_used, check_steps_used

__all__ = [
    "CLIENT_SETTINGS",
    "CORRECTIONS",
    "PERSONAL_START",
    "PRESETS",
    "WEIGHTINGS",
    "Levels",
    "Method",
    "afl",
    "check_bad_share",
    "check_levels",
    "check_methods",
    "check_rates_used",
    "check_steps_used",
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
    "pfedme",
    "propfair",
    "qffl",
    "scaffold",
    "term",
    "term_clients",
]
