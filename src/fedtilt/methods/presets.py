"""Published methods as settings of `Method`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from fedtilt.errors import InputError
from fedtilt.methods.method import Levels, Method
from fedtilt.parts import LAST_LAYER

# settings of the client side; a preset takes some of them, and all settings of the server side
CLIENT_SETTINGS = (
    "tau", "lam", "levels", "mu", "prox", "correction", "utility", "local", "head_epochs", "inner_steps",
)  # fmt: skip


def _preset(
    preset: str, name: str, settings: Mapping[str, object], **parameters: float | str | Levels | Sequence[str]
) -> Method:
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


def scaffold(*, name: str = "scaffold", **settings: object) -> Method:
    """SCAFFOLD: FedAvg whose gradients are corrected by control variates, so that clients do not drift apart.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv 1910.06378.
    """
    return _preset("scaffold", name, settings, mu=math.inf, correction="scaffold")


def feddyn(alpha: float = 0.01, *, name: str = "feddyn", **settings: object) -> Method:
    """FedDyn: a proximal term of weight `alpha` and a linear one, so that all clients agree on the optimum.

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv 2111.04263.
    """
    return _preset("feddyn", name, settings, mu=math.inf, prox=alpha, correction="feddyn")


def qffl(q: float = 1.0, *, name: str = "qffl", **settings: object) -> Method:
    """q-FFL, solved by q-FedAvg: clients with a larger loss move the shared model more; q = 0 is FedAvg.

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv 1905.10497.
    """
    return _preset("qffl", name, settings, mu=math.inf, aggregator="q_ffl", q=q)


def afl(weights_lr: float = 0.01, *, name: str = "afl", **settings: object) -> Method:
    """AFL: client weights that follow the losses, towards the best model for the worst mixture of clients.

    Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv 1902.00146.
    """
    return _preset("afl", name, settings, mu=math.inf, weighting="afl", weights_lr=weights_lr)


def term_clients(t: float = 1.0, *, name: str = "term_clients", **settings: object) -> Method:
    """TERM over clients: each counts with exp(t · loss), on the server; t = 0 is FedAvg, inf the worst client alone.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.
    """
    return _preset("term_clients", name, settings, mu=math.inf, weighting="loss", client_tilt=t)


def fedmgda(weights_bound: float = 0.1, *, name: str = "fedmgda", **settings: object) -> Method:
    """FedMGDA+: updates of one length, combined so that no client loses; weights within `weights_bound` of equal ones.

    Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, arXiv 2006.11489.
    """
    return _preset("fedmgda", name, settings, mu=math.inf, aggregator="fedmgda", weights_bound=weights_bound)


def propfair(utility: float = 3.0, *, name: str = "propfair", **settings: object) -> Method:
    """PropFair: clients minimise −log(utility − R), which weights those with large losses: proportional fairness.

    Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, arXiv 2202.01666.
    """
    return _preset("propfair", name, settings, mu=math.inf, utility=utility)


def fedper(local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedper", **settings: object) -> Method:
    """FedPer: the last layer, or the parameters of other patterns, stays on its client; the rest is FedAvg.

    Arivazhagan et al., Federated Learning with Personalization Layers, 2019, arXiv 1912.00818.
    """
    return _preset("fedper", name, settings, mu=math.inf, local=local)


def fedrep(
    head_epochs: int = 10, local: Sequence[str] = (LAST_LAYER,), *, name: str = "fedrep", **settings: object
) -> Method:
    """FedRep: FedPer whose local layers train first, alone, for `head_epochs`, and then only the shared ones.

    Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv 2102.07078.
    """
    return _preset("fedrep", name, settings, mu=math.inf, local=local, head_epochs=head_epochs)


def pfedme(mu: float = 5.0, inner_steps: int = 5, *, name: str = "pfedme", **settings: object) -> Method:
    """pFedMe: on every batch, a personal model takes `inner_steps`, and the client's shared model moves towards it.

    T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848; mu is their
    lambda, lr_personal the step of the personal model, lr that of the shared one (15, 0.1 and 0.005 in their code).
    """
    return _preset("pfedme", name, settings, mu=mu, inner_steps=inner_steps)


PRESETS = {
    "fedtilt": fedtilt,
    "fedavg": fedavg,
    "fedavg_finetuned": fedavg_finetuned,
    "fedprox": fedprox,
    "ditto": ditto,
    "term": term,
    "local": local,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "qffl": qffl,
    "afl": afl,
    "term_clients": term_clients,
    "fedmgda": fedmgda,
    "propfair": propfair,
    "fedper": fedper,
    "fedrep": fedrep,
    "pfedme": pfedme,
}
