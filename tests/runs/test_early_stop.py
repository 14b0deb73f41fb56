"""Runs that end early: with the rounds and the models of an uninterrupted run, whatever kills them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.runs.export import export_model
from fedtilt.stopping import Patience
from fedtilt.storage.run_folder import RunFolder

SETTINGS = {"rounds": 30, "participation": 0.5, "epochs": 1, "lr": 0.5, "workers": 0, "eval_every": 1, "device": "cpu"}
METHODS = (ft.fedavg(), ft.ditto(0.1))


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=6, max_train=30, validation=0.4, outliers="flips")


@pytest.fixture(scope="module")
def curve(federation: ft.Federation) -> list[tuple[float, float]]:
    """Of an uninterrupted run, round by round: mean and worst tenth on validation data, mean over both methods."""
    found = []
    for r in ft.simulate(METHODS, federation, ft.models.logistic, **SETTINGS):
        metrics = [r.metrics(m.name, validation=True) for m in METHODS]
        found.append((float(np.mean([m.accuracy for m in metrics])), float(np.mean([m.worst for m in metrics]))))
    return found


def expected_end(values: list[float], patience: int) -> tuple[int, int]:
    """The best round and the last one, by hand."""
    best, best_round = -1.0, 0
    for number, value in enumerate(values, 1):
        if value > best:
            best, best_round = value, number
        if number - best_round >= patience:
            return best_round, number
    return best_round, len(values)


def parameters(result: ft.Result, method: str = "ditto") -> list[torch.Tensor]:
    return [result[method]._server.parameters, *(p.detach() for p in result[method].personal(1).parameters())]


def equal(a: ft.Result, b: ft.Result) -> bool:
    return all(torch.equal(x, y) for x, y in zip(parameters(a), parameters(b), strict=True)) and torch.equal(
        a["ditto"].sums, b["ditto"].sums
    )


@pytest.mark.parametrize(("by", "in_folder"), [("mean", True), ("worst", False)])
def test_a_run_ends_with_its_last_or_its_best_round(
    federation: ft.Federation, curve: list[tuple[float, float]], tmp_path: Path, by: str, in_folder: bool
) -> None:
    best, last = expected_end([values[by == "worst"] for values in curve], 3)
    assert 1 <= best < last < 30
    for restore, end in ((False, last), (True, best)):
        stop = Patience(rounds=3, by=by, restore_best=restore)
        out = {"out": tmp_path / str(restore)} if in_folder else {}
        result = ft.run(METHODS, federation, ft.models.logistic, stop=stop, **out, **SETTINGS)
        plain = ft.run(METHODS, federation, ft.models.logistic, **(SETTINGS | {"rounds": end}))
        assert [number for number, _ in result["ditto"].history] == list(range(1, end + 1))
        assert equal(result, plain)
        assert result["ditto"].validation == plain["ditto"].validation
        if in_folder:
            assert export_model(out["out"], "ditto").round == end
            again = ft.run(METHODS, federation, ft.models.logistic, stop=stop, **out, **SETTINGS)
            assert equal(again, plain)


@pytest.mark.parametrize("restore", [False, True])
def test_a_killed_run_ends_as_an_uninterrupted_one(
    federation: ft.Federation, tmp_path: Path, restore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = {"name": "patience", "rounds": 3, "restore_best": restore}
    whole = ft.run(METHODS, federation, ft.models.logistic, stop=stop, **SETTINGS)

    class Killed(Exception):
        pass

    class Kill(ft.Callback):
        def on_round(self, round: ft.Round, metrics: object) -> None:
            if round.number % 3 == 0 and round.number not in killed:
                killed.append(round.number)
                raise Killed

    def kill_at_the_end(*_: object) -> None:
        killed.append(0)
        raise Killed

    killed: list[int] = []
    settings = {"stop": stop, "out": tmp_path / "run", "callbacks": [Kill()], "checkpoint_seconds": 0, **SETTINGS}
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "record_end", kill_at_the_end)
        while 0 not in killed:
            with pytest.raises(Killed):
                ft.run(METHODS, federation, ft.models.logistic, **settings)
    assert len(killed) > 2
    resumed = ft.run(METHODS, federation, ft.models.logistic, **settings)
    assert equal(resumed, whole)
    assert [r for r, _ in resumed["ditto"].history] == [r for r, _ in whole["ditto"].history]


def test_the_best_round_of_a_run_without_an_early_stop_and_of_one_with_more_rounds(
    federation: ft.Federation, curve: list[tuple[float, float]], tmp_path: Path
) -> None:
    values, stop = [mean for mean, _ in curve], Patience(rounds=29, restore_best=True)
    for rounds in (4, 7):
        result = ft.run(
            METHODS, federation, ft.models.logistic, stop=stop, out=tmp_path / "run", **(SETTINGS | {"rounds": rounds})
        )
        best = expected_end(values[:rounds], 29)[0]
        plain = ft.run(METHODS, federation, ft.models.logistic, **(SETTINGS | {"rounds": best}))
        assert equal(result, plain)


def test_a_damaged_best_round_deletes_nothing(
    federation: ft.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_back, rounds = RunFolder.go_back, list[list[int]]()

    def damage(folder: RunFolder, round: int, notice: Callable[[str], None]) -> None:
        (folder.checkpoints.folder_of(round) / "server.safetensors").write_bytes(b"damaged")
        rounds.append(folder.checkpoints.rounds())
        go_back(folder, round, notice)

    monkeypatch.setattr(RunFolder, "go_back", damage)
    stop = Patience(rounds=3, restore_best=True)
    with pytest.raises(ft.InputError, match="damaged"):
        ft.run(METHODS, federation, ft.models.logistic, out=tmp_path, stop=stop, **SETTINGS)
    assert [RunFolder(tmp_path / "seed-0").checkpoints.rounds()] == rounds
    assert len(rounds[0]) > 1


def test_clients_alone_train_as_long_and_as_fast_as_until_the_early_end(federation: ft.Federation) -> None:
    settings = SETTINGS | {"schedule": ft.schedules.Cosine()}
    for restore_best in (False, True):
        stop = Patience(rounds=3, restore_best=restore_best)
        result = ft.run(METHODS, federation, ft.models.logistic, stop=stop, **settings)
        (end, _) = result["ditto"].history[-1]
        assert end < 28
        alone = settings | {"rounds": 15, "participation": 1.0}  # half of the clients take part in a round
        rounds = ft.simulate([ft.methods.local()], federation, ft.models.logistic, **alone)
        expected = next(r.counts["local"].evaluated for r in rounds if r.number == max(1, int(end / 2 + 0.5)))
        assert torch.equal(result.baselines["local"].sums, expected)


def test_simulate_ends_too(federation: ft.Federation, curve: list[tuple[float, float]]) -> None:
    rounds = [
        r.number for r in ft.simulate(METHODS, federation, ft.models.logistic, stop=Patience(rounds=3), **SETTINGS)
    ]
    assert rounds[-1] == len(rounds) == expected_end([mean for mean, _ in curve], 3)[1]


def test_a_callback_ends_the_run_with_a_result(federation: ft.Federation, tmp_path: Path) -> None:
    class Stop(ft.Callback):
        def on_round(self, round: ft.Round, metrics: object) -> bool:
            return round.number == 3

    class Nothing(ft.Callback):
        pass

    for every, end in ((1, 3), (2, 4)):
        settings = SETTINGS | {"eval_every": every}
        out, stopping = tmp_path / str(every), [Stop(), Nothing()]
        result = ft.run(METHODS, federation, ft.models.logistic, callbacks=stopping, out=out, **settings)
        plain = ft.run(METHODS, federation, ft.models.logistic, **(settings | {"rounds": end}))
        assert result["ditto"].history[-1][0] == end
        assert equal(result, plain)
    more = {"rounds": 6, "eval_every": 1}
    resumed = ft.run(METHODS, federation, ft.models.logistic, out=tmp_path / "1", **(SETTINGS | more))
    assert equal(resumed, ft.run(METHODS, federation, ft.models.logistic, **(SETTINGS | more)))

    class Numpy(ft.Callback):
        def on_round(self, round: ft.Round, metrics: object) -> bool:
            return np.float64(round.number) > 0  # a bool of NumPy's

    result = ft.run(METHODS, federation, ft.models.logistic, callbacks=[Numpy()], **(SETTINGS | more))
    assert result["ditto"].history[-1][0] == 1

    class Wrong(ft.Callback):
        def on_round(self, round: ft.Round, metrics: object) -> str:  # type: ignore[override]
            return "stop"

    with pytest.raises(ft.InputError, match="on_round of Wrong returned 'stop'; return True to end the run"):
        ft.run(METHODS, federation, ft.models.logistic, callbacks=[Wrong()], **SETTINGS)


SPEC = """
seeds = 2
[clients]
count = 6
max_train = 30
validation = 0.4
[outliers]
kind = "flips"
[model]
name = "logistic"
[train]
rounds = 30
participation = 0.5
epochs = 1
lr = 0.5
workers = 0
eval_every = 1
stop = { name = "patience", rounds = 3, restore_best = true }
[[methods]]
preset = "fedavg"
"""


def test_every_command_takes_a_spec_whose_seeds_end_early(fedtilt: Callable) -> None:
    Path("stop.toml").write_text(SPEC)
    printed = fedtilt("run", "stop.toml", "--out", "run")
    assert "stopped early after round" in printed.out + printed.err
    ends = [read_json(Path(f"run/seed-{seed}/early_stop.json"))["round"] for seed in (0, 1)]
    results = Path("run/results.json").read_text()
    resumed = fedtilt("resume", "run")
    assert resumed.code == 0
    assert Path("run/results.json").read_text() == results
    assert fedtilt("report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "Unfinished" not in page
    assert f"ended early after {min(ends)}" in page
    for seed, end in enumerate(ends):
        assert export_model("run", seed=seed).round == end


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop": Patience(), "federation": "no validation"}, "stop = 'patience' needs validation data"),
        ({"stop": "soon"}, "unknown stop 'soon'; choose one of patience"),
        ({"stop": {"name": "patience", "rounds": 0}}, "rounds must be a whole number ≥ 1"),
        ({"stop": {"name": "patience", "by": "luck"}}, "unknown by 'luck'; choose one of mean, worst"),
    ],
)
def test_a_stop_without_effect_is_refused(federation: ft.Federation, arguments: dict, message: str) -> None:
    data = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=30)
    chosen = data if arguments.pop("federation", None) else federation
    with pytest.raises(ft.InputError, match=message):
        ft.run(METHODS, chosen, ft.models.logistic, **arguments, **SETTINGS)


def test_searches_and_round_by_round_refuse_what_they_cannot_do(federation: ft.Federation) -> None:
    with pytest.raises(ft.InputError, match="stop has no effect on a search"):
        ft.tune([ft.ditto(0.1)], federation, ft.models.logistic, over={"mu": [0.1, 1]}, stop="patience", **SETTINGS)
    with pytest.raises(ft.InputError, match="restore_best = True of stop needs ft.run"):
        ft.simulate(METHODS, federation, ft.models.logistic, stop=Patience(restore_best=True), **SETTINGS)
