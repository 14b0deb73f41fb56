"""The page of two runs says what changes from one to the other."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedtilt import report
from fedtilt.report.differences import differences
from fedtilt.report.page import build_page
from fedtilt.report.run_reader import read_run
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import drawn_rows


@pytest.fixture(scope="module")
def other_run(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with another learning rate."""
    folder = tmp_path_factory.mktemp("other") / "larger lr"
    run_spec(load(run_folder / "spec.toml", overrides=["train.lr=0.3"]), folder)
    for seed in (0, 1):  # with the same names of clients
        shutil.copy(run_folder / f"seed-{seed}" / "federation.json", folder / f"seed-{seed}")
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
            assert (change.text == "0") == (sum(ours) == sum(theirs))
            if "to" in change.text:
                mean, low, high = (float(v.replace("−", "-")) for v in re.findall(r"[+−][\d.]+", change.text))
                assert low <= mean <= high
                assert change.better == 0 or low * high > 0
    assert found.settings == [("train.lr", "0.1", "0.3")]
    assert found.other == ""


def test_other_test_rows_are_not_compared(run_folder: Path, other_run: Path) -> None:
    run = read_run(other_run)
    found = differences(read_run(run_folder), replace(run, seeds=(0,), seed_runs=run.seed_runs[:1]))
    assert found.pairs == 1
    moved = tuple(replace(seed_run, total=seed_run.total + 1) for seed_run in run.seed_runs)
    found = differences(read_run(run_folder), replace(run, seed_runs=moved))
    assert found.pairs == 0
    changes = [change for row in found.rows.values() for change in row]
    assert all(change.text.endswith(" (other test rows: not compared)") and change.better == 0 for change in changes)


def test_as_many_rows_are_not_the_same_rows(run_folder: Path, other_run: Path) -> None:
    """Two runs with equal numbers by client and class, and other rows; and one of an earlier version."""
    first, second = (
        replace(run, seed_runs=tuple(replace(s, test_rows=f"of {s.seed}") for s in run.seed_runs))
        for run in (read_run(run_folder), read_run(other_run))
    )
    others = replace(second, seed_runs=tuple(replace(s, test_rows="others") for s in second.seed_runs))
    assert (differences(first, second).pairs, differences(first, others).pairs) == (2, 0)
    unknown = drawn_rows({})
    earlier = replace(second, seed_runs=tuple(replace(s, test_rows="", drawn=unknown) for s in second.seed_runs))
    assert unknown.split == "unknown"
    assert differences(first, earlier).pairs > 0


def test_other_outliers_are_not_another_division_of_the_samples(run_folder: Path) -> None:
    run = read_run(run_folder)
    clean = {"outliers": run.fingerprint["outliers"] | {"kind": "none"}, "partition": "of clients without outliers"}
    assert differences(run, replace(run, fingerprint=run.fingerprint | clean)).other == ""
    moved = differences(run, replace(run, fingerprint=run.fingerprint | clean | {"sizes": "others"}))
    assert moved.other == "the division of the samples among the clients"


def test_the_page_shows_them_for_two_runs_only(run_folder: Path, other_run: Path, tmp_path: Path, page: str) -> None:
    two = report.write([run_folder, other_run], tmp_path / "two.html").read_text()
    assert two.count("<article") == 2
    assert "<h2>Overview</h2>" in two
    assert two.count('id="plotly"') == 1
    assert "What changes from a &amp; b to larger lr" in two
    assert "train.lr" in two
    assert "What changes from" not in page
    assert len(re.findall("^## ", report.markdown([run_folder, other_run]), re.MULTILINE)) == 2


def test_equal_runs_have_the_same_settings(run_folder: Path, tmp_path: Path) -> None:
    run = read_run(run_folder)
    one_seed = replace(run, seeds=(0,), seed_runs=run.seed_runs[:1])
    assert "The runs have the same settings and data." in build_page([one_seed] * 2, [{}, {}], tmp_path)
