"""A client leaves: the run is trained again as if it had never been there, and a site deletes its state."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedtilt.data.naming import client_number
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import client_scores
from fedtilt.locks import locked
from fedtilt.runs.callback import Callback
from fedtilt.runs.spec_run import run_spec, spec_of
from fedtilt.runs.trained_run import open_seed, open_state
from fedtilt.spec import train_settings_of
from fedtilt.state import ClientState, ServerState
from fedtilt.storage.provenance import read_record, seed_folder
from fedtilt.storage.run_folder import RunFolder


class ClientChanges(NamedTuple):
    """What the others gain without a client, in one method and seed."""

    method: str
    seed: int
    clients: dict[str, float]  # score without it − with it, in points or in the unit of the target; by client


def forget(folder: Path, client: str, out: Path, callbacks: Sequence[Callback] = ()) -> None:
    """Train a run again from the start without a client, in a new folder; it is a run that never had the client.

    The others keep their samples, their numbers and so their random numbers, and the rounds in which they take part.
    Everything that was computed with the client's data is computed again: also, of tables, means and categories.
    """
    spec = spec_of(folder)
    if read_record(folder).get("runner") == "flower":
        raise InputError(
            f"{folder} was trained on Flower sites; on the server, fedtilt forget PROJECT --client {client}, and train "
            "the project again with fedtilt deploy run and another out"
        )
    names = open_seed(folder)[1].description()["clients"]
    name = names[client_number(client, names)]
    if name in spec.clients.leave_out:
        raise InputError(f"client {name!r} is not part of {folder}: leave_out has it")
    without = [*spec.clients.leave_out, name]
    quoted = ", ".join('"' + n.replace("\\", "\\\\").replace('"', '\\"') + '"' for n in without)
    run_spec(
        spec_of(folder, f"clients.leave_out=[{quoted}]"), out, callbacks=callbacks,
        note={"forgotten": without},
    )  # fmt: skip


def first_round(folder: Path, client: str) -> int | None:
    """The first round in which a client was selected, of all seeds; None: it never was, until the run ended."""
    spec, names = spec_of(folder), open_seed(folder)[1].description()["clients"]
    number = client_number(client, names)
    for round in range(1, last_round(folder) + 1):
        for seed in read_record(folder)["seeds"]:
            if number in train_settings_of(spec, seed).selected(round, len(names)):
                return round
    return None


def last_round(folder: Path) -> int:
    """The round of the models of a run, of all seeds the latest; it may end early."""
    return max(open_state(folder, seed)[2].round for seed in read_record(folder)["seeds"])


def model_digest(folder: Path) -> str:
    """A digest of all models after the last round: shared and, if they are here, of the clients, of every seed."""
    digest = hashlib.blake2b(digest_size=16)
    for seed in read_record(folder)["seeds"]:
        _, run_folder, state = open_state(folder, seed)
        names = run_folder.description()["clients"]
        states: dict[str, ServerState | ClientState] = dict(state.server) | {
            f"{method}/{names[n]}": state.client_states.get((method, n))
            for method in state.server
            for n in range(len(names))
        }
        for owner, of_owner in sorted(states.items()):
            for key, tensor in sorted(of_owner.to_tensors().items()):
                digest.update(f"{owner}/{key}".encode())
                digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def changes(before: Path, after: Path) -> list[ClientChanges]:
    """Who gains and who loses: the scores of all clients of both runs, by method and seed."""
    found = []
    for seed in read_record(after)["seeds"]:
        runs = [RunFolder(seed_folder(folder, int(seed))) for folder in (before, after)]
        names = [run.description()["clients"] for run in runs]
        last = [max(run.evaluations.read_lines().rounds) for run in runs]
        tables = [run.evaluations.counts(round) for run, round in zip(runs, last, strict=True)]
        for method in tables[1][0]:
            scores = []
            for (counts, total), of_run in zip(tables, names, strict=True):
                present = [name for name, samples in zip(of_run, total.sum(1).tolist(), strict=True) if samples]
                scores.append(dict(zip(present, client_scores(counts[method].evaluated, total).tolist(), strict=True)))
            both = {name: scores[1][name] - scores[0][name] for name in scores[1] if name in scores[0]}
            found.append(ClientChanges(method, int(seed), both))
    return found


def forget_site(folder: Path, number: str) -> list[Path]:
    """Delete the models, scores, reports and suspects in the state-dir of a site; what was deleted."""
    if not number.isdecimal():
        raise InputError(f"--client {number} is not the number of a site; its folders are site-00000, site-00001, …")
    found = sorted(path for path in folder.rglob(f"site-{int(number):05d}") if (path / "fingerprint.json").exists())
    if not found:
        raise InputError(f"{folder} is neither a run folder nor the state-dir of site {number}; check the path")
    for path in found:
        with locked(path):
            shutil.rmtree(path)
    return found
