"""The audit of a run folder, and training again without its suspects or with other labels."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedtilt.auditing.clients import ClientAudit, audit_clients
from fedtilt.auditing.samples import Audit, audit_samples, most_robust
from fedtilt.data import Federation
from fedtilt.engine.client import build_client_model
from fedtilt.engine.updates import distances_by_round
from fedtilt.errors import InputError
from fedtilt.runs.spec_run import prepare_seed, spec_of
from fedtilt.runs.trained_run import open_state
from fedtilt.spec import Spec
from fedtilt.storage.fingerprint import fingerprint_of, read_fingerprint
from fedtilt.storage.provenance import read_record


class RunAudit(NamedTuple):
    """The audit of one seed of a run."""

    seed: int
    round: int
    audit: Audit
    clients: ClientAudit
    federation: Federation
    methods: tuple[str, ...]  # that could judge


def audit_run(folder: Path, method: str | None = None, seed: int | None = None) -> RunAudit:
    """The audit of a run from its last checkpoint, by default of its first seed.

    `method` is the one that judges; None: the one with the smallest lam, and of equals the first.
    """
    seed, run_folder, state = open_state(folder, seed)
    if read_record(folder).get("runner") == "flower":
        raise InputError(f"{folder} was trained on Flower sites; the audit of samples is on the sites, in suspects.csv")
    spec = spec_of(folder)
    if spec.task == "regression":
        raise InputError(f"an audit finds wrong labels, and the targets of {folder} are numbers; there is none for it")
    fingerprint = read_fingerprint(run_folder.folder / "fingerprint.json")
    if not fingerprint["train"].get("audit"):
        raise InputError(f"{folder} has no data for an audit; train it again with --audit (train.audit = true)")
    prepared = prepare_seed(spec, seed, folder)
    names = tuple(m.name for m in prepared.methods)
    if method is not None and method not in names:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(names)}")
    now = fingerprint_of(prepared)
    for key in ("samples", "partition", "sizes"):
        if now[key] != fingerprint[key]:
            data = prepared.federation.dataset.name
            raise InputError(f"the data {data!r} was changed since {folder} was trained; restore it, or train again")
    judge = method or most_robust(prepared.methods)
    federation, server = prepared.federation, state.server[judge]
    parts = next(prepared.parts.keeping(m.local_names) for m in prepared.methods if m.name == judge)
    audit = audit_samples(judge, state.client_states, federation)

    def shared_of(client: int) -> nn.Module:
        kept = state.client_states.get((judge, client))
        return build_client_model(prepared.net, parts, server, kept, personal=False)

    clients = audit_clients(audit, federation, shared_of, distances_by_round(server, federation.clients))
    return RunAudit(seed, state.round, audit, clients, federation, names)


def corrected_spec(folder: Path, *, exclude: Path | None = None, relabel: Path | None = None) -> Spec:
    """The spec of a run, without the samples of a file or with their other labels; corrections add up."""
    spec = spec_of(folder)
    if spec.seeds > 1 and spec.outliers.kind != "none" and spec.outliers.redraw == "once":
        raise InputError(
            f"{folder} has {spec.seeds} seeds, and outliers of its own with each: the suspects of one are not those of "
            "another; train and audit a run of one seed"
        )
    changes = {"exclude": exclude, "relabel": relabel}
    for key, path in changes.items():
        before = getattr(spec.data, key)
        if path is not None and before is not None:
            raise InputError(
                f"{folder} was trained with data.{key} = {before!r} already; add these samples to that file, and audit "
                "the run before it again"
            )
    return spec_of(folder, *(f"data.{key}={path.resolve()}" for key, path in changes.items() if path is not None))


class AccuracyGain(NamedTuple):
    """What a method gained, in points."""

    method: str
    split: str  # "validation" or "test"
    before: float  # mean accuracy over clients, in percent
    after: float


def gains(before: dict[str, Any], after: dict[str, Any]) -> list[AccuracyGain]:
    """The accuracy of every method in two results.json, on validation data if there is any, and on test data."""
    found = []
    for method, old in before["methods"].items():
        new = after["methods"][method]
        if "validation" in old and "validation" in new:
            found.append(
                AccuracyGain(
                    method, "validation", old["validation"]["accuracy"]["mean"], new["validation"]["accuracy"]["mean"]
                )
            )
        found.append(AccuracyGain(method, "test", old["accuracy"]["mean"], new["accuracy"]["mean"]))
    return found
