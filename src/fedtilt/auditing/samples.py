"""The audit of samples: suspects, worst first, and estimated shares of wrong labels per client and class."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.auditing.collect import Collected, Learnt
from fedtilt.auditing.scores import Share, expected_precision, score_clients, wrong_label_share
from fedtilt.data import Federation
from fedtilt.data.naming import client_number
from fedtilt.engine.client_states import ClientStates
from fedtilt.errors import InputError
from fedtilt.imports import import_extra
from fedtilt.methods import Method
from fedtilt.text_tables import csv_text

UNKNOWN = (
    "How many labels are wrong is not known: many wrong labels and none explain them equally well. Train longer, judge "
    "by another method, or add inputs that tell the classes."
)
CUTS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


class Suspect(NamedTuple):
    """A sample of the audit, with names as the user knows them."""

    row: str  # such as "row 17" of a table
    client: str
    label: str
    looks_like: str  # the class that it looks like; empty: unknown
    score: float  # the estimated probability that the label is wrong
    loss: float  # under the client's model, mean over its rounds
    weight: float  # that the tilts gave it, mean over rounds; 1 is an ordinary sample
    first_margin: float  # of its label under the client's model, after the first round
    last_margin: float  # after the last round
    rounds: int  # in which its client took part


class Cut(NamedTuple):
    """What to expect from the samples with at least a score."""

    score: float
    suspects: int
    precision: float  # the share of them that is expected to be wrong
    recall: float  # the share of all wrong labels that is expected to be among them


class WrongLabels(NamedTuple):
    """The estimated share of wrong labels of a client, or of one of its classes."""

    client: str
    label: str  # empty: all classes
    samples: int
    suspects: int  # samples with a score of at least 0.5
    wrong: Share


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """Every training sample of the clients that took part, with its suspicion score; (n,) tensors, in their order.

    `to_pandas()` has all columns, `suspects()` the worst samples first, `wrong_labels()` the shares per client.
    """

    method: str  # whose models judged the samples
    client: Tensor  # the number of each sample's client
    sample: Tensor  # its position among the client's training samples
    label: Tensor
    looks_like: Tensor  # the class that it looks like; -1: unknown
    score: Tensor  # in [0, 1]
    margin: Tensor  # log-odds that the label is right; the order of equal scores
    learnt: Learnt
    rounds: Tensor
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]
    never_selected: tuple[str, ...] = ()  # clients without a sample here: they never took part
    row_names: Callable[[int], Sequence[str]]  # client → the names of its training samples

    def __len__(self) -> int:
        return len(self.score)

    def __repr__(self) -> str:
        found = self.cut(0.5)
        return (
            f"Audit({self.method!r}: {found.suspects} of {len(self)} samples have a score of at least 0.5; "
            f"{found.precision:.0%} of these are expected to be wrong)"
        )

    @property
    def is_known(self) -> bool:
        """Whether wrong labels can be told from classes that the model does not tell apart; else all scores are 0."""
        return bool(self.score.any())

    @cached_property
    def worst_first(self) -> Tensor:
        """The order of the samples by their score, then by their margin."""
        order = self.margin.argsort(stable=True)
        return order[self.score[order].argsort(descending=True, stable=True)]

    def suspects(self, cut: float = 0.5, client: int | str | None = None) -> list[Suspect]:
        """The samples with at least this score, worst first."""
        order = self.worst_first[self.score[self.worst_first] >= cut]
        if client is not None:
            order = order[self.client[order] == client_number(client, self.client_names)]
        return list(self._named(order))

    def worst(self, count: int = 20) -> list[Suspect]:
        """The samples with the highest scores, whatever these are."""
        return list(self._named(self.worst_first[:count]))

    def cut(self, score: float) -> Cut:
        """What to expect from the samples with at least this score, if scores are the probabilities they estimate."""
        chosen = self.score[self.score >= score]
        return Cut(
            score,
            len(chosen),
            float(chosen.mean()) if len(chosen) else 0.0,
            float(chosen.sum() / self.score.sum().clamp_min(1e-12)),
        )

    def cuts(self, scores: Sequence[float] = CUTS) -> list[Cut]:
        """`cut` at several scores."""
        return [self.cut(score) for score in scores]

    def expected_precision(self) -> Tensor:
        """For every number of worst samples, the share of them that is expected to be wrong, (n,)."""
        return expected_precision(self.score)

    def wrong_labels(self, by_class: bool = False) -> list[WrongLabels]:
        """The estimated share of wrong labels per client, or per client and class, most first; NaN: it is not known."""
        rows = []
        for client in self.client.unique().tolist():
            mine = self.client == client
            for label in self.label[mine].unique().tolist() if by_class else [None]:
                scores = self.score[mine if label is None else mine & (self.label == label)]
                name = "" if label is None else self.class_names[label]
                count = int((scores >= 0.5).sum())
                share = wrong_label_share(scores) if self.is_known else Share(math.nan, 0.0, 1.0)
                rows.append(WrongLabels(self.client_names[client], name, len(scores), count, share))
        return sorted(rows, key=lambda row: -row.wrong.share)

    def confusion(self, client: int | str | None = None, cut: float = 0.5) -> Tensor:
        """Suspects by label (rows) and the class they look like (columns), of all clients or of one, (K, K)."""
        chosen = (self.score >= cut) & (self.looks_like >= 0)
        if client is not None:
            chosen &= self.client == client_number(client, self.client_names)
        classes = len(self.class_names)
        cell = self.label[chosen] * classes + self.looks_like[chosen]
        return torch.bincount(cell, minlength=classes * classes).reshape(classes, classes)

    def to_pandas(self) -> Any:
        """A table with one row per sample, worst first."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        return pandas.DataFrame(self._named(self.worst_first), columns=Suspect._fields)

    def _named(self, order: Tensor) -> Iterator[Suspect]:
        names: dict[int, Sequence[str]] = {}
        for i in order.tolist():
            client, like = int(self.client[i]), int(self.looks_like[i])
            if client not in names:
                names[client] = self.row_names(client)
            yield Suspect(
                row=names[client][int(self.sample[i])],
                client=self.client_names[client],
                label=self.class_names[int(self.label[i])],
                looks_like="" if like < 0 else self.class_names[like],
                score=float(self.score[i]),
                loss=float(self.learnt.loss[i]),
                weight=float(self.learnt.weight[i]),
                first_margin=float(self.learnt.first_margin[i]),
                last_margin=float(self.learnt.last_margin[i]),
                rounds=int(self.rounds[i]),
            )


def most_robust(methods: Sequence[Method]) -> str:
    """The method that judges samples if none is named: the smallest tilt over samples, and of equals the first."""
    return min(methods, key=lambda method: getattr(method.objective, "lam", 0.0)).name


def audit_samples(method: str, client_states: ClientStates, federation: Federation) -> Audit:
    """The audit of a run by one of its methods, from the states of its clients.

    Args:
        method: the name of the method
        client_states: the states of the clients
        federation: their data
    """
    if federation.target is not None:
        words = federation.target.words
        raise InputError(f"an audit finds wrong labels, and the data has {words}; there is none for this run")
    found = {c: Collected.of(client_states.get((method, c))) for c in range(federation.clients)}
    collected = {client: entry for client, entry in found.items() if entry is not None}
    if not collected:
        raise InputError(
            "this run has no data for an audit; train it with audit = True (--audit, or train.audit = true in a spec)"
        )
    labels = {client: federation.stored_train(client)[1] for client in collected}
    for client, entry in collected.items():
        if len(entry.log_p) != len(labels[client]):
            raise InputError(
                f"client {federation.client_names[client]} has {len(labels[client])} training samples, and had "
                f"{len(entry.log_p)} in the run; restore the data, or train again"
            )
    return build_audit(
        method, collected, labels, federation.client_names, federation.class_names, federation.row_names,
        tuple(federation.client_names[client] for client, entry in found.items() if entry is None),
    )  # fmt: skip


def build_audit(
    method: str,
    collected: Mapping[int, Collected],
    labels: Mapping[int, Tensor],
    client_names: tuple[str, ...],
    class_names: tuple[str, ...],
    row_names: Callable[[int], Sequence[str]],
    never_selected: tuple[str, ...] = (),
) -> Audit:
    """The audit from what was collected about clients, or other groups of samples, by number, and their labels."""
    score, margin, looks_like = score_clients([entry.log_p for entry in collected.values()], list(labels.values()))
    sizes = torch.tensor([len(y) for y in labels.values()])
    return Audit(
        method=method,
        client=torch.repeat_interleave(torch.tensor(list(collected)), sizes),
        sample=torch.cat([torch.arange(n) for n in sizes.tolist()]),
        label=torch.cat(list(labels.values())),
        looks_like=looks_like,
        score=score,
        margin=margin,
        learnt=Learnt(*(torch.cat(columns) for columns in zip(*(e.learnt for e in collected.values()), strict=True))),
        rounds=torch.repeat_interleave(torch.tensor([entry.rounds for entry in collected.values()]), sizes),
        client_names=client_names,
        class_names=class_names,
        never_selected=never_selected,
        row_names=row_names,
    )


def suspects_csv(suspects: Iterable[Suspect]) -> str:
    """One line per suspect, with the columns of `Suspect`; `fedtilt.data.corrections` reads it."""
    rows = ([round(value, 6) if isinstance(value, float) else value for value in suspect] for suspect in suspects)
    return csv_text([Suspect._fields, *rows])
