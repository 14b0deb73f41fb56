import json
import re

import pytest

import fedtilt as ft
from reproduction import NAMES, Options, load
from reproduction.experiment import parse
from reproduction.experiments import kind_of

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
def test_the_cases_of_an_experiment_have_unique_names(name: str, quick: bool) -> None:
    experiment = load(name).quick_version() if quick else load(name)
    cases = kind_of(experiment).cases(experiment, Options(quick=quick))
    names = [case.name for case in cases]
    assert names
    assert len(set(names)) == len(names)
    for case in cases:
        assert case.name == case.name.strip("./ ")
        assert "/" not in case.name
        assert json.loads(json.dumps(case.settings, allow_nan=False)) == case.settings
        assert case.needs is None or case.needs in ft.data.names()
    chapter = kind_of(experiment).chapter(experiment, {})
    assert [verdict.holds for verdict in chapter.verdicts] == ["not measured"] * len(chapter.verdicts)


def test_published_numbers_are_the_papers() -> None:
    rows = ("fedavg", "ditto", "fedtilt")
    for name, tables in PUBLISHED.items():
        assert load(name).published == {
            data: dict(zip(rows, table, strict=True)) for data, table in zip(DATA, tables, strict=True)
        }
    assert not load("flips").published


@pytest.mark.parametrize("name", ["corruptions", "gaussian"])
def test_the_limit_of_stable_is_the_largest_loss_in_the_papers_rows(name: str) -> None:
    (check,) = [claim.check for claim in load(name).claims if claim.rule == "stable"]
    noisy, clean = load(name).published, load(load(name).reference).published
    losses = [clean[data][row][0] - noisy[data][row][0] for data in check.get("data", DATA) for row in check["rows"]]
    assert check["points"] == pytest.approx(max(losses))


def test_a_guess_contains_no_number_and_no_data_set() -> None:
    """It is printed for every run, whatever the results."""
    guesses = [claim.guess for name in NAMES for claim in load(name).claims if claim.guess]
    assert guesses
    for guess in guesses:
        assert not re.search(r"\d|MNIST|CIFAR|digits", guess), guess
    assert not any(claim.guess for name in NAMES for claim in load(name).quick_version().claims)


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
        differing = "paper", "seeds"
        by_data = {data: {k: v for k, v in settings[data].items() if k not in differing} for data in settings["data"]}
        return by_data | {key: settings[key] for key in ("data", "seeds", "mu", "clients", "train")}

    assert all(shared(name) == shared("clean") for name in COMPARISONS)
    assert all(load(name).settings["cifar10"]["seeds"] > 1 for name in COMPARISONS)  # error bars everywhere


def test_the_grid_of_a_comparison() -> None:
    experiment = load("clean")
    cases = kind_of(experiment).cases(experiment, Options(seeds=2))
    assert [case.name for case in cases] == [
        f"{data}-seed-{seed}" for data in ("mnist", "fashion-mnist", "cifar10") for seed in (0, 1)
    ]
    mnist, methods = experiment.settings["mnist"], cases[0].settings["methods"]
    assert 0 in mnist["tau"]
    assert 0 in mnist["lam"]
    assert "fedtilt tau=0 lam=0" not in methods  # that is Ditto
    tilts = {(s["tau"], s["lam"]) for s in methods.values() if s["preset"] == "fedtilt"}
    assert tilts == ({(tau, lam) for tau in mnist["tau"] for lam in mnist["lam"]} - {(0, 0)}) | {(50, 100)}
    assert [name for name in methods if name.startswith("ditto")] == [f"ditto mu={m:g}" for m in mnist["ditto_mu"]]
    corrupted = kind_of(experiment).cases(load("corruptions"), Options(seeds=1))[0].settings["methods"]
    assert "fedtilt tau=-0.5 lam=1" in corrupted


def test_sweeps_name_data_condition_and_clients() -> None:
    experiment = load("tilts")
    cases = kind_of(experiment).cases(experiment, Options())
    assert len(cases) == 3 * 3 * 2
    assert cases[0].name == "mnist-clean-10-seed-0"
    assert cases[-1].name == "cifar10-gaussian-20-seed-0"
    assert len(cases[0].settings["methods"]) == 20
    assert cases[-1].settings["train"]["rounds"] == 100


def test_quick_settings_override_key_by_key() -> None:
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
    assert parse("x", text).quick_version().settings == {"seeds": 1, "mnist": {"rounds": 2, "model": "mlp"}}
    assert parse("x", text).settings["seeds"] == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("colour = 1", "unknown key 'colour'"),
        ("claims = [{ text = 'x', rule = 'best', of = 1 }]", "unknown key 'of'"),
        ("quick = { rounds = 1 }", "quick.rounds overrides nothing"),
    ],
)
def test_unknown_keys_are_rejected(line: str, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        parse("x", f"title = 't'\nsource = 's'\nkind = 'comparison'\n{line}\n")


def test_an_unknown_experiment_is_rejected() -> None:
    with pytest.raises(ft.InputError, match="unknown experiment 'cleam'; choose one of tuned, tuning, clean, "):
        load("cleam")
