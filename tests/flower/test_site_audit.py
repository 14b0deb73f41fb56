"""The audit of a site: the simulator's sums, suspects that stay on the site, and a count that it may declare."""

import csv
import json
import stat
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import fedtilt as ft
from fedtilt.files import read_tensors
from fedtilt.flower import Task
from fedtilt.flower.site_data import site_federation
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

AUDIT = "train.audit=true\ntrain.rounds=2\noutliers.kind=flips\noutliers.redraw=once\noutliers.rate=0.2"


def test_sums_are_the_simulators_and_suspects_stay_on_the_site(  # type: ignore[no-untyped-def]
    fedtilt, deployment: Deployment, spec: Path, tmp_path: Path
) -> None:
    grid = deployment.run(set=AUDIT, node_config={1: {"declare-suspects": True}})
    result = run_spec(load(spec, overrides=AUDIT.splitlines()), tmp_path / "simulated")[0]
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    assert simulated is not None
    for site in (0, 1):
        (path,) = (tmp_path / "state" / str(site)).rglob("round-00002.safetensors")
        kept = simulated.client_states.get(("fedtilt", site))
        assert "p" in kept.slot("audit")
        # the simulator computes the tilts of all clients together, in another order
        torch.testing.assert_close(read_tensors(path), kept.to_tensors(), rtol=1e-5, atol=1e-5)
    counts = {}
    for site in (0, 1):
        (path,) = (tmp_path / "state" / str(site)).rglob("suspects.csv")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = result._federation.row_names(site)  # type: ignore[union-attr]
        assert {row["row"] for row in rows} <= set(names)
        counts[site] = len(rows)
    assert sum(counts.values()) > 0
    sent = [
        dict(reply.content.metric_records["metrics"])
        for _, reply in grid.sent
        if "metrics" in reply.content.metric_records
    ]
    declared = [metrics["declared-suspects"] for metrics in sent if "declared-suspects" in metrics]
    assert len(declared) == 2  # of site 1 only, one per round
    assert declared[-1] == counts[1]
    assert not list((tmp_path / "run").rglob("suspects.csv"))
    server = RunFolder(tmp_path / "run/seed-0").latest()
    assert server is not None
    assert server.server["fedtilt"].slot("audit").keys() == {"distances"}
    text = "".join(path.read_text() for path in (tmp_path / "run").rglob("*.json*"))
    assert "training sample" not in text
    assert '"suspects": {' in text  # the count that site 1 declares
    refused = fedtilt("audit", str(tmp_path / "run"))
    assert refused.code == 2
    assert "the audit of samples is on the sites, in suspects.csv" in refused.err


def test_a_site_with_other_samples_starts_its_audit_again(spec: Path, tmp_path: Path) -> None:
    size = [40]

    def data(node: object) -> ft.data.Dataset:
        x = torch.randn(size[0], 2, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0).long()
        return ft.data.Dataset(name="own", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)

    task = Task(spec=spec, data=data, model=ft.models.logistic, input_shape=(2,), class_names=("a", "b"))
    deployment = Deployment(task, tmp_path)
    deployment.run(set="train.audit=true\ntrain.rounds=1")
    size[0] = 50
    deployment.run(set="train.audit=true\ntrain.rounds=2")
    (path,) = (tmp_path / "state/0").rglob("round-00002.safetensors")
    state = read_tensors(path)
    assert (len(state["audit.p"]), int(state["audit.rounds"])) == (50, 1)
    assert "damage" not in json.loads(next((tmp_path / "state/0").rglob("report.json")).read_text())


@pytest.mark.parametrize("key", ["exclude", "relabel"])
def test_corrections_by_the_server_are_refused(spec: Path, key: str) -> None:
    task = Task(spec=spec, data=lambda node: None, input_shape=(2,), class_names=("a", "b"))  # type: ignore[arg-type,return-value]
    with pytest.raises(ft.InputError, match=f"data.{key} = .*suspects.csv' has no effect on sites"):
        task.resolve({"set": f"data.{key}=suspects.csv"})


def test_how_a_data_function_draws_rows_is_not_the_servers_choice(spec: Path, tmp_path: Path) -> None:
    """And the server counts on random rows: proportional ones would make what it says of chance wrong."""

    def data(node: dict[str, object]) -> ft.data.Dataset:
        x = torch.randn(40, 2)
        return ft.data.from_torch(TensorDataset(x, (x[:, 0] > 0).long()), split="proportional")

    task = Task(spec=spec, data=data, model=ft.models.logistic, input_shape=(2,), class_names=("0", "1"))
    with pytest.raises(ft.InputError, match="data.split = 'random' has no effect on what a data function returns"):
        task.resolve({"set": "data.split=random"})
    config = {"partition-id": 0}
    with pytest.raises(
        ft.InputError, match="rows that were drawn with split = 'proportional', and the server counts on"
    ):
        site_federation(task, task.resolve({}).spec, config, None)
