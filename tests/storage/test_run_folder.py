"""Run folders of runs that are killed at any moment, damaged, changed or in use."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedtilt as ft
from fedtilt.engine.client_states import FederationState, Owner, StoredState, file_name
from fedtilt.files import read_json, write_json
from fedtilt.locks import locked
from fedtilt.runs.export import export_model
from fedtilt.state import ServerState
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.callbacks import Calls, stop_after
from tests.helpers.recipe_model import RecipeModel, other_backbone, other_statistics

METHODS = [ft.ditto(0.1), ft.fedtilt(tau=1, lam=-2, mu=0.1)]
SETTINGS = {"rounds": 4, "participation": 0.5, "epochs": 1, "lr": 0.1, "workers": 0}


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=6, max_train=20)


def model(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(8,))


@pytest.fixture(scope="module")
def finished(federation: ft.Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    ft.run(METHODS, federation, model, out=folder, checkpoint_seconds=0, **SETTINGS)
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def run_again(
    federation: ft.Federation, folder: Path, on_round: Callable[[ft.Round], object] = lambda _: None, **changed
) -> tuple[ft.Result, list[str]]:
    arguments = {"out": folder, "callbacks": [calls := Calls(on_round)], "checkpoint_seconds": 0} | SETTINGS | changed
    return ft.run(arguments.pop("methods", METHODS), federation, model, **arguments), calls.notices


@pytest.mark.parametrize(
    ("case", "kills", "hashes"),
    [
        ("plain", 2, 2 + 12 + 8 + 1),  # two servers, twelve personal models, counts and metrics
        pytest.param("plain", 50, 2 + 12 + 8 + 1, marks=pytest.mark.slow),
        # momentum of the server; local parts and two sets of buffers
        pytest.param("local", 10, 2 * 3 + 12 * 4 + 8 + 1, marks=pytest.mark.slow),
        pytest.param("average", 10, 2 * 4 + 12 * 2 + 8 + 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_many_times_ends_with_the_same_bits(tmp_path: Path, case: str, kills: int, hashes: int) -> None:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.helpers.kill_and_resume", str(tmp_path), str(kills), case],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout)
    assert summary["kills"] == kills
    assert summary["finished"] >= 1
    assert summary["hashes"] == hashes


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ft.fedavg(optimizer={"rule": "sgd", "momentum": 0.9}), {}),
        (ft.fedavg(optimizer="yogi"), {}),
        (ft.fedavg(weighting={"rule": "afl", "lr": 0.5}), {}),
        (ft.fedavg(client_momentum=0.9), {}),
        (ft.methods.scaffold(), {}),
        (ft.methods.feddyn(), {}),
        (ft.methods.fedper(), {}),
        (ft.ditto(0.1), {"buffers": "local"}),
        (ft.ditto(0.1), {"buffers": "average"}),
        (ft.fedavg(), {"audit": True}),
        (ft.fedavg(), {"screen": 3.0}),
    ],
)
def test_an_interrupted_run_keeps_all_state(
    federation: ft.Federation, method: ft.Method, settings: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    def run(folder: str, stop: int | None = None) -> dict[str, torch.Tensor]:
        arguments = SETTINGS | settings | {"checkpoint_seconds": 0, "callbacks": [stop_after(stop)]}
        ft.run([replace(method, name="m")], federation, net, out=tmp_path / folder, **arguments)
        state = RunFolder(tmp_path / folder / "seed-0").latest()
        assert state is not None
        clients = {owner: state.client_states.get(owner).to_tensors() for owner in state.client_states.owners()}
        found = {f"{owner[1]}.{name}": t for owner, tensors in clients.items() for name, t in tensors.items()}
        return found | state.server["m"].to_tensors()

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("stopped", stop=2)
    stopped = run("stopped")
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


def test_a_finished_run_is_read_not_trained(federation: ft.Federation, copy: Path) -> None:
    trained: list[int] = []
    result, notes = run_again(federation, copy, on_round=lambda r: trained.append(r.number))
    fresh = ft.run(METHODS, federation, model, **SETTINGS)
    assert trained == []
    assert notes == []
    assert repr(result) == repr(fresh)
    for name in result:
        assert torch.equal(result[name].sums, fresh[name].sums)
        assert [r for r, _ in result[name].history] == [1, 2, 3, 4]


def checkpoint(folder: Path, round: int) -> Path:
    return folder / "seed-0" / "checkpoints" / f"round-{round:05d}"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, alter, Path.unlink])
@pytest.mark.parametrize(
    "file",
    [
        lambda f: checkpoint(f, 4) / "server.safetensors",
        lambda f: checkpoint(f, 4) / "manifest.json",
        lambda f: checkpoint(f, 4) / "clients.safetensors",
        lambda f: f / "seed-0/counts/round-00004.safetensors",
        lambda f: f / "seed-0/metrics.jsonl",  # damage at its end
    ],
)
def test_a_damaged_checkpoint_is_skipped(federation: ft.Federation, finished: Path, copy: Path, file, damage) -> None:
    damage(file(copy))
    is_lost = damage is Path.unlink and file(copy).name == "metrics.jsonl"
    if is_lost:  # with all rounds before
        with pytest.raises(ft.InputError, match="no checkpoint in .* is intact"):
            run_again(federation, copy)
        return
    result, notes = run_again(federation, copy)
    assert len(notes) == 1
    assert notes[0].startswith("the checkpoint of round 4 is damaged")
    assert file(copy).name in notes[0]
    undamaged, _ = run_again(federation, finished)
    assert repr(result) == repr(undamaged)
    for name in result:
        for client in range(6):
            a, b = result[name].model(client), undamaged[name].model(client)
            assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    metrics = "seed-0/metrics.jsonl"
    assert (copy / metrics).read_bytes() == (finished / metrics).read_bytes()


def test_a_run_without_an_intact_checkpoint_is_rejected(federation: ft.Federation, copy: Path) -> None:
    for round in (3, 4):
        alter(checkpoint(copy, round) / "server.safetensors")
    with pytest.raises(ft.InputError, match="no checkpoint in .* is intact: .*; start again in another folder"):
        run_again(federation, copy)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 0.2}, "was started with train.lr = 0.1, and now it is 0.2"),
        ({"rounds": 3}, "has 4 rounds, and rounds = 3 is fewer; choose more than 4"),
        (
            {"methods": [ft.ditto(0.1), ft.fedtilt(tau=1, lam=-3, mu=0.1)]},
            "methods.fedtilt.objective.lam = -2.0, and now it is -3.0",
        ),
        ({"methods": METHODS[:1]}, "methods.fedtilt"),
    ],
)
def test_changed_settings_are_rejected(federation: ft.Federation, copy: Path, changed: dict, message: str) -> None:
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    with pytest.raises(ft.InputError) as error:
        run_again(federation, copy, **changed)
    assert message in str(error.value)
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


def test_other_data_is_rejected(copy: Path) -> None:
    other = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=20, seed=9)
    with pytest.raises(
        ft.InputError,
        match="was started with another division of the samples among",
    ):
        run_again(other, copy)


def test_another_partition_of_the_same_samples_is_rejected(tmp_path: Path) -> None:
    x, y = torch.rand(8, 4), torch.arange(8) % 2
    names = {"class_names": ("a", "b"), "client_names": ("left", "right")}

    def federation(split: int) -> ft.Federation:
        owner = (torch.arange(8) >= split).long()
        data = ft.data.Dataset(
            name="halves", x_train=x, y_train=y, x_test=x, y_test=y, classes=2, image=False,
            client_train=owner, client_test=owner, **names,
        )  # fmt: skip
        return ft.Federation.build(data, partition="column")

    ft.run(METHODS, federation(4), model, out=tmp_path / "run", **SETTINGS)
    with pytest.raises(ft.InputError, match="was started with other numbers of samples per client"):
        ft.run(METHODS, federation(2), model, out=tmp_path / "run", **SETTINGS)


def test_the_seeds_of_a_run_may_have_different_samples(tmp_path: Path) -> None:
    for seed in (0, 1):
        federation = ft.Federation.build(ft.data.load("toy-1", seed=seed), partition="column", seed=seed)
        ft.run([ft.fedavg()], federation, ft.models.logistic, out=tmp_path / "run", seed=seed, **SETTINGS)
    first, second = (json.loads((tmp_path / f"run/seed-{seed}/fingerprint.json").read_text()) for seed in (0, 1))
    assert first["samples"] != second["samples"]
    assert first["methods"] == second["methods"]
    assert json.loads((tmp_path / "run/run.json").read_text())["seeds"] == [0, 1]


def test_a_rejected_run_leaves_no_folder(federation: ft.Federation, tmp_path: Path) -> None:
    for bad in ({"precision": "tf32"}, {"backend": "Autograd"}):
        with pytest.raises(ft.InputError):
            ft.run(METHODS, federation, model, out=tmp_path / "run", **SETTINGS | bad)
    with pytest.raises(ft.InputError, match="lower one of them"):
        ft.run([ft.ditto(mu=100)], federation, model, out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_seeds_of_different_runs_do_not_share_a_folder(federation: ft.Federation, copy: Path) -> None:
    with pytest.raises(ft.InputError, match=r"has seed-0 of a run with methods\.fedtilt = .*; choose another folder"):
        run_again(federation, copy, seed=1, methods=METHODS[:1])
    assert not (copy / "seed-1").exists()
    run_again(federation, copy, seed=1)
    assert json.loads((copy / "run.json").read_text())["seeds"] == [0, 1]


def test_a_changed_environment_is_reported(federation: ft.Federation, copy: Path) -> None:
    run = read_json(copy / "run.json")
    run["environment"]["torch"] = "1.0"
    write_json(copy / "run.json", run)
    _, notes = run_again(federation, copy)
    assert [note for note in notes if note.startswith("torch was 1.0 and is ")]


def test_rounds_beyond_five_digits_keep_their_order(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    for round in (99_998, 99_999, 100_000):
        server = {"fedavg": ServerState(torch.tensor([float(round)]))}
        run_folder.checkpoint(FederationState(round, server, run_folder.client_states))
    latest = RunFolder(tmp_path).latest()
    assert latest is not None
    assert (latest.round, latest.shared["fedavg"].item()) == (100_000, 100_000.0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["round-100000", "round-99999"]


def test_an_export_has_tied_parameters_and_buffers(federation: ft.Federation, tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
            self.second.weight = self.first.weight
            self.head = torch.nn.Linear(64, 10)
            self.register_buffer("scale", torch.full((64,), 2.0))
            self.twice = torch.nn.Module()
            self.twice.register_buffer("mask", torch.ones(2))
            self.again = self.twice  # one buffer under two names

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.second(self.scale * self.first(x.flatten(1))))

    result = ft.run(METHODS, federation, Tied, out=tmp_path, **SETTINGS)
    loaded = Tied()
    loaded.scale.zero_()
    loaded.load_state_dict(export_model(tmp_path, "ditto").tensors)
    x, _ = federation.test(0)
    assert torch.equal(loaded(x), result["ditto"].shared(x))


def test_a_folder_with_other_files_is_rejected(federation: ft.Federation, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ft.InputError, match="is not empty; choose another folder$"):
        ft.run(METHODS, federation, model, out=tmp_path, **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(ft.InputError, match="notes.txt is a file; choose another folder$"):
        ft.run(METHODS, federation, model, out=tmp_path / "notes.txt", **SETTINGS)
    (tmp_path / "notes.txt").rename(tmp_path / "run.json.part")  # as a kill leaves it
    (tmp_path / ".lock").touch()
    ft.run(METHODS, federation, model, out=tmp_path, **SETTINGS)
    assert (tmp_path / "run.json").exists()


def test_another_initial_model_is_rejected(federation: ft.Federation, copy: Path) -> None:
    def shifted(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        net = model(input_shape, classes)
        with torch.no_grad():
            net[1].weight += 0.1
        return net

    with pytest.raises(
        ft.InputError,
        match="was started with another initial model; restore its code, weights and",
    ):
        ft.run(METHODS, federation, shifted, out=copy, **SETTINGS)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            other_backbone,
            r"was started with another backbone\.bias, which the run does not train; restore",
        ),
        (other_statistics, r"was started with another norm\.running_var, which the run does not train"),
    ],
)
def test_another_frozen_part_or_other_buffers_are_rejected(
    federation: ft.Federation, tmp_path: Path, other: Callable[..., torch.nn.Module], message: str
) -> None:
    ft.run(METHODS, federation, RecipeModel, out=tmp_path, **SETTINGS)
    with pytest.raises(ft.InputError, match=message):
        ft.run(METHODS, federation, other, out=tmp_path, **SETTINGS)
    ft.run(METHODS, federation, RecipeModel, out=tmp_path, seed=1, **SETTINGS)  # another random frozen part


def test_frozen_parameters_are_stored_once(federation: ft.Federation, tmp_path: Path) -> None:
    result = ft.run(METHODS, federation, RecipeModel, out=tmp_path, checkpoint_seconds=0, **SETTINGS)
    frozen = result["ditto"].shared.backbone.weight.numpy().tobytes()
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path) for path in files if frozen in (tmp_path / path).read_bytes()] == ["seed-0/constants.safetensors"]
    assert len([path for path in files if path.suffix == ".safetensors"]) > 5


def stored(folder: Path, round: int) -> dict[Owner, StoredState]:
    """Where a checkpoint says that the states of the clients are."""
    run_folder = RunFolder(folder / "seed-0")
    run_folder.checkpoints.read(round)
    return run_folder.client_states.save_all()


def test_two_checkpoints_and_their_client_states_are_kept(copy: Path) -> None:
    seed = copy / "seed-0"
    assert [p.name for p in sorted((seed / "checkpoints").iterdir())] == ["round-00003", "round-00004"]
    needed = set()
    for round in (3, 4):
        needed |= {file_name(state.file) for state in stored(copy, round).values()}
    assert {path.name for path in (seed / "clients").iterdir()} == needed


def where(folder: Path, method: str, client: int) -> tuple[Path, StoredState]:
    """Where the last checkpoint says that a client's state is."""
    state = stored(folder, 4)[method, client]
    return folder / "seed-0/clients" / file_name(state.file), state


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)


def test_damage_costs_one_client_alone_and_names_it(federation: ft.Federation, finished: Path, copy: Path) -> None:
    path, state = where(copy, "ditto", 2)
    for byte in (state.start, state.start + state.size - 1):  # its header; the last of its parameters
        flip(path, byte)
        result, notes = run_again(federation, copy)
        assert notes == [f"{path} is damaged: client 2 starts again from the shared model of ditto"]
        flip(path, byte)
    flip(path, byte)
    undamaged, _ = run_again(federation, finished)
    result, _ = run_again(federation, copy)
    assert repr(result) == repr(undamaged)
    for name in result:
        for client in range(6):
            expected = undamaged[name].model(client) if (name, client) != ("ditto", 2) else undamaged[name].shared
            pairs = zip(result[name].model(client).parameters(), expected.parameters(), strict=True)
            assert all(torch.equal(p, q) for p, q in pairs)
    more, notes = run_again(federation, copy, rounds=6)  # and it trains on
    assert notes == [f"{path} is damaged: client 2 starts again from the shared model of ditto"]
    assert len(more["ditto"].history) == 6
    assert run_again(federation, copy, rounds=6)[1] == []  # the damage is gone


def test_a_lost_file_of_states_names_its_clients(federation: ft.Federation, copy: Path) -> None:
    path, _ = where(copy, "ditto", 2)
    path.unlink()
    _, notes = run_again(federation, copy)
    assert len(notes) == 2  # methods
    assert all(note.startswith(f"{path} is damaged: client") for note in notes)


def test_a_damaged_line_of_metrics_costs_its_round_alone(federation: ft.Federation, finished: Path, copy: Path) -> None:
    metrics = copy / "seed-0/metrics.jsonl"
    flip(metrics, 60)  # in round 1
    result, notes = run_again(federation, copy)
    assert [note.partition(" (")[0] for note in notes] == [
        f"{metrics} is damaged in line 1",
        f"{metrics} has no metrics of ditto after round 1; this evaluation is missing from the curves",
    ]
    whole, _ = run_again(federation, finished)
    for name in result:
        assert result[name].history == whole[name].history[1:]
    assert run_again(federation, copy)[1] == []
    assert (metrics.read_text().splitlines()) == (finished / "seed-0/metrics.jsonl").read_text().splitlines()[2:]


def test_a_folder_without_its_fingerprint_is_rejected(federation: ft.Federation, copy: Path) -> None:
    (copy / "seed-0/fingerprint.json").unlink()
    with pytest.raises(ft.InputError, match=r"fingerprint.json is missing; restore it from a copy"):
        run_again(federation, copy)


def test_a_checkpoint_of_an_earlier_version_is_rejected(federation: ft.Federation, copy: Path) -> None:
    for round in (3, 4):
        old = {"round": round, "server": "", "clients": [["ditto", 0, 1, ""]], "sha256": ""}
        (checkpoint(copy, round) / "manifest.json").write_text(json.dumps(old))
    with pytest.raises(ft.InputError, match="no checkpoint in .* is intact: .*; start again in another folder"):
        run_again(federation, copy)


@pytest.mark.parametrize("name", ["seed-0", "seed-0/checkpoints", "seed-0/clients", "seed-0/counts"])
def test_a_link_to_another_folder_is_rejected(federation: ft.Federation, copy: Path, tmp_path: Path, name: str) -> None:
    elsewhere = (copy / name).rename(tmp_path / "elsewhere")
    (copy / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(ft.InputError, match=f"{name} is a symbolic link; replace it with the folder itself"):
        run_again(federation, copy)
    assert sorted(elsewhere.rglob("*")) == before


def test_damaged_constants_are_written_again(federation: ft.Federation, tmp_path: Path) -> None:
    ft.run(METHODS, federation, RecipeModel, out=tmp_path, **SETTINGS)
    path = tmp_path / "seed-0/constants.safetensors"
    content = path.read_bytes()
    flip(path, -1)
    with pytest.raises(ft.InputError, match=r"constants.safetensors was damaged"):
        export_model(tmp_path, "ditto")
    ft.run(METHODS, federation, RecipeModel, out=tmp_path, **SETTINGS)
    assert path.read_bytes() == content


def run_in_child(function) -> int:
    """Run in a forked process; its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            function()
            code = 0
        except ft.InputError as error:
            sys.stderr.write(str(error))
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_folder_in_use_is_rejected(tmp_path: Path) -> None:
    def lock() -> None:
        with locked(tmp_path):
            pass

    with locked(tmp_path):
        assert run_in_child(lock) == 2
        with pytest.raises(ft.InputError, match="in use by a run of this process"):
            lock()
        assert run_in_child(lock) == 2  # the folder is still locked
    lock()
    assert run_in_child(lock) == 0


def test_a_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ft.InputError, match="cannot write into .*: Too many levels of symbolic links"),
        locked(tmp_path),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(
    federation: ft.Federation, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(checkpoint(copy, 4))  # one round is left to train

    def write() -> None:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        run_again(federation, copy)

    assert run_in_child(write) == 2
    message = capfd.readouterr().err
    assert "cannot write" in message
    assert "File too large" in message
    state = RunFolder(copy / "seed-0").latest()
    assert state is not None
    assert state.round == 3
    assert not list(copy.rglob("*.part"))
    result, _ = run_again(federation, copy)
    assert len(result["ditto"].history) == 4


def test_a_folder_that_cannot_be_created_is_rejected(federation: ft.Federation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ft.InputError, match="cannot write into .*Not a directory"):
        run_again(federation, tmp_path / "file" / "run")
