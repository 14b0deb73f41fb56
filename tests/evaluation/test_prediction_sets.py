"""Prediction sets: the coverage that split conformal prediction promises, per client, pooled, and under attack."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedtilt as ft
from examples.patients import write_patients
from fedtilt.cli import app
from fedtilt.errors import InputError
from fedtilt.evaluation.prediction_sets import (
    BINS,
    ConformityScores,
    PredictionSets,
    SetRule,
    bins_of,
    class_bins,
    counts_of,
    half_width,
    number_bins,
    set_rule,
)
from fedtilt.report import write as write_report

TRAIN = {"participation": 1.0, "epochs": 2, "workers": 0}


def draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Bins of scores that are continuous but for their rounding: those of errors of a normal distribution."""
    return number_bins(torch.randn(shape, generator=generator), torch.zeros(()), 1.0)


def test_bins_keep_the_order_of_scores_and_end_above_them() -> None:
    probabilities = torch.tensor([[0.0, 1e-30, 0.3, 0.7 - 1e-30], [1e-9, 1e-12, 1e-6, 1 - 1.001001e-6]])
    bins = class_bins(probabilities.double())
    for row, of_row in zip(probabilities.tolist(), bins.tolist(), strict=True):
        assert [b for _, b in sorted(zip(row, of_row, strict=True))] == sorted(of_row, reverse=True)
    assert bins[0, 0] == BINS - 1  # impossible
    assert 0 < bins[1, 3] < class_bins(torch.tensor([[1e-4, 1 - 1e-4]], dtype=torch.float64))[0, 1]
    errors = torch.logspace(-6, 4, 50, dtype=torch.float64)
    widths = [half_width(b, 2.0) for b in number_bins(errors * 2.0, torch.zeros(()), 2.0).tolist()]
    assert all(e <= w <= e * math.exp(1 / 256) * 1.0001 for e, w in zip((2 * errors).tolist(), widths, strict=True))
    assert half_width(BINS - 1, 2.0) == math.inf


@pytest.mark.parametrize("samples", [19, 23, 50, 120])
def test_the_expected_coverage_lies_between_the_promise_and_one_sample_more(samples: int) -> None:
    generator, tries, new = torch.Generator().manual_seed(samples), 4000, 100
    calibration, test = draw(generator, tries, samples), draw(generator, tries, new)
    rules = [set_rule(bins.bincount(minlength=BINS), 0.9) for bins in calibration]
    covered = (test <= torch.tensor([rule.bin for rule in rules])[:, None]).double().mean(1)
    error = 3 * float(covered.std()) / math.sqrt(tries)
    rounding = 0.001  # half of the scores of a bin
    assert 0.9 - error <= covered.mean() <= 0.9 + 1 / (samples + 1) + error + rounding
    assert all(0.9 <= rule.lowest <= 0.9 + 1 / (samples + 1) for rule in rules)
    assert covered.mean() == pytest.approx(rules[0].lowest, abs=error + rounding)


def attacked(
    attack: Callable[[list[torch.Tensor]], torch.Tensor],
    clients: int,
    bad: int,
    samples: int,
    *,
    tries: int,
    own: int = 8,
) -> tuple[float, float, SetRule]:
    """The mean coverage of a client with few samples, its standard error, and the last rule; the bad see all scores."""
    generator, covered = torch.Generator().manual_seed(1), []
    for _ in range(tries):
        honest = [*draw(generator, clients - bad - 1, samples), draw(generator, own)]
        bins = [attack(honest)] * bad + honest
        rule = ConformityScores(bins).rule(clients - 1, 0.9, bad_share=bad / clients)
        covered.append(float((draw(generator, 500) <= rule.bin).double().mean()))
    return float(np.mean(covered)), float(np.std(covered)) / math.sqrt(tries), rule


def shifted(honest: list[torch.Tensor], samples: int, share: float) -> torch.Tensor:
    """The scores of all, without their lowest share, or with a negative one without their highest."""
    pool = torch.cat(honest).sort().values
    kept = pool[max(0, int(share * len(pool))) : len(pool) + min(0, int(share * len(pool)))]
    return kept[((torch.arange(samples) + 0.5) / samples * len(kept)).long()]


@pytest.mark.parametrize(("bad", "report"), [(1, 0), (6, 0), (1, BINS - 1), (6, BINS - 1)])
def test_the_worst_reports_reach_the_bound_on_the_coverage(bad: int, report: int) -> None:
    mean, error, rule = attacked(lambda _: torch.full((8,), report), 20, bad, 8, tries=120, own=8)
    assert rule.clients == 20  # with 8 samples, nobody is bad beyond doubt
    assert 0.9 <= rule.lowest < 0.91
    bound = rule.highest if report else rule.lowest
    assert mean == pytest.approx(bound, abs=3 * error + 0.002)  # the rounding of scores, and of the false alarms
    assert (rule.highest == 1.0) == (bad == 6)
    plain = set_rule(torch.cat([torch.full((8 * bad,), report), torch.arange(8 * (20 - bad))]).bincount(), 0.9)
    assert (plain.bin / (8 * (20 - bad)) < 0.9) == (report == 0)  # without bad_share, the promise is broken


@pytest.mark.parametrize("share", [-0.4, -0.2, 0.2])
def test_reports_that_look_like_those_of_others_do_not_break_the_promise(share: float) -> None:
    """Reports near the others would drop honest clients with high scores if the farthest ones were dropped."""
    mean, error, rule = attacked(lambda honest: shifted(honest, 8, share), 20, 6, 8, tries=100, own=8)
    assert 0.9 - 3 * error <= mean <= rule.highest


@pytest.mark.parametrize("report", [0, BINS - 1])
def test_clients_that_are_bad_beyond_doubt_are_dropped(report: int) -> None:
    mean, error, rule = attacked(lambda _: torch.full((60,), report), 20, 3, 60, tries=60)
    assert (rule.clients, rule.samples) == (17, 16 * 60 + 8)
    assert 0.9 <= rule.lowest <= rule.highest < 0.905
    assert mean == pytest.approx(rule.lowest, abs=3 * error + 0.002)


@pytest.mark.parametrize("samples", [1000, 10_000])
def test_bad_clients_that_stay_unnoticed_move_the_coverage_less_with_more_samples(samples: int) -> None:
    margin = math.sqrt(math.log(2 * 13 / 0.001) / 2 / samples)

    def attack(honest: list[torch.Tensor]) -> torch.Tensor:
        """The scores of all, but as many of the highest as possible without notice are reported as far too high."""
        reported = shifted(honest, samples, 0.0)
        reported[round((1 - 1.8 * margin) * samples) :] = BINS - 1
        return reported

    mean, error, rule = attacked(attack, 12, 2, samples, tries=12)
    assert rule.clients == 12
    assert 0.9 + 3 * error < mean <= rule.highest < (0.98 if samples == 1000 else 0.94)


def test_nobody_is_dropped_if_more_clients_differ_than_may_be_bad() -> None:
    bins = [torch.full((200,), 100 * n) for n in range(10)] + [torch.arange(5)]
    assert ConformityScores(bins).rule(10, 0.9, bad_share=0.2).clients == 11


def test_a_client_with_enough_samples_depends_on_nobody() -> None:
    generator = torch.Generator().manual_seed(0)
    honest = draw(generator, 30)
    rules = {
        ConformityScores([honest, torch.full((500,), report), torch.full((500,), report)]).rule(0, 0.9, bad_share=0.4)
        for report in (0, 9000, BINS - 1)
    }
    assert len(rules) == 1


def test_clients_with_few_samples_use_those_of_clients_with_about_as_many() -> None:
    sizes = [5, 12, 7, 200, 0, 4]
    scores = ConformityScores([torch.arange(size) for size in sizes])
    assert scores.pool(0, 9) == [0, 2, 5]  # 4 to 7
    assert scores.pool(0, 19) == [0, 2, 5, 1]  # and 8 to 15
    assert scores.pool(1, 9) == [1]
    assert scores.pool(4, 9) == [4, 0, 2, 5]
    assert scores.pool(None, 9) == [0, 1, 2, 3, 5]
    assert scores.rule(0, 0.9)[1:3] == (16, 3)
    assert scores.rule(0, 0.8)[1:3] == (5, 1)
    assert scores.rule(None, 0.9).samples == sum(sizes)
    for coverage in (0.8, 0.9, 0.99):
        exported = ConformityScores.from_json(scores.to_json(0), None)
        assert exported.rule(0, coverage) == scores.rule(0, coverage)


def test_too_few_samples_are_an_error_with_a_remedy() -> None:
    scores = ConformityScores([torch.arange(5), torch.arange(3)])
    with pytest.raises(InputError, match="need 9 validation samples, and there are 8; use a larger clients.validation"):
        scores.rule(0, 0.9)
    for coverage in (0.0, 1.0, 1.5):
        with pytest.raises(InputError, match="coverage = .* is not between 0 and 1"):
            PredictionSets(scores, scores.validation, "ab", coverage)
    with pytest.raises(InputError, match="bad_share = 0.5 is not in"):
        PredictionSets(scores, scores.validation, "ab", 0.9, 0.5)


def test_counts_travel_there_and_back() -> None:
    bins = draw(torch.Generator().manual_seed(3), 40)
    assert torch.equal(bins_of(counts_of(bins)), bins.sort().values)
    for impossible in ({"12800": 1}, {"-1": 1}, {"3": -1}, {"3": 1.5}, {"x": 1}):
        with pytest.raises(ValueError, match=r"."):
            bins_of(impossible)  # type: ignore[arg-type]


# -- coverage on held-out data -----------------------------------------------------------------------------------------


def federation(name: str, folder: Path) -> ft.Federation:
    if name == "digits":
        return ft.Federation.build(ft.data.load("digits"), clients=8, partition="dirichlet", alpha=1.0, validation=0.4)
    if name == "toy":
        return ft.Federation.build(ft.data.load("toy-1"), clients=2, partition="iid", validation=0.4)
    write_patients(folder / "patients.csv", 1200)
    regression = {"target": "pressure", "task": "regression", "client": "hospital", "drop_unlabelled": True}
    settings = regression if name == "numbers" else {"target": "diagnosis", "client": "hospital"}
    return ft.Federation.build(ft.data.table(folder / "patients.csv", drop=["patient"], **settings), validation=0.4)


@pytest.mark.parametrize("name", ["digits", "toy", "patients", "numbers"])
def test_the_coverage_of_every_client_on_held_out_data(name: str, tmp_path: Path) -> None:
    data = federation(name, tmp_path)
    method = ft.fedavg() if name == "numbers" else ft.fedtilt(tau=1, lam=1, mu=0.1)
    result = ft.run([method], data, ft.models.logistic, rounds=3, **TRAIN)
    sets = result.prediction_sets(0.9)[method.name]
    bins = [torch.cat(pair) for pair in zip(sets.scores.validation, sets.test, strict=True)]
    generator, by_client = torch.Generator().manual_seed(0), []
    for _ in range(200):  # which held-out samples calibrate is drawn anew
        mixed = [b[torch.randperm(len(b), generator=generator)] for b in bins]
        sizes = [len(b) for b in sets.scores.validation]
        drawn = ConformityScores([b[:n] for b, n in zip(mixed, sizes, strict=True)])
        again = PredictionSets(drawn, [b[n:] for b, n in zip(mixed, sizes, strict=True)], sets.client_names)
        by_client.append([again.shares[n] for n in again.rules])
    coverage = np.mean(by_client, 0)
    assert abs(coverage.mean() - 90) <= 2, coverage
    for n, found in enumerate(coverage):  # every client, by its own samples
        rule = sets.rules[n]
        assert rule.clients == 1
        assert 90 - 1 <= found <= 90 + 100 / (rule.samples + 1) + 2.5, (n, found)
    size = sets.sizes[0]
    if data.target is None:
        labels, p = result[method.name].predictions.labels[: len(sets.test[0])], result[method.name].predictions
        inside = class_bins(p.probabilities[: len(labels)]) <= sets.rules[0].bin
        assert sets.covered[0] == int(inside[torch.arange(len(labels)), labels].sum())
        assert size == pytest.approx(float(inside.sum(1).double().mean()))
    else:
        p = result[method.name].predictions
        first = slice(0, len(sets.test[0]))
        error = (p.outputs - p.numbers.double())[first].abs()  # type: ignore[union-attr]
        assert sets.covered[0] == int((error <= size / 2).sum())


def test_the_bound_on_bad_clients_is_printed_and_in_the_report(tmp_path: Path) -> None:
    data = ft.Federation.build(ft.data.load("digits"), clients=30, partition="iid", max_train=40, validation=0.2)
    result = ft.run([ft.fedavg()], data, ft.models.logistic, rounds=2, **TRAIN, out=tmp_path / "run")
    sets = result.prediction_sets(0.9, bad_share=0.1)["fedavg"]
    assert {rule.clients for rule in sets.rules.values()} == {30}
    honest = 27 * len(sets.scores.validation[0]) + 1
    lowest = math.ceil(0.901 * honest) / honest - 0.001
    text = f"the expected coverage is {100 * lowest:.1f} to 100.0 %"
    assert f"whatever 10 % of the clients report, {text}" in str(sets)
    assert "whatever" not in str(result.prediction_sets(0.9)["fedavg"])
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "fedavg, if clients may be bad: sets for" in page
    assert "Coverage by client" in page


def test_a_run_without_validation_data_says_what_to_do() -> None:
    data = ft.Federation.build(ft.data.load("toy-1"), clients=2, partition="iid")
    result = ft.run([ft.fedavg()], data, ft.models.logistic, rounds=1, **TRAIN)
    with pytest.raises(InputError, match="need validation data, and the run has none .* train with clients.validation"):
        result.prediction_sets(0.9)


def test_the_sets_of_a_run_folder_an_export_and_the_command_are_those_of_the_result(tmp_path: Path) -> None:
    data, runner = federation("patients", tmp_path), CliRunner()
    methods = [ft.ditto(0.1), ft.fedavg()]
    result = ft.run(methods, data, ft.models.logistic, out=tmp_path / "run", rounds=2, **TRAIN)
    in_memory = ft.run(methods, data, ft.models.logistic, rounds=2, **TRAIN)
    sets = result["ditto"].prediction_sets(0.8)
    assert sets.rules == in_memory["ditto"].prediction_sets(0.8).rules
    north = result["ditto"].client_names.index("north")
    for number, run in enumerate([result, in_memory]):
        run.export(tmp_path / f"{number}.safetensors", "ditto", "north")
        run.export(tmp_path / f"shared{number}.safetensors", "fedavg")
        model = ft.load(tmp_path / f"{number}.safetensors")
        assert model.scores is not None
        assert model.scores.rule(0, 0.8) == sets.rules[north]
        shared = ft.load(tmp_path / f"shared{number}.safetensors").scores
        assert shared is not None
        assert shared.rule(0, 0.8).bin == in_memory["fedavg"].prediction_sets(0.8).scores.rule(None, 0.8).bin
    found = model.rows(tmp_path / "patients.csv", coverage=0.8)
    assert found.sets is not None
    assert found.probabilities is not None
    assert 0.6 < np.mean([name in inside for name, inside in zip(found.predictions, found.sets, strict=True)]) <= 1
    arguments = ["predict", str(tmp_path / "run"), str(tmp_path / "patients.csv"), "--method", "ditto"]
    arguments += ["--client", "north", "--sets", "0.8", "--to", str(tmp_path / "found.csv")]
    assert runner.invoke(app, arguments).exit_code == 0
    with (tmp_path / "found.csv").open() as file:
        assert [row["set"] for row in csv.DictReader(file)] == [
            ", ".join(names) or "(no class)" for names in found.sets
        ]
    lines = (tmp_path / "patients.csv").read_text().splitlines()
    age = lines[0].split(",").index("age")
    (tmp_path / "new.csv").write_text("\n".join([*lines, lines[1].replace(lines[1].split(",")[age], "often")]))
    found = model.rows(tmp_path / "new.csv", coverage=0.3)
    column = [row[found.header().index("set")] for row in found.table()]
    assert found.sets is not None
    assert column[-1] is None  # cannot be used; the others may have an empty set
    assert found.sets[-1] is None
    assert column[:-1] == [", ".join(names) or "(no class)" for names in found.sets[:-1]]
    assert () in list(found.sets[:-1])
    with pytest.raises(InputError, match=r"has no scores of validation data .* use the model of a client \(--client\)"):
        ft.load(tmp_path / "run", method="ditto").predict_sets(tmp_path / "patients.csv")


def test_intervals_of_an_exported_model_of_numbers(tmp_path: Path) -> None:
    data = federation("numbers", tmp_path)
    result = ft.run([ft.fedavg()], data, ft.models.logistic, rounds=3, **TRAIN)
    result.export(tmp_path / "m.safetensors")
    model, rows = ft.load(tmp_path / "m.safetensors"), tmp_path / "patients.csv"
    low, high = model.predict_sets(rows, 0.9).T
    predicted = model.predict(rows)
    assert np.allclose((low + high) / 2, predicted, equal_nan=True)
    with rows.open() as file:
        target = np.array([float(row["pressure"] or "nan") for row in csv.DictReader(file)])
    known = ~np.isnan(target)
    assert 0.85 < np.mean((low <= target)[known] & (target <= high)[known]) < 0.95
    table = model.rows(rows, coverage=0.9)
    assert table.header()[-2:] == ["low", "high"]
    assert table.table(1)[0][-1] == pytest.approx(high[0], rel=1e-5)
