"""The aggregation rule of a method, applied to the models of a round."""

from torch import Tensor

from fedtilt import seeds
from fedtilt.math.aggregate import AGGREGATORS, PRE_AGGREGATORS, RuleInputs, tilted
from fedtilt.methods import Method
from fedtilt.methods.bad_share import tolerated_clients


def aggregate(
    method: Method,
    models: Tensor,
    received: Tensor,
    weights: Tensor | None = None,
    *,
    selected: int,
    seed: int,
    round: int,
    root: Tensor | None = None,
) -> Tensor:
    """The aggregated model (P,): the steps before the rule, then the rule.

    Args:
        method: the rule and its settings
        models: the clients' models, (C, P), in the order of client numbers
        received: the model that the clients received, (P,)
        weights: the clients' weights, (C,); None: equal
        selected: how many clients were asked for a model
        seed: the seed of the run, for the order of buckets
        round: the number of the round
        root: with fltrust, the model that the server trained on its root set
    """
    bad = tolerated_clients(method, len(models), selected)
    order = None
    if "bucketing" in method.pre_aggregators:
        order = seeds.permutations(seeds.key(seed, "bucketing", round=round), 1, len(models))[0].tolist()
    given = RuleInputs(received, weights, 0.0, method.clip_radius, method.bucket_size, order, root)
    for name in method.pre_aggregators:
        models = PRE_AGGREGATORS[name].apply(models, given._replace(bad_share=bad / len(models)))
    if method.aggregator == "tilted":
        return tilted(models, method.q, method.distance, weights=weights, start=received, steps=method.steps)
    return AGGREGATORS[method.aggregator].apply(models, given._replace(bad_share=bad / len(models)))
