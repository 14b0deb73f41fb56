"""Published methods as compositions; every preset also takes `name`, and the components that it does not decide."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ParamSpec

from fedtilt.checks import number
from fedtilt.errors import InputError
from fedtilt.methods.aggregators import FedMgda, QFfl, Tilted
from fedtilt.methods.corrections import FedDyn, Scaffold
from fedtilt.methods.local_parts import Local
from fedtilt.methods.method import Made, Method
from fedtilt.methods.objectives import Levels, PropFair
from fedtilt.methods.objectives import Tilted as TiltedLosses
from fedtilt.methods.personal import Moreau, Personal
from fedtilt.methods.weightings import Afl, ByLoss
from fedtilt.parts import LAST_LAYER

P = ParamSpec("P")
PRESETS: dict[str, Callable[..., Method]] = {}
_FIELDS = [field.name for field in fields(Method) if field.name not in ("name", "made")]
_ALL_TAKE = """
    name: the name of the method in the run
    **components: any other component of `Method`: weighting, before, aggregator, …"""


def preset(function: Callable[P, Method]) -> Callable[P, Method]:
    """A published method: its name in specs is that of the function, and the method knows how it was made."""
    parameters = inspect.signature(function).parameters
    own = [key for key, p in parameters.items() if key != "name" and p.kind is not p.VAR_KEYWORD]

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Method:
        for key in kwargs:
            if key not in (*parameters, *_FIELDS):
                raise InputError(
                    f"{key} is not a setting of {function.__name__}, which takes {', '.join([*own, *_FIELDS])}; leave "
                    "it out"
                )
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        name = f"{bound.arguments['name']!r:.60}"
        try:
            method = function(*args, **kwargs)
        except InputError as error:
            if name in str(error):
                raise
            raise InputError(f"method {name}: {error}") from None  # about a component
        arguments = {key: bound.arguments[key] for key in own} | dict(bound.arguments.get("components", {}))
        return replace(method, made=Made(make, arguments, method.parts()))

    doc = inspect.cleandoc(function.__doc__ or "")
    examples = doc.find("\n\n>>>")
    head, tail = (doc, "") if examples < 0 else (doc[:examples], doc[examples:])
    make.__doc__ = f"{head}{_ALL_TAKE if 'Args:' in head else chr(10) * 2 + 'Args:' + _ALL_TAKE}{tail}\n"
    PRESETS[function.__name__] = make
    return make


def compose(name: str, components: dict[str, Any], **fixed: Any) -> Method:
    """The method of a preset: what it fixes, and the components that the user adds."""
    for key in components:
        if key in fixed:
            raise InputError(
                f"{key} of method {name!r} is what its preset decides; leave it out, or compose a Method of your own"
            )
    return Method(name=name, **fixed, **components)


def proximal(
    name: str, mu: float, lr: float | None = None, epochs: int | None = None, start: str = "last"
) -> Personal | None:
    """The personal model of Ditto; with mu = inf there is none."""
    if number(mu, f"mu of method {name!r}") == math.inf:
        for key, value, default in (
            ("lr_personal", lr, None), ("epochs_personal", epochs, None), ("personal_start", start, "last"),
        ):  # fmt: skip
            if value != default:
                raise InputError(
                    f"{key} of method {name!r} has no effect: it has no personal models; leave it out, or give a "
                    "finite mu"
                )
        return None
    return Personal(mu=mu, lr=lr, epochs=epochs, start=start)


@preset
def fedtilt(
    tau: float | None = None, lam: float | None = None, q: float = 0.0, mu: float = 0.01, *, levels: Levels = (),
    lr_personal: float | None = None, epochs_personal: int | None = None, personal_start: str = "last",
    name: str = "fedtilt", **components: Any,
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
        lr_personal: learning rate of the personal model; default: the run's
        epochs_personal: passes of the personal model over the data in a round; default: the run's
        personal_start: where the personal model starts in a round: last, initial or received

    >>> fedtilt(tau=50, lam=100).personal.mu
    0.01
    >>> fedtilt(lam=-1, levels=[("class", 5), ("ward", 2)]).objective.levels
    (('class', 5.0), ('ward', 2.0))
    """
    if lam is None or (tau is None and not levels):
        raise InputError(
            f"method {name!r} needs {'lam' if lam is None else 'tau, or levels'}, such as fedtilt(tau=5, lam=-1)"
        )
    tilt = 0.0 if tau is None else tau
    objective = TiltedLosses(tilt, lam, levels)  # type: ignore[arg-type]
    return compose(
        name, _with_q(name, q, components), objective=objective,
        personal=proximal(name, mu, lr_personal, epochs_personal, personal_start),
    )  # fmt: skip


def _with_q(name: str, q: float, components: dict[str, Any]) -> dict[str, Any]:
    if "aggregator" not in components:
        return {**components, "aggregator": Tilted(q=q)}
    if q:
        raise InputError(
            f"q = {q:g} of method {name!r} has no effect beside aggregator; leave it out, or give it to the aggregator "
            "Tilted"
        )
    return components


@preset
def fedavg(*, name: str = "fedavg", **components: Any) -> Method:
    """FedAvg: one shared model, no tilts, the mean on the server (Proposition 1).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, arXiv
    1602.05629.
    """
    return compose(name, components)


@preset
def fedprox(mu: float = 0.01, *, name: str = "fedprox", **components: Any) -> Method:
    """FedProx: FedAvg with a proximal term towards the received model (Proposition 2).

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127.

    Args:
        mu: weight of the proximal term of the shared model
    """
    return compose(name, components, prox=mu)


@preset
def ditto(
    mu: float = 0.01, *, lr_personal: float | None = None, epochs_personal: int | None = None,
    personal_start: str = "last", name: str = "ditto", **components: Any,
) -> Method:  # fmt: skip
    """Ditto: FedAvg, and a personal model with a proximal term towards the received model (Proposition 3).

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221.

    Args:
        mu: weight of the proximal term of the personal model
        lr_personal: learning rate of the personal model; default: the run's
        epochs_personal: passes of the personal model over the data in a round; default: the run's
        personal_start: where the personal model starts in a round: last, initial or received
    """
    return compose(name, components, personal=proximal(name, mu, lr_personal, epochs_personal, personal_start))


@preset
def term(t: float, *, name: str = "term", **components: Any) -> Method:
    """TERM: one shared model with one tilt over all samples, tau = lam = t.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.

    Args:
        t: the tilt
    """
    return compose(name, components, objective=TiltedLosses(t, t))


@preset
def fedavg_finetuned(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "fedavg_finetuned",
    **components: Any,
) -> Method:  # fmt: skip
    """FedAvg with local fine-tuning: in every round, a personal model starts at the received one and trains locally.

    Wang et al., Federated Evaluation of On-device Personalization, 2019, arXiv 1910.10252.

    Args:
        lr_personal: learning rate of the personal model; default: the run's
        epochs_personal: passes of the personal model over the data in a round; default: the run's
    """
    return compose(name, components, personal=proximal(name, 0.0, lr_personal, epochs_personal, "received"))


@preset
def local(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "local", **components: Any
) -> Method:
    """Local training only: a personal model that starts at the initial one and never sees the shared model.

    Args:
        lr_personal: learning rate of the personal model; default: the run's
        epochs_personal: passes of the personal model over the data in a round; default: the run's
    """
    return compose(name, components, personal=proximal(name, 0.0, lr_personal, epochs_personal, "initial"))


@preset
def scaffold(*, name: str = "scaffold", **components: Any) -> Method:
    """SCAFFOLD: FedAvg whose gradients are corrected by control variates, so that clients do not drift apart.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv 1910.06378.
    """
    return compose(name, components, correction=Scaffold())


@preset
def feddyn(alpha: float = 0.01, *, name: str = "feddyn", **components: Any) -> Method:
    """FedDyn: a proximal term of weight `alpha` and a linear one, so that all clients agree on the optimum.

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv 2111.04263.

    Args:
        alpha: weight of both terms
    """
    return compose(name, components, correction=FedDyn(alpha))


@preset
def qffl(q: float = 1.0, *, name: str = "qffl", **components: Any) -> Method:
    """q-FFL, solved by q-FedAvg: clients with a larger loss move the shared model more; q = 0 is FedAvg.

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv 1905.10497.

    Args:
        q: the exponent of the clients' losses
    """
    return compose(name, components, aggregator=QFfl(q))


@preset
def afl(weights_lr: float = 0.01, *, name: str = "afl", **components: Any) -> Method:
    """AFL: client weights that follow the losses, towards the best model for the worst mixture of clients.

    Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv 1902.00146.

    Args:
        weights_lr: step of the clients' weights
    """
    return compose(name, components, weighting=Afl(weights_lr))


@preset
def term_clients(t: float = 1.0, *, name: str = "term_clients", **components: Any) -> Method:
    """TERM over clients: each counts with exp(t · loss), on the server; t = 0 is FedAvg, inf the worst client alone.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.

    Args:
        t: tilt over the losses of the clients
    """
    return compose(name, components, weighting=ByLoss(t))


@preset
def fedmgda(
    weights_bound: float = 0.1, *, update_length: float = 1.0, name: str = "fedmgda", **components: Any
) -> Method:
    """FedMGDA+: updates of one length, combined so that no client loses; weights within `weights_bound` of equal ones.

    Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, arXiv 2006.11489.

    Args:
        weights_bound: how much the clients' weights may differ from equal ones
        update_length: length of every update
    """
    return compose(name, components, aggregator=FedMgda(weights_bound, update_length))


@preset
def propfair(utility: float = 3.0, *, name: str = "propfair", **components: Any) -> Method:
    """PropFair: clients minimise −log(utility − R), which weights those with large losses: proportional fairness.

    Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, arXiv 2202.01666.

    Args:
        utility: more than the loss of any batch
    """
    return compose(name, components, objective=PropFair(utility))


@preset
def fedper(local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedper", **components: Any) -> Method:
    """FedPer: the last layer, or the parameters of other patterns, stays on its client; the rest is FedAvg.

    Arivazhagan et al., Federated Learning with Personalization Layers, 2019, arXiv 1912.00818.

    Args:
        local: patterns of the parameters that stay; "last" is the last layer
    """
    return compose(name, components, local=Local(local))  # type: ignore[arg-type]


@preset
def fedrep(
    head_epochs: int = 10, local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedrep", **components: Any
) -> Method:
    """FedRep: FedPer whose local layers train first, alone, for `head_epochs`, and then only the shared ones.

    Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv 2102.07078.

    Args:
        head_epochs: passes that train the local parameters alone
        local: patterns of the parameters that stay; "last" is the last layer
    """
    return compose(name, components, local=Local(local, head_epochs))  # type: ignore[arg-type]


@preset
def pfedme(
    mu: float = 5.0, inner_steps: int = 5, *, lr_personal: float | None = None, name: str = "pfedme", **components: Any
) -> Method:
    """pFedMe: on every batch, a personal model takes `inner_steps`, and the client's shared model moves towards it.

    T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848; mu is their
    lambda, lr_personal the step of the personal model, lr that of the shared one (15, 0.1 and 0.005 in their code).

    Args:
        mu: weight of the proximal term
        inner_steps: steps of the personal model on every batch
        lr_personal: learning rate of the personal model; default: the run's
    """
    return compose(name, components, personal=Moreau(mu, inner_steps, lr_personal))
