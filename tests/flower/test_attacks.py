"""Sites that attack: what arrives at the server is forged, and a robust rule withstands it."""

from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtilt.errors import InputError
from fedtilt.flower import Task, client_app
from fedtilt.flower.server import serve
from fedtilt.rounds.forged_updates import forged_update
from fedtilt.runs.spec_run import open_seed
from tests.helpers.loopback import LoopbackGrid

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


def attacking_app(task: Task, kind: str, strength: float) -> ClientApp:
    """The app of a site that trains as it is told, and sends a forged update."""

    def forge(message: Message, context: Context, call_next: object) -> Message:
        reply = call_next(message, context)  # type: ignore[operator]
        received, trained = message.content.array_records["arrays"], reply.content.array_records["arrays"]
        for name in trained:
            start = torch.from_numpy(received[name].numpy())
            own = torch.from_numpy(trained[name].numpy()) - start
            forged = forged_update(kind, own.flatten(), own.flatten()[None], strength, key=1).reshape(own.shape)
            trained[name] = type(trained[name])((start + forged).numpy())
        return reply

    app, honest = ClientApp(), client_app(task)

    @app.train(mods=[forge])
    def train(message: Message, context: Context) -> Message:
        return honest(message, context)

    app.query()(honest)
    app.evaluate()(honest)
    return app


def accuracy(spec: Path, home: Path, kind: str | None, strength: float, settings: str = "") -> float:
    """The accuracy of the honest sites after a run with one attacking site of five, number 4."""
    task = Task(spec=spec)
    config = {"out": str(home / "run"), "wait": 1.0, "set": settings}
    grid = LoopbackGrid(task, 5, home / "state", config)
    if kind is not None:
        grid._apps[4] = attacking_app(task, kind, strength)
    serve(task, grid, config)
    _, folder = open_seed(home / "run")
    counts, total = folder.counts(6)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("attack.kind=alie", "attack.kind = 'alie' is for simulations, and real sites are not told to attack"),
        ("methods.fedavg.aggregator=fltrust", "'fltrust' of method 'fedavg' needs data on the server"),
        ("methods.fedavg.weighting=samples", "train.screen = 0 bounds no claim; use weighting = 'equal'"),
    ],
)
def test_what_a_deployment_cannot_have_is_one_line(spec: Path, settings: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Task(spec=spec).resolve({"set": settings})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
