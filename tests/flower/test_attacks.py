"""Sites that attack: what arrives at the server is forged, and a robust rule withstands it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.flower import Task
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.server import serve
from fedtilt.methods import ServerRound, Slot, Weighting
from fedtilt.runs.trained_run import open_seed
from fedtilt.storage.run_folder import RunFolder
from tests.helpers import attacking_site
from tests.helpers.attacking_site import attacking_app
from tests.helpers.loopback import LoopbackGrid
from tests.helpers.network import write_app

SPEC = """
name = "attacked"
[data]
name = "digits"
[clients]
count = 5
partition = "iid"
max_train = 60
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 6
participation = 1.0
epochs = 3
lr = 0.1
eval_every = 6
screen = 0.0
[[methods]]
preset = "fedavg"
"""


def accuracy(spec: Path, home: Path, kind: str | None, strength: float, settings: str = "") -> float:
    """The accuracy of the honest sites after a run with one attacking site of five, number 4."""
    task = Task(spec=spec)
    config = {"out": str(home / "run"), "wait": 1.0, "set": settings}
    grid = LoopbackGrid(task, 5, home / "state", config)
    if kind is not None:
        grid._apps[4] = attacking_app(task, kind, strength, {4})
    serve(task, grid, config)
    _, folder = open_seed(home / "run")
    counts, total = folder.evaluations.counts(6)
    return 100 * float(counts["fedavg"].shared[:4].sum() / total[:4].sum())


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "attacked.toml"
    path.write_text(SPEC)
    return path


ROBUST = "methods.fedavg.aggregator=median"


def test_a_robust_rule_withstands_a_site_that_breaks_the_mean(spec: Path, tmp_path: Path) -> None:
    broken = accuracy(spec, tmp_path / "mean", "same_value", 1.0)
    robust = accuracy(spec, tmp_path / "median", "same_value", 1.0, ROBUST)
    assert broken < 30 < 50 < robust


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "strength"), [("sign_flip", 4.0), ("scale", 30.0), ("gaussian", 1.0)])
def test_simple_attacks_of_a_site(spec: Path, tmp_path: Path, kind: str, strength: float) -> None:
    clean = accuracy(spec, tmp_path / "clean", None, strength, ROBUST)
    broken = accuracy(spec, tmp_path / "mean", kind, strength)
    robust = accuracy(spec, tmp_path / "median", kind, strength, ROBUST)
    assert broken < robust - 10
    assert robust > clean - 10


CLIENT = """
from federation.attacking_site import attacking_app
from federation.task import TASK
app = attacking_app(TASK, "same_value", 1.0, {2})
"""


@pytest.mark.slow
def test_a_site_that_attacks_over_a_superlink(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", SPEC.replace("count = 5", "count = 3").replace("rounds = 6", "rounds = 2"))
    shutil.copy(attacking_site.__file__, app / "federation")
    (app / "federation/client.py").write_text(CLIENT)
    cluster = LocalCluster(home=tmp_path / "cluster", sites=3, tls=False)
    models = {}
    cluster.up(timeout=240)
    try:
        for name, settings in {"mean": "", "median": ROBUST}.items():
            number = cluster.submit(app, {"out": str(tmp_path / name), "set": settings})
            done = (tmp_path / name / "results.json").exists
            assert cluster.wait_for_run(number, 600, is_done=done) == "finished:completed"
            models[name] = RunFolder(tmp_path / name / "seed-0").latest().server["fedavg"].parameters
    finally:
        cluster.down()
    assert cluster.running() == []
    assert models["mean"].mean() > 0.5  # each round adds a third of 1 to every parameter
    assert models["median"].mean().abs() < 0.1


@dataclass(frozen=True)
class RootOfSamples(Weighting):
    claims: ClassVar[str] = "samples"

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        return None if round.samples is None else round.samples.sqrt(), slot


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("attack.kind=alie", "attack.kind = 'alie' is for simulations, not for real sites"),
        ("train.baselines=true", "train.baselines = true has no effect: no baseline is trained on the sites"),
        ("methods.fedavg.weighting=samples", "train.screen = 0 bounds no claim; use weighting = 'equal'"),
        (f"methods.fedavg.weighting={__name__}:RootOfSamples", "RootOfSamples' of method 'fedavg' counts the samples"),
    ],
)
def test_what_a_deployment_cannot_have_is_one_line(spec: Path, settings: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Task(spec=spec).resolve({"set": settings})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
