import json
import re

import pytest

import fedtilt as ft
from fedtilt.reproduction import NAMES, Options, load
from fedtilt.reproduction.experiment import parse
from fedtilt.reproduction.runner import kind_of

COMPARISONS = ("clean", "corruptions", "gaussian", "flips")
DATA = ("mnist", "fashion-mnist", "cifar10")
# Test Acc., client fairness sigma, client data fairness mu_sigma and sigma_sigma; FedAvg, Ditto, FedTilt
PUBLISHED = {
    "clean": [
        [[95.69, 2.91, 6.84, 4.90], [99.25, 1.27, 4.37, 4.23], [98.53, 1.67, 4.33, 3.33]],
        [[93.67, 1.97, 11.96, 3.52], [93.77, 5.30, 10.89, 7.18], [96.35, 1.85, 7.61, 3.06]],
        [[82.20, 4.58, 17.96, 3.88], [74.15, 9.35, 18.62, 3.9], [85.24, 3.87, 15.68, 3.69]],
    ],
    "corruptions": [
        [[95.60, 2.86, 8.31, 1.99], [98.95, 1.72, 3.86, 5.35], [98.46, 1.50, 2.79, 3.36]],
        [[95.81, 3.96, 10.01, 5.35], [34.83, 24.37, 21.71, 19.93], [95.96, 3.16, 8.96, 4.55]],
        [[81.70, 2.27, 17.81, 2.94], [52.73, 4.71, 19.02, 3.20], [82.01, 2.17, 17.36, 2.39]],
    ],
    "gaussian": [
        [[95.41, 3.66, 7.36, 5.84], [98.97, 1.80, 3.08, 4.92], [98.25, 1.00, 4.39, 1.67]],
        [[91.70, 3.51, 8.07, 6.14], [92.91, 6.82, 11.61, 7.50], [94.67, 3.37, 6.92, 2.51]],
        [[65.61, 6.83, 14.09, 6.07], [52.43, 12.22, 18.45, 4.64], [66.80, 4.80, 14.00, 4.84]],
    ],
}


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
    rows = ("fedavg", "ditto", "fedtilt")
    for name, tables in PUBLISHED.items():
        assert load(name).published == {
            data: dict(zip(rows, table, strict=True)) for data, table in zip(DATA, tables, strict=True)
        }
    assert not load("flips").published


@pytest.mark.parametrize("name", ["corruptions", "gaussian"])
def test_what_counts_as_stable_is_the_most_that_the_papers_own_rows_lose(name: str) -> None:
    (check,) = [claim.check for claim in load(name).claims if claim.rule == "stable"]
    here, before = load(name).published, load(load(name).beside).published
    lost = [before[data][row][0] - here[data][row][0] for data in check.get("data", DATA) for row in check["rows"]]
    assert check["points"] == pytest.approx(max(lost))


def test_a_guess_holds_no_number_and_names_no_data() -> None:
    """It stands on the page of every run, whatever that run has found."""
    guesses = [claim.guess for name in NAMES for claim in load(name).claims if claim.guess]
    assert guesses
    for guess in guesses:
        assert not re.search(r"\d|MNIST|CIFAR|digits", guess), guess
    assert not any(claim.guess for name in NAMES for claim in load(name).quickened().claims)


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
