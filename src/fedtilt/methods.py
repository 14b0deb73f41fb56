"""Methods as settings of one dataclass: FedTilt and its special cases FedAvg, FedProx, Ditto and TERM."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from fedtilt.checks import is_plain_name, number, whole
from fedtilt.data.groups import CLASS
from fedtilt.errors import InputError
from fedtilt.math.aggregate import AGGREGATORS, solvable
from fedtilt.math.distances import get_distance

Levels = Sequence[tuple[str, float]]
PERSONAL_START = (
    "last",  # where the client's last round ended; in its first round, at the received w
    "initial",  # the same, but in its first round at the initial model, as in the paper's Algorithm 1
    "received",  # at the received w in every round: fine-tuning
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """How clients train and how the server aggregates.

    In a round, a client minimises its tilted loss R (tilts `tau`, or those of `levels`, and `lam`) plus a proximal term
    towards the w that it receives: R(θ) + prox/2 · ‖θ − w‖² for the shared model and, if `mu` is finite, R(θ) + mu/2 ·
    ‖θ − w‖² for its personal model v.
    """

    name: str  # unique in a run
    tau: float = 0.0  # tilt over the groups of a client: those that the data names, else its classes
    lam: float = 0.0  # tilt over the samples of a group
    levels: Levels = ()  # in place of tau, (groups, tilt) from inner to outer: (("class", 5.0), ("ward", 2.0))
    q: float = 0.0  # tilt over the distances to the client models, on the server
    mu: float = 0.01  # weight of the proximal term of the personal model; inf: no personal model
    prox: float = 0.0  # weight of the proximal term of the shared model (FedProx)
    distance: str = "squared_l2"  # between a client model and the shared model, on the server
    steps: tuple[int, float] | None = None  # (E_2, eta_3): gradient steps on the server; None: the exact optimum
    aggregator: str = "tilted"  # or another rule: mean, median, krum, …
    bad_share: float = 0.1  # the share of bad clients that trimmed_mean, krum and multi_krum tolerate
    lr: float | None = None  # learning rate of the shared model; None: the run's
    lr_personal: float | None = None  # learning rate of the personal model; None: the run's, else lr
    epochs_personal: int | None = None  # passes of the personal model over the data in a round; None: the run's epochs
    personal_start: str = "last"  # where v starts in a round: a word of PERSONAL_START
    weighting: str = "equal"  # how clients count on the server: "equal", or "samples" for their number of samples

    def __post_init__(self) -> None:
        if not is_plain_name(self.name):
            raise InputError(
                "a method's name is a short word without slashes, control characters or a leading dot, "
                f"got {self.name!r:.60}"
            )
        for key in ("tau", "lam", "q", "mu", "prox", "bad_share"):
            object.__setattr__(self, key, number(getattr(self, key), f"{key} of method {self.name!r}"))
        for key in ("mu", "prox"):
            if getattr(self, key) < 0:
                raise InputError(f"{key} of method {self.name!r} must be ≥ 0, got {getattr(self, key):g}")
        if math.isinf(self.prox):
            raise InputError(f"prox of method {self.name!r} must be finite: with inf the shared model would never move")
        if not 0 <= self.bad_share < 0.5:
            raise InputError(f"bad_share of method {self.name!r} must be in [0, 0.5), got {self.bad_share:g}")
        object.__setattr__(self, "levels", self._check_levels())
        self._check_rates()
        if self.steps is not None:
            object.__setattr__(self, "steps", self._check_steps())
        self._check_server()

    def _check_levels(self) -> tuple[tuple[str, float], ...]:
        levels = []
        for level in self.levels:
            match level:
                case (str(name), tilt):
                    levels.append((name, number(tilt, f"the tilt over {name!r} in levels of method {self.name!r}")))
                case _:
                    raise InputError(
                        f"levels of method {self.name!r} are pairs of groups and a tilt, from inner to outer, such as "
                        f'[["class", 5], ["ward", 2]]; got {level!r}'
                    )
        names = [name for name, _ in levels]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"levels of method {self.name!r} have {twice!r} twice; name every level once")
        if names and self.tau:
            raise InputError(
                f"tau = {self.tau:g} of method {self.name!r} has no effect beside levels; leave it out, or give its "
                f"tilt to {names[0]!r}"
            )
        return tuple(levels)

    def _check_rates(self) -> None:
        for key in ("lr", "lr_personal"):
            value = getattr(self, key)
            if value is not None:
                rate = number(value, f"{key} of method {self.name!r}")
                if not 0 < rate < math.inf:
                    raise InputError(f"{key} of method {self.name!r} must be a number > 0, got {rate:g}")
                object.__setattr__(self, key, rate)
        if self.epochs_personal is not None:
            epochs = whole(self.epochs_personal, f"epochs_personal of method {self.name!r}", 1)
            object.__setattr__(self, "epochs_personal", epochs)
        if self.personal_start not in PERSONAL_START:
            raise InputError(
                f"personal_start of method {self.name!r} must be one of {', '.join(PERSONAL_START)}, "
                f"got {self.personal_start!r}"
            )
        for key in ("lr_personal", "epochs_personal", "personal_start"):
            if not self.personal and getattr(self, key) != getattr(Method, key):
                raise InputError(
                    f"{key} of method {self.name!r} has no effect: it has no personal models; leave it out, or give a "
                    "finite mu"
                )

    def rates(self, lr: float, lr_personal: float | None) -> tuple[float, float]:
        """The learning rates of w and v in a run with these; the method's own come first.

        >>> ditto(lr_personal=0.001).rates(0.01, None), ditto(lr=0.1).rates(0.01, None)
        ((0.01, 0.001), (0.1, 0.1))
        """
        shared = lr if self.lr is None else self.lr
        personal = lr_personal if self.lr_personal is None else self.lr_personal
        return shared, shared if personal is None else personal

    def _check_steps(self) -> tuple[int, float]:
        message = f"steps of method {self.name!r} are (count ≥ 1, size > 0), got {self.steps!r}"
        try:
            count, size = (number(part, "steps") for part in self.steps or ())
        except (InputError, TypeError, ValueError):  # not numbers, not iterable, not two
            raise InputError(message) from None
        if not count.is_integer() or count < 1 or not 0 < size < math.inf:
            raise InputError(message)
        return int(count), size

    def _check_server(self) -> None:
        """Refuse server settings that are unknown, or that the aggregator would ignore."""
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
        unused = [] if rule is None else ["q", "distance", "steps"]
        unused += [] if rule and rule.takes_bad_share else ["bad_share"]
        for key in unused:
            if getattr(self, key) != getattr(Method, key):
                raise InputError(
                    f"{key} of method {self.name!r} is not used by aggregator {self.aggregator!r}; leave it out, or "
                    "use another aggregator"
                )
        if rule is None and self.steps is None and not solvable(self.distance, self.q):
            raise InputError(
                f"distance {self.distance!r} of method {self.name!r} with q = {self.q:g} has no direct solution; "
                "give steps = [count, size], or another distance or q"
            )

    @property
    def personal(self) -> bool:
        """Whether every client has a personal model."""
        return self.mu < math.inf


# settings of the client side; a preset takes some of them, and all settings of the server side
CLIENT_SETTINGS = ("tau", "lam", "levels", "mu", "prox")


def _preset(preset: str, name: str, settings: Mapping[str, object], **parameters: float | str | Levels) -> Method:
    allowed = [field.name for field in fields(Method) if field.name not in (*CLIENT_SETTINGS, *parameters, "name")]
    for key in settings:
        if key not in allowed:
            raise InputError(
                f"{key} is not a setting of {preset}, which besides its parameters takes {', '.join(allowed)}; leave "
                "it out, or use Method"
            )
    return Method(name=name, **parameters, **settings)  # type: ignore[arg-type]


def fedtilt(
    tau: float | None = None, lam: float | None = None, q: float = 0.0, mu: float = 0.01, *, levels: Levels = (),
    name: str = "fedtilt", **settings: object,
) -> Method:  # fmt: skip
    """FedTilt: shared and personal models, both with tilted losses.

    Zhang et al., FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning, arXiv 2503.13537.

    Args:
        tau: tilt over the groups of a client, those that the data names, else its classes; > 0 weights the worst
            groups, < 0 the best; required without levels
        lam: tilt over the samples of a group; > 0 weights the largest losses, < 0 ignores outliers; required
        q: tilt over the clients, on the server
        mu: weight of the proximal term of the personal model; inf: no personal model
        levels: more levels in place of tau, (groups, tilt) from inner to outer: "class" is the labels, other names are
            columns of groups
        name: the name of the method in the run
        **settings: any other setting of `Method`: learning rates, epochs_personal, aggregator, …

    >>> fedtilt(tau=50, lam=100).personal
    True
    >>> fedtilt(lam=-1, levels=[("class", 5), ("ward", 2)]).levels
    (('class', 5.0), ('ward', 2.0))
    """
    if lam is None or (tau is None and not len(levels)):
        raise InputError(
            f"method {name!r} needs {'lam' if lam is None else 'tau, or levels'}, such as fedtilt(tau=5, lam=-1)"
        )
    return _preset("fedtilt", name, settings, tau=0.0 if tau is None else tau, lam=lam, levels=levels, q=q, mu=mu)


def fedavg(*, name: str = "fedavg", **settings: object) -> Method:
    """FedAvg: one shared model, no tilts, the mean on the server (Proposition 1).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, arXiv
    1602.05629.
    """
    return _preset("fedavg", name, settings, mu=math.inf)


def fedprox(mu: float = 0.01, *, name: str = "fedprox", **settings: object) -> Method:
    """FedProx: FedAvg with a proximal term towards the received model (Proposition 2).

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127.
    """
    return _preset("fedprox", name, settings, mu=math.inf, prox=mu)


def ditto(mu: float = 0.01, *, name: str = "ditto", **settings: object) -> Method:
    """Ditto: FedAvg, and a personal model with a proximal term towards the received model (Proposition 3).

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221.
    """
    return _preset("ditto", name, settings, mu=mu)


def term(t: float, *, name: str = "term", **settings: object) -> Method:
    """TERM: one shared model with one tilt over all samples, tau = lam = t.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.
    """
    return _preset("term", name, settings, tau=t, lam=t, mu=math.inf)


def fedavg_finetuned(*, name: str = "fedavg_finetuned", **settings: object) -> Method:
    """FedAvg with local fine-tuning: in every round, a personal model starts at the received one and trains locally.

    Wang et al., Federated Evaluation of On-device Personalization, 2019, arXiv 1910.10252.
    """
    return _preset("fedavg_finetuned", name, settings, mu=0.0, personal_start="received")


def local(*, name: str = "local", **settings: object) -> Method:
    """Local training only: a personal model that starts at the initial one and never sees the shared model."""
    return _preset("local", name, settings, mu=0.0, personal_start="initial")


PRESETS = {
    "fedtilt": fedtilt,
    "fedavg": fedavg,
    "fedavg_finetuned": fedavg_finetuned,
    "fedprox": fedprox,
    "ditto": ditto,
    "term": term,
    "local": local,
}


def check_methods(
    methods: Iterable[Method], lr: float, lr_personal: float | None, *, plain_sgd: bool = True, epochs: bool = True
) -> list[Method]:
    """Check the methods of a run together: unique names, and learning rates for which the proximal terms are stable.

    Args:
        methods: the methods
        lr: the run's learning rate of shared models
        lr_personal: the run's learning rate of personal models; None: lr
        plain_sgd: whether clients train by plain SGD; the bound lr · mu < 2 holds for it alone
        epochs: whether clients train for a number of epochs; otherwise methods cannot have their own
    """
    if isinstance(methods, Method | str) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list, such as [ft.fedavg(), ft.ditto()], got {methods!r}")
    methods = list(methods)
    if not methods:
        raise InputError("a run needs at least one method")
    for m in methods:
        if not isinstance(m, Method):
            raise InputError(f"methods must be a list of methods, such as ft.fedavg() or ft.ditto(mu=0.1), got {m!r}")
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two methods are named {name!r}; give one of them another name=")
    for m in methods:
        if m.epochs_personal is not None and not epochs:
            raise InputError(
                f"epochs_personal = {m.epochs_personal} of method {m.name!r} has no effect with local_steps; leave one "
                "of them out"
            )
        rates = m.rates(lr, lr_personal)
        for key, weight, rate in (("prox", m.prox, rates[0]), ("mu", m.mu, rates[1])):
            if plain_sgd and weight < math.inf and rate * weight >= 2:
                raise InputError(
                    f"{key} = {weight:g} of method {m.name!r} with learning rate {rate:g} diverges: "
                    f"lr · {key} must be < 2, got {rate * weight:g}; lower one of them"
                )
    return methods


def check_levels(methods: Iterable[Method], groups: Iterable[str]) -> None:
    """Refuse a level over groups that the data does not name.

    Args:
        methods: the methods of the run
        groups: the columns of groups that the data names
    """
    known = [CLASS, *groups]
    for m in methods:
        for name, _ in m.levels:
            if name not in known:
                raise InputError(
                    f"levels of method {m.name!r} have {name!r}, but the data has the groups "
                    f"{', '.join(map(repr, known))}; name the column in data.group, or in group= of ft.data.table"
                )


def check_bad_share(methods: Iterable[Method], clients: int) -> None:
    """Refuse a rule that leaves out a share of the clients, if that share of a round's clients is none of them.

    Args:
        methods: the methods of the run
        clients: how many clients take part in a round
    """
    for m in methods:
        if m.aggregator in ("trimmed_mean", "multi_krum") and int(m.bad_share * clients + 1e-9) == 0:
            remedy = f"bad_share ≥ {1 / clients:.2g}" if clients > 2 else "another aggregator"
            raise InputError(
                f"bad_share = {m.bad_share:g} of method {m.name!r} is no client of the {clients} in a round, so "
                f"{m.aggregator} would be the plain mean; use {remedy}"
            )


def check_rates_used(methods: Iterable[Method], given: Container[str], table: str = "") -> None:
    """Refuse a learning rate of the run that has no effect, because the methods have their own.

    Args:
        methods: the methods of the run
        given: the settings of the run that somebody set
        table: what stands before a setting in the message, such as "train."
    """
    methods = list(methods)
    used = {
        "lr": any(m.lr is None for m in methods),
        "lr_personal": any(m.personal and m.lr_personal is None for m in methods),
    }
    for key, has_effect in used.items():
        if key in given and not has_effect:
            own = [m.name for m in methods if getattr(m, key) is not None]
            remedy = f"set that of {' or '.join(own)} instead" if own else "leave it out"
            raise InputError(f"{table}{key} has no effect: no method of this run takes it; {remedy}")
