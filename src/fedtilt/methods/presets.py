"""Published methods as compositions; every preset also takes `name`, and the components that it does not decide."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, make_dataclass, replace
from functools import wraps
from textwrap import fill
from typing import Any, ParamSpec, get_type_hints

from fedtilt.checks import number
from fedtilt.config.setting_fields import REQUIRED, default_of, meaning_of, setting, setting_of, settings_of
from fedtilt.errors import InputError
from fedtilt.methods.aggregators import FedMgda, QFfl, Tilted
from fedtilt.methods.component import Component
from fedtilt.methods.corrections import FedDyn, Scaffold
from fedtilt.methods.method import PARTS, Method, Origin
from fedtilt.methods.objectives import Levels, PropFair
from fedtilt.methods.objectives import Tilted as TiltedLosses
from fedtilt.methods.personal import Local, Moreau, Personal
from fedtilt.methods.weightings import Afl, ByLoss
from fedtilt.parts import LAST_LAYER

P = ParamSpec("P")
PRESETS: dict[str, Callable[..., Method]] = {}
PARAMETERS: dict[str, type] = {}  # preset → its parameters, as a dataclass of settings
_ALL_TAKE = {
    "name": "the name of the method in the run",
    "**components": "any other component of `Method`: weighting, before, aggregator, …",
}
_SETTINGS = {  # parameter of presets → the setting of their components
    "lr_personal": "lr", "epochs_personal": "epochs", "personal_start": "start", "weights_lr": "lr",
    "weights_bound": "bound", "update_length": "length", "head_epochs": "first_epochs", "local": "names",
    "q": "exponent", "t": "tilt",
}  # fmt: skip


def preset(*parts: type[Component], **declared: Any) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """A published method: its name in specs is that of the function, and the method knows how it was made.

    Args:
        *parts: components that it is made of, whose settings its parameters are; the first one documents the paper if
            the docstring of the function does not
        **declared: parameters that are no settings of these
    """

    def decorate(function: Callable[P, Method]) -> Callable[P, Method]:
        parameters = inspect.signature(function).parameters
        settings = _parameters(function, parts, declared)
        own = [*settings_of(settings)]

        @wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Method:
            for key in kwargs:
                if key not in (*parameters, *PARTS):
                    takes = ", ".join([*own, *PARTS])
                    raise InputError(
                        f"{key} is not a setting of {function.__name__}, which takes {takes}; leave it out"
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
            return replace(method, origin=Origin(make, arguments, method.parts()))

        make.__doc__ = _docstring(inspect.cleandoc(function.__doc__ or ""), settings, parts)
        PRESETS[function.__name__], PARAMETERS[function.__name__] = make, settings
        return make

    return decorate


def _parameters(function: Callable[..., Method], parts: Sequence[type[Component]], declared: Mapping[str, Any]) -> type:
    """The parameters of a preset with the types, limits and meanings of its components, and its own defaults."""
    known = {key: each for part in reversed(parts) for key, each in settings_of(part).items()}
    hints, found = get_type_hints(function), []
    for key, p in inspect.signature(function).parameters.items():
        if key != "name" and p.kind is not p.VAR_KEYWORD:
            of = declared.get(key) or known.get(key) or known[_SETTINGS[key]]
            metadata = {**of.metadata, "in_table": True}
            default = REQUIRED if p.default is p.empty else p.default
            found.append((key, of.type or hints[key], field(default=default, metadata=metadata)))
    return make_dataclass(function.__name__, found, kw_only=True)


def _docstring(text: str, settings: type, parts: Sequence[type[Component]]) -> str:
    """The docstring of a preset, with the paper of its first component and the meanings of its parameters."""
    text, _, examples = text.partition("\n\n>>>")
    if "\n\n" not in text and parts:
        text += "\n\n" + inspect.cleandoc(parts[0].__doc__ or "").rpartition("\n\n")[2]
    meanings = {key: preset_meaning(each) for key, each in settings_of(settings).items()} | _ALL_TAKE
    lines = [fill(f"    {key}: {text}", 116, subsequent_indent=" " * 8) for key, text in meanings.items()]
    return "\n".join([f"{text}\n\nArgs:", *lines]) + (examples and f"\n\n>>>{examples}") + "\n"


def preset_meaning(parameter: Field[Any]) -> str:
    """What a parameter of a preset means; one with a default of its own does not name that of the component."""
    return meaning_of(parameter) if default_of(parameter) else str(parameter.metadata["meaning"])


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


@preset(TiltedLosses, Personal, Tilted)
def fedtilt(
    tau: float | None = None, lam: float | None = None, q: float = 0.0, mu: float = 0.01, *, levels: Levels = (),
    lr_personal: float | None = None, epochs_personal: int | None = None, personal_start: str = "last",
    name: str = "fedtilt", **components: Any,
) -> Method:  # fmt: skip
    """FedTilt: shared and personal models, both with tilted losses.

    Zhang et al., FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning, arXiv 2503.13537.

    Without `levels`, `tau` is required, and `lam` always; `mu` = inf is without personal models.

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


@preset()
def fedavg(*, name: str = "fedavg", **components: Any) -> Method:
    """FedAvg: one shared model, no tilts, the mean on the server (Proposition 1).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, arXiv
    1602.05629.
    """
    return compose(name, components)


@preset(mu=setting_of(Method, "prox"))
def fedprox(mu: float = 0.01, *, name: str = "fedprox", **components: Any) -> Method:
    """FedProx: FedAvg with a proximal term towards the received model (Proposition 2).

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127.
    """
    return compose(name, components, prox=mu)


@preset(Personal)
def ditto(
    mu: float = 0.01, *, lr_personal: float | None = None, epochs_personal: int | None = None,
    personal_start: str = "last", name: str = "ditto", **components: Any,
) -> Method:  # fmt: skip
    """Ditto: FedAvg, and a personal model with a proximal term towards the received model (Proposition 3).

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221.
    """
    return compose(name, components, personal=proximal(name, mu, lr_personal, epochs_personal, personal_start))


@preset(t=setting(REQUIRED, "the tilt", inf=True))
def term(t: float, *, name: str = "term", **components: Any) -> Method:
    """TERM: one shared model with one tilt over all samples, tau = lam = t.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.
    """
    return compose(name, components, objective=TiltedLosses(t, t))


@preset(Personal)
def fedavg_finetuned(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "fedavg_finetuned",
    **components: Any,
) -> Method:  # fmt: skip
    """FedAvg with local fine-tuning: in every round, a personal model starts at the received one and trains locally.

    Wang et al., Federated Evaluation of On-device Personalization, 2019, arXiv 1910.10252.
    """
    return compose(name, components, personal=proximal(name, 0.0, lr_personal, epochs_personal, "received"))


@preset(Personal)
def local(
    *, lr_personal: float | None = None, epochs_personal: int | None = None, name: str = "local", **components: Any
) -> Method:
    """Local training only: a personal model that starts at the initial one and never sees the shared model.

    What every client reaches without the others.
    """
    return compose(name, components, personal=proximal(name, 0.0, lr_personal, epochs_personal, "initial"))


@preset(Scaffold)
def scaffold(*, name: str = "scaffold", **components: Any) -> Method:
    """SCAFFOLD: FedAvg with gradients that control variates correct for client drift."""
    return compose(name, components, correction=Scaffold())


@preset(FedDyn)
def feddyn(alpha: float = 0.01, *, name: str = "feddyn", **components: Any) -> Method:
    """FedDyn: a proximal term of weight `alpha` and a linear one, under which all clients agree on the optimum."""
    return compose(name, components, correction=FedDyn(alpha))


@preset(QFfl)
def qffl(q: float = 1.0, *, name: str = "qffl", **components: Any) -> Method:
    """q-FFL, solved by q-FedAvg: clients with a larger loss move the shared model more; q = 0 is FedAvg."""
    return compose(name, components, aggregator=QFfl(q))


@preset(Afl)
def afl(weights_lr: float = 0.01, *, name: str = "afl", **components: Any) -> Method:
    """AFL: client weights that follow the losses, towards the best model for the worst mixture of clients."""
    return compose(name, components, weighting=Afl(weights_lr))


@preset(ByLoss)
def term_clients(t: float = 1.0, *, name: str = "term_clients", **components: Any) -> Method:
    """TERM over clients: each counts with exp(t · loss), on the server; t = 0 is FedAvg, inf the worst client alone."""
    return compose(name, components, weighting=ByLoss(t))


@preset(FedMgda)
def fedmgda(
    weights_bound: float = 0.1, *, update_length: float = 1.0, name: str = "fedmgda", **components: Any
) -> Method:
    """FedMGDA+: updates of one length, combined with nearly equal weights so that no client loses."""
    return compose(name, components, aggregator=FedMgda(weights_bound, update_length))


@preset(PropFair)
def propfair(utility: float = 3.0, *, name: str = "propfair", **components: Any) -> Method:
    """PropFair: clients minimise −log(utility − R), which weights those with large losses: proportional fairness."""
    return compose(name, components, objective=PropFair(utility))


@preset(Local)
def fedper(local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedper", **components: Any) -> Method:
    """FedPer: the last layer, or the parameters of other patterns, stays on its client; the rest is FedAvg.

    Arivazhagan et al., Federated Learning with Personalization Layers, 2019, arXiv 1912.00818.
    """
    return compose(name, components, local=Local(local))  # type: ignore[arg-type]


@preset(Local)
def fedrep(
    head_epochs: int = 10, local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedrep", **components: Any
) -> Method:
    """FedRep: FedPer whose local layers train first, alone, for `head_epochs`, and then only the shared ones.

    Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv 2102.07078.
    """
    return compose(name, components, local=Local(local, head_epochs))  # type: ignore[arg-type]


@preset(Moreau)
def pfedme(
    mu: float = 5.0, inner_steps: int = 5, *, lr_personal: float | None = None, name: str = "pfedme", **components: Any
) -> Method:
    """pFedMe: on every batch, a personal model takes `inner_steps`, and the client's shared model moves towards it.

    T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848; mu is their
    lambda, lr_personal the step of the personal model, lr that of the shared one (15, 0.1 and 0.005 in their code).
    """
    return compose(name, components, personal=Moreau(mu, inner_steps, lr_personal))
