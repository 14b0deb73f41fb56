"""A round that carries the shared model away is not good, and the federation can go back before it."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, Message
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.flower.training_history import JumpCheck
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment, Tamper

ORIGIN = torch.zeros(2)


def at(x: float) -> torch.Tensor:
    return torch.tensor([x, 0.0])


def test_a_round_is_good_up_to_k_times_the_median_change_from_the_last_good_one() -> None:
    check = JumpCheck(3.0, 0, ORIGIN)
    assert check.check(1, at(0), at(100)).jump is None  # nothing to compare with
    check = JumpCheck(3.0, 4, at(0), changes=[1.0, 9.0, 1.0])
    assert check.check(5, at(0), at(3)) == (3.0, None)
    assert check.round == 5
    change = check.check(6, at(3), at(3 + 6.1))  # the median is now 2
    assert change.length == pytest.approx(6.1)
    assert change.jump == (
        "the shared model jumped: it is 3.05 times as far from that of round 5 as one round usually moves it; "
        "back-to 5 undoes it"
    )
    assert check.round == 5
    assert check.check(7, at(9.1), at(10)).jump is None  # 7 from round 5, and two rounds may move it 12
    assert check.round == 7


@pytest.mark.parametrize("value", [1e30, 3e38])
def test_a_model_that_was_carried_away_is_not_good_later_either(value: float) -> None:
    check = JumpCheck(3.0, 4, at(0), changes=[1.0, 1.0])
    for round in range(5, 200):
        assert check.check(round, at(value), at(value)).jump is not None
    assert check.check(200, at(value), at(1)).jump is None
    assert check.round == 200


def test_without_screening_no_round_jumps() -> None:
    assert JumpCheck(0.0, 4, at(0), changes=[1.0]).check(5, at(0), at(1e30)).jump is None


# -- a run -----------------------------------------------------------------------------------------------------------


def collude(round: int) -> Tamper:
    """In this round both sites move the model in one direction, as far as screening allows."""

    def tamper(reply: Message, site: int, at_round: int) -> list[Message]:
        if reply.metadata.message_type == "train" and at_round == round:
            for name, array in list(reply.content["arrays"].items()):
                reply.content["arrays"][name] = Array(array.numpy() + np.float32(0.16))
        return [reply]

    return tamper


def rounds(count: int, eval_every: int = 9) -> str:
    return f"train.rounds={count}\ntrain.eval_every={eval_every}\ntrain.lr=0.02\ntrain.epochs=1"


def checkpoints(home: Path) -> list[int]:
    return RunFolder(home / "run/seed-0").checkpoints.rounds()


def participation(home: Path) -> dict:
    return read_json(home / "run/seed-0/participation.json")["rounds"]


def assert_same_run(a: Path, b: Path, round: int) -> None:
    """Bit-identical models on the server and on the sites, and the same metrics."""
    states = [RunFolder(home / "run/seed-0").latest() for home in (a, b)]
    assert [state.round for state in states] == [round, round]
    for method, server in states[0].server.items():
        torch.testing.assert_close(server.to_tensors(), states[1].server[method].to_tensors(), rtol=0, atol=0)
    for site in (0, 1):
        kept = []
        for home in (a, b):
            history = read_json(home / "run/seed-0/history.json")["history"]
            (path,) = (home / f"state/{site}").rglob(f"{history}/round-{round:05d}.safetensors")
            kept.append(load_file(path))
        torch.testing.assert_close(*kept, rtol=0, atol=0)
    metrics = [
        [{k: v for k, v in json.loads(line).items() if k != "digest"} for line in text.splitlines()]
        for text in ((home / "run/seed-0/metrics.jsonl").read_text() for home in (a, b))
    ]
    assert metrics[0] == metrics[1]


def test_going_back_before_a_jump_gives_the_run_without_it(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    honest = Deployment(deployment.task, tmp_path / "honest")
    honest.run(set=rounds(5))
    with caplog.at_level(logging.WARNING, "flwr"):
        deployment.run(collude(3), set=rounds(4), **{"kept-rounds": 2})
    entries = participation(tmp_path)
    assert [number for number, entry in entries.items() if "jump" in entry] == ["3"]
    assert entries["3"]["change"] > 3 * entries["2"]["change"]
    assert checkpoints(tmp_path) == [2, 3, 4]  # the last two rounds, and the last two good ones
    assert "from that of round 2 as one round usually moves it; back-to 2 undoes it" in caplog.text
    deployment.run(set=rounds(5), **{"back-to": 2})
    assert_same_run(tmp_path, tmp_path / "honest", 5)
    assert not any("jump" in entry for entry in participation(tmp_path).values())
    assert checkpoints(tmp_path) == [3, 4, 5]


def test_a_resumed_run_knows_the_last_good_round(deployment: Deployment, tmp_path: Path) -> None:
    whole = Deployment(deployment.task, tmp_path / "whole")
    whole.run(collude(3), set=rounds(4))
    deployment.run(collude(3), set=rounds(3))
    deployment.run(set=rounds(4))
    assert [number for number, entry in participation(tmp_path).items() if "jump" in entry] == ["3"]
    assert participation(tmp_path) == participation(tmp_path / "whole")
    assert checkpoints(tmp_path) == [1, 2, 3, 4]


def test_a_damaged_good_round_does_not_stop_a_run_that_resumes_after_a_jump(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.run(collude(3), set=rounds(3))
    file = tmp_path / "run/seed-0/checkpoints/round-00002/server.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    deployment.run(set=rounds(4))
    assert f"round 2 cannot be gone back to: {file}" in caplog.text
    assert checkpoints(tmp_path)[-1] == 4


def test_a_finished_run_that_goes_back_is_no_longer_finished(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run(set=rounds(4))
    before = (tmp_path / "run/results.json").read_bytes()

    def stop(reply: Message, site: int, round: int) -> list[Message]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deployment.run(lambda reply, site, round: [reply] if round == 0 else stop(reply, site, round),
                       set=rounds(4), **{"back-to": 2})  # fmt: skip
    assert not (tmp_path / "run/results.json").exists()
    assert checkpoints(tmp_path) == [2]
    deployment.run(set=rounds(4))
    assert (tmp_path / "run/results.json").read_bytes() == before


def test_a_server_killed_while_it_goes_back_can_go_back_again(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run(set=rounds(4))
    shutil.copytree(tmp_path / "run", tmp_path / "whole/run")
    shutil.copytree(tmp_path / "state", tmp_path / "whole/state")
    RunFolder(tmp_path / "run/seed-0").checkpoints.delete_after(2)  # killed after the first step
    with pytest.raises(ft.InputError, match="round 3 has 0 valid models of 2"):  # each site says: --back-to 2
        deployment.run(set=rounds(4))
    deployment.run(set=rounds(4), **{"back-to": 2})
    assert_same_run(tmp_path, tmp_path / "whole", 4)


def test_what_cannot_be_gone_back_to_is_refused_and_nothing_is_deleted(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run(set=rounds(4))

    def go_back(to: int, message: str, **settings: object) -> None:
        with pytest.raises(ft.InputError, match=message):
            deployment.run(set=rounds(4), **{"back-to": to}, **settings)
        assert checkpoints(tmp_path) == [2, 3, 4]

    go_back(1, "back-to = 1 is no round that .*run keeps; choose one of 2, 3, 4")
    go_back(9, "back-to = 9 is no round that .*run keeps")
    go_back(-2, "back-to must be the number of a round, or -1 to continue from the last, got -2")
    nobody = {n: {"partition-id": 17} for n in (0, 1)}
    go_back(2, "0 of 2 sites joined and all must", node_config=nobody, **{"join-quorum": 1.0})
    file = tmp_path / "run/seed-0/checkpoints/round-00002/server.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    go_back(2, r"round-00002/server\.safetensors")
    with pytest.raises(ft.InputError, match="needs a run, and .* has none"):
        Deployment(deployment.task, tmp_path / "new").run(set=rounds(4), **{"back-to": 2})


# -- what the sites keep ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_a_damaged_personal_model_starts_again_from_the_shared_one_and_the_site_says_so(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture, phase: str
) -> None:
    def damage(reply: Message, site: int, round: int) -> list[Message]:
        before = {"train": "evaluate", "evaluate": "train"}[phase]
        if (reply.metadata.message_type, site, round) == (before, 1, 2 if phase == "train" else 3):
            (path,) = (tmp_path / "state/1").rglob(f"round-{round:05d}.safetensors")
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        return [reply]

    deployment.run(damage, set=rounds(3, eval_every=1))
    damaged = 2 if phase == "train" else 3
    message = f"the state of this site after round {damaged} starts again from the shared model: "
    assert message in caplog.text
    (path,) = (tmp_path / "state/1").rglob("report.json")
    report = json.loads(path.read_text())
    entry = json.loads((tmp_path / "run/seed-0/metrics.jsonl").read_text().splitlines()[-1])
    if phase == "train":  # trained again in round 3
        assert "damage" not in report
        assert report["accuracy"]["personal"] is not None
        assert entry["never_selected"] == 0
    else:
        assert report["damage"].startswith(message)
        assert message in path.with_suffix(".txt").read_text()
        assert report["accuracy"]["personal"] is None  # evaluated on the shared model
        assert entry["never_selected"] == 1


def test_the_personal_model_that_starts_again_is_that_of_a_new_site(deployment: Deployment, tmp_path: Path) -> None:
    """After damage, the first step starts from the received model, as in a site's first round."""
    kept = []
    for change in (lambda path: path.write_bytes(b"?"), Path.unlink):
        home = tmp_path / str(len(kept))

        def tamper(
            reply: Message, site: int, round: int, home: Path = home, change: Callable[[Path], object] = change
        ) -> list[Message]:
            if (reply.metadata.message_type, site, round) == ("evaluate", 1, 2):
                for path in (home / "state/1").rglob("round-*.safetensors"):
                    change(path)
            return [reply]

        Deployment(deployment.task, home).run(tamper, set=rounds(3, eval_every=1))
        (path,) = (home / "state/1").rglob("round-00003.safetensors")
        kept.append(load_file(path))
    torch.testing.assert_close(kept[0], kept[1], rtol=0, atol=0)
