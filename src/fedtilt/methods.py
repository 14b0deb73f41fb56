"""A method is a setting: FedTilt, and everything it contains as a special case."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from fedtilt.checks import number, plain_name
from fedtilt.errors import InputError
from fedtilt.math.aggregate import AGGREGATORS, solvable
from fedtilt.math.distances import get_distance


@dataclass(frozen=True, kw_only=True)
class Method:
    """How clients descend and how the server aggregates.

    A client's round follows from it: a shared lane w (tilted by `tau` and `lam`, pulled by `prox` towards the w it
    received) and, where `mu` is finite, a personal lane v (the same tilts, pulled by `mu` towards the w it received).
    """

    name: str
    tau: float = 0.0  # tilt over the classes of a client
    lam: float = 0.0  # tilt over the samples of a class
    q: float = 0.0  # tilt over the clients' distances, on the server
    mu: float = 0.01  # pull of the personal model towards the shared one; inf: no personal model
    prox: float = 0.0  # pull of the shared lane towards the received model (FedProx)
    distance: str = "squared_l2"
    steps: tuple[int, float] | None = None  # (E_2, eta_3) gradient steps on the server instead of its optimum
    aggregator: str = "tilted"  # or a classical rule: mean, median, krum, …
    bad_share: float = 0.1  # the share of bad clients that trimmed_mean, krum and multi_krum are built to stand
    weighting: str = "equal"  # or "samples": how much a client counts on the server

    def __post_init__(self) -> None:
        if not plain_name(self.name):
            raise InputError(f"a method's name is a plain word without slashes or a leading dot, got {self.name!r}")
        for key in ("tau", "lam", "q", "mu", "prox", "bad_share"):
            object.__setattr__(self, key, number(getattr(self, key), f"{key} of method {self.name!r}"))
        for key in ("mu", "prox"):
            if getattr(self, key) < 0:
                raise InputError(f"{key} of method {self.name!r} must be ≥ 0, got {getattr(self, key):g}")
        if math.isinf(self.prox):
            raise InputError(f"prox of method {self.name!r} must be finite: with inf the shared model would never move")
        if not 0 <= self.bad_share < 0.5:
            raise InputError(f"bad_share of method {self.name!r} must be in [0, 0.5), got {self.bad_share:g}")
        if self.steps is not None:
            object.__setattr__(self, "steps", self._checked_steps())
        self._check_server()

    def _checked_steps(self) -> tuple[int, float]:
        told = f"steps of method {self.name!r} are (count ≥ 1, size > 0), got {self.steps!r}"
        try:
            count, size = (number(part, "steps") for part in self.steps or ())
        except (InputError, TypeError, ValueError):  # not numbers, nothing to go through, not two
            raise InputError(told) from None
        if not count.is_integer() or count < 1 or not 0 < size < math.inf:
            raise InputError(told)
        return int(count), size

    def _check_server(self) -> None:
        """Refuse what the server's rule does not know, or would pass over in silence."""
        get_distance(self.distance)
        if self.aggregator != "tilted" and self.aggregator not in AGGREGATORS:
            raise InputError(
                f"unknown aggregator {self.aggregator!r} of method {self.name!r}; "
                f"choose one of {', '.join(['tilted', *AGGREGATORS])}"
            )
        rule = AGGREGATORS.get(self.aggregator)  # None: tilted
        if self.weighting not in ("equal", "samples"):
            raise InputError(f"weighting of method {self.name!r} must be 'equal' or 'samples', got {self.weighting!r}")
        if self.weighting == "samples" and rule and not rule.takes_weights:
            raise InputError(
                f"aggregator {self.aggregator!r} of method {self.name!r} takes no weights: use weighting='equal'"
            )
        idle = [] if rule is None else ["q", "distance", "steps"]
        idle += [] if rule and rule.takes_bad_share else ["bad_share"]
        for key in idle:
            if getattr(self, key) != getattr(Method, key):
                raise InputError(
                    f"{key} of method {self.name!r} means nothing to aggregator {self.aggregator!r}; leave it out, or "
                    "use another aggregator"
                )
        if rule is None and self.steps is None and not solvable(self.distance, self.q):
            raise InputError(
                f"distance {self.distance!r} of method {self.name!r} with q = {self.q:g} has no direct solution; "
                "give steps = [count, size], or another distance or q"
            )

    @property
    def personal(self) -> bool:
        """Whether every client keeps a model of its own."""
        return self.mu < math.inf


CLIENT_SETTINGS = (
    "tau",
    "lam",
    "mu",
    "prox",
)  # what clients do: a preset takes those it names; what the server does, all take


def _preset(preset: str, name: str, settings: Mapping[str, object], **own: float) -> Method:
    server = [field.name for field in fields(Method) if field.name not in (*CLIENT_SETTINGS, "name")]
    for key in settings:
        if key not in server:
            raise InputError(
                f"{key} is no setting of {preset}, which besides its own takes {', '.join(server)}; leave it out, or "
                "make a Method"
            )
    return Method(name=name, **own, **settings)  # type: ignore[arg-type]


def fedtilt(
    tau: float, lam: float, q: float = 0.0, mu: float = 0.01, *, name: str = "fedtilt", **settings: object
) -> Method:
    """FedTilt: both lanes with the tilts, v pulled by mu.

    >>> fedtilt(tau=50, lam=100).personal
    True
    """
    return _preset("fedtilt", name, settings, tau=tau, lam=lam, q=q, mu=mu)


def fedavg(*, name: str = "fedavg", **settings: object) -> Method:
    """FedAvg: one lane, no tilt, the mean on the server (Proposition 1)."""
    return _preset("fedavg", name, settings, mu=math.inf)


def fedprox(mu: float = 0.01, *, name: str = "fedprox", **settings: object) -> Method:
    """FedProx: FedAvg with the shared lane pulled towards the received model (Proposition 2)."""
    return _preset("fedprox", name, settings, mu=math.inf, prox=mu)


def ditto(mu: float = 0.01, *, name: str = "ditto", **settings: object) -> Method:
    """Ditto: FedAvg for w, and a personal v pulled by mu (Proposition 3)."""
    return _preset("ditto", name, settings, mu=mu)


def term(t: float, *, name: str = "term", **settings: object) -> Method:
    """TERM: one shared model with a one-level tilt, tau = lam = t."""
    return _preset("term", name, settings, tau=t, lam=t, mu=math.inf)


PRESETS = {"fedtilt": fedtilt, "fedavg": fedavg, "fedprox": fedprox, "ditto": ditto, "term": term}


def check_methods(methods: Iterable[Method], lr: float, lr_personal: float) -> list[Method]:
    """The methods of a run, after what can only be seen together: unique names, steps short enough for the pulls."""
    if isinstance(methods, Method | str) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list, such as [ft.fedavg(), ft.ditto()], got {methods!r}")
    methods = list(methods)
    if not methods:
        raise InputError("a run needs at least one method")
    for m in methods:
        if not isinstance(m, Method):
            raise InputError(f"methods must hold methods, such as ft.fedavg() or ft.ditto(mu=0.1), got {m!r}")
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two methods are named {name!r}; give one of them another name=")
    for m in methods:
        for key, pull, step in (("prox", m.prox, lr), ("mu", m.mu, lr_personal)):
            if pull < math.inf and step * pull >= 2:
                raise InputError(
                    f"{key} = {pull:g} of method {m.name!r} with learning rate {step:g} diverges: "
                    f"lr · {key} must be < 2, got {step * pull:g}; lower one of them"
                )
    return methods
