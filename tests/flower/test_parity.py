"""A real SuperLink and real SuperNodes give the simulator's models."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from fedtilt.files import read_json
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import federation_of, load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.network import write_app


def test_a_real_federation_gives_the_simulators_models(tmp_path: Path) -> None:
    spec = load(write_app(tmp_path / "app") / "spec.toml")
    sizes = federation_of(spec, 0).train_sizes()
    assert sizes[0] != sizes[1]
    cluster = LocalCluster(home=tmp_path / "cluster", tls=False)
    run = tmp_path / "run"
    cluster.up(timeout=0)
    try:
        number = cluster.submit(tmp_path / "app", {"out": str(run), "quorum": 1.0})
        assert cluster.wait_for_run(number, 240, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
    assert cluster.running() == []

    run_spec(spec, tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    torch.testing.assert_close(RunFolder(run / "seed-0").latest().shared, simulated.shared)
    for site in (0, 1):
        (file,) = (cluster.home / f"site-{site}/state").rglob("round-00002.safetensors")
        torch.testing.assert_close(load_file(file), simulated.client_states.get(("fedtilt", site)))
    assert read_json(run / "results.json") == read_json(tmp_path / "simulated/results.json")
    assert read_json(run / "seed-0/participation.json")["rejected"] == {}
