"""`fedtilt deploy run`: its output, above all when a site fails."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, Message, RecordDict

import fedtilt as ft
from fedtilt.cli.deploy import app
from fedtilt.files import read_json
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.deploy.project import write_project
from fedtilt.flower.messages import encode_failure
from fedtilt.report.notes import model_notes
from fedtilt.report.run_reader import read_run
from tests.helpers.fake_cluster import SITE_SPEC, FakeCluster
from tests.helpers.flower_identity import flower_identity  # noqa: F401 (a fixture)
from tests.helpers.locked_elsewhere import locked_elsewhere

Run = Callable[..., "Output"]


class Output(NamedTuple):
    out: list[str]
    err: list[str]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.chdir(tmp_path)
    write_project(Path("fl"))
    Path("fl/spec.toml").write_text(SITE_SPEC)
    cluster = FakeCluster(home=(tmp_path / "fl/.fedtilt").resolve())
    monkeypatch.setattr(LocalCluster, "load", lambda home: cluster)
    return cluster


@pytest.fixture
def run(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Output:
        capsys.readouterr()
        app(["run", "fl", *(str(a) for a in arguments)], standalone_mode=False)
        printed = capsys.readouterr()
        return Output(printed.out.splitlines(), printed.err.splitlines())

    return run


def test_a_failing_site_is_reported_with_its_log_file(cluster: FakeCluster, run: Run) -> None:
    cluster.failing = (1,)
    output = run("--quorum", 0.5)
    sites = "1 site (site 1 cannot join: failed; see its log)"
    assert output.err == [f"round 1/2: {sites}", f"log of site 1: {cluster.home}/site-1/log.txt", f"round 2/2: {sites}"]


def test_a_site_that_fails_in_training_and_one_that_does_not_reply(cluster: FakeCluster, run: Run) -> None:
    def fail_or_drop(reply: Message, site: int, round: int) -> list[Message]:
        if site == 0 or reply.metadata.message_type != "train":
            return [reply]
        request = Message(RecordDict(), dst_node_id=101, message_type="train")
        return [Message(encode_failure(1), reply_to=request)] if round == 1 else []

    cluster.tamper = fail_or_drop
    output = run("--quorum", 0.5)
    assert output.err == [
        "round 1/2: 1 site (site 1 failed; see its log)",
        f"log of site 1: {cluster.home}/site-1/log.txt",
        "round 2/2: 1 site (site 1 did not reply in time)",
    ]


def test_the_end_prints_the_metrics_and_the_worst_site_and_class(cluster: FakeCluster, run: Run) -> None:
    out = run().out
    metrics = json.loads(Path(cluster.run_config["out"], "results.json").read_text())["methods"]["ditto"]
    values = [
        metrics[key]["mean"]
        for key in (
            "accuracy",
            "client_fairness",
            "client_fairness_beyond_chance",
            "client_data_fairness_mean",
            "worst",
        )
    ]
    assert out[0] == (
        "accuracy {:.2f}  client fairness {:.2f}  beyond chance {:.2f}  client data fairness {:.2f}  worst 10 % {:.2f}"
    ).format(*values)
    reports = [json.loads(path.read_text()) for path in sorted(cluster.home.rglob("report.json"))]
    correct, samples = Counter[str](), Counter[str]()
    for row in (row for report in reports for row in report["classes"]):
        correct[row["class"]] += round(row["personal"] * row["samples"] / 100)
        samples[row["class"]] += row["samples"]
    class_accuracy = {name: 100 * correct[name] / samples[name] for name in samples}
    label = min(class_accuracy, key=class_accuracy.__getitem__)
    fails = [line for line in out if line.startswith("fails most")]  # the sites differ by chance alone, a class may not
    assert all(re.fullmatch(rf"fails most   class {label}: \d+ % \(\d+ to \d+\)", line) for line in fails)
    certificate = r"certificate  With 95 % .* below \d+ %, and none of its classes below \d+ %.*\."
    assert re.fullmatch(certificate, out[1 + len(fails)])
    assert [line.split()[-1] for line in out if line.startswith("site report")] == [
        f"{cluster.home}/site-{n}/state/hospital/ditto/seed-0/site-{n:05d}/report.txt" for n in (0, 1)
    ]
    expected = model_notes(read_run(Path(cluster.run_config["out"])))
    assert [line.removeprefix("note").strip() for line in out if line.startswith("note ")] == [n.text for n in expected]


def test_if_a_site_withholds_its_classes_no_class_is_printed(cluster: FakeCluster, run: Run) -> None:
    cluster.node_config = {1: {"declare-classes": False}}
    out = run().out
    assert re.fullmatch(r"certificate  With 95 % confidence, no client's accuracy is below \d+ %\.", out[1])


def test_sites_that_did_not_evaluate_are_listed_and_old_reports_are_not(cluster: FakeCluster, run: Run) -> None:
    assert sum(line.startswith("site report") for line in run("--out", "first").out) == 2
    cluster.failing = (1,)
    out = run("--out", "second", "--quorum", 0.5).out
    assert re.fullmatch(
        r"accuracy [\d.]+  client data fairness [\d.]+  worst 10 % [\d.]+  \(1 of 2 sites evaluated, without site 1\)",
        out[0],
    )
    assert not any(line.startswith("fails most   site") for line in out)
    assert [line.split("/")[-2] for line in out if line.startswith("site report")] == ["site-00000"]


def test_a_report_of_an_earlier_round_is_not_listed(cluster: FakeCluster, run: Run) -> None:
    def fail_later(reply: Message, site: int, round: int) -> list[Message]:
        cluster.failing = (1,) if round == 2 and site == 1 else cluster.failing
        return [reply]

    cluster.tamper = fail_later  # trains round 2, and cannot evaluate it
    out = run().out
    (report,) = (cluster.home / "site-1").rglob("report.json")
    assert json.loads(report.read_text())["round"] == 1
    assert "(1 of 2 sites evaluated, without site 1)" in out[0]
    assert [line.split("/")[-2] for line in out if line.startswith("site report")] == ["site-00000"]


def test_a_site_that_cannot_join_stops_the_run_before_it_writes_anything(cluster: FakeCluster, run: Run) -> None:
    cluster.failing = (1,)
    with pytest.raises(ft.InputError) as error:
        run("--out", "out")
    reason = (
        "1 of 2 sites joined and all must (site 1 cannot join: failed; see its log); nothing was trained: "
        "fix the sites and run it again"
    )
    assert str(error.value) == (
        f"the run stopped: {reason}, or accept fewer sites with --quorum; see {cluster.home}/site-1/log.txt"
    )
    assert read_json(Path("out/stopped.json")) == {"reason": reason, "sites": [1]}
    assert {path.name for path in Path("out").iterdir()} <= {"stopped.json", "lock", ".lock"}
    assert not list(cluster.home.rglob("round-*"))
    cluster.failing = ()
    assert run("--out", "out", "--set", "train.lr=0.2").err == ["round 1/2: 2 sites", "round 2/2: 2 sites"]
    assert not Path("out/stopped.json").exists()


def test_a_resumed_run_also_needs_all_sites_of_the_cluster(cluster: FakeCluster, run: Run) -> None:
    def stop_server(reply: Message, site: int, round: int) -> list[Message]:
        assert round < 2, "the server crashed"
        return [reply]

    cluster.tamper = stop_server
    with pytest.raises(ft.InputError, match="the run stopped: the server crashed"):
        run()
    cluster.tamper, cluster.failing = None, (0,)
    with pytest.raises(ft.InputError, match=r"1 of 2 sites joined and all must \(site 0 cannot join"):
        run()
    cluster.failing = ()
    assert run().err == ["round 2/2: 2 sites"]


@pytest.mark.parametrize(
    ("project", "arguments", "sent"),
    [
        ("join-quorum = 0.0", [], {"join-quorum": 1.0}),
        ("join-quorum = 0.0", ["--quorum", 0.5], {"quorum": 0.5}),
        ("join-quorum = 0.5", [], {}),  # set in the project
        ("", ["--deadline", 9], {"deadline": 9.0}),  # Flower rejects a key that the project does not have
    ],
)
def test_options_override_the_settings_of_the_project(
    cluster: FakeCluster, run: Run, project: str, arguments: list[object], sent: dict[str, float]
) -> None:
    path = Path("fl/pyproject.toml")
    text = path.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("join-quorum"))
    path.write_text(text.replace(line, project))
    run(*arguments)
    assert {key: value for key, value in cluster.run_config.items() if key not in ("method", "set", "out")} == sent


def test_a_finished_run_is_reported_as_finished(cluster: FakeCluster, run: Run) -> None:
    first = run("--out", "out")
    second = run("--out", "out")
    assert second.err == []
    message = "was already finished; for a new run choose another folder with --out"
    assert second.out[0] == f"finished     {cluster.run_config['out']} {message}"
    assert second.out[1:] == first.out


def test_a_run_that_still_trains_in_the_folder_is_not_disturbed(cluster: FakeCluster, run: Run) -> None:
    with locked_elsewhere(Path("out")), pytest.raises(ft.InputError) as error:
        run("--out", "out")
    message = "; wait for it, or choose another folder with --out"
    assert str(error.value) == f"a run still trains in {Path('out').resolve()}{message}"
    with locked_elsewhere(cluster.home / "submissions"), pytest.raises(ft.InputError, match="another .* run trains on"):
        run("--out", "other")
    assert cluster.run_config == {}  # nothing was submitted


def test_another_setting_is_rejected_with_a_remedy(cluster: FakeCluster, run: Run) -> None:
    run("--out", "out")
    with pytest.raises(ft.InputError) as error:
        run("--out", "out", "--set", "train.lr=0.2")
    assert str(error.value) == (
        f"the run stopped: {cluster.run_config['out']}/seed-0 was started with train.lr = 0.1, and now it is 0.2; "
        "restore it, or start a new run in another folder (--out, or out= in Python)"
    )


def test_a_run_without_a_recorded_reason_gives_flowers_status_in_plain_words(cluster: FakeCluster, run: Run) -> None:
    cluster.failing = (0, 1)
    with pytest.raises(ft.InputError, match="0 of 2 sites joined"):
        run("--out", "out")
    os.utime("out/stopped.json", (0, 0))  # of an older run
    cluster.submit = lambda app, config: 8  # type: ignore[method-assign]
    for status, words in (("finished:failed", "stopped"), ("finished:stopped", "stopped with flwr stop")):
        cluster.run_status = status
        with pytest.raises(ft.InputError) as error:
            run("--out", "out")
        assert str(error.value) == (f"the run in {Path('out').resolve()} is {words}; see {cluster.home}/link/log.txt")


def test_a_server_that_fails_before_it_can_record_why_shows_the_end_of_its_log(
    cluster: FakeCluster, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.submit = lambda app, config: 8  # type: ignore[method-assign]
    cluster.run_status = "finished:failed"
    trace = ["Traceback (most recent call last):", '  File "task.py", line 3, in <module>', "    import nothing"]
    end = "ModuleNotFoundError: No module named 'nothing'"
    cluster.log = "\n".join(
        [*(f"line {n}" for n in range(99)), *trace, end, "\x1b[91mERROR \x1b[0m: Exit Code: 607", ""]
    )
    with pytest.raises(ft.InputError) as error:
        run("--out", "out")
    assert str(error.value) == (
        f"the run in {Path('out').resolve()} is stopped: {end}; see {cluster.home}/link/log.txt"
    )
    assert capsys.readouterr().err.splitlines() == [*(f"line {n}" for n in range(91, 99)), *trace, end]
    cluster.log = "fedtilt.errors.InputError: not in a traceback\n"
    with pytest.raises(ft.InputError, match=r"out is stopped; see"):
        run("--out", "out")
    cluster.log = "\n".join([trace[0], "fedtilt.flower.site_table.SchemaMismatch: a column is missing"])
    with pytest.raises(ft.InputError, match=r"out is stopped: a column is missing; see"):
        run("--out", "out")


def test_a_run_goes_back_to_a_kept_round(cluster: FakeCluster, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    first = run("--set", "train.rounds=4").out
    app(["status", "fl"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "hospital-ditto: round 4 of 4, finished"
    assert lines[-1] == "  --back-to can be 2, 3, 4"
    again = run("--set", "train.rounds=4", "--back-to", 2)
    assert again.err == ["round 3/4: 2 sites", "round 4/4: 2 sites"]
    assert again.out == first
    with pytest.raises(ft.InputError, match=r"back-to = 1 is no round that .* keeps; choose one of 2, 3, 4"):
        run("--set", "train.rounds=4", "--back-to", 1)
    pyproject = Path("fl/pyproject.toml")
    lines = [line for line in pyproject.read_text().splitlines() if not line.startswith("back-to")]
    pyproject.write_text("\n".join(lines))  # a project of an earlier version
    with pytest.raises(ft.InputError, match=r"fl/pyproject.toml has no back-to; add back-to = -1 to"):
        run("--back-to", 2)


def test_a_jump_of_the_shared_model_is_printed(cluster: FakeCluster, run: Run) -> None:
    def collude(reply: Message, site: int, round: int) -> list[Message]:
        if (reply.metadata.message_type, round) == ("train", 4):
            for name, array in list(reply.content["arrays"].items()):
                reply.content["arrays"][name] = Array(array.numpy() + np.float32(0.12))
        return [reply]

    cluster.tamper = collude
    (line,) = (line for line in run("--set", "train.rounds=4").err if "jumped" in line)
    assert re.fullmatch(
        r"round 4: the shared model jumped: it is [\d.]+ times as far from that of round 3 as one round usually moves "
        r"it; back-to 3 undoes it",
        line,
    )
