"""A site leaves a deployment: the server trains with those that stay, and its models are as if it had never joined."""

from pathlib import Path

import pytest
from flwr.app import MessageType

from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.runs.forget import forget, forget_site, model_digest
from tests.flower.test_schema_exchange import SPEC, north_and_south, patients, write
from tests.helpers.loopback import Deployment


@pytest.mark.slow
def test_without_a_site_that_left_the_models_are_those_of_a_federation_that_never_had_it(tmp_path: Path) -> None:
    frames = {**north_and_south(), "west": patients(60, 9)}
    left = SPEC.replace("count = 2", 'count = 3\nleave_out = ["2"]')
    stays = Deployment(write(tmp_path / "data", frames, left), tmp_path / "stays", sites=3)
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
    with pytest.raises(InputError, match=r"trained on Flower sites; write leave_out = \['1'\] into \[clients\]"):
        forget(tmp_path / "run", "1", tmp_path / "again")
    (deleted,) = forget_site(tmp_path / "state/2", "2")  # on the site that leaves
    assert not deleted.exists()
