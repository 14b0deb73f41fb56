"""The table of chosen settings is the one that the committed results of tuning determine."""

import json
import tomllib
from pathlib import Path

import pytest

from fedtilt.errors import InputError
from reproduction import Options, load
from reproduction.experiments.chosen import as_toml, choose_settings, chosen_settings, write_chosen
from reproduction.experiments.tuning import VALIDATION, cases
from reproduction.results import RESULTS, CaseResult, ResultsFolder
from reproduction.runner import load_results


def test_the_table_is_that_of_the_committed_results() -> None:
    tuning, results = load_results(ResultsFolder(RESULTS), "tuning", quick=False)
    found, table = choose_settings(tuning, results), chosen_settings()
    assert {"mnist", "fashion-mnist"} <= set(found)
    measured = {data: {condition: table[data].get(condition) for condition in found[data]} for data in found}
    run = "python -m reproduction.experiments.chosen reproduction/results"
    assert measured == found, f"the right table, which `{run}` writes:\n{as_toml(found)}"
    assert set(table) - set(found) == {"digits"}, "settings without results"


def test_toml_and_back() -> None:
    assert tomllib.loads(as_toml(chosen_settings())) == chosen_settings()


def test_a_condition_without_results_keeps_its_settings(tmp_path: Path) -> None:
    folder, file = ResultsFolder(tmp_path / "results"), tmp_path / "chosen.toml"
    with pytest.raises(InputError, match="no results of tuning with all seeds"):
        write_chosen(folder.folder, file)
    assert not file.exists()
    tuning = load("tuning").quick_version()
    for case in cases(tuning, Options(quick=True)):
        if case.name in ("digits-flips-seed-100", "digits-flips-extended-seed-100"):
            methods = {
                name: {split: {"accuracy": 99.0 if "initial" in name else 50.0, "client_fairness": 1.0}
                       for split in VALIDATION}
                for name in case.settings["methods"]
            }  # fmt: skip
            result = {"methods": methods, "settings": {}, "diverged": {}}
            folder.append("tuning", CaseResult(
                case=case.name, what="", quick=True, seeds=None, settings=json.loads(json.dumps(case.settings)),
                environment={}, seconds=1.0, result=result,
            ))  # fmt: skip
    write_chosen(folder.folder, file)
    table, old = tomllib.loads(file.read_text("utf-8")), chosen_settings()
    assert table["digits"]["flips"]["validation"]["ditto"] == {
        "lr_personal": 0.1, "mu": 0.01, "personal_start": "initial",
    }  # fmt: skip
    assert table["digits"]["clean"] == old["digits"]["clean"]
    assert table["mnist"] == old["mnist"]
