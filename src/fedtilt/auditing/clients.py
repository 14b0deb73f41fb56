"""The audit of clients: which of them look bad as a whole, and which are merely different.

A bad client has labels that nothing predicts. A client with rare classes has labels that the shared model does not
predict, but that its other samples do. So the judge of a client is the shared model, corrected by what the client's
other samples say: with the shared model's log-probabilities as features f, its probabilities p and the labels as
indicators y, a kernel ridge regression of y − p on f predicts each sample without its own label (leave-one-out),

    prediction = p + K (K + I)⁻¹ (y − p), without the sample,    K = exp(−‖f − f'‖² / median ‖f − f'‖²)

The share of a client's labels that differ from this prediction is `unexplained`. Neighbours in the space of a model
find wrong labels (Bahri et al., "Deep k-NN for Noisy Labels", ICML 2020, arXiv 2004.12289); the regression of the
residual lets the shared model decide where the client has too few samples.

A client is bad if its unexplained share is far above those of the others: by 20 points, and by 2.5 robust deviations
(median and median absolute deviation over clients, and the error of a share of its samples). It is different if
this holds only for the share that the shared model alone does not predict.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.auditing.samples import Audit
from fedtilt.data import Federation
from fedtilt.data.inputs import take
from fedtilt.data.naming import client_number
from fedtilt.imports import import_extra
from fedtilt.models import logits

LEAST_SHARE = 0.2  # how far a share is above the median of a client that stands out
LEAST_SCORE = 2.5  # in robust deviations
_MOST_SAMPLES = 1000  # of a client that are looked at
_MAD = 1.4826  # of a normal distribution: its standard deviation / its median absolute deviation


class AuditedClient(NamedTuple):
    """What the audit knows about a client; shares are of its training labels."""

    client: str
    verdict: str  # "bad", "different" or "ordinary"
    score: float  # robust deviations of `unexplained` above the median
    unexplained: float  # share that neither the shared model nor the client's other samples predict
    unknown: float  # share that the shared model does not predict
    loss: float  # of the shared model
    distance: float  # of its updates from the others, median over rounds; 1 is ordinary, NaN: never took part
    suspects: float  # share with a suspicion score of at least 0.5; NaN: never took part
    samples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientAudit:
    """Every client with its scores, the worst first, and the distances of their updates by round."""

    method: str
    clients: tuple[AuditedClient, ...]
    distances: Tensor  # (rounds, clients) of updates from the others, by number of the client; NaN: did not take part
    client_names: tuple[str, ...]

    def __getitem__(self, client: int | str) -> AuditedClient:
        name = self.client_names[client_number(client, self.client_names)]
        return next(row for row in self.clients if row.client == name)

    def __repr__(self) -> str:
        return f"ClientAudit({self.method!r}: {len(self.bad)} bad and {len(self.different)} different clients)"

    @property
    def bad(self) -> tuple[str, ...]:
        """The names of the clients that look bad, the worst first."""
        return tuple(row.client for row in self.clients if row.verdict == "bad")

    @property
    def different(self) -> tuple[str, ...]:
        """The names of the clients that are different, but not bad."""
        return tuple(row.client for row in self.clients if row.verdict == "different")

    def sentences(self) -> list[str]:
        """A sentence for each client that stands out."""
        return [self._sentence(row) for row in self.clients if row.verdict != "ordinary"]

    def heat_map(self) -> Tensor:
        """Robust scores of the update distances, (rounds, clients): how far above the others of the round; or NaN."""
        median = self.distances.nanmedian(1, keepdim=True).values
        deviation = _MAD * (self.distances - median).abs().nanmedian(1, keepdim=True).values
        return (self.distances - median) / deviation.clamp_min(0.01)

    def to_pandas(self) -> Any:
        """A table with one row per client, the worst first."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        return pandas.DataFrame(self.clients, columns=AuditedClient._fields)

    def _sentence(self, row: AuditedClient) -> str:
        def median(key: str) -> float:
            return float(torch.tensor([getattr(other, key) for other in self.clients]).nanmedian())

        if row.verdict == "different":
            return (
                f"client {row.client} is different, not bad: the shared model does not predict {row.unknown:.0%} of "
                f"its labels (median of all clients {median('unknown'):.0%}), but its other samples do: "
                f"{row.unexplained:.0%} remain"
            )
        more = f"the shared model's loss on it is {row.loss:.2f} ({median('loss'):.2f})"
        if not math.isnan(row.suspects):
            more += f", {row.suspects:.0%} of its samples are suspects ({median('suspects'):.0%})"
        if not math.isnan(row.distance):
            more += f", and its updates are {row.distance:.2f} times as far from the others as the median"
        return (
            f"client {row.client} looks bad: {row.unexplained:.0%} of its labels are predicted neither by the shared "
            f"model nor by its other samples (median of all clients {median('unexplained'):.0%}); {more}"
        )


def audit_clients(
    samples: Audit, federation: Federation, model_of: Callable[[int], nn.Module], distances: Tensor
) -> ClientAudit:
    """Which clients look bad, and which are merely different.

    Args:
        samples: the audit of samples, by the method whose shared model judges
        federation: the clients and their data
        model_of: the shared model as a client uses it, by the number of the client
        distances: of updates by round, (rounds, clients), from `distances_by_round`
    """
    measured = [_measure(federation, client, model_of(client)) for client in range(federation.clients)]
    unexplained, unknown, loss, sizes = torch.tensor(measured, dtype=torch.float64).T
    is_bad, score = standing_out(unexplained, sizes)
    is_unknown, _ = standing_out(unknown, sizes)
    distance = distances.nanmedian(0).values if len(distances) else torch.full((federation.clients,), torch.nan)
    rows = [
        AuditedClient(
            client=name,
            verdict="bad" if is_bad[n] else "different" if is_unknown[n] else "ordinary",
            score=float(score[n]),
            unexplained=float(unexplained[n]),
            unknown=float(unknown[n]),
            loss=float(loss[n]),
            distance=float(distance[n]),
            suspects=_suspects(samples, n),
            samples=len(federation.train_index[n]),
        )
        for n, name in enumerate(federation.client_names)
    ]
    ordered = sorted(rows, key=lambda row: (row.verdict != "bad", -row.score))
    return ClientAudit(
        method=samples.method, clients=tuple(ordered), distances=distances, client_names=federation.client_names
    )


def _measure(federation: Federation, client: int, model: nn.Module) -> tuple[float, float, float, int]:
    """Unexplained and unknown shares and the loss of the shared model, and of how many samples."""
    x, y = federation.stored_train(client)
    chosen = torch.arange(len(y))
    if len(y) > _MOST_SAMPLES:
        chosen = torch.tensor(seeds.choose(seeds.key(0, "audit/clients", client=client), len(y), _MOST_SAMPLES))
    with torch.no_grad():
        outputs = logits(model.eval(), take(x, chosen))
    log_p, y = outputs.double().log_softmax(1), y[chosen]
    unknown = (log_p.argmax(1) != y).double().mean()
    return float(unexplained_share(log_p, y)), float(unknown), float(-log_p.gather(1, y[:, None]).mean()), len(y)


def unexplained_share(log_p: Tensor, y: Tensor) -> Tensor:
    """The share of labels that differ from what the shared model and the other samples predict.

    Args:
        log_p: log-probabilities of the shared model, (n, K)
        y: labels (n,)
    """
    p = log_p.exp()
    residual = torch.nn.functional.one_hot(y, log_p.shape[1]).to(p) - p
    sq_dist = torch.cdist(log_p, log_p).square()  # (n, n)
    scale = sq_dist[sq_dist > 0].median() if (sq_dist > 0).any() else torch.ones_like(sq_dist[0, 0])
    kernel = torch.exp(-sq_dist / scale)
    smoother = torch.linalg.solve(kernel + torch.eye(len(y)).to(kernel), kernel).T
    own = smoother.diagonal()[:, None]
    left_out = (smoother @ residual - own * residual) / (1 - own)  # as if fitted without the sample itself
    return ((p + left_out).argmax(1) != y).double().mean()


def standing_out(shares: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Which shares are far above the others, and their robust scores.

    Median and deviation are those of the shares that do not stand out, since many that do would raise both.

    >>> standing_out(torch.tensor([0.04, 0.05, 0.06, 0.05, 0.5]), torch.full((5,), 100.0))[0].tolist()
    [False, False, False, False, True]
    """
    error = _error_of_share(shares, samples)
    out = torch.zeros(len(shares), dtype=torch.bool)
    while True:
        median = shares[~out].median()
        deviation = _MAD * (shares[~out] - median).abs().median()
        scores = (shares - median) / (deviation**2 + error).sqrt()
        found = out | ((scores > LEAST_SCORE) & (shares - median > LEAST_SHARE))
        if bool((found == out).all()) or 2 * int(found.sum()) > len(shares):  # most clients cannot stand out
            return out, scores
        out = found


def _error_of_share(shares: Tensor, samples: Tensor) -> Tensor:
    """The variance of shares of these numbers of samples, drawn to one half so that it is never 0."""
    p = (shares * samples + 1) / (samples + 2)
    return p * (1 - p) / (samples + 2)


def _suspects(samples: Audit, client: int) -> float:
    scores = samples.score[samples.client == client]
    return float((scores >= 0.5).double().mean()) if len(scores) else math.nan
