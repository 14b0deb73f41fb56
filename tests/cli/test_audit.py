"""`fedtilt audit`: suspects with the rows of the user's table, training again, and one line for each mistake."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

SETTINGS = ["rounds=15", "participation=1.0", "epochs=2", "lr=0.1", "workers=0"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three sites, in which every eighth row has the wrong label."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(240):
        true = k % 2
        x = rng.normal(3 * true - 1.5, 0.6, 3)
        rows.append([f"site {k // 80}", "ill" if true != (k % 8 == 3) else "well", *np.round(x, 3)])
    path = tmp_path / "patients.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["site", "diagnosis", "a", "b", "c"], *rows])
    return path


@pytest.fixture
def spec(table: Path, tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(
        'name = "study"\n[data]\nfile = "patients.csv"\ntarget = "diagnosis"\nclient = "site"\n'
        "[clients]\nvalidation = 0.2\n[model]\nhidden = [8]\n"
        '[[methods]]\npreset = "fedtilt"\ntau = 0.0\nlam = -2.0\nmu = 0.1\n'
    )
    return path


def run(fedtilt, spec: Path, *more: str) -> None:  # type: ignore[no-untyped-def]
    settings = [part for key in SETTINGS for part in ("--set", f"train.{key}")]
    ran = fedtilt("run", str(spec), "--out", "run", "-q", *settings, *more)
    assert ran.code == 0, ran.err


def test_suspects_are_rows_of_the_table_and_dropping_them_trains_again(fedtilt, spec: Path, table: Path) -> None:  # type: ignore[no-untyped-def]
    run(fedtilt, spec, "--audit")
    printed = fedtilt("audit", "run")
    assert printed.code == 0, printed.err
    assert "judged by fedtilt after round 15" in printed.out
    assert "A hard but correct sample looks bad too" in printed.out
    assert '<a href="audit.html">' in Path("run/report.html").read_text()
    with Path("run/suspects.csv").open(newline="") as file:
        suspects = list(csv.DictReader(file))
    numbers = [int(s["row"].removeprefix("row ")) for s in suspects]
    wrong = [number for number in numbers if (number - 2) % 8 == 3]  # the header is row 1
    assert len(wrong) >= 0.9 * len(numbers) > 10
    lines = table.read_text().splitlines()
    assert all(
        lines[n - 1].split(",")[1] == s["label"] != s["looks_like"] for n, s in zip(numbers, suspects, strict=True)
    )

    again = fedtilt("audit", "run", "--drop", "run/suspects.csv", "--out", "dropped")
    assert again.code == 0, again.err
    assert "validation" in again.out
    assert "points" in again.out
    assert str(Path("run/suspects.csv").resolve()) in Path("dropped/spec.toml").read_text()
    left = json.loads(fedtilt("audit", "dropped", "--json").out)
    assert len(left["suspects"]) < len(suspects) / 2
    assert left["csv"] == "dropped/suspects.csv"
    assert "already; add these samples to that file" in fedtilt("audit", "dropped", "--drop", "x.csv").err


def test_shares_of_wrong_labels_that_are_not_known_are_not_0(fedtilt, spec: Path, table: Path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    lines = [line.split(",") for line in table.read_text().splitlines()]
    with table.open("w", newline="") as file:  # inputs hardly tell the class
        rows = [[site, y, *np.round(rng.normal(0.2 * (y == "ill"), 1, 3), 3)] for site, y, *_ in lines[1:]]
        csv.writer(file).writerows([lines[0], *rows])
    run(fedtilt, spec, "--audit")
    printed = " ".join(fedtilt("audit", "run").out.split())
    assert "How many labels are wrong is not known" in printed
    assert "0.0%" not in printed
    assert "How many labels are wrong is not known" in Path("run/audit.html").read_text()
    found = json.loads(fedtilt("audit", "run", "--json").out)
    assert [row["wrong"] for row in found["clients"]] == [{"share": None, "low": 0.0, "high": 1.0}] * 3


def test_mistakes_are_one_line(fedtilt, spec: Path, table: Path) -> None:  # type: ignore[no-untyped-def]
    run(fedtilt, spec, "--set", "train.rounds=1")
    refused = fedtilt("audit", "run")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "run has no data for an audit; train it again with --audit" in refused.err
    Path("run").rename("plain")
    run(fedtilt, spec, "--audit", "--set", "train.rounds=1")
    assert "has no method 'ditto'; it has fedtilt" in fedtilt("audit", "run", "--method", "ditto").err
    assert "--out x is the folder of a new run" in fedtilt("audit", "run", "--out", "x").err
    assert "--cut 0.9 has no effect with --drop" in fedtilt("audit", "run", "--drop", "x.csv", "--cut", "0.9").err
    Path("wrong.csv").write_text("row,label,looks_like\nrow 9999,ill,well\n")
    unknown = fedtilt("audit", "run", "--drop", "wrong.csv", "--out", "new")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "wrong.csv, line 2: 'row 9999' is no sample" in unknown.err
    assert not Path("new").exists()
    Path("run").rename("one-seed")
    planted = ("--set", "outliers.kind=flips", "--set", "outliers.redraw=once", "--seeds", "2")
    run(fedtilt, spec, "--audit", "--set", "train.rounds=1", *planted)
    several = fedtilt("audit", "run", "--drop", "wrong.csv", "--out", "new")
    assert (several.code, several.err.count("\n")) == (2, 1)
    assert "run has 2 seeds, and outliers of its own with each" in several.err
    table.write_text(table.read_text().replace("site 0,well", "site 0,ill", 1))
    changed = fedtilt("audit", "run")
    assert (changed.code, changed.err.count("\n")) == (2, 1)
    assert "was changed since run was trained" in changed.err
