"""Methods as settings of one dataclass, published ones by name, and the checks of those of a run."""

from fedtilt.methods.bad_share import check_bad_share
from fedtilt.methods.method import PERSONAL_START, Levels, Method
from fedtilt.methods.presets import (
    CLIENT_SETTINGS,
    PRESETS,
    ditto,
    fedavg,
    fedavg_finetuned,
    fedprox,
    fedtilt,
    local,
    term,
)
from fedtilt.methods.run_checks import check_levels, check_methods, check_rates_used

__all__ = [
    "CLIENT_SETTINGS",
    "PERSONAL_START",
    "PRESETS",
    "Levels",
    "Method",
    "check_bad_share",
    "check_levels",
    "check_methods",
    "check_rates_used",
    "ditto",
    "fedavg",
    "fedavg_finetuned",
    "fedprox",
    "fedtilt",
    "local",
    "term",
]
