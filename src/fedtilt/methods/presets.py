"""Published methods as settings of `Method`."""

import math
from collections.abc import Mapping
from dataclasses import fields

from fedtilt.errors import InputError
from fedtilt.methods.method import Levels, Method

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
