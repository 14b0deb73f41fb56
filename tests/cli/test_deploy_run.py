"""`fedtilt deploy run`: what it tells of a run, and above all of one in which a site failed."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from flwr.app import Message, RecordDict

import fedtilt as ft
from fedtilt.cli.deploy import app
from fedtilt.flower.deploy.local_cluster import Trial
from fedtilt.flower.deploy.project import write_project
from fedtilt.flower.messages import say_failed
from tests.helpers.flower_identity import flower_identity  # noqa: F401 (a fixture)
from tests.helpers.pretend import SITE_SPEC, Pretend

Run = Callable[..., "Said"]


class Said(NamedTuple):
    out: list[str]
    err: list[str]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    monkeypatch.chdir(tmp_path)
    write_project(Path("fl"))
    Path("fl/spec.toml").write_text(SITE_SPEC)
    trial = Pretend(home=(tmp_path / "fl/.fedtilt").resolve())
    monkeypatch.setattr(Trial, "find", lambda home: trial)
    return trial


@pytest.fixture
def run(trial: Pretend, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Said:
        capsys.readouterr()
        app(["run", "fl", *(str(a) for a in arguments)], standalone_mode=False)
        said = capsys.readouterr()
        return Said(said.out.splitlines(), said.err.splitlines())

    return run


def test_a_site_that_fails_is_told_as_such_and_where_its_log_is(trial: Pretend, run: Run) -> None:
    trial.broken = (1,)
    said = run("--quorum", 0.5)
    why = "1 site (site 1 cannot join: failed, and its own log says why)"
    assert said.err == [f"round 1/2: {why}", f"log of site 1: {trial.home}/site-1/log.txt", f"round 2/2: {why}"]


def test_a_site_that_fails_in_training_and_one_that_is_silent(trial: Pretend, run: Run) -> None:
    def lose(reply: Message, site: int, round: int) -> list[Message]:
        if site == 0 or reply.metadata.message_type != "train":
            return [reply]
        question = Message(RecordDict(), dst_node_id=101, message_type="train")
        return [Message(say_failed(1), reply_to=question)] if round == 1 else []

    trial.spoil = lose
    said = run("--quorum", 0.5)
    assert said.err == [
        "round 1/2: 1 site (site 1 failed, and its own log says why)",
        f"log of site 1: {trial.home}/site-1/log.txt",
        "round 2/2: 1 site (site 1 did not answer in time)",
    ]


def test_the_end_says_what_was_found_and_who_fails_most(trial: Pretend, run: Run) -> None:
    out = run().out
    found = json.loads(Path(trial.config["out"], "results.json").read_text())["methods"]["ditto"]
    figures = [found[key]["mean"] for key in ("accuracy", "client_fairness", "client_data_fairness_mean", "worst")]
    assert out[0] == "accuracy {:.2f}  client fairness {:.2f}  class fairness {:.2f}  worst 10 % {:.2f}".format(
        *figures
    )
    reports = [json.loads(path.read_text()) for path in sorted(trial.home.rglob("report.json"))]
    share = {site: report["accuracy"]["personal"] for site, report in enumerate(reports)}
    site = min(share, key=share.__getitem__)
    right, samples = Counter[str](), Counter[str]()
    for row in (row for report in reports for row in report["classes"]):
        right[row["class"]] += round(row["personal"] * row["samples"] / 100)
        samples[row["class"]] += row["samples"]
    label = min(samples, key=lambda name: right[name] / samples[name])
    assert out[1] == (
        f"fails most   site {site}: {share[site]:.0f} %, class {label}: {100 * right[label] / samples[label]:.0f} %"
    )
    assert [line.split()[-1] for line in out if line.startswith("site report")] == [
        f"{trial.home}/site-{n}/state/own/ditto/seed-0/site-{n:05d}/report.txt" for n in (0, 1)
    ]


def test_where_a_site_withholds_its_classes_none_is_named(trial: Pretend, run: Run) -> None:
    trial.node_config = {1: {"declare-classes": False}}
    (line,) = (line for line in run().out if line.startswith("fails most"))
    assert re.fullmatch(r"fails most   site [01]: \d+ %", line)


def test_what_one_site_judged_does_not_pass_for_the_federation_nor_an_old_report_for_a_new_one(
    trial: Pretend, run: Run
) -> None:
    assert sum(line.startswith("site report") for line in run("--out", "first").out) == 2
    trial.broken = (1,)
    out = run("--out", "second", "--quorum", 0.5).out
    assert re.fullmatch(
        r"accuracy [\d.]+  class fairness [\d.]+  worst 10 % [\d.]+  \(1 of 2 sites judged, without site 1\)", out[0]
    )
    assert re.fullmatch(r"fails most   class \d: \d+ %( \(\d of \d\))?", out[1])  # of one site, none fails most
    assert [line.split("/")[-2] for line in out if line.startswith("site report")] == ["site-00000"]


def test_a_report_of_an_earlier_round_is_not_listed(trial: Pretend, run: Run) -> None:
    def wear_out(reply: Message, site: int, round: int) -> list[Message]:
        trial.broken = (1,) if round == 2 and site == 1 else trial.broken
        return [reply]

    trial.spoil = wear_out  # trained in round 2, and cannot judge it
    out = run().out
    (report,) = (trial.home / "site-1").rglob("report.json")
    assert json.loads(report.read_text())["round"] == 1
    assert "(1 of 2 sites judged, without site 1)" in out[0]
    assert [line.split("/")[-2] for line in out if line.startswith("site report")] == ["site-00000"]


def test_a_site_that_cannot_join_stops_a_trial_and_nothing_is_begun(trial: Pretend, run: Run) -> None:
    trial.broken = (1,)
    with pytest.raises(ft.InputError) as error:
        run("--out", "out")
    why = (
        "1 of 2 sites joined and all must (site 1 cannot join: failed, and its own log says why); nothing was trained: "
        "mend the sites and run it again"
    )
    assert str(error.value) == (
        f"the run stopped: {why}, or let fewer do with --quorum; see {trial.home}/site-1/log.txt"
    )
    assert json.loads(Path("out/stopped.json").read_text()) == {"why": why, "sites": [1]}
    assert {path.name for path in Path("out").iterdir()} <= {"stopped.json", "lock", ".lock"}
    assert not list(trial.home.rglob("round-*"))
    trial.broken = ()
    assert run("--out", "out", "--set", "train.lr=0.2").err == ["round 1/2: 2 sites", "round 2/2: 2 sites"]
    assert not Path("out/stopped.json").exists()


def test_a_run_that_goes_on_needs_all_sites_of_a_trial_as_well(trial: Pretend, run: Run) -> None:
    def die(reply: Message, site: int, round: int) -> list[Message]:
        assert round < 2, "the server dies"
        return [reply]

    trial.spoil = die
    with pytest.raises(ft.InputError, match="the run stopped: the server dies"):
        run()
    trial.spoil, trial.broken = None, (0,)
    with pytest.raises(ft.InputError, match=r"1 of 2 sites joined and all must \(site 0 cannot join"):
        run()
    trial.broken = ()
    assert run().err == ["round 2/2: 2 sites"]


@pytest.mark.parametrize(
    ("project", "arguments", "sent"),
    [
        ("join-quorum = 0.0", [], {"join-quorum": 1.0}),
        ("join-quorum = 0.0", ["--quorum", 0.5], {"quorum": 0.5}),
        ("join-quorum = 0.5", [], {}),  # the project's own rule
        ("", ["--deadline", 9], {"deadline": 9.0}),  # Flower refuses a key that the project does not have
    ],
)
def test_the_projects_rules_hold_where_no_option_is_given(
    trial: Pretend, run: Run, project: str, arguments: list[object], sent: dict[str, float]
) -> None:
    path = Path("fl/pyproject.toml")
    text = path.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("join-quorum"))
    path.write_text(text.replace(line, project))
    run(*arguments)
    assert {key: value for key, value in trial.config.items() if key not in ("method", "set", "out")} == sent


def test_a_finished_run_says_that_it_is_and_where(trial: Pretend, run: Run) -> None:
    first = run("--out", "out")
    again = run("--out", "out")
    assert again.err == []
    told = "was trained to the end before; for a new run name another folder with --out"
    assert again.out[0] == f"finished     {trial.config['out']} {told}"
    assert again.out[1:] == first.out


def test_another_key_is_refused_with_the_way_out(trial: Pretend, run: Run) -> None:
    run("--out", "out")
    with pytest.raises(ft.InputError) as error:
        run("--out", "out", "--set", "train.lr=0.2")
    assert str(error.value) == (
        f"the run stopped: {trial.config['out']}/seed-0 was begun with train.lr = 0.1, and now it is 0.2; "
        "restore it, or start a new run in another folder (--out, or out= in Python)"
    )


def test_a_run_that_left_no_word_is_told_without_flowers_jargon(trial: Pretend, run: Run) -> None:
    trial.broken = (0, 1)
    with pytest.raises(ft.InputError, match="0 of 2 sites joined"):
        run("--out", "out")
    os.utime("out/stopped.json", (0, 0))  # an older run's
    trial.submit = lambda app, config: 8  # type: ignore[method-assign]
    for status, words in (("finished:failed", "stopped"), ("finished:stopped", "ended by flwr stop")):
        trial._status = status
        with pytest.raises(ft.InputError) as error:
            run("--out", "out")
        assert str(error.value) == (f"the run in {Path('out').resolve()} is {words}; see {trial.home}/link/log.txt")
