"""Client-level differential privacy: its settings, and which methods it is known for.

The neighbouring federations are those in which one client is replaced by any other: the number of clients is public. In
every round the clients' updates are clipped, combined and hidden in Gaussian noise on the server (McMahan et al.,
Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv 1710.06963; `gaussian_mechanism` has the
mechanism, `accounting` the epsilon). What is covered, and what is not, is in docs/privacy.md.
"""

import math
from dataclasses import dataclass, fields

from fedtilt.config.setting_fields import check_table, setting
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.methods.aggregators import Mean, Tilted
from fedtilt.methods.weightings import Equal

RANDOMNESS = ("seed", "secret")
# parts of a method that change what a client trains, or what follows the noise; the others change the sensitivity
_COVERED = ("name", "origin", "objective", "personal", "prox", "lr", "optimizer")
_WITH_REASON = ("weighting", "aggregator")  # see `check_method`


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How clients are protected: `clip` and `delta`, with `noise`, `epsilon` or both.

    >>> Privacy(clip=1.0, epsilon=8, delta=1e-5).noise is None
    True
    """

    clip: float = setting(
        None, "the largest L2 norm of a client's update; a longer one is scaled down", gt=0, example=1.0
    )
    noise: float | None = setting(
        None,
        "the noise multiplier: the standard deviation of the noise on the mean of C updates is noise · clip / C; "
        "default: chosen to make epsilon last for all rounds",
        gt=0,
        example=2.0,
    )
    epsilon: float | None = setting(
        None, "the budget: a run stops before the round that would exceed it; default: none", gt=0, example=8.0
    )
    delta: float = setting(
        None, "the delta that epsilon is stated for, less than 1 / clients; required", gt=0, lt=1, example=1e-5
    )
    randomness: str | None = setting(
        None,
        "where noise and selection of clients come from: the seed, and whoever knows it can subtract the noise; or "
        "secret random numbers; default: seed in the simulator, secret in a deployment",
        choices=RANDOMNESS,
        example="secret",
    )

    def __post_init__(self) -> None:
        check_table(self, "privacy")
        if self.clip is None:
            raise InputError("privacy needs clip, the largest norm of a client's update, such as clip = 1.0")
        if self.noise is None and self.epsilon is None:
            raise InputError("privacy needs epsilon or noise, such as epsilon = 8")
        if self.delta is None:
            raise InputError("privacy needs delta, such as delta = 1e-5")

    def check_settings(self, screen: float | None, buffers: str, *, counts_classes: bool = False) -> None:
        """Raise InputError if the guarantee does not cover settings of the run."""
        if screen:
            raise InputError(
                f"screen = {screen:g} has no known sensitivity; leave it out: privacy.clip bounds every update"
            )
        if buffers == "average":
            raise InputError("buffers = 'average' are not covered by privacy; choose 'local' or 'frozen'")
        if counts_classes:
            raise InputError(
                "class_weights = 'balanced' count the samples of all clients, which privacy does not cover; give them "
                "as numbers"
            )

    def check_method(self, method: Method) -> None:
        """Raise InputError if the sensitivity of a method's aggregation is not known; see `sensitivity`."""
        name, reason, rule = method.name, None, method.aggregator
        if type(method.weighting) is not Equal:
            reason = f"weighting = {method.weighting.label!r} of method {name!r} counts private samples; use 'equal'"
        elif type(rule) not in (Tilted, Mean):
            reason = f"aggregator = {rule.label!r} of method {name!r} has no known sensitivity; use 'mean'"
        elif isinstance(rule, Tilted) and rule.distance != "squared_l2":
            reason = f"distance = {rule.distance!r} of method {name!r} has no known sensitivity; use 'squared_l2'"
        elif isinstance(rule, Tilted) and rule.steps is not None:
            reason = f"steps = {rule.steps} of method {name!r} do not reach the optimum; leave them out"
        elif isinstance(rule, Tilted) and not 0 <= rule.q < math.inf:
            reason = f"q = {rule.q:g} of method {name!r} has no known sensitivity; use 0 ≤ q < inf"
        for each in fields(method):
            value = getattr(method, each.name)
            if reason is None and each.name not in (*_COVERED, *_WITH_REASON) and value != each.default:
                shown = getattr(value, "label", value)
                reason = f"{each.name} = {shown!r} of method {name!r} has no known sensitivity; leave it out"
        if reason is not None:
            raise InputError(f"privacy: {reason}")
