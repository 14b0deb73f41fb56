"""A trained run as exports, model cards and predictions need it: from a run folder, a site's folder, or memory."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.data.naming import client_number
from fedtilt.engine.client_states import FederationState
from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.prediction_sets import ConformityScores
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.files import interpreting, read_json, read_tensors
from fedtilt.state import ClientState, ServerState
from fedtilt.storage.evaluations import read_counts
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.predictions import read_predictions
from fedtilt.storage.provenance import check_run_folder, read_record, seed_folder
from fedtilt.storage.run_folder import RunFolder, read_thresholds
from fedtilt.version import __version__


class Evaluation(NamedTuple):
    """The evaluation of one method after the round of a run."""

    summary: RoundMetrics
    counts: Counts
    total: Tensor  # (clients, groups)


class TrainedRun(NamedTuple):
    """One seed of a trained run, after one round."""

    source: str  # where it is, for messages
    fingerprint: Mapping[str, Any]
    description: Mapping[str, Any]  # names of clients and classes, and how to build the model and its input
    constants: Mapping[str, Tensor]  # frozen parameters, initial local parameters and buffers
    server: Mapping[str, ServerState | None]  # by method; None: on a site with a personal model
    client_state: Callable[[str, int], ClientState]  # of a method and a client's number
    round: int
    evaluation: Callable[[str], Evaluation | None]  # of a method; None: the round was not evaluated
    # of a method on validation data; None: there are none
    scores: Callable[[str], ConformityScores | None] = lambda _: None
    thresholds: Mapping[str, Threshold] = MappingProxyType({})  # by method, chosen for the models after this round
    version: str = __version__  # of fedtilt, that trained it
    own_client: int | None = None  # of a site's folder: the site

    @property
    def clients(self) -> list[str]:
        """The names of the clients."""
        return self.description.get("clients") or list(map(str, range(self.fingerprint["clients"])))

    def method(self, name: str | None) -> str:
        """The name of a method of the run; None: its only one."""
        names = list(self.fingerprint["methods"])
        if name is None and len(names) > 1:
            raise InputError(f"{self.source} has the methods {', '.join(names)}; choose one with --method (method=…)")
        name = names[0] if name is None else name
        if name not in self.server:
            raise InputError(f"{self.source} has no method {name!r}; it has {', '.join(names)}")
        return name

    def client_number(self, client: int | str | None) -> int | None:
        """The number of a client; None: nobody's model, but the shared one."""
        if self.own_client is not None and client in (None, self.clients[self.own_client]):
            return self.own_client
        if self.own_client is not None:
            raise InputError(f"{self.source} is the folder of site {self.clients[self.own_client]}, not of {client}")
        name = str(client)
        if isinstance(client, int) and name in self.clients and self.clients.index(name) != client:
            raise InputError(
                f"client = {name} may be the client named '{name}' or, counted from 0, another; give its name as text"
            )
        return None if client is None else client_number(client, self.clients)


def read_trained_run(folder: Path, seed: int | None = None, round: int | None = None) -> TrainedRun:
    """The run in a run folder or in a site's folder; by default its first seed, after its last checkpoint."""
    if (site := _site_folder(folder)) is not None:
        for option, value in (("--seed", seed), ("--round", round)):
            if value is not None:
                raise InputError(f"{option} {value} has no effect on {folder}: a site has its last model; remove it")
        return _read_site(site)
    _, run_folder, state = open_state(folder, seed, round)
    fingerprint = read_fingerprint(run_folder.folder / "fingerprint.json")

    def client_state(method: str, client: int) -> ClientState:
        if fingerprint.get("runner") == "flower":
            name = run_folder.client_name(client)
            raise InputError(
                f"the model of client {name} is on its site: run fedtilt export there, with the site's state folder; "
                "here, export the shared model, without --client"
            )
        return state.client_states.get((method, client))

    with interpreting(run_folder.folder):
        return TrainedRun(
            source=str(folder),
            fingerprint=fingerprint,
            description=run_folder.description(),
            constants=run_folder.constants(),
            server=state.server,
            client_state=client_state,
            round=state.round,
            evaluation=partial(_evaluation, run_folder, state.round),
            scores=partial(_scores, run_folder.folder, state.round),
            thresholds=read_thresholds(run_folder.folder, state.round),
            version=str(read_record(folder)["environment"].get("fedtilt", __version__)),
        )


def _evaluation(run_folder: RunFolder, round: int, method: str) -> Evaluation | None:
    lines = run_folder.evaluations.read_lines().rounds.get(round, {})
    if method not in lines:
        return None
    counts, total = run_folder.evaluations.counts(round)
    return Evaluation(lines[method].summary, counts[method], total)


def _scores(folder: Path, round: int, method: str) -> ConformityScores | None:
    """The stored scores of a method on validation data."""
    predictions = read_predictions(folder, round).get(method)
    return None if predictions is None else predictions.scores


def _site_folder(folder: Path) -> Path | None:
    """The folder of a site: this one, or the only one in this state folder; None: this is no site's."""
    if not folder.is_dir() or (folder / "run.json").exists():
        return None
    found = [path.parent for path in sorted(folder.rglob("fingerprint.json")) if path.parent.name.startswith("site-")]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found[:8])
        raise InputError(f"{folder} has the models of {len(found)} federations or sites; choose one of {names}")
    return found[0] if found else None


def _read_site(folder: Path) -> TrainedRun:
    """The run as one site has it after its last evaluation."""
    report = read_json(folder / "report.json")
    run_folder, fingerprint = RunFolder(folder), read_fingerprint(folder / "fingerprint.json")
    with interpreting(folder):
        method, round = next(iter(fingerprint["methods"])), int(report["round"])
        stored, shared = report["file"], folder / "shared.safetensors"
        tensors = {} if stored is None else read_tensors(folder / Path(stored).parent.name / Path(stored).name)
        kept = ClientState.from_tensors(tensors)
        server = ServerState.from_tensors(read_tensors(shared)) if shared.exists() else None
        evaluation = None
        if (folder / "evaluation.json").exists():
            counts, total = read_counts(folder / "counts.safetensors")
            summary = RoundMetrics.from_json(read_json(folder / "evaluation.json"))
            evaluation = Evaluation(summary, counts[method], total)
        return TrainedRun(
            source=str(folder),
            fingerprint=fingerprint,
            description=run_folder.description(),
            constants=run_folder.constants(),
            server={method: server},
            client_state=lambda *_: kept,
            round=round,
            evaluation=lambda _: evaluation,
            scores=partial(_scores, folder, round),
            own_client=0,
        )


def open_seed(folder: Path, seed: int | None = None) -> tuple[int, RunFolder]:
    """One seed of a run, and its part of the folder; None: the first."""
    check_run_folder(folder)
    record = read_record(folder)
    if "tuning" in record:
        again = shlex.quote(str(folder / "recommended.toml"))
        raise InputError(f"{folder} is a search, which keeps no models; train what it recommends: fedtilt run {again}")
    seeds = record["seeds"]
    seed = int(seeds[0]) if seed is None else seed
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    return seed, RunFolder(seed_folder(folder, seed))


def open_state(
    folder: Path, seed: int | None = None, round: int | None = None
) -> tuple[int, RunFolder, FederationState]:
    """`open_seed`, and the state of its last checkpoint, or of the one of this round."""
    seed, run_folder = open_seed(folder, seed)
    state = run_folder.latest(round)
    if state is None:
        raise InputError(f"{folder} has no checkpoint of seed {seed} yet; train it first")
    return seed, run_folder, state
