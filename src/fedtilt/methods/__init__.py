"""Methods: compositions of components, published ones by name, and the checks of those of a run."""

from fedtilt.config.setting_fields import setting
from fedtilt.methods.aggregators import Aggregator
from fedtilt.methods.before import Before, Prepared
from fedtilt.methods.component import COMPONENTS, Component, ServerRound, Slot
from fedtilt.methods.corrections import ClientStep, Correction, ServerStep
from fedtilt.methods.method import PARTS, Method, component_of
from fedtilt.methods.objectives import Levels, Objective
from fedtilt.methods.personal import Local, Moreau, Personal
from fedtilt.methods.presets import (
    PARAMETERS,
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
from fedtilt.methods.published import (
    aaggff,
    apfl,
    fedala,
    fedas,
    fedbabu,
    feddbe,
    fedminmax,
    fedrod,
    foundationfl,
    moon,
)
from fedtilt.methods.run_checks import check_bad_share, check_levels, check_methods, check_rates_used, check_steps_used
from fedtilt.methods.server_optimizers import ServerOptimizer
from fedtilt.methods.training import ClientBatch, ClientBatches, ClientResult, Training
from fedtilt.methods.weightings import Weighting
