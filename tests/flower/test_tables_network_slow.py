"""A real SuperLink and two real sites with a table each: the schema and the models of the simulator."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedtilt.data.tables.schema import read_schema
from fedtilt.files import read_json
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.deploy.project import site_tables, write_project
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder

pytestmark = pytest.mark.slow


def test_a_new_project_gives_the_simulators_models(tmp_path: Path) -> None:
    app, run, settings = tmp_path / "app", tmp_path / "run", ["train.rounds=2", "train.eval_every=2"]
    write_project(app)
    tables = site_tables(app)
    rows = [line.split(",") for line in tables[1].read_text().splitlines()]
    tables[1].write_text("\n".join(",".join(row[::-1]) for row in rows) + "\n")  # another order of columns
    cluster = LocalCluster(home=tmp_path / "cluster", tls=False)
    cluster.up(timeout=0, node_config={site: {"data": str(table)} for site, table in enumerate(tables)})
    try:
        number = cluster.submit(app, {"out": str(run), "quorum": 1.0, "join-quorum": 1.0, "set": "\n".join(settings)})
        assert cluster.wait_for_run(number, 480, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
    run_spec(load(app / "spec.toml", overrides=settings), tmp_path / "simulated")
    assert read_schema(run / "schema.json") == read_schema(tmp_path / "simulated")
    deployed, simulated = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("run", "simulated"))
    torch.testing.assert_close(*(state.server["fedtilt"]["parameters"] for state in (deployed, simulated)))
    for site in (0, 1):
        (file,) = (cluster.home / f"site-{site}/state").rglob("round-00002.safetensors")
        torch.testing.assert_close(load_file(file), dict(simulated.client_states.get(("fedtilt", site))))
    assert read_json(run / "results.json") == read_json(tmp_path / "simulated/results.json")
    assert read_json(run / "seed-0/participation.json")["rejected"] == {}
