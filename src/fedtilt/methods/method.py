"""A method: how clients train and how the server aggregates, as settings of one dataclass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedtilt.checks import is_plain_name, number, whole
from fedtilt.errors import InputError
from fedtilt.html_table import html_table
from fedtilt.math.aggregate import AGGREGATORS, PRE_AGGREGATORS, solvable, used_settings
from fedtilt.math.distances import get_distance
from fedtilt.methods.corrections import CORRECTIONS

Levels = Sequence[tuple[str, float]]
PERSONAL_START = (
    "last",  # where the client's last round ended; in its first round, at the received w
    "initial",  # the same, but in its first round at the initial model, as in the paper's Algorithm 1
    "received",  # at the received w in every round: fine-tuning
)

WEIGHTINGS = {
    "equal": "all the same",
    "samples": "their numbers of samples",
    "loss": "exp(client_tilt · loss) of the model that they receive",
    "afl": "weights that rise with that loss, in steps of weights_lr",
}


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
    correction: str = "none"  # of client drift: a word of CORRECTIONS
    utility: float = math.inf  # more than the loss of any batch: −log(utility − R) is minimised; inf: R itself
    local: Sequence[str] = ()  # parameters that stay on their client, beside those of the run: see `Parts.keeping`
    head_epochs: int | None = None  # passes that train `local` alone before the others train; None: all train together
    inner_steps: int | None = None  # steps on every batch towards v, then w moves to it (pFedMe); None: Ditto's v
    distance: str = "squared_l2"  # between a client model and the shared model, on the server
    steps: tuple[int, float] | None = None  # (E_2, eta_3): gradient steps on the server; None: the exact optimum
    aggregator: str = "tilted"  # or another rule: mean, median, krum, …
    pre_aggregators: Sequence[str] = ()  # steps before the rule, in this order: clipping, nnm, bucketing
    bad_share: float = 0.1  # the share of bad clients that trimmed_mean, krum, multi_krum, bulyan and nnm tolerate
    clip_radius: float | None = None  # the largest length of an update when it is clipped; None: the median length
    bucket_size: int = 2  # models in a bucket
    root_samples: int = 100  # clean samples on the server, on which fltrust trains
    client_momentum: float = 0.0  # over rounds: a client sends the moving average of its updates
    lr: float | None = None  # learning rate of the shared model; None: the run's
    lr_personal: float | None = None  # learning rate of the personal model; None: the run's, else lr
    epochs_personal: int | None = None  # passes of the personal model over the data in a round; None: the run's epochs
    personal_start: str = "last"  # where v starts in a round: a word of PERSONAL_START
    weighting: str = "equal"  # how clients count on the server: a word of WEIGHTINGS
    client_tilt: float = 0.0  # over the losses of the clients, with weighting "loss"
    weights_lr: float = 0.01  # step of the clients' weights, with weighting "afl"
    weights_bound: float = 0.1  # how much the clients' weights may differ from equal ones, with aggregator fedmgda
    update_length: float = 1.0  # of every client, with aggregator fedmgda

    def __post_init__(self) -> None:
        if not is_plain_name(self.name):
            raise InputError(
                "a method's name is a short word without slashes, control characters or a leading dot, "
                f"got {self.name!r:.60}"
            )
        for key in ("tau", "lam", "q", "mu", "prox", "bad_share", "utility", "client_tilt"):
            object.__setattr__(self, key, number(getattr(self, key), f"{key} of method {self.name!r}"))
        momentum = number(self.client_momentum, f"client_momentum of method {self.name!r}")
        if not 0 <= momentum < 1:
            raise InputError(f"client_momentum of method {self.name!r} must be in [0, 1), got {momentum:g}")
        object.__setattr__(self, "client_momentum", momentum)
        for key in ("mu", "prox"):
            if getattr(self, key) < 0:
                raise InputError(f"{key} of method {self.name!r} must be ≥ 0, got {getattr(self, key):g}")
        if math.isinf(self.prox):
            raise InputError(f"prox of method {self.name!r} must be finite: with inf the shared model would never move")
        if not 0 <= self.bad_share < 0.5:
            raise InputError(f"bad_share of method {self.name!r} must be in [0, 0.5), got {self.bad_share:g}")
        object.__setattr__(self, "levels", self._check_levels())
        self._check_rates()
        check_client_settings(self)
        if self.steps is not None:
            object.__setattr__(self, "steps", self._check_steps())
        self._check_server()

    def _repr_html_(self) -> str:
        """What a notebook shows: the settings that differ from their defaults."""
        changed = [(f.name, str(getattr(self, f.name))) for f in fields(self) if getattr(self, f.name) != f.default]
        return html_table(f"Method {self.name!r}", ["setting", "value"], changed[1:], "All others have their defaults.")

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
        for key in ("lr", "lr_personal", "clip_radius", "weights_lr", "update_length"):
            value = getattr(self, key)
            if value is not None:
                rate = number(value, f"{key} of method {self.name!r}")
                if not 0 < rate < math.inf:
                    raise InputError(f"{key} of method {self.name!r} must be a number > 0, got {rate:g}")
                object.__setattr__(self, key, rate)
        for key in ("epochs_personal", "head_epochs", "inner_steps"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, whole(getattr(self, key), f"{key} of method {self.name!r}", 1))
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

        >>> Method(name="a", lr_personal=0.001).rates(0.01, None), Method(name="b", lr=0.1).rates(0.01, None)
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
        if self.weighting not in WEIGHTINGS:
            raise InputError(
                f"weighting of method {self.name!r} must be one of {', '.join(WEIGHTINGS)}, got {self.weighting!r}"
            )
        bound = number(self.weights_bound, f"weights_bound of method {self.name!r}")
        if not 0 <= bound <= 1:
            raise InputError(f"weights_bound of method {self.name!r} must be in [0, 1], got {bound:g}")
        object.__setattr__(self, "weights_bound", bound)
        if self.aggregator == "q_ffl" and not 0 <= self.q < math.inf:
            raise InputError(f"q of method {self.name!r} must be ≥ 0 and finite with q_ffl, got {self.q:g}")
        for key, value in (("client_tilt", "loss"), ("weights_lr", "afl")):
            if self.weighting != value and getattr(self, key) != getattr(Method, key):
                raise InputError(
                    f"{key} of method {self.name!r} has no effect with weighting = {self.weighting!r}; leave it out, "
                    f"or set weighting = {value!r}"
                )
        if self.weighting != "equal" and rule and not rule.takes_weights:
            raise InputError(
                f"aggregator {self.aggregator!r} of method {self.name!r} takes no weights: use weighting='equal'"
            )
        for key in ("bucket_size", "root_samples"):
            object.__setattr__(self, key, whole(getattr(self, key), f"{key} of method {self.name!r}", 1))
        self._check_pre_aggregators()
        used = used_settings(self.aggregator, self.pre_aggregators)
        settings = (
            "q", "distance", "steps", "bad_share", "clip_radius", "bucket_size", "root_samples", "weights_bound",
            "update_length",
        )  # fmt: skip
        for key in settings:
            if key not in used and getattr(self, key) != getattr(Method, key):
                raise InputError(
                    f"{key} of method {self.name!r} is not used by aggregator {self.aggregator!r}; leave it out, or "
                    "use another aggregator"
                )
        if rule is None and self.steps is None and not solvable(self.distance, self.q):
            raise InputError(
                f"distance {self.distance!r} of method {self.name!r} with q = {self.q:g} has no direct solution; "
                "give steps = [count, size], or another distance or q"
            )

    def _check_pre_aggregators(self) -> None:
        names = self.pre_aggregators
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError(f"pre_aggregators of method {self.name!r} must be a list, such as ['nnm'], got {names!r}")
        object.__setattr__(self, "pre_aggregators", tuple(names))
        for name in names:
            if name not in PRE_AGGREGATORS:
                raise InputError(
                    f"unknown step {name!r} in pre_aggregators of method {self.name!r}; choose from "
                    f"{', '.join(PRE_AGGREGATORS)}"
                )
            if list(names).count(name) > 1:
                raise InputError(f"pre_aggregators of method {self.name!r} have {name!r} twice; name it once")
            if name != "clipping" and self.weighting != "equal":
                raise InputError(f"{name} of method {self.name!r} mixes models without weights: use weighting='equal'")

    @property
    def personal(self) -> bool:
        """Whether every client has a personal model."""
        return self.mu < math.inf

    @property
    def is_plain_mean(self) -> bool:
        """Whether the rule is the mean of the models, each with the same weight."""
        tilted = self.aggregator == "tilted" and self.distance == "squared_l2" and not self.q and self.steps is None
        return (tilted or self.aggregator == "mean") and self.weighting == "equal"

    @property
    def needs_losses(self) -> bool:
        """Whether clients declare the loss of the model that they receive."""
        return self.weighting in ("loss", "afl") or self.aggregator == "q_ffl"


def check_client_settings(method: Method) -> None:
    """Refuse settings of the clients' steps that are unknown, or that have no effect beside the others."""
    name = method.name
    if method.correction not in ("none", *CORRECTIONS):
        raise InputError(
            f"correction of method {name!r} must be one of none, {', '.join(CORRECTIONS)}, got {method.correction!r}"
        )
    correction = CORRECTIONS.get(method.correction)
    if correction and correction.needs_prox and not method.prox:
        raise InputError(f"correction = {method.correction!r} of method {name!r} needs prox > 0, its alpha")
    if method.utility <= 0:
        raise InputError(
            f"utility of method {name!r} must be more than the loss of any batch, got {method.utility:g}; choose 2 to 5"
        )
    if isinstance(method.local, str) or not all(isinstance(pattern, str) for pattern in method.local):
        raise InputError(f"local of method {name!r} is a list of patterns, such as ['last'], got {method.local!r}")
    object.__setattr__(method, "local", tuple(method.local))
    if method.head_epochs is not None and (not method.local or method.personal or method.correction != "none"):
        raise InputError(
            f"head_epochs = {method.head_epochs} of method {name!r} is for a method with local parameters, without "
            "personal models and without a correction; leave it out"
        )
    if method.inner_steps is None:
        return
    if not method.personal or not method.mu:
        raise InputError(f"inner_steps = {method.inner_steps} of method {name!r} needs 0 < mu < inf, its lambda")
    unused = {"prox": 0.0, "correction": "none", "epochs_personal": None, "personal_start": "last"}
    for key, default in unused.items():
        if getattr(method, key) != default:
            raise InputError(f"{key} of method {name!r} has no effect beside inner_steps; leave one of them out")
