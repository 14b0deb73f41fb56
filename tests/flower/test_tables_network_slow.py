"""A real SuperLink and two real sites with a table each: the schema and the models of the simulator."""

import csv
from collections.abc import Callable, Sequence
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


def change_rows(path: Path, change: Callable[[int, list[str]], Sequence[str]]) -> None:
    """Change each row of a table, from its number, 0 for the header, and its cells."""
    rows = list(csv.reader(path.read_text().splitlines()))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(change(number, row) for number, row in enumerate(rows))


def test_two_sites_whose_tables_differ(tmp_path: Path) -> None:
    """Another order of columns and a missing category give the simulator's models; a missing column is refused."""
    app, run, settings = tmp_path / "app", tmp_path / "run", ["train.rounds=2", "train.eval_every=2"]
    write_project(app)
    tables = site_tables(app)
    for table, wards in zip(tables, ("abc", "ab"), strict=True):
        change_rows(table, lambda n, row, wards=wards: [wards[n % len(wards)] if n else "ward", *row])
    change_rows(tables[1], lambda _, row: row[::-1])
    cluster = LocalCluster(home=tmp_path / "cluster", tls=False)
    cluster.node_config = {site: {"data": str(table)} for site, table in enumerate(tables)}
    cluster.up(timeout=0)

    def deploy(out: Path, last_file: str) -> str:
        config = {"out": str(out), "quorum": 1.0, "join-quorum": 1.0, "set": "\n".join(settings)}
        return cluster.wait_for_run(cluster.submit(app, config), 480, is_done=(out / last_file).exists)

    try:
        assert deploy(run, "results.json") == "finished:completed"
        run_spec(load(app / "spec.toml", overrides=settings), tmp_path / "simulated")
        change_rows(tables[1], lambda _, row: row[:-1])
        assert deploy(tmp_path / "refused", "stopped.json") == "finished:failed"
    finally:
        cluster.down()
    assert read_schema(run / "schema.json") == read_schema(tmp_path / "simulated")
    assert read_schema(run / "schema.json").column("ward").categories == ("a", "b", "c")
    deployed, simulated = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("run", "simulated"))
    torch.testing.assert_close(*(state.server["fedtilt"].parameters for state in (deployed, simulated)))
    for site in (0, 1):
        (file,) = (cluster.home / f"site-{site}/state").rglob("round-00002.safetensors")
        torch.testing.assert_close(load_file(file), simulated.client_states.get(("fedtilt", site)).to_tensors())
    results = read_json(tmp_path / "simulated/results.json")
    results.pop("baselines")  # a server has no rows to train them on
    assert read_json(run / "results.json") == results
    assert read_json(run / "seed-0/participation.json")["rejected"] == {}
    problem = "1 of 2 sites agree on a schema and all must (site 1 has no column 'ward', which site '0' has"
    assert problem in read_json(tmp_path / "refused/stopped.json")["reason"]
