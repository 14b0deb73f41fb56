"""The tables that all cross products are drawn from: methods, options that must change nothing, and pairs of them."""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.methods import PRESETS, Aggregator, Before, aggregators
from fedtilt.methods.aggregators import Tilted
from fedtilt.methods.before import NNM, Bucketing, Clip
from fedtilt.methods.server_optimizers import Adagrad, Adam, Sgd, Yogi

ROUNDS = 2  # the second starts from all states of the first
MODEL = functools.partial(ft.models.mlp, hidden=(6,))
RECIPE = {"rounds": ROUNDS, "participation": 0.75, "epochs": 1, "batch_size": 8, "lr": 0.05, "seed": 5}
DATA = ft.data.load("digits")


@functools.cache
def federation(
    *, weight: float | None = None, outliers: bool = False, leave_out: tuple[str, ...] = ()
) -> ft.Federation:
    """Clients of unequal size whose updates agree, so that screening refuses none of them."""
    data = DATA
    if weight is not None:
        data = with_weights(data, torch.full((len(data.y_train),), weight))
    clean = {"outliers": "flips", "outlier_rate": 0.0} if outliers else {}
    return ft.Federation.build(
        data, clients=8, partition="dirichlet", alpha=50.0, max_train=24, seed=1, leave_out=leave_out, **clean
    )


def with_weights(data: ft.data.Dataset, weights: Tensor) -> ft.data.Dataset:
    """The data with a weight for every training sample."""
    return dataclasses.replace(data, weight_train=weights, weight_test=torch.ones(len(data.y_test)))


def rule(aggregator: Aggregator, *before: Before) -> ft.Method:
    """FedAvg with another rule, and steps before it."""
    return ft.fedavg(aggregator=aggregator, before=before, name="m")


METHODS: dict[str, ft.Method] = {
    "fedtilt": ft.fedtilt(tau=2, lam=-1, q=0.5, mu=0.1, name="m"),
    "fedavg": ft.fedavg(name="m"),
    "fedavg_finetuned": ft.methods.fedavg_finetuned(name="m"),
    "fedprox": ft.fedprox(0.5, name="m"),
    "ditto": ft.ditto(0.1, name="m"),
    "term": ft.term(1.5, name="m"),
    "local": ft.methods.local(name="m"),
    "scaffold": ft.methods.scaffold(name="m"),
    "feddyn": ft.methods.feddyn(0.5, name="m"),
    "qffl": ft.methods.qffl(1.0, name="m"),
    "afl": ft.methods.afl(0.1, name="m"),
    "term_clients": ft.methods.term_clients(2.0, name="m"),
    "fedmgda": ft.methods.fedmgda(name="m"),
    "propfair": ft.methods.propfair(6.0, name="m"),
    "fedper": ft.methods.fedper(name="m"),
    "fedrep": ft.methods.fedrep(1, name="m"),
    "pfedme": ft.methods.pfedme(2.0, 2, name="m"),
    **{name: PRESETS[name](name="m") for name in ("aaggff", "apfl", "fedala", "fedas", "fedbabu")},
    **{name: PRESETS[name](name="m") for name in ("fedminmax", "fedrod", "foundationfl", "moon")},
    "feddbe": PRESETS["feddbe"](kappa=1.0, name="m"),  # with more, its updates differ so much that some are screened
    "q > 0": rule(Tilted(q=5.0)),
    "q < 0": rule(Tilted(q=-5.0)),
    "q = inf": rule(Tilted(q=math.inf)),
    "q = -inf": rule(Tilted(q=-math.inf)),
    "l1": rule(Tilted(distance="l1")),
    "steps": rule(Tilted(q=2.0, steps=(3, 0.2))),
    "median": rule(aggregators.Median()),
    "geometric_median": rule(aggregators.GeometricMedian()),
    "trimmed_mean": rule(aggregators.TrimmedMean(0.2)),
    "krum": rule(aggregators.Krum(0.2)),
    "multi_krum": rule(aggregators.MultiKrum(0.2)),
    "norm_clipped": rule(aggregators.NormClipped()),
    "centered_clipping": rule(aggregators.CenteredClipping()),
    "fltrust": rule(aggregators.FLTrust(20)),
    "root_selected": rule(aggregators.RootSelected(20, 0.2)),
    "nnm, median": rule(aggregators.Median(), NNM(0.2)),
    "clipping, trimmed_mean": rule(aggregators.TrimmedMean(0.2), Clip()),
    "client momentum": ft.fedavg(client_momentum=0.5, name="m"),
    "samples": ft.fedavg(weighting="samples", name="m"),
    "scaffold, personal": ft.Method(name="m", correction="scaffold", personal={"mu": 0.2}),
    "afl, personal, momentum": ft.Method(name="m", weighting="afl", personal={"mu": 0.2}, client_momentum=0.3),
    "own sgd": ft.fedavg(optimizer=Sgd(lr=0.7, momentum=0.5), name="m"),
    "own adam, scaffold": ft.methods.scaffold(optimizer=Adam(lr=0.02), name="m"),
    "own yogi, feddyn": ft.methods.feddyn(0.5, optimizer=Yogi(lr=0.02), name="m"),
    "own adagrad, local": ft.methods.fedper(optimizer=Adagrad(lr=0.05), name="m"),
}


class Option(NamedTuple):
    """Something that must change nothing beside any method."""

    settings: Mapping[str, object] = {}
    change: Callable[[ft.Method], ft.Method] = lambda m: m
    federation: Mapping[str, object] = {}
    others: tuple[Sequence[ft.Method], Sequence[ft.Method]] = ((), ())  # before and after it in the run
    is_exact: bool = True  # bit for bit; otherwise up to rounding


def in_buckets_of_one(m: ft.Method) -> ft.Method:
    return dataclasses.replace(m, before=[*m.before, Bucketing(1)])


NEUTRAL: dict[str, Option] = {
    "server sgd": Option({"server_optimizer": {"rule": "sgd", "lr": 1.0}}, is_exact=False),
    "clip_norm": Option({"optimizer": {"name": "sgd", "clip_norm": 1e6}}, is_exact=False),
    "screen": Option({"screen": 1e6}),
    "privacy": Option({"privacy": ft.Privacy(clip=50.0, noise=1e-8, delta=1e-3)}, is_exact=False),
    "zeros": Option({"momentum": 0.0, "weight_decay": 0.0, "label_smoothing": 0.0}),
    "attack": Option({"attack": ft.Attack(kind="scale", strength=1.0, clients=("2",))}, is_exact=False),
    "audit": Option({"audit": True}),
    "eval_every": Option({"eval_every": 1}),
    "workers": Option({"workers": 2}),
    "other methods": Option(
        others=([ft.methods.scaffold(name="a")], [ft.Method(name="z", weighting="afl", personal={"mu": 1.0})])
    ),
    "weights of one": Option(federation={"weight": 1.0}, is_exact=False),
    "equal weights": Option(federation={"weight": 2.0**-10}, is_exact=False),  # their sum is less than 1
    "outliers at rate 0": Option(federation={"outliers": True}),
    "buckets of one": Option(change=in_buckets_of_one),
    "client momentum 0": Option(change=lambda m: dataclasses.replace(m, client_momentum=m.client_momentum + 0.0)),
    "autograd": Option({"backend": "autograd"}, is_exact=False),
    "stacked": Option({"backend": "stacked"}, is_exact=False),
    "identity": Option({"transform": lambda x: x}),
}


EXCLUSIVE = ({"privacy", "screen"}, {"privacy", "buckets of one"})  # refused beside every method


class Case(NamedTuple):
    """One product: a method, options, and the round after which the run is resumed from a checkpoint (0: it is not)."""

    method: str
    options: tuple[str, ...]
    resume_after: int

    def __str__(self) -> str:
        return f"{self.method}: {', '.join(self.options)}; resumed after {self.resume_after}"


def few_cases(size: int = 6) -> list[Case]:
    """Few cases that have every method with every option, every pair of options, and a resume at every round.

    Options that change no bit stand together beside every method. Other cases are filled greedily: the next option is
    the one with the most pairs that no case has yet.
    """
    exact = tuple(name for name, option in NEUTRAL.items() if option.is_exact)
    cases = [Case(m, exact, i % ROUNDS) for i, m in enumerate(METHODS)]
    missing = {frozenset(("method " + m, o)) for m in METHODS for o in NEUTRAL if o not in exact}
    missing |= {frozenset(p) for p in itertools.combinations(NEUTRAL, 2) if not {*p} <= {*exact}}
    while missing:
        pairs = Counter(itertools.chain.from_iterable(missing))
        m = max(METHODS, key=lambda m: pairs["method " + m])
        chosen: list[str] = []
        for _ in range(size):
            free = [o for o in NEUTRAL if o not in chosen and not _overlap(o, chosen)]
            chosen.append(max(free, key=lambda o: len(_pairs(m, [*chosen, o]) & missing)))
        covered = _pairs(m, chosen) & missing
        if not covered:  # what is left cannot be in one run, such as two values of one setting
            break
        missing -= covered
        cases.append(Case(m, tuple(chosen), len(cases) % ROUNDS))
    return cases


def all_cases() -> list[Case]:
    """Every method with every pair of options, resumed at one round after the other."""
    pairs = [p for p in itertools.combinations(NEUTRAL, 2) if not _overlap(p[0], [p[1]])]
    return [Case(m, pair, i % ROUNDS) for m in METHODS for i, pair in enumerate(pairs)]


def _pairs(m: str, options: Iterable[str]) -> set[frozenset[str]]:
    options = list(options)
    return {frozenset(("method " + m, o)) for o in options} | {frozenset(p) for p in itertools.combinations(options, 2)}


def _overlap(option: str, chosen: Iterable[str]) -> bool:
    """Whether an option sets something that one of the others sets too, or is refused beside it."""

    def keys(name: str) -> set[str]:
        return {*NEUTRAL[name].settings, *NEUTRAL[name].federation}

    return any(keys(option) & keys(other) or {option, other} in EXCLUSIVE for other in chosen)
