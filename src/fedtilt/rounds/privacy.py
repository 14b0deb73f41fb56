"""Client-level differential privacy: its settings, and which methods it is known for.

The neighbouring federations are those in which one client is replaced by any other: the number of clients is public. In
every round the clients' updates are clipped, combined and hidden in Gaussian noise on the server (McMahan et al.,
Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv 1710.06963; `gaussian_mechanism` has the
mechanism, `privacy_accounting` the epsilon). What is covered, and what is not, is in docs/privacy.md.
"""

import math
from dataclasses import dataclass, fields

from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.rounds.setting_fields import check_table, setting

RANDOMNESS = ("seed", "secret")
# settings of a method that change what a client trains, or how its personal model is; the others change the server
_OF_CLIENTS = (
    "name", "tau", "lam", "mu", "prox", "lr", "lr_personal", "epochs_personal", "personal_start", "utility",
    "inner_steps",
)  # fmt: skip
_WITH_REASON = ("q", "distance", "steps", "aggregator", "bad_share", "weighting")  # see `check_method`


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
        "the noise multiplier: the standard deviation of the noise on the mean of C updates is noise · clip / C; left "
        "out: chosen so that epsilon lasts for all rounds",
        gt=0,
        example=2.0,
    )
    epsilon: float | None = setting(
        None, "the budget: a run stops before the round that would exceed it; left out: none", gt=0, example=8.0
    )
    delta: float = setting(
        None, "the delta that epsilon is stated for, less than 1 / clients; required", gt=0, lt=1, example=1e-5
    )
    randomness: str | None = setting(
        None,
        "where noise and selection of clients come from: the seed, and whoever knows it can subtract the noise; or "
        "secret random numbers; left out: seed in the simulator, secret in a deployment",
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

    def check_settings(self, screen: float | None, buffers: str) -> None:
        """Refuse settings of the run that the guarantee does not cover."""
        if screen:
            raise InputError(
                f"screen = {screen:g} has no known sensitivity; leave it out: privacy.clip bounds every update"
            )
        if buffers == "average":
            raise InputError("buffers = 'average' are not covered by privacy; choose 'local' or 'frozen'")

    def check_method(self, method: Method) -> None:
        """Refuse a method if the sensitivity of its aggregation is not known; see `sensitivity`."""
        name, reason = method.name, None
        if method.weighting != "equal":
            reason = f"weighting = {method.weighting!r} of method {name!r} counts private samples; use 'equal'"
        elif method.aggregator not in ("tilted", "mean"):
            reason = f"aggregator = {method.aggregator!r} of method {name!r} has no known sensitivity; use 'mean'"
        elif method.distance != "squared_l2":
            reason = f"distance = {method.distance!r} of method {name!r} has no known sensitivity; use 'squared_l2'"
        elif method.steps is not None:
            reason = f"steps = {method.steps} of method {name!r} do not reach the optimum; leave them out"
        elif not 0 <= method.q < math.inf:
            reason = f"q = {method.q:g} of method {name!r} has no known sensitivity; use 0 ≤ q < inf"
        for field in fields(method):
            known = field.name in (*_OF_CLIENTS, *_WITH_REASON)
            if reason is None and not known and getattr(method, field.name) != field.default:
                reason = f"{field.name} = {getattr(method, field.name)!r} of method {name!r} has no known sensitivity"
        if reason is not None:
            raise InputError(f"privacy: {reason}")
