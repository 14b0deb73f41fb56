"""`fedtilt deploy run`: what it tells of a run, and above all of one in which a site failed."""

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
