"""The results folder: what is done is not run again, what changed is, what is missing is named."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.reproduction import Case, Options, reproduce
from fedtilt.reproduction.comparison import experiment
from fedtilt.reproduction.results_folder import ResultsFolder
from fedtilt.reproduction.runner import case_statuses, damaged
from tests.helpers.handmade_results import compared, metrics

QUICK = Options(quick=True, device="cpu")


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cases that were measured; training itself is tested elsewhere."""
    names: list[str] = []

    def measure(case: Case, options: Options, on_progress: Any) -> dict[str, Any]:
        names.append(case.name)
        return compared(metrics(80.0), metrics(90.0), metrics(95.0))

    monkeypatch.setattr(experiment, "measure", measure)
    return names


def test_what_is_done_is_not_run_again(measured: list[str], tmp_path: Path) -> None:
    first = reproduce("clean", tmp_path / "out", options=QUICK, only=["digits"])
    again = reproduce("clean", tmp_path / "out", options=QUICK, only=["digits"])
    assert measured == ["digits-seed-0"]
    assert (first.measured, first.kept) == (["clean/digits-seed-0"], [])
    assert (again.measured, again.kept) == ([], ["clean/digits-seed-0"])
    more = reproduce("clean", tmp_path / "out", options=Options(quick=True, device="cpu", seeds=3), only=["digits"])
    assert measured == ["digits-seed-0", "digits-seed-1", "digits-seed-2"]
    assert more.kept == ["clean/digits-seed-0"]
    assert "3 seeds" in more.chapters["clean"].parts[0].notes


def test_interrupted_it_goes_on(measured: list[str], tmp_path: Path) -> None:
    options = Options(quick=True, device="cpu", seeds=3)

    def stop(job: Any) -> None:
        if job.case.name == "digits-seed-1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("clean", tmp_path, options=options, only=["digits"], on_case=stop)
    assert [path.name for path in (tmp_path / "clean").glob("*.json")] == ["digits-seed-0.json"]
    outcome = reproduce("clean", tmp_path, options=options, only=["digits"])
    assert measured == ["digits-seed-0", "digits-seed-1", "digits-seed-2"]
    assert outcome.measured == ["clean/digits-seed-1", "clean/digits-seed-2"]


def test_a_changed_setting_makes_a_cell_stale(measured: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    path = tmp_path / "clean" / "digits-seed-0.json"
    content = json.loads(path.read_text())
    content["settings"]["train"]["lr"] = 0.5
    path.write_text(json.dumps(content))
    assert not reproduce("clean", tmp_path, options=QUICK, only=["mnist"]).chapters["clean"].parts[:-1]  # left out
    reproduce(
        "clean", tmp_path, options=Options(quick=True, device="cpu", notice=said.append), only=["digits"]
    )  # fmt: skip
    assert measured == ["digits-seed-0", "digits-seed-0"]
    assert said == ["clean/digits-seed-0 is run again: train.lr was 0.5 and is 0.1"]
    assert json.loads(path.read_text())["settings"]["train"]["lr"] == 0.1


def test_a_missing_data_set_is_named_and_the_rest_runs(measured: list[str], tmp_path: Path) -> None:
    outcome = reproduce("clean", tmp_path, options=QUICK)
    assert measured == ["digits-seed-0"]
    assert outcome.missing == {"mnist": ["clean/mnist-seed-0"]}


def test_a_quick_look_never_replaces_a_full_result(measured: list[str], tmp_path: Path) -> None:
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    path = tmp_path / "clean" / "digits-seed-0.json"
    path.write_text(path.read_text().replace('"quick": true', '"quick": false'))
    with pytest.raises(ft.InputError, match="full result, which --quick would replace"):
        reproduce("clean", tmp_path, options=QUICK, only=["digits"])


def test_a_foreign_file_is_refused(measured: list[str], tmp_path: Path) -> None:
    path = tmp_path / "clean" / "digits-seed-0.json"
    path.parent.mkdir()
    path.write_text('{"a": 1}')
    with pytest.raises(ft.InputError, match="is not a result of this command"):
        reproduce("clean", tmp_path, options=QUICK, only=["digits"])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "its file is damaged ("),
        (lambda text: text.replace('"methods"', '"mathods"'), "its file lacks methods"),
        (lambda text: text.replace('"quick": true,\n', ""), "its file is incomplete"),
    ],
)
def test_a_damaged_result_is_run_again(measured: list[str], tmp_path: Path, damage: Any, why: str) -> None:
    said: list[str] = []
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    path = tmp_path / "clean" / "digits-seed-0.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    assert reproduce("flips", tmp_path, options=QUICK, only=["digits"]).measured  # others are not in its way
    (told,) = damaged(ResultsFolder(tmp_path))
    assert told.startswith(f"{path} cannot be told of, {why}")
    assert told.endswith(f"; fedtilt reproduce clean --quick --out {tmp_path} runs it again")
    reproduce("clean", tmp_path, options=Options(quick=True, device="cpu", notice=said.append), only=["digits"])
    assert [line.startswith(f"clean/digits-seed-0 is run again: {why}") for line in said] == [True]
    assert json.loads(path.read_text())["result"] == json.loads(whole)["result"]
    assert damaged(ResultsFolder(tmp_path)) == []


def test_the_results_in_docs_are_whole() -> None:
    assert damaged(ResultsFolder(Path(__file__).parents[2] / "docs" / "reproduction" / "results")) == []


def test_only_takes_whole_parts_of_a_name(tmp_path: Path) -> None:
    def named(*words: str, what: str = "clean") -> list[str]:
        return [job.case.name for job in case_statuses([what], ResultsFolder(tmp_path), Options(), words)]

    assert named("mnist-seed-0") == ["mnist-seed-0"]
    assert named("fashion-mnist-seed-1", "cifar10-seed-2") == ["fashion-mnist-seed-1", "cifar10-seed-2"]
    assert named("mnist") == [f"mnist-seed-{seed}" for seed in range(5)]
    assert named("clean/cifar10") == [f"cifar10-seed-{seed}" for seed in range(3)]
    assert named("seed-1", what="toy") == [f"toy-{n}-seed-1" for n in ("1", "2", "3", "3-far")]
    assert len(named("tau-1", what="convergence")) == 4  # and not tau-10
    with pytest.raises(ft.InputError, match="no case is named like cifar; near to it: cifar10"):
        named("cifar")
    with pytest.raises(ft.InputError, match=r"--list shows all 13, from clean/mnist-seed-0 to clean/cifar10-seed-2"):
        named("x")


def test_only_and_several_experiments(measured: list[str], tmp_path: Path) -> None:
    outcome = reproduce(["clean", "flips"], tmp_path, options=QUICK, only=["digits"])
    assert outcome.measured == ["clean/digits-seed-0", "flips/digits-seed-0"]
    assert list(outcome.chapters) == ["clean", "flips"]
    with pytest.raises(ft.InputError, match="no case is named like cifer"):
        reproduce("clean", tmp_path, options=QUICK, only=["cifer"])
    with pytest.raises(ft.InputError, match="seeds = 0"):
        Options(seeds=0)


def test_files_are_small_and_tell_where_they_come_from(measured: list[str], tmp_path: Path) -> None:
    reproduce("clean", tmp_path, options=QUICK, only=["digits"])
    (entry,) = ResultsFolder(tmp_path).entries("clean")
    assert entry.quick
    assert entry.environment["device"].startswith("cpu")
    assert {"fedtilt", "torch", "python"} <= set(entry.environment)
    assert entry.settings["outliers"] == "none"
    assert not (tmp_path / "clean" / "unfinished").exists()
