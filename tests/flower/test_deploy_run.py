"""`fedtilt deploy run`: what it tells of a run, and above all of one in which a site failed."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from flwr.app import Message, RecordDict

from fedtilt.cli.deploy import app
from fedtilt.flower.project import write_project
from fedtilt.flower.trial import Trial
from fedtilt.flower.wire import say_failed

from .pretend import SITE_SPEC, Pretend

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
    assert re.fullmatch(r"fails most   class \d: \d+ %", out[1])  # of one site, none fails most
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
