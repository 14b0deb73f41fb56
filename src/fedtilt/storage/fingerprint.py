"""The fingerprint of a run: methods, settings, data and model, which must stay the same when it is resumed.

The number of rounds may change: it changes nothing in the rounds before the end, unless the schedule of the learning
rates depends on it. The interval between evaluations, whose default depends on it, stays as the run was started with.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.data import Federation
from fedtilt.data.inputs import named_tensors, take
from fedtilt.data.targets import LabelTarget, NumericTarget, TokenTarget
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.files import first_difference, read_json
from fedtilt.parts import tied_parameters
from fedtilt.storage.provenance import recorded_settings
from fedtilt.training.augmentation import check_transform

# key of a fingerprint whose value is a digest → what has changed, and what to restore
_DIGESTED = {
    "samples": "other samples; restore the data as it was",
    "partition": "another division of the samples among the clients; restore the data, its seed and its settings",
    "sizes": "other numbers of samples per client; restore the data, its seed and its settings",
    "start": "another initial model; restore its code, weights and random seed",
    "constants": "another {part}, which the run does not train; restore the model's code and weights",
    "loss": "another loss function; restore its code",
    "transform": "another transform; restore its code",
    "root": "another root set; name the file of the server that the run was started with",
}
_OF_A_SEED = ("seed", "samples", "partition", "sizes", "start", "constants")  # differ between the seeds of one run


def fingerprint_of(prepared: PreparedRun) -> dict[str, Any]:
    """Everything that determines the results of a run, except the machine, as JSON values."""
    data, federation = prepared.federation.dataset, prepared.federation
    index = [*federation.train_index, *federation.test_index]
    seed_of_outliers = [torch.tensor(federation.seed)] if federation.outliers.redraw == "once" else []
    x_train, x_test = (named_tensors(x, "x").values() for x in (data.x_train, data.x_test))
    noisy = [] if data.noisy_train is None else [data.noisy_train]
    groups = [codes for column in federation.groups.values() for codes in (column.train, column.test)]
    return {
        **recorded_settings(prepared.methods, prepared.settings),
        "data": data.name,
        "samples": digest_of([*x_train, data.y_train, *x_test, data.y_test, *groups, *noisy]),
        "outliers": federation.outliers.to_json(),
        "clients": federation.clients,
        "partition": digest_of([*index, federation.has_outliers, *seed_of_outliers]),
        "sizes": digest_of(
            [torch.tensor([len(rows) for rows in index])]
        ),  # two partitions of the same rows differ in them
        **prepared.parts.to_json(),
        "tied": tied_parameters(prepared.net),
        "architecture": repr(prepared.net),
        "start": digest_of([prepared.parts.initial]),
        "loss": _loss_digest(prepared),
        **_transform_digest(prepared),
    }


def _loss_digest(prepared: PreparedRun) -> str:
    """A digest of the loss on fixed outputs: two lambdas have the same name."""
    count, target = prepared.federation.outputs, prepared.federation.target
    shape = (8, 2) if isinstance(target, TokenTarget) else (16,)  # of the outputs, without the last dimension
    outputs = torch.arange(16 * count, dtype=torch.float32).reshape(*shape, count).sin()
    targets = torch.arange(16).reshape(shape) % count
    if isinstance(target, LabelTarget):
        targets = (outputs > 0.5).float()
    elif isinstance(target, NumericTarget):
        targets = torch.arange(16).cos()
    with torch.no_grad():
        return digest_of([prepared.settings.sample_loss(outputs, targets)])


def _transform_digest(prepared: PreparedRun) -> dict[str, str]:
    """A digest of what a transform makes of some samples."""
    transform = prepared.settings.batch_transform
    if transform is None:
        return {}
    found = check_transform(transform, take(prepared.federation.clean_train(0)[0], slice(0, 8)))
    return {"transform": digest_of([values.cpu() for values in named_tensors(found, "x").values()])}


def test_rows_digest(federation: Federation) -> str:
    """A digest of which test rows the clients have, and of their targets."""
    data, rows = federation.dataset, torch.cat(list(federation.test_index))
    positions = rows if data.rows_test is None else data.rows_test[rows]
    return digest_of([positions.cpu(), data.y_test[rows].cpu()])


def digest_of(tensors: Sequence[torch.Tensor]) -> str:
    """A digest of the values of tensors on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for values in tensors:
        digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()


def read_fingerprint(path: Path) -> dict[str, Any]:
    """A fingerprint of a run folder, with the keys that every fingerprint has."""
    match fingerprint := read_json(path):
        case {
            "train": {"rounds": int()}, "methods": {**methods}, "data": _, "clients": int(),
            "outliers": {"kind": str(), "clients": _},
        } if methods:  # fmt: skip
            return dict(fingerprint)
    raise InputError(f"{path} is damaged: it lacks rounds, methods, data, clients or outliers; restore it from a copy")


def check_unchanged(folder: Path, before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> None:
    """Raise InputError if a fingerprint differs from the one of the folder in more than the number of rounds."""
    difference = first_difference(_without(before, "rounds"), _without(fingerprint, "rounds"))
    if difference:
        key, was, now = difference
        changed = f"was started with {key} = {was}, and now it is {now}; restore it"
        if digested := next((text for name, text in _DIGESTED.items() if f"{key}.".startswith(f"{name}.")), None):
            changed = f"was started with {digested.format(part=key.partition('.')[2])}"
        raise InputError(f"{folder} {changed}, or start a new run in another folder (--out, or out= in Python)")


def check_other_seeds(folder: Path, fingerprint: Mapping[str, Any]) -> None:
    """Raise InputError if the folder of a seed is beside seeds of another run: reports would mix them.

    The seeds of one run may differ in their number of rounds while they continue beyond their end, one by one.
    """
    differing = (*_OF_A_SEED, *(["rounds"] if (folder / "fingerprint.json").exists() else []))
    ours = _without(fingerprint, *differing)
    for path in sorted(folder.parent.glob("seed-*/fingerprint.json")):
        if path.parent == folder:
            continue
        if difference := first_difference(_without(read_fingerprint(path), *differing), ours):
            key, was, now = difference
            raise InputError(
                f"{folder.parent} has {path.parent.name} of a run with {key} = {was}, and now it is {now}; "
                "choose another folder"
            )


def _without(fingerprint: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A fingerprint as it is read back from its file, without these keys and training settings."""
    found = json.loads(json.dumps(fingerprint))
    train = {key: value for key, value in found["train"].items() if key not in names}
    return {**{key: value for key, value in found.items() if key not in names}, "train": train}


# -- the number of rounds ---------------------------------------------------------------------------------------------


def continued(folder: Path, settings: TrainSettings) -> TrainSettings:
    """The settings of a run that continues in the folder of its seed: `eval_every` is by default the one it has."""
    path = folder / "fingerprint.json"
    if settings.eval_every is not None or not path.exists():
        return settings
    return dataclasses.replace(settings, eval_every=read_fingerprint(path)["train"].get("eval_every"))


def check_rounds(folder: Path, train: Mapping[str, Any], rounds: int, done: int, is_evaluated: bool) -> None:
    """Raise InputError if another number of rounds changes rounds that are done, or if more are done."""
    if rounds == train["rounds"]:
        return
    if train.get("schedule", {}).get("name") == "cosine":
        raise InputError(
            f"{folder} has schedule = 'cosine', in which every round depends on rounds = {train['rounds']}; "
            f"start a run with rounds = {rounds} in another folder"
        )
    if rounds < done or (rounds == done and not is_evaluated):
        what = "1 round" if done == 1 else f"{done} rounds"
        raise InputError(f"{folder} has {what}, and rounds = {rounds} is fewer; choose more than {done}")
