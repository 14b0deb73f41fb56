"""`python -m reproduction`."""

import json
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))


def test_a_quick_comparison_from_start_to_page(reproduce, tmp_path: Path) -> None:
    output = reproduce("flips", "--quick", "--device", "cpu")
    assert output.code == 0, output.err
    assert "flips: Persistent label flips, 2 cases (1 to run, 1 without data)" in output.err
    assert "FedTilt mu 0.01, tau 0, 10 × lam -2, 10" in output.err
    assert "data set 'mnist' is missing, flips/mnist-seed-0 skipped; run fedtilt data download mnist" in output.err
    folder = tmp_path / "runs" / "reproduction-quick"
    entry = json.loads((folder / "flips.jsonl").read_text())
    accuracy = entry["result"]["methods"]["ditto mu=0.01"]["test"]["personal"]["accuracy"]
    (row,) = [line for line in output.out.splitlines() if "Ditto (mu 0.01)" in line]
    assert f" {accuracy:.2f} " in row
    assert "one seed: Under wrong labels FedTilt is better" in output.out  # one seed decides nothing
    assert "page:    runs/reproduction-quick/index.html" in output.out
    assert f"{accuracy:.2f}" in (folder / "index.html").read_text()

    again = reproduce("flips", "--quick", "--json")
    report = json.loads(again.out)
    assert report["measured"] == []
    assert report["reused"] == ["flips/digits-seed-0"]
    assert report["missing"] == {"mnist": ["flips/mnist-seed-0"]}
    assert report["chapters"]["flips"]["tables"][0]["columns"][:2] == ["data", "method"]
    assert "round" not in again.err

    page = reproduce("page", "--out", "runs/reproduction-quick")
    assert page.code == 0
    assert "index.html" in page.out


def test_cases_are_listed_and_a_damaged_result_is_named(reproduce, tmp_path: Path) -> None:
    assert reproduce("propositions", "--quick", "--only", "large-mu").code == 0
    listed = reproduce("all", "--quick", "--only", "large-mu", "--only", "mnist", "--only", "ditto", "--list")
    assert listed.code == 0
    status = dict(line.split(maxsplit=1) for line in listed.out.splitlines())
    assert status["propositions/large-mu-seed-0"] == "done"
    assert status["propositions/ditto-seed-0"] == "to run"
    assert status["clean/mnist-seed-0"] == "to run, data set mnist missing"
    path = tmp_path / "runs" / "reproduction-quick" / "propositions.jsonl"
    path.write_text(path.read_text()[:100])
    again = reproduce("propositions", "--quick", "--only", "large-mu", "--list")
    assert "propositions/large-mu-seed-0  to run" in again.out
    page = reproduce("page", "--out", "runs/reproduction-quick")
    assert page.code == 2
    assert "propositions.jsonl line 1 is incomplete: a process was killed while it wrote it" in page.err
    assert "python -m reproduction propositions" in page.err
    assert "Traceback" not in page.err


def test_nothing_to_run_is_an_error(reproduce) -> None:
    output = reproduce("flips", "--quick", "--only", "mnist")
    assert output.code == 2
    assert "fedtilt data download mnist" in output.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cleam"], "unknown experiment 'cleam'"),
        (["page", "--out", "runs/none"], "runs/none has no results"),
        (["clean", "--to", "docs"], "--to needs page"),
        (["clean", "--quick", "--seeds", "0"], "seeds = 0 runs nothing"),
        (["clean", "--quick", "--only", "x"], "no case matches x"),
    ],
)
def test_a_bad_argument_is_one_line(reproduce, arguments: list[str], sentence: str) -> None:
    output = reproduce(*arguments)
    assert output.code == 2
    assert sentence in output.err
    assert "Traceback" not in output.err


def test_without_an_argument_it_prints_the_usage(reproduce) -> None:
    output = reproduce()
    assert "Usage: python -m reproduction [OPTIONS] WHAT" in output.out + output.err
    assert "propositions" in output.out + output.err


def test_outliers_of_every_kind_are_drawn(reproduce) -> None:
    assert reproduce("outliers", "--quick", "--device", "cpu").code == 0
