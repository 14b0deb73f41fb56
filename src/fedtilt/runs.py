"""A run from start to end: simulate, store, resume."""

import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.methods import Method
from fedtilt.models import ModelSource, flat, with_weights
from fedtilt.provenance import environment, record_environment, seed_folder, settings_of
from fedtilt.results import MethodResult, Result, Summary, judged_counts, over_seeds, summarise
from fedtilt.shelf import State
from fedtilt.simulate import Round, simulated
from fedtilt.store import Memory, Store, locked
from fedtilt.training import Training, initial_model, pick_device

if TYPE_CHECKING:
    from fedtilt.spec import Spec

OnRound = Callable[[Round, Mapping[str, Summary] | None], None]
Notice = Callable[[str], None]


def _silent(*_: object) -> None:
    pass


def run(
    methods: Sequence[Method],
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
    if out is None:
        keeper = Memory(memory_limit)
        return _train(methods, federation, model, settings, keeper, checkpoint_seconds, on_round, notice)
    folder = Path(out)
    with locked(folder):
        record_environment(folder, settings.device, [settings.seed])
        store = Store(seed_folder(folder, settings.seed), memory_limit)
        return _train(methods, federation, model, settings, store, checkpoint_seconds, on_round, notice)


def _train(
    methods: Sequence[Method], federation: Federation, model: ModelSource, settings: Training, keeper: Store | Memory,
    checkpoint_seconds: float, on_round: OnRound, notice: Notice,
) -> Result:  # fmt: skip
    net = initial_model(federation, model, settings.seed)
    state = keeper.begin(_job(methods, federation, net, settings), notice)
    keeper.describe(
        clients=federation.client_names,
        classes=federation.class_names,
        carriers=federation.carriers.nonzero()[:, 0].tolist(),
    )
    total = federation.class_counts("test")
    saved = time.monotonic()
    for r in simulated(methods, federation, model, settings, state=state, shelf=keeper.shelf):
        state, summaries = r.state, None
        if r.counts is not None:
            summaries = {name: summarise(c, total, federation.carriers) for name, c in r.counts.items()}
            keeper.record(r.number, summaries, r.counts, total)
        if time.monotonic() - saved >= checkpoint_seconds or r.number == settings.rounds:
            keeper.checkpoint(r.state)
            saved = time.monotonic()
        on_round(r, summaries)
    assert state is not None  # there is at least one round, trained now or before
    return _result(methods, net, keeper, state)


def _result(methods: Sequence[Method], net: torch.nn.Module, keeper: Store | Memory, state: State) -> Result:
    counts, total = keeper.counts(state.round)

    def personal(name: str) -> Callable[[int], torch.Tensor | None]:
        return lambda client: state.shelf.get((name, client))

    return Result(
        {
            m.name: MethodResult(
                method=m,
                history=keeper.history[m.name],
                correct=judged_counts(counts[m.name]),
                total=total,
                _shared=state.shared[m.name].cpu(),
                _personal=personal(m.name),
                _module=lambda weights: with_weights(net, weights).cpu(),
            )
            for m in methods
        }
    )


def _job(methods: Sequence[Method], federation: Federation, net: torch.nn.Module, settings: Training) -> dict[str, Any]:
    """Everything that determines the bits of a run, as JSON: where and by how many workers it is trained does not."""
    data = federation.dataset
    index = [*federation.train_index, *federation.test_index]
    return {
        **settings_of(methods, settings),
        "data": data.name,
        "samples": _digest([data.x_train, data.y_train, data.x_test, data.y_test]),
        "outliers": dataclasses.asdict(federation.outliers),
        "clients": federation.clients,
        "partition": _digest([*index, federation.carriers]),
        "model": {name: list(p.shape) for name, p in net.named_parameters()},
        "architecture": repr(net),
        "start": _digest([flat(net)]),
    }


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
) -> dict[int, Result]:
    """Train a spec to the end in a new folder, every seed in turn; the results by seed."""
    from fedtilt.spec import dump, federation_of, model_of

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another --out")
    if folder.exists() and any(folder.iterdir()):
        remedy = f"fedtilt resume {folder}, or " if (folder / "run.json").exists() else ""
        raise InputError(f"{folder} is not empty; use {remedy}another --out")
    # whatever is wrong with the device, the data or the model shows before a folder is made
    pick_device(spec.device)
    initial_model(federation_of(spec, spec.seed), model_of(spec), spec.seed)
    with locked(folder):
        write_bytes(folder / "spec.toml", dump(spec).encode())
        record_environment(folder, spec.device, range(spec.seed, spec.seed + spec.seeds))
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
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")
    if not (folder / "spec.toml").exists():
        raise InputError(f"{folder} was started from Python: call fedtilt.run again with the same arguments and out=")
    from fedtilt.spec import load as load_spec

    spec = load_spec(folder / "spec.toml")
    with locked(folder):
        run = read_json(folder / "run.json")
        if run.get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; go on with fedtilt deploy run and its project")
        if run["seeds"] != list(spec_seeds := range(spec.seed, spec.seed + spec.seeds)):
            raise InputError(
                f"{folder} was begun with seeds {run['seeds']}, and its spec.toml now says {list(spec_seeds)}; "
                "restore it, or start a new run in another folder"
            )
        before, now = run["environment"], environment(spec.device)
        for key, was in before.items():
            if now.get(key) != was:
                notice(f"{key} was {was} and is {now.get(key)} now: the last bits may differ")
        return _all_seeds(spec, folder, on_seed, on_round, notice)


def _all_seeds(
    spec: "Spec", folder: Path, on_seed: Callable[[int], None], on_round: OnRound, notice: Notice
) -> dict[int, Result]:
    from fedtilt.spec import federation_of, model_of, training_of

    results = {}
    for seed in range(spec.seed, spec.seed + spec.seeds):
        on_seed(seed)
        store = Store(seed_folder(folder, seed), spec.store.memory_limit_mb * 2**20)
        results[seed] = _train(
            [m.to_method() for m in spec.methods], federation_of(spec, seed), model_of(spec), training_of(spec, seed),
            store, spec.store.checkpoint_seconds, on_round, notice,
        )  # fmt: skip
    write_json(folder / "results.json", over_seeds(results))
    return results


# -- what is left of a run -------------------------------------------------------------------------------------------


def _number(client: int | str, federation: Path) -> int:
    """The number of a client that is given by it or by its name."""
    names = read_json(federation)["clients"]
    known = {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    if str(client) not in known:
        raise InputError(f"client {client} does not exist; the clients are {names[0]} to {names[-1]}")
    return known[str(client)]


def exported(
    folder: str | os.PathLike[str],
    method: str,
    client: int | str | None = None,
    seed: int | None = None,
    *,
    notice: Notice = _silent,
) -> dict[str, torch.Tensor]:
    """The parameters by name of a run's shared model or, with `client` (its number or name), of a personal one."""
    folder = Path(folder)
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")
    seeds = read_json(folder / "run.json")["seeds"]
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    store = Store(seed_folder(folder, seed))
    state = store.latest(notice)
    if state is None:
        raise InputError(f"{folder} has no checkpoint yet; fedtilt resume {folder}")
    if method not in state.shared:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(state.shared)}")
    vector: torch.Tensor | None = state.shared[method]
    if client is not None:
        vector = state.shelf.get((method, _number(client, store.folder / "federation.json")))
        if vector is None:
            raise InputError(
                f"client {client} has no personal model of method {method!r}: it never took part, or the method has "
                "none; leave out --client for the shared model"
            )
    shapes = read_json(store.folder / "job.json")["model"]
    pieces = vector.split([math.prod(shape) for shape in shapes.values()])  # type: ignore[union-attr]
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
