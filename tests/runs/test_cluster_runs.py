"""Seeds, cases and trials as tasks of a cluster: the same files as one after the other in one process."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import check_shared
from fedtilt.tuning.search import Search
from fedtilt.tuning.training import OutOfTime
from tests.helpers.ray_cluster import LoopbackCluster, loopback_cluster

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")  # importing it takes long
pytestmark = [pytest.mark.slow, needs_ray]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    with loopback_cluster(head_cpus=2) as started:
        yield started


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for p in patterns for path in sorted(folder.glob(p))}


def test_seeds(fedtilt: Callable[..., Any], tmp_path: Path, cluster: LoopbackCluster) -> None:
    for name, options in {"alone": [], "cluster": ["--cluster", cluster.address]}.items():
        done = fedtilt("run", "digits", "--seeds", "2", "--set", "train.rounds=2", "--out", name, *options)
        assert done.code == 0, done.err
    files = "seed-*/metrics.jsonl", "seed-*/counts/*", "seed-*/clients/*", "seed-*/checkpoints/*/*.safetensors"
    alone, together = (contents(tmp_path / name, *files) for name in ("alone", "cluster"))
    assert len(alone) > 8
    assert alone == together
    assert "2/2 done" in done.err
    again = fedtilt("resume", "cluster", "--quiet")  # both seeds are finished
    assert again.code == 0, again.err
    assert contents(tmp_path / "cluster", *files) == alone


def test_cases(reproduce: Callable[..., Any], tmp_path: Path, cluster: LoopbackCluster) -> None:
    results = []
    for name, options in {"alone": [], "cluster": ["--cluster", cluster.address]}.items():
        done = reproduce("toy", "--quick", "--only", "toy-1", "--only", "toy-3", "--out", name, *options)
        assert done.code == 0, done.err
        lines = (tmp_path / name / "toy.jsonl").read_text().splitlines()
        read = {record["case"]: record for record in map(json.loads, lines)}
        for result in read.values():
            del result["seconds"], result["environment"]["threads"]  # a task has one thread
        results.append(read)
    assert len(results[0]) >= 2
    assert results[0] == results[1]


def test_trials(fedtilt: Callable[..., Any], tmp_path: Path, cluster: LoopbackCluster) -> None:
    search = ["tune", "digits", "--over", "batch_size=10,20", "--no-halving", "--set", "train.rounds=2"]
    for name, options in {"alone": [], "cluster": ["--cluster", cluster.address]}.items():
        done = fedtilt(*search, "--out", name, *options)
        assert done.code == 0, done.err
    alone, together = (contents(tmp_path / name, "search/stage-*/*.safetensors") for name in ("alone", "cluster"))
    assert len(alone) >= 2
    assert alone == together


def test_trials_that_are_out_of_time(
    fedtilt: Callable[..., Any], tmp_path: Path, cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tuned" / "search" / "stage-1"

    def check_time(self: Search, needed: float | None = None) -> None:
        if needed is None and any(folder.glob("*.safetensors")):  # while tasks train, and one of them has ended
            raise OutOfTime

    monkeypatch.setattr(Search, "_check_time", check_time)
    search = ["tune", "digits", "--over", "batch_size=10,20,30,40", "--set", "train.rounds=40", "--no-halving"]
    done = fedtilt(*search, "--out", "tuned", "--cluster", cluster.address)
    assert done.code == 0, done.err
    tuning = json.loads((tmp_path / "tuned" / "results.json").read_text())["tuning"]
    assert len(tuning["settings"]) == len(list(folder.glob("*.safetensors"))) < 4  # the others are not waited for


def test_a_path_that_a_node_cannot_see_is_named(tmp_path: Path, cluster: LoopbackCluster) -> None:
    with (
        connected(cluster.address) as ray,
        pytest.raises(ft.InputError, match=r"^node .* cannot see .*missing\.csv; put it on a file system that all"),
    ):
        check_shared(ray, tmp_path, [tmp_path / "missing.csv"])
    assert list(tmp_path.iterdir()) == []
