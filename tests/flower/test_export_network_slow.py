"""A real SuperLink and three real sites: train, export on the server and on a site, predict new rows."""

from pathlib import Path

import numpy as np
import pytest

import fedtilt as ft
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.deploy.project import site_tables, write_project
from fedtilt.runs.export import export_model
from fedtilt.runs.model_card import write_export
from fedtilt.runs.trained_run import read_trained_run

pytestmark = pytest.mark.slow


def test_the_whole_way(tmp_path: Path) -> None:
    app, run = tmp_path / "app", tmp_path / "run"
    write_project(app, sites=3)
    tables = site_tables(app)
    cluster = LocalCluster(home=tmp_path / "cluster", tls=False, sites=3)
    cluster.node_config = {site: {"data": str(table)} for site, table in enumerate(tables)}
    cluster.up(timeout=0)
    config = {"out": str(run), "quorum": 1.0, "join-quorum": 1.0, "set": "train.rounds=2\ntrain.eval_every=2"}
    try:
        status = cluster.wait_for_run(cluster.submit(app, config), 480, is_done=(run / "results.json").exists)
    finally:
        cluster.down()
    assert status == "finished:completed"
    found = {}
    for name, folder in {"server": run, "site": cluster.home / "site-1/state"}.items():
        trained = read_trained_run(folder)
        card, _ = write_export(trained, export_model(folder), tmp_path / f"{name}.safetensors")
        assert "Linear(in_features=" in card.read_text()
        found[name] = ft.load(tmp_path / f"{name}.safetensors").predict_proba(tables[1])
        np.testing.assert_allclose(found[name].sum(1), 1)
    assert not np.allclose(found["server"], found["site"])
