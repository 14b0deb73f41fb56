"""`fedtilt reproduce` as a person meets it."""

import json
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))


def test_a_quick_comparison_from_start_to_page(fedtilt, tmp_path: Path) -> None:
    said = fedtilt("reproduce", "flips", "--quick", "--device", "cpu")
    assert said.code == 0, said.err
    assert "flips: Persistent label flips, 2 cases (1 to run, 1 without data)" in said.err
    assert "FedTilt mu 0.01, tau 0, 10 × lam -2, 10" in said.err
    assert "data set 'mnist' is not here, and flips/mnist-seed-0 waits for it; fedtilt data get mnist" in said.err
    folder = tmp_path / "runs" / "reproduction-quick"
    entry = json.loads((folder / "flips" / "digits-seed-0.json").read_text())
    accuracy = entry["result"]["methods"]["ditto mu=0.01"]["test"]["personal"]["accuracy"]
    (row,) = [line for line in said.out.splitlines() if "Ditto (mu 0.01)" in line]
    assert f" {accuracy:.2f} " in row
    assert "one seed: Under wrong labels FedTilt is better" in said.out  # one seed decides nothing
    assert "page:    runs/reproduction-quick/index.html" in said.out
    assert f"{accuracy:.2f}" in (folder / "index.html").read_text()

    again = fedtilt("reproduce", "flips", "--quick", "--json")
    told = json.loads(again.out)
    assert told["measured"] == []
    assert told["kept"] == ["flips/digits-seed-0"]
    assert told["missing"] == {"mnist": ["flips/mnist-seed-0"]}
    assert told["chapters"]["flips"]["tables"][0]["columns"][:2] == ["data", "method"]
    assert "round" not in again.err

    page = fedtilt("reproduce", "page", "--out", "runs/reproduction-quick")
    assert page.code == 0
    assert "index.html" in page.out


def test_cells_are_listed_and_a_page_names_what_is_damaged(fedtilt, tmp_path: Path) -> None:
    assert fedtilt("reproduce", "propositions", "--quick", "--only", "large-mu").code == 0
    listed = fedtilt(
        "reproduce", "all", "--quick", "--only", "large-mu", "--only", "mnist", "--only", "ditto", "--list"
    )
    assert listed.code == 0
    states = dict(line.split(maxsplit=1) for line in listed.out.splitlines())
    assert states["propositions/large-mu-seed-0"] == "done"
    assert states["propositions/ditto-seed-0"] == "to run"
    assert states["clean/mnist-seed-0"] == "to run, without data set mnist"
    path = tmp_path / "runs" / "reproduction-quick" / "propositions" / "large-mu-seed-0.json"
    path.write_text(path.read_text()[:100])
    again = fedtilt("reproduce", "propositions", "--quick", "--only", "large-mu", "--list")
    assert "propositions/large-mu-seed-0  to run again: its file is damaged (" in again.out
    page = fedtilt("reproduce", "page", "--out", "runs/reproduction-quick")
    assert page.code == 2
    assert "large-mu-seed-0.json cannot be told of, its file is damaged" in page.err
    assert "fedtilt reproduce propositions" in page.err
    assert "Traceback" not in page.err


def test_nothing_could_run(fedtilt) -> None:
    said = fedtilt("reproduce", "flips", "--quick", "--only", "mnist")
    assert said.code == 2
    assert "fedtilt data get mnist" in said.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cleam"], "unknown experiment 'cleam'"),
        (["page"], "runs/reproduction holds no results"),
        (["clean", "--to", "docs"], "--to goes with page"),
        (["clean", "--quick", "--seeds", "0"], "seeds = 0 leaves nothing to run"),
        (["clean", "--quick", "--only", "x"], "no case is named like x"),
    ],
)
def test_bad_words_are_one_line(fedtilt, arguments: list[str], sentence: str) -> None:
    said = fedtilt("reproduce", *arguments)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
