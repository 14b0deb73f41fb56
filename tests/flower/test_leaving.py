"""A site leaves a deployment: the server trains with those that stay, and its models are as if it had never joined."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import MessageType

from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.flower.deploy.allowed_apps import app_digest
from fedtilt.flower.deploy.project import leave_site, write_project
from fedtilt.flower.deploy.record import record_of
from fedtilt.runs.forget import changes, forget, forget_site, model_digest
from tests.flower.test_schema_exchange import SPEC, north_and_south, patients, write
from tests.helpers.loopback import Deployment


def test_the_server_writes_who_has_left_into_the_project(fedtilt: Any, tmp_path: Path) -> None:
    write_project(tmp_path / "mine", 4)
    path = tmp_path / "mine/spec.toml"
    before, digest = path.read_text(), app_digest(tmp_path / "mine")
    for site, line in (("2", '["2"]'), ("0", '["2", "0"]')):
        result = fedtilt("forget", str(tmp_path / "mine"), "--client", site)
        assert f"digest {app_digest(tmp_path / 'mine')}, which the sites that stay have to allow" in result.out
        assert path.read_text() == before.replace("[clients]\n", f"[clients]\nleave_out = {line}\n")
    assert app_digest(tmp_path / "mine") != digest
    assert "4 of 4 sites train, without those that have left: 2, 0" in record_of(tmp_path / "mine")
    for site, message in (("2", "leave_out has it"), ("4", "the clients are 0 to 3")):
        with pytest.raises(InputError, match=message):
            leave_site(tmp_path / "mine", site)
    one_line = path.read_text()
    path.write_text(one_line.replace('"2", ', '"2",\n  '))  # a list over two lines
    with pytest.raises(InputError, match=r'write leave_out = \["2", "0", "1"\] into that table yourself'):
        leave_site(tmp_path / "mine", "1")
    path.write_text(one_line)
    leave_site(tmp_path / "mine", "1")
    with pytest.raises(InputError, match="without site 3, .* has no site"):
        leave_site(tmp_path / "mine", "3")


@pytest.mark.slow
def test_without_a_site_that_left_the_models_are_those_of_a_federation_that_never_had_it(tmp_path: Path) -> None:
    frames = {**north_and_south(), "west": patients(60, 9)}
    left = write(tmp_path / "data", frames, SPEC.replace("count = 2", "count = 3"))
    (left.spec.parent / "pyproject.toml").touch()
    leave_site(left.spec.parent, "2")
    stays = Deployment(left, tmp_path / "stays", sites=3)
    grid = stays.run()
    never = Deployment(stays.task, tmp_path / "never", sites=2)  # its node is not there at all
    never.run()
    whole = Deployment(write(tmp_path / "whole", frames, SPEC.replace("count = 2", "count = 3")), tmp_path, sites=3)
    whole.run()
    digests = [model_digest(folder / "run") for folder in (tmp_path / "stays", tmp_path / "never", tmp_path)]
    assert digests[0] == digests[1] != digests[2]
    sent_to = {m.metadata.dst_node_id for m, _ in grid.sent if m.metadata.message_type != MessageType.QUERY}
    assert {100, 101} <= sent_to
    trained = {m.metadata.dst_node_id for m, _ in grid.sent if m.metadata.message_type in ("train", "evaluate")}
    assert trained == {100, 101}
    assert not list((tmp_path / "stays/state").rglob("site-00002"))
    rejected = read_json(tmp_path / "stays/run/seed-0/participation.json")["rejected"]
    assert any("has left the federation" in reason for reasons in rejected.values() for reason in reasons)
    (change,) = changes(tmp_path / "run", tmp_path / "stays/run")
    assert set(change.clients) == {"0", "1"}
    with pytest.raises(InputError, match="trained on Flower sites; on the server, fedtilt forget PROJECT --client 1"):
        forget(tmp_path / "run", "1", tmp_path / "again")
    (deleted,) = forget_site(tmp_path / "state/2", "2")  # on the site that leaves
    assert not deleted.exists()
