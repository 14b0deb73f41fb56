"""The page of two runs says what changes from one to the other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedtilt import report
from fedtilt.evaluation.metrics import BEYOND_CHANCE
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.statistics import paired_difference
from fedtilt.report.differences import differences
from fedtilt.report.page import build_page
from fedtilt.report.run_reader import Run, SeedRun, read_run
from fedtilt.report.tables import as_csv, format_interval
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load


@pytest.fixture(scope="module")
def other_run(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with another learning rate."""
    folder = tmp_path_factory.mktemp("other") / "larger lr"
    run_spec(load(run_folder / "spec.toml", overrides=["train.lr=0.3"]), folder)
    return folder


def test_differences_are_paired_by_seed(run_folder: Path, other_run: Path) -> None:
    found = differences(read_run(run_folder), read_run(other_run))
    before, after = (json.loads((run / "results.json").read_text())["methods"] for run in (run_folder, other_run))
    assert list(found.rows) == list(before)
    assert found.pairs == 2
    for method, changes in found.rows.items():
        for metric, change in zip(found.metrics, changes, strict=True):
            ours, theirs = after[method][metric.key]["seeds"], before[method][metric.key]["seeds"]
            assert (change.first, change.second) == pytest.approx((sum(theirs) / 2, sum(ours) / 2))
            expected = format_interval(paired_difference(ours, theirs))
            assert change.text == ("0" if ours == theirs else expected)
    assert found.settings == [("train.lr", "0.1", "0.3")]
    assert found.other == ""


def test_one_seed_in_common_has_no_interval(run_folder: Path, other_run: Path) -> None:
    run = read_run(other_run)
    found = differences(read_run(run_folder), replace(run, seeds=(0,), seed_runs=run.seed_runs[:1]))
    assert found.pairs == 1
    assert all("(" not in change.text and change.better == 0 for row in found.rows.values() for change in row)


def test_other_outliers_are_not_another_division_of_the_samples(run_folder: Path) -> None:
    run = read_run(run_folder)
    clean = {"outliers": run.fingerprint["outliers"] | {"kind": "none"}, "partition": "of clients without outliers"}
    assert differences(run, replace(run, fingerprint=run.fingerprint | clean)).other == ""
    moved = differences(run, replace(run, fingerprint=run.fingerprint | clean | {"sizes": "others"}))
    assert moved.other == "the division of the samples among the clients"


def test_the_page_shows_them_for_two_runs_only(run_folder: Path, other_run: Path, tmp_path: Path) -> None:
    page = report.write([run_folder, other_run], tmp_path / "two.html").read_text()
    assert "What changes from a &amp; b to larger lr" in page
    assert "train.lr" in page
    same = report.write([run_folder, run_folder], tmp_path / "same.html").read_text()
    assert "The runs have the same settings and data." in same
    one = report.write([run_folder], tmp_path / "one.html").read_text()
    assert "What changes from" not in one


def of_an_older_version(run: Run) -> Run:
    """Its rounds have no fairness beyond chance."""

    def without(found: RoundMetrics) -> RoundMetrics:
        return RoundMetrics.from_json(
            json.loads(re.sub(rf', "{BEYOND_CHANCE}": [^,}}]+', "", json.dumps(found.to_json())))
        )

    def history(seed_run: SeedRun) -> dict:
        return {method: [(r, without(found)) for r, found in rounds] for method, rounds in seed_run.history.items()}

    return replace(run, seed_runs=tuple(replace(s, history=history(s)) for s in run.seed_runs))


@pytest.mark.parametrize("old_first", [True, False])
def test_with_a_run_of_an_older_version_only_columns_of_both_are_shown(
    run_folder: Path, tmp_path: Path, old_first: bool
) -> None:
    run = read_run(run_folder)
    runs = [of_an_older_version(run), run] if old_first else [run, of_an_older_version(run)]
    assert BEYOND_CHANCE not in {metric.key for metric in differences(*runs).metrics}
    header, *rows = as_csv(runs, [{}, {}]).splitlines()
    assert BEYOND_CHANCE not in header
    assert len({line.count(",") for line in (header, *rows)}) == 1
    both, new = (build_page(found, [{}] * len(found), tmp_path) for found in (runs, [run]))
    assert both.count(">beyond chance") == new.count(">beyond chance") > 0  # in the tables of the new run alone
