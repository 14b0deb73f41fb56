"""`fedtilt tune`: what it prints and writes, how it resumes, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtilt.files import read_json, read_tensors, read_toml
from fedtilt.spec import load

OVERRIDES = ["train.rounds=4", "train.epochs=1", "clients.count=6", "train.workers=0", "clients.validation=0.3"]
QUICK = [part for text in OVERRIDES for part in ("--set", text)]


def test_tune_recommends_a_spec_that_runs_and_writes_a_page(fedtilt, tmp_path: Path, monkeypatch) -> None:
    over = ["--over", "lam=-2,5", "--over", "batch_size=10,40"]
    result = fedtilt("tune", *QUICK, *over, "--by", "worst", "--at-most", "client_fairness=90", "--out", "search")
    assert result.code == 0, result.err
    assert "stage 1 of 2" in result.err
    tuning = read_json(tmp_path / "search/results.json")["tuning"]
    assert list(tuning["settings"]) == [
        "fedtilt", "fedtilt lam=-2 batch_size=40", "fedtilt lam=5 batch_size=10", "fedtilt lam=5 batch_size=40",
    ]  # fmt: skip
    assert "saved" in result.out
    assert (
        f"recommended: {' '.join(f'{k}={v}' for k, v in tuning['settings'][tuning['chosen']]['setting'].items())}"
        in (result.out)
    )
    assert "fedtilt run search/recommended.toml" in result.out
    on_test = read_tensors(tmp_path / "search/search/test-seed-0.safetensors")
    assert {name.split("/")[0] for name in on_test} == {"fedtilt", tuning["chosen"]}  # and no other setting
    mean = tuning["test"][tuning["chosen"]]["accuracy"]["mean"]
    assert f"{mean:.2f}" in result.out.split("Test data, which was not used to choose")[1]
    page = (tmp_path / "search/report.html").read_text()
    assert "better than yours by" in page
    assert "pareto-client_fairness" in page
    again = fedtilt("resume", "search")
    assert again.out == result.out
    monkeypatch.setenv("COLUMNS", "50")
    narrow = " ".join(fedtilt("resume", "search").out.split())
    assert re.search(r"Not in the table, for want of width: .*client data fairness; results.json", narrow), narrow
    assert json.loads(fedtilt("resume", "search", "--json").out)["tuning"]["chosen"] == tuning["chosen"]
    run = fedtilt("run", "search/recommended.toml", "--out", "run", "--json")
    assert run.code == 0, run.err
    accuracy = json.loads(run.out)["methods"]["fedtilt"]["accuracy"]["mean"]
    assert accuracy == mean  # the spec has validation data of its own, so the models are the same


def test_a_kept_setting_leaves_the_spec_as_it_is(fedtilt, tmp_path: Path) -> None:
    result = fedtilt("tune", *QUICK, "--method", "ditto", "--over", "mu=1.001", "--out", "search")
    assert result.code == 0, result.err
    assert "keep yours" in result.out
    spec = read_toml(tmp_path / "search/recommended.toml")
    assert spec == read_toml(tmp_path / "search/spec.toml")
    assert load(tmp_path / "search/recommended.toml").methods == load("digits").methods


def test_constraints_that_no_setting_keeps(fedtilt, tmp_path: Path) -> None:
    result = fedtilt("tune", *QUICK, "--over", "lam=1", "--at-least", "accuracy=1.0", "--out", "search")
    assert result.code == 0, result.err
    assert "fedtilt on validation data after 4 of 4 rounds" in result.out
    assert "nothing to recommend: no setting has accuracy ≥ 100 %; the nearest is" in " ".join(result.out.split())
    assert "recommended" not in result.out
    assert not (tmp_path / "search/recommended.toml").exists()
    assert "Nothing to recommend." in (tmp_path / "search/report.html").read_text()


def test_validation_data_is_taken_from_the_training_data_if_there_is_none(fedtilt) -> None:
    result = fedtilt("tune", *QUICK[:-2], "--over", "lam=-2,1", "--quiet", "--out", "search")
    assert result.code == 0, result.err
    assert result.out == "run folder: search\n"
    assert "clients.validation is 0; 10% of every client's training data is used for validation" in result.err


@pytest.mark.slow  # kills of each stage are in tests/tuning/test_search.py
def test_a_killed_search_is_resumed(fedtilt, tmp_path: Path) -> None:
    over = ["--over", "lam=-3..1", "--trials", "5"]
    command = [sys.executable, "-m", "fedtilt", "tune", "digits", *QUICK, *over, "--verbose", "--out", "first"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("stage 2"):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stderr.close()
    process.wait()
    result = fedtilt("resume", "first")
    assert result.code == 0, result.err
    straight = fedtilt("tune", *QUICK, *over, "--out", "other")
    found, expected = (read_json(tmp_path / name / "results.json")["tuning"] for name in ("first", "other"))
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}
    assert result.out.replace("first/", "other/").replace("folder: first", "folder: other") == straight.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--over", "lam="], "over lam is empty; give at least one value"),
        (["--over", "lr=0.1..0.01"], "over lr: the range 0.1..0.01 is empty or not finite"),
        (["--over", "learning_rate=1,2"], "over learning_rate: there is no such setting to tune"),
        (["--over", "epochs=0.5..2"], "over epochs = 0.5..2 has no whole ends; epochs is a whole number"),
        (["--by", "auc"], "there is no objective 'auc' for classification; choose one of accuracy, worst"),
        (["--by", "mae"], "there is no objective 'mae' for classification"),
        (["--by", "group:sex"], "there is no objective 'group:sex' for classification"),
        (["--at-least", "accuracy"], "--at-least 'accuracy' is not NAME=NUMBER"),
        (["--budget", "never"], "budget = 'never' is not a duration"),
        (["--method", "fedsgd"], "method 'fedsgd' is not among the methods; choose from fedavg, ditto, fedtilt"),
        (["--over", "mu=-1"], "method 'ditto': proximal: mu must be a number ≥ 0, got -1.0"),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(fedtilt, tmp_path: Path, arguments: list, message: str) -> None:
    result = fedtilt("tune", *arguments, "--out", "search")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert message in result.err
    assert not (tmp_path / "search").exists()


def test_other_commands_name_what_to_do_with_a_search(fedtilt) -> None:
    assert fedtilt("tune", *QUICK, "--over", "lam=1", "--quiet", "--out", "search").code == 0
    assert (
        "is a search, which keeps no models; train what it recommends"
        in fedtilt("export", "search", "--method", "fedtilt", "--to", "x.safetensors").err
    )
    assert "--rounds has no effect: search is a search" in fedtilt("resume", "search", "--rounds", "9").err
    assert fedtilt("resume", "search", "--cluster", "none").code == 0
    assert "is a search, which has a page of its own" in fedtilt("report", "search", "search", "--out", "x.html").err
    assert "search is not empty; use fedtilt resume search" in fedtilt("tune", *QUICK, "--out", "search").err
