"""The report says what is suspicious about the data, and how it was read."""

import html
import re
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt import report, spec
from fedtilt.errors import InputWarning
from fedtilt.runs.spec_run import run_spec


def test_warnings_and_guesses_stand_on_the_page_and_in_no_export(tmp_path: Path) -> None:
    table = tmp_path / "ä.csv"
    ill = ["" if i % 20 == 19 else i // 3 % 2 for i in range(120)]
    rows = [
        f"{-999 if i % 8 == 0 else i % 7};{1 + i % 3}.{i:03};{i % 5},5;{'ab'[i % 2]};{label}"
        for i, label in enumerate(ill)
    ]
    table.write_bytes("\n".join(["größe;count;dose;site;ill", *rows]).encode("cp1252"))
    path = tmp_path / "s.toml"
    path.write_text(
        '[data]\nfile = "ä.csv"\ntarget = "ill"\nclient = "site"\ndrop_unlabelled = true\n[model]\nname = "logistic"\n'
        "[train]\nrounds = 1\nepochs = 1\nparticipation = 1.0\nworkers = 0\nbaselines = false\n"
        '[[methods]]\npreset = "fedavg"\n',
        encoding="utf-8",
    )
    with pytest.warns(InputWarning) as caught:
        run_spec(spec.load(path), tmp_path / "run")
    page = html.unescape(report.write([tmp_path / "run"], tmp_path / "report.html").read_text(encoding="utf-8"))
    section = page.partition("<h3>About the data</h3>")[2].partition("</section>")[0]
    found = re.findall("<li>(.*?)</li>", section)
    assert found == [
        "column 'größe' has -999 in several rows, far outside its other numbers, which count as missing; set "
        "find_missing = false if they are numbers",
        "test rows: drawn at random from each client's rows",
        "ä.csv cp1252, separated by ';', decimal comma",
        "6 of 120 rows have no 'ill' and are dropped",
        "column 'größe': -999 read as missing in 15 rows",
        "column 'count': thousands separated by '.'",
    ]
    assert [str(w.message) for w in caught if w.category is InputWarning] == found[:1]
    model = ft.load(tmp_path / "run", method="fedavg")
    assert "about_data" not in repr(vars(model))
