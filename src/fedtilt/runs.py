"""A run from start to end: simulate, store, resume."""

import copy
import dataclasses
import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.locks import locked
from fedtilt.methods import Method
from fedtilt.models import ModelSource, flat
from fedtilt.provenance import environment, record_environment, seed_folder, settings_of
from fedtilt.results import MethodResult, Result, Summary, judged_counts, over_seeds, summarised
from fedtilt.shelf import State
from fedtilt.simulate import Prepared, Round, prepared, simulated
from fedtilt.store import Memory, Store
from fedtilt.training import Training

if TYPE_CHECKING:
    from fedtilt.spec import Spec

OnRound = Callable[[Round, Mapping[str, Summary] | None], None]
Notice = Callable[[str], None]


def _silent(*_: object) -> None:
    pass


def run(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    rounds: int = 50,
    participation: float = 0.1,
    epochs: int = 10,
    batch_size: int = 10,
    lr: float = 0.01,
    lr_personal: float | None = None,
    seed: int = 0,
    device: str = "auto",
    eval_every: int | None = None,
    out: str | os.PathLike[str] | None = None,
    way: str = "auto",
    workers: int | None = None,
    precision: str = "float32",
    on_round: OnRound = _silent,
    notice: Notice = _silent,
    checkpoint_seconds: float = 10.0,
    memory_limit: int = 2 * 2**30,
) -> Result:
    """Train every method to the end; the defaults are the paper's setting, and `Training` says what they mean.

    With `out`, metrics, counts, checkpoints and models go into that folder; called again with the same arguments, an
    interrupted run goes on from its last checkpoint to the same bits.
    """
    settings = Training(
        rounds=rounds, participation=participation, epochs=epochs, batch_size=batch_size, lr=lr,
        lr_personal=lr_personal, seed=seed, device=device, eval_every=eval_every, way=way, workers=workers,
        precision=precision,
    )  # fmt: skip
    if out is not None:
        _check_free(Path(out), going_on=True)
    work = prepared(methods, federation, model, settings)
    if out is None:
        return _train(work, _job(work), Memory(memory_limit), checkpoint_seconds, on_round, notice)
    folder = Path(out)
    with locked(folder):
        store = Store(seed_folder(folder, settings.seed), memory_limit)
        job = _job(work)
        store.check_siblings(job)
        record_environment(folder, settings.device, [settings.seed])
        _compare_environment(folder, settings.device, notice)
        return _train(work, job, store, checkpoint_seconds, on_round, notice)


def _check_free(folder: Path, *, going_on: bool) -> None:
    """Refuse a file, and a folder that holds anything but, where it may go on, a run."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another folder")
    begun = (folder / "run.json").exists()
    if not folder.exists() or (begun and going_on):
        return
    # a run that is killed before it writes run.json leaves these
    held = [path for path in folder.iterdir() if path.name != ".lock" and path.suffix != ".part"]
    if held:
        resume = f"use fedtilt resume {shlex.quote(str(folder))}, or another folder"
        raise InputError(f"{folder} is not empty; {resume if begun else 'choose another folder'}")


def _compare_environment(folder: Path, device: str, notice: Notice) -> None:
    """Say what is not as it was when the run began."""
    before, now = read_json(folder / "run.json")["environment"], environment(device)
    for key, was in before.items():
        if now.get(key) != was:
            notice(f"{key} was {was} and is {now.get(key)} now: the last bits may differ")


def _train(
    work: Prepared, job: Mapping[str, Any], keeper: Store | Memory, checkpoint_seconds: float, on_round: OnRound,
    notice: Notice,
) -> Result:  # fmt: skip
    federation = work.federation
    state = keeper.begin(job, notice)
    keeper.describe(
        clients=federation.client_names,
        classes=federation.class_names,
        carriers=federation.carriers.nonzero()[:, 0].tolist(),
        extras=_extras(work.net),
        model=_use(work),
    )
    saved, kept = time.monotonic(), 0
    for r in simulated(work, state=state, shelf=keeper.shelf):
        state, summaries = r.state, None
        if r.counts is not None:
            summaries = summarised(r.counts, r.total, federation.carriers)
            validation = summarised(r.validation, r.validation_total, federation.carriers)
            keeper.record(r.number, summaries, r.counts, r.total, validation)
        if time.monotonic() - saved >= checkpoint_seconds or r.number == work.settings.rounds:
            keeper.checkpoint(r.state)
            saved, kept = time.monotonic(), r.number
        try:
            on_round(r, summaries)
        except BaseException:  # whoever stops a run between two rounds can go on from there
            if kept < r.number:
                keeper.checkpoint(r.state)
            raise
    assert state is not None  # there is at least one round, trained now or before
    return _result(work, keeper, state)


def _result(work: Prepared, keeper: Store | Memory, state: State) -> Result:
    counts, total = keeper.counts(state.round)
    net = copy.deepcopy(work.net).cpu()
    return Result(
        {
            m.name: MethodResult(
                method=m,
                history=keeper.history[m.name],
                correct=judged_counts(counts[m.name]),
                total=total,
                validation=keeper.validation[m.name].judged if m.name in keeper.validation else None,
                client_names=work.federation.client_names,
                class_names=work.federation.class_names,
                _net=net,
                _shared=state.shared[m.name].cpu(),
                _shelf=state.shelf,
            )
            for m in work.methods
        }
    )


def _job(work: Prepared) -> dict[str, Any]:
    """What is run, as JSON: everything that determines its results but the machine."""
    data, federation = work.federation.dataset, work.federation
    index = [*federation.train_index, *federation.test_index]
    return {
        **settings_of(work.methods, work.settings),
        "data": data.name,
        "samples": _digest([data.x_train, data.y_train, data.x_test, data.y_test]),
        "outliers": dataclasses.asdict(federation.outliers),
        "clients": federation.clients,
        "partition": _digest([*index, federation.carriers]),
        "sizes": _digest([torch.tensor([len(rows) for rows in index])]),  # the same rows, divided otherwise
        "model": {name: list(p.shape) for name, p in work.net.named_parameters()},
        "tied": _tied(work.net),
        "architecture": repr(work.net),
        "start": _digest([flat(work.net)]),
    }


def _tied(net: torch.nn.Module) -> dict[str, str]:
    """The other names of parameters that have several, and the first one of each."""
    first = {id(p): name for name, p in net.named_parameters()}
    every = net.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}


def _extras(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a model's state holds besides its parameters; training leaves it alone."""
    trained = dict(net.named_parameters(remove_duplicate=False))
    held = {name: value for name, value in net.state_dict().items() if name not in trained}
    return {name: value.detach().clone() for name, value in held.items() if isinstance(value, torch.Tensor)}


def _use(work: Prepared) -> dict[str, Any]:
    """What it takes to use a model elsewhere: how it is made, and that it takes (x − mean) / deviation."""
    data = work.federation.dataset
    found: dict[str, Any] = {} if work.recipe is None else {"model": work.recipe}
    if data.image:
        return found | {"mean": [0.5], "deviation": [0.5]}  # pixels in [0, 1] become [-1, 1]
    return found | ({} if data.features is None else data.features.to_json())


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for values in tensors:
        digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()


# -- from a spec -----------------------------------------------------------------------------------------------------


def run_spec(
    spec: "Spec",
    out: str | os.PathLike[str],
    *,
    on_seed: Callable[[int], None] = _silent,
    on_round: OnRound = _silent,
    notice: Notice = _silent,
    note: Mapping[str, Any] | None = None,
) -> dict[int, Result]:
    """Train a spec to the end in a new folder, every seed in turn; the results by seed. `note` goes into run.json."""
    from fedtilt.spec import dump

    folder = Path(out)
    _check_free(folder, going_on=False)
    _of_seed(spec, spec.seed)  # whatever is wrong with the device, the data or the model shows before a folder is made
    with locked(folder):
        write_bytes(folder / "spec.toml", dump(spec).encode())
        record_environment(folder, spec.device, range(spec.seed, spec.seed + spec.seeds), **(note or {}))
        return _all_seeds(spec, folder, on_seed, on_round, notice)


def resume(
    folder: str | os.PathLike[str],
    *,
    on_seed: Callable[[int], None] = _silent,
    on_round: OnRound = _silent,
    notice: Notice = _silent,
) -> dict[int, Result]:
    """Go on where a run of a spec stopped, to the same bits; the results by seed."""
    folder = Path(folder)
    spec = spec_of(folder)
    with locked(folder):
        run = read_json(folder / "run.json")
        if run.get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; go on with fedtilt deploy run and its project")
        if run["seeds"] != list(spec_seeds := range(spec.seed, spec.seed + spec.seeds)):
            raise InputError(
                f"{folder} was begun with seeds {run['seeds']}, and its spec.toml now says {list(spec_seeds)}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        _compare_environment(folder, spec.device, notice)
        return _all_seeds(spec, folder, on_seed, on_round, notice)


def spec_of(folder: Path) -> "Spec":
    """The spec that a run was started from."""
    from fedtilt.spec import load as load_spec

    check_run(folder)
    if not (folder / "spec.toml").exists():
        raise InputError(f"{folder} was started from Python: call fedtilt.run again with the same arguments and out=")
    return load_spec(folder / "spec.toml")


def check_run(folder: Path) -> None:
    """Refuse what is no run folder."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist; check the path")
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")


def _all_seeds(
    spec: "Spec", folder: Path, on_seed: Callable[[int], None], on_round: OnRound, notice: Notice
) -> dict[int, Result]:
    results = {}
    for seed in range(spec.seed, spec.seed + spec.seeds):
        on_seed(seed)
        store = Store(seed_folder(folder, seed), spec.store.memory_limit_mb * 2**20)
        work = _of_seed(spec, seed)
        results[seed] = _train(work, _job(work), store, spec.store.checkpoint_seconds, on_round, notice)
    write_json(folder / "results.json", over_seeds(results))
    return results


def _of_seed(spec: "Spec", seed: int) -> Prepared:
    from fedtilt.spec import federation_of, model_of, training_of

    methods = [m.to_method() for m in spec.methods]
    return prepared(methods, federation_of(spec, seed), model_of(spec), training_of(spec, seed))
