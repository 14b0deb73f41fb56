"""The results folder: finished cases are not run again, changed ones are, missing data is listed."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from reproduction import NAMES, Case, Options, reproduce
from reproduction.experiments import comparison as experiment
from reproduction.results import RESULTS, ResultsFolder
from reproduction.runner import case_statuses, damaged_results, load_results
from tests.helpers.handmade_results import comparison_result, metrics

QUICK = Options(quick=True, device="cpu")


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the measured cases; training is tested elsewhere."""
    names: list[str] = []

    def measure(case: Case, options: Options, on_progress: Any) -> dict[str, Any]:
        names.append(case.name)
        return comparison_result(metrics(80.0), metrics(90.0), metrics(95.0))

    monkeypatch.setattr(experiment, "measure", measure)
    return names


def test_finished_cases_are_not_run_again(measured: list[str], tmp_path: Path) -> None:
    first = reproduce("clean", tmp_path / "out", options=QUICK, only=["digits"])
    again = reproduce("clean", tmp_path / "out", options=QUICK, only=["digits"])
    assert measured == ["digits-seed-0"]
    assert (first.measured, first.reused) == (["clean/digits-seed-0"], [])
    assert (again.measured, again.reused) == ([], ["clean/digits-seed-0"])
    more = reproduce("clean", tmp_path / "out", options=Options(quick=True, device="cpu", seeds=3), only=["digits"])
    assert measured == ["digits-seed-0", "digits-seed-1", "digits-seed-2"]
    assert more.reused == ["clean/digits-seed-0"]
    assert "3 seeds" in more.chapters["clean"].parts[0].notes


def test_an_interrupted_run_continues(measured: list[str], tmp_path: Path) -> None:
    options = Options(quick=True, device="cpu", seeds=3)

    def stop(status: Any) -> None:
        if status.case.name == "digits-seed-1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("clean", tmp_path, options=options, only=["digits"], on_case=stop)
    assert list(ResultsFolder(tmp_path).records("clean")) == ["digits-seed-0"]
    result = reproduce("clean", tmp_path, options=options, only=["digits"])
    assert measured == ["digits-seed-0", "digits-seed-1", "digits-seed-2"]
    assert result.measured == ["clean/digits-seed-1", "clean/digits-seed-2"]


def test_a_changed_setting_makes_a_result_stale(measured: list[str], tmp_path: Path) -> None:
    notices: list[str] = []
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    path = tmp_path / "clean.jsonl"
    content = json.loads(path.read_text())
    content["settings"]["train"]["lr"] = 0.5
    path.write_text(json.dumps(content) + "\n")
    assert not reproduce("clean", tmp_path, options=QUICK, only=["mnist"]).chapters["clean"].parts[:-1]  # left out
    reproduce(
        "clean", tmp_path, options=Options(quick=True, device="cpu", notice=notices.append), only=["digits"]
    )  # fmt: skip
    assert measured == ["digits-seed-0", "digits-seed-0"]
    assert notices == ["clean/digits-seed-0 is run again: train.lr was 0.5 and is 0.1"]
    assert json.loads(path.read_text())["settings"]["train"]["lr"] == 0.1


def test_a_missing_data_set_is_listed_and_the_rest_runs(measured: list[str], tmp_path: Path) -> None:
    result = reproduce("clean", tmp_path, options=QUICK)
    assert measured == ["digits-seed-0"]
    assert result.missing == {"mnist": ["clean/mnist-seed-0"]}


def test_a_quick_run_never_replaces_a_full_result(measured: list[str], tmp_path: Path) -> None:
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    path = tmp_path / "clean.jsonl"
    path.write_text(path.read_text().replace('"quick":true', '"quick":false'))
    with pytest.raises(ft.InputError, match="full result of digits-seed-0, which --quick would replace"):
        reproduce("clean", tmp_path, options=QUICK, only=["digits"])


def test_a_file_of_another_program_is_an_error(measured: list[str], tmp_path: Path) -> None:
    path = tmp_path / "clean.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ft.InputError, match="is not a file of results; move it"):
        reproduce("clean", tmp_path, options=QUICK, only=["digits"])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[: len(text) // 2], "line 2 is incomplete: a process was killed while it wrote it"),
        (lambda text: text[: len(text) // 2] + "\n", "line 2 is damaged ("),
        (lambda text: text.replace('"methods"', '"mathods"'), "has digits-seed-1, but its record lacks methods"),
        (lambda text: text.replace('"quick":true,', ""), "line 2 lacks quick"),
    ],
)
def test_a_damaged_record_is_named_and_run_again(measured: list[str], tmp_path: Path, damage: Any, reason: str) -> None:
    notices: list[str] = []
    options = Options(quick=True, device="cpu", seeds=2, notice=notices.append)
    reproduce("clean", tmp_path, options=options, only=["digits"])
    path = tmp_path / "clean.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + damage(second))
    assert reproduce("flips", tmp_path, options=QUICK, only=["digits"]).measured  # other experiments still run
    (problem,) = damaged_results(ResultsFolder(tmp_path))
    assert problem.startswith(f"{path} {reason}")
    assert problem.endswith(f"; python -m reproduction clean --quick --out {tmp_path} runs the case again")
    again = reproduce("clean", tmp_path, options=options, only=["digits"])
    assert (again.measured, again.reused) == (["clean/digits-seed-1"], ["clean/digits-seed-0"])
    assert notices[0] == problem
    assert damaged_results(ResultsFolder(tmp_path)) == []
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["result"] for record in records] == [json.loads(line)["result"] for line in (first, second)]


def test_the_results_of_this_repository_are_complete_and_of_todays_settings() -> None:
    folder = ResultsFolder(RESULTS)
    assert damaged_results(folder) == []
    for name in NAMES:
        assert list(load_results(folder, name, quick=False)[1]) == list(folder.records(name))


def test_only_matches_whole_words_of_a_name(tmp_path: Path) -> None:
    def matches(*words: str, what: str = "clean") -> list[str]:
        return [status.case.name for status in case_statuses([what], ResultsFolder(tmp_path), Options(), words)]

    assert matches("mnist-seed-0") == ["mnist-seed-0"]
    assert matches("fashion-mnist-seed-1", "cifar10-seed-2") == ["fashion-mnist-seed-1", "cifar10-seed-2"]
    assert matches("mnist") == [f"mnist-seed-{seed}" for seed in range(5)]
    assert matches("clean/cifar10") == [f"cifar10-seed-{seed}" for seed in range(3)]
    assert matches("seed-1", what="toy") == [f"toy-{n}-seed-1" for n in ("1", "2", "3", "3-far")]
    assert len(matches("tau-1", what="convergence")) == 4  # and not tau-10
    with pytest.raises(ft.InputError, match="no case matches cifar; similar: cifar10"):
        matches("cifar")
    with pytest.raises(ft.InputError, match=r"--list shows all 13, from clean/mnist-seed-0 to clean/cifar10-seed-2"):
        matches("x")


def test_only_and_several_experiments(measured: list[str], tmp_path: Path) -> None:
    result = reproduce(["clean", "flips"], tmp_path, options=QUICK, only=["digits"])
    assert result.measured == ["clean/digits-seed-0", "flips/digits-seed-0"]
    assert list(result.chapters) == ["clean", "flips"]
    with pytest.raises(ft.InputError, match="no case matches cifer"):
        reproduce("clean", tmp_path, options=QUICK, only=["cifer"])
    with pytest.raises(ft.InputError, match="seeds = 0"):
        Options(seeds=0)


def test_results_record_settings_and_environment(measured: list[str], tmp_path: Path) -> None:
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    (stored,) = ResultsFolder(tmp_path).records("clean").values()
    assert stored.quick
    assert stored.environment["device"].startswith("cpu")
    assert {"fedtilt", "torch", "python"} <= set(stored.environment)
    assert stored.settings["outliers"] == "none"
    assert not (tmp_path / "unfinished" / "clean" / "digits-seed-0").exists()
