"""A server that wants more of a site than the project that the site's operator has allowed."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.flower import Task, client_app
from fedtilt.flower.client import check_server_settings
from fedtilt.flower.deploy.allowed_apps import ACCEPT_ALL
from tests.helpers.loopback import Deployment, LoopbackGrid

ACCEPTED = ["train.rounds=5", "train.lr=0.1", "train.audit=true", "train.schedule=cosine", "train.backend=autograd",
            "methods.fedtilt.tau=-1.5", "seed=4"]  # fmt: skip

REFUSED = [
    'model.name="os:system"',  # runs a function
    "train.loss=module:function",
    "methods.fedtilt.training=module:Class",
    "train.init=/etc/shadow",  # reads a file
    'data.file="/etc/shadow"',
    "data.min_count=1",  # a summary then names every rare category
    "data.target=hiv",
    "train.local=[]",  # parameters that stay on the site would be sent
    "train.optimizer={name='module:Class'}",
    "name=other",
    "methods.fedtilt.correction=scaffold",
    "train.rounds",
    "=5",
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_a_server_may_say_how_long_and_how_fast_a_site_trains(line: str) -> None:
    check_server_settings("digits", {"set": f"{line}\n\n", "method": "fedtilt", "out": "/anywhere"})


@pytest.mark.parametrize("line", REFUSED)
def test_a_server_may_not_change_the_project(line: str) -> None:
    with pytest.raises(ft.InputError, match="the server changes .* write it into spec.toml and allow that project"):
        check_server_settings("digits", {"set": f"train.rounds=5\n{line}"})


def test_a_server_may_not_add_a_method(spec: Path) -> None:
    """q-FFL sends a loss, SCAFFOLD tensors: the operator has read which method the project trains."""
    with pytest.raises(ft.InputError, match="asks for the method 'scaffold', and the allowed project has fedtilt"):
        check_server_settings(str(spec), {"method": "scaffold"})


@pytest.fixture
def intruder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a site can import, and the file that it writes then."""
    mark = tmp_path / "imported"
    (tmp_path / "intruder_module.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef loss(x, y): return 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("intruder_module", None)


def ask(spec: Path, state: Path, kind: str, content: RecordDict | None = None, **run_config: Any) -> Message:
    """What a site replies to a message of a server."""
    node = {"partition-id": 0, "state-dir": str(state)}
    message = Message(content or RecordDict(), dst_node_id=1, message_type=kind)
    return client_app(Task(spec=spec))(message, Context(1, 1, node, RecordDict(), run_config))


@pytest.mark.parametrize("kind", ["query", "query.summary", "train", "evaluate"])
def test_no_function_of_the_servers_choice_is_called(
    spec: Path, tmp_path: Path, intruder: Path, kind: str, flower_identity: None, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        reply = ask(spec, tmp_path / "state", kind, set='train.loss="intruder_module:loss"')
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert reply.error.reason == "site 0"  # without the exception
    assert "the server changes 'train.loss' of the allowed project" in caplog.text
    assert not intruder.exists()
    assert not (tmp_path / "state").exists()


def test_the_operator_may_accept_all_settings(spec: Path, tmp_path: Path, flower_identity: None) -> None:
    node_config: Any = {n: {ACCEPT_ALL: n == 1} for n in (0, 1)}
    grid = Deployment(Task(spec=spec), tmp_path).run(
        node_config=node_config, set="train.rounds=1\nmodel.hidden=[3]", quorum=0.5
    )
    joined = {(message.metadata.dst_node_id - 100, reply.has_error()) for message, reply in grid.sent}
    assert joined == {(0, True), (1, False)}


CLINIC = """
name = "clinic"
[data]
file = "0.csv"
target = "ill"
drop = ["hiv"]
[clients]
count = 2
[train]
rounds = 1
participation = 1.0
[[methods]]
preset = "ditto"
mu = 0.1
"""


@pytest.fixture
def clinic(tmp_path: Path, flower_identity: None) -> LoopbackGrid:
    """Two sites with tables that have trained for a round; they leave out the column hiv, and declare groups."""
    (tmp_path / "spec.toml").write_text(CLINIC)
    rows = [f"{20 + n % 50},{'yn'[n % 2]},{'yn'[n % 3 > 0]},{'yn'[n % 5 > 1]}" for n in range(80)]
    for site in (0, 1):
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,smokes,ill,hiv", *rows[site:]]) + "\n")
    task = Task(spec=tmp_path / "spec.toml", table=lambda node: tmp_path / f"{node['partition-id']}.csv")
    return Deployment(task, tmp_path).run(node_config={n: {"declare-groups": True} for n in (0, 1)})


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_server_may_not_choose_what_a_column_is(clinic: LoopbackGrid, kind: str) -> None:
    """Otherwise sites would train to predict a column that the project leaves out, or declare counts of its groups."""
    message = next(m for m, _ in clinic.sent if m.metadata.message_type == kind)
    schema = json.loads(message.content["config"]["schema"])
    roles = {"target": "hiv", "group": ["hiv"], "weight": "hiv", "split_time": "hiv"}
    for changed in ({}, *({role: column} for role, column in roles.items())):
        config = ConfigRecord({**message.content["config"], "schema": json.dumps(schema | changed)})
        content = RecordDict({**message.content, "config": config})
        (reply,) = clinic.send_and_receive([Message(content, dst_node_id=100, message_type=kind)])
        said = "" if reply.has_error() else str(reply.content.config_records.get("config", {}).get("problem", ""))
        assert (reply.has_error() or "other columns are the target" in said) == bool(changed), changed


def test_no_message_of_a_server_gets_a_personal_model(clinic: LoopbackGrid, tmp_path: Path) -> None:
    """Every reply to every message, also with more in it than the project sends, has the shared model alone."""
    (file,) = (tmp_path / "state/0").rglob("round-*.safetensors")
    personal, replies = load_file(file)["personal"].numpy().tobytes(), []
    for message, sent in [(m, r) for m, r in clinic.sent if m.metadata.dst_node_id == 100]:
        more = {**message.content.config_records.get("config", {}), "send": "personal", "personal": True}
        content = RecordDict({**message.content, "config": ConfigRecord(more)})
        asked = Message(content, dst_node_id=100, message_type=message.metadata.message_type)
        replies += [sent, *clinic.send_and_receive([asked])]
    assert len(replies) == 2 * len(["query.summary", "query", "train", "evaluate"])
    for reply in replies:
        assert {*reply.content} <= {"arrays", "metrics", "config", "constants"}
        for array in [array for record in reply.content.array_records.values() for array in record.values()]:
            assert array.numpy().tobytes() not in personal


def test_names_and_paths_in_a_message_stay_inside_the_sites_folder(
    spec: Path, tmp_path: Path, flower_identity: None
) -> None:
    """The history names a folder of the site."""
    grid = Deployment(Task(spec=spec), tmp_path).run(set="train.rounds=1")
    train = next(message for message, _ in grid.sent if message.metadata.message_type == "train")
    before = sorted(tmp_path.rglob("*"))
    ids = ("../../../../elsewhere", "/tmp/elsewhere", "0" * 15, "0" * 16 + "\n", "x" * 5000)
    earlier = [json.dumps({"history": "0" * 16, "earlier": [[id, 1]]}) for id in ids]
    for history in (*(json.dumps({"history": id}) for id in ids), *earlier, "0" * 16):
        config = ConfigRecord({**train.content["config"], "history": history})
        arrays: ArrayRecord = train.content["arrays"]
        reply = ask(spec, tmp_path / "state/0", "train", RecordDict({"arrays": arrays, "config": config}))
        assert reply.has_error(), history
    assert sorted(tmp_path.rglob("*")) == before
