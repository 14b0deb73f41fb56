import json

import pytest

import fedtilt as ft
from fedtilt.experiments import NAMES, Options, load
from fedtilt.experiments.experiment import parse
from fedtilt.experiments.runner import kind_of

COMPARISONS = ("clean", "corruptions", "gaussian", "flips")


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_cells_with_names_of_their_own(name: str, quick: bool) -> None:
    experiment = load(name).quickened() if quick else load(name)
    cells = kind_of(experiment).cells(experiment, Options(quick=quick))
    names = [cell.name for cell in cells]
    assert names
    assert len(set(names)) == len(names)
    for cell in cells:
        assert cell.name == cell.name.strip("./ ")
        assert "/" not in cell.name
        assert json.loads(json.dumps(cell.settings, allow_nan=False)) == cell.settings
        assert cell.needs is None or cell.needs in ft.data.names()
    told = kind_of(experiment).chapter(experiment, {})
    assert [verdict.holds for verdict in told.verdicts] == ["not measured"] * len(told.verdicts)


def test_published_numbers_are_the_papers() -> None:
    assert load("clean").published["cifar10"]["fedtilt"] == [85.24, 3.87, 15.68, 3.69]
    assert load("corruptions").published["fashion-mnist"]["ditto"] == [34.83, 24.37, 21.71, 19.93]
    assert load("gaussian").published["mnist"]["fedavg"] == [95.41, 3.66, 7.36, 5.84]
    assert not load("flips").published


def test_the_papers_tilts() -> None:
    tilts = {
        name: [tuple(load(name).settings[data]["paper"].values()) for data in ("mnist", "fashion-mnist", "cifar10")]
        for name in COMPARISONS
    }
    assert tilts == {
        "clean": [(50, 100), (50, 100), (2, 1)],
        "corruptions": [(-0.5, 1), (-1, 10), (-0.1, -0.1)],
        "gaussian": [(50, -10), (50, -10), (-0.1, -0.1)],
        "flips": [(0, -2), (0, -2), (0, -2)],
    }


def test_comparisons_share_federation_and_grids() -> None:
    def shared(name: str) -> dict[str, object]:
        settings = load(name).settings
        apart = "paper", "seeds"
        own = {data: {k: v for k, v in settings[data].items() if k not in apart} for data in settings["data"]}
        return own | {key: settings[key] for key in ("data", "seeds", "mu", "clients", "train")}

    assert all(shared(name) == shared("clean") for name in COMPARISONS)
    assert all(load(name).settings["cifar10"]["seeds"] > 1 for name in COMPARISONS)  # an error bar in every cell


def test_the_grid_of_a_comparison() -> None:
    experiment = load("clean")
    cells = kind_of(experiment).cells(experiment, Options(seeds=2))
    assert [cell.name for cell in cells] == [
        f"{data}-seed-{seed}" for data in ("mnist", "fashion-mnist", "cifar10") for seed in (0, 1)
    ]
    own, methods = experiment.settings["mnist"], cells[0].settings["methods"]
    assert 0 in own["tau"]
    assert 0 in own["lam"]
    assert "fedtilt tau=0 lam=0" not in methods  # that is Ditto
    tilts = {(s["tau"], s["lam"]) for s in methods.values() if s["preset"] == "fedtilt"}
    assert tilts == ({(tau, lam) for tau in own["tau"] for lam in own["lam"]} - {(0, 0)}) | {(50, 100)}
    assert [name for name in methods if name.startswith("ditto")] == [f"ditto mu={m:g}" for m in own["ditto_mu"]]
    corrupted = kind_of(experiment).cells(load("corruptions"), Options(seeds=1))[0].settings["methods"]
    assert "fedtilt tau=-0.5 lam=1" in corrupted


def test_sweeps_name_data_condition_and_clients() -> None:
    experiment = load("tilts")
    cells = kind_of(experiment).cells(experiment, Options())
    assert len(cells) == 3 * 3 * 2
    assert cells[0].name == "mnist-clean-10-seed-0"
    assert cells[-1].name == "cifar10-gaussian-20-seed-0"
    assert len(cells[0].settings["methods"]) == 20
    assert cells[-1].settings["train"]["rounds"] == 100


def test_a_quick_look_overrides_key_by_key() -> None:
    text = """
        title = "t"
        source = "s"
        kind = "comparison"
        [settings]
        seeds = 5
        mnist = { rounds = 50, model = "mlp" }
        [quick]
        seeds = 1
        mnist = { rounds = 2 }
    """
    assert parse("x", text).quickened().settings == {"seeds": 1, "mnist": {"rounds": 2, "model": "mlp"}}
    assert parse("x", text).settings["seeds"] == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("colour = 1", "unknown key 'colour'"),
        ("claims = [{ text = 'x', rule = 'best', of = 1 }]", "unknown key 'of'"),
        ("quick = { rounds = 1 }", "quick.rounds overrides nothing"),
    ],
)
def test_what_is_not_known_is_refused(line: str, said: str) -> None:
    with pytest.raises(ft.InputError, match=said):
        parse("x", f"title = 't'\nsource = 's'\nkind = 'comparison'\n{line}\n")


def test_unknown_experiment() -> None:
    with pytest.raises(ft.InputError, match="unknown experiment 'cleam'; choose one of clean, "):
        load("cleam")
