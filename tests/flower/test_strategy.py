"""`FedTiltStrategy` in a plain Flower app: our rules and screening with clients that know nothing of fedtilt."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedMedian, Result
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

import fedtilt as ft
from fedtilt.flower import FedTiltStrategy
from fedtilt.math import fair, robust
from fedtilt.methods.aggregators import Krum, MultiKrum, Tilted
from fedtilt.methods.before import NNM
from fedtilt.methods.component import ServerRound

APP = Path(__file__).parents[2] / "examples/flower-quickstart"
CONFIG = {"local-epochs": 1, "learning-rate": 0.1, "lam": -1.0}
Tamper = Callable[[int, RecordDict], RecordDict | Error]


class AppGrid(Grid):
    """A grid that calls a ClientApp in this process; node 7000 + n has partition n."""

    def __init__(self, app: Any, nodes: int = 4, tamper: Tamper | None = None, of: int | None = None) -> None:
        self._app, self._nodes, self._tamper, self._of = app, nodes, tamper, of or nodes
        self.replies: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return [7000 + n for n in range(self._nodes)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            number = message.metadata.dst_node_id - 7000
            node = {"partition-id": number, "num-partitions": self._of}
            reply = self._app(message, Context(1, message.metadata.dst_node_id, node, RecordDict(), dict(CONFIG)))
            if self._tamper is not None and message.metadata.message_type == "train":
                reply = Message(self._tamper(number, reply.content), reply_to=message)
            replies.append(reply)
        self.replies = replies or self.replies  # of the last round, if nothing is evaluated
        return replies[::-1]

    run = property(lambda self: None)
    set_run = create_message = push_messages = pull_messages = None


def initial_model() -> ArrayRecord:
    """A layer, BatchNorm's statistics and a head, as in a state_dict."""
    draw = np.random.default_rng(0)
    shapes = {"features.weight": (4, 3), "norm.running_var": (4,), "head.weight": (10, 4), "head.bias": (10,)}
    arrays = {name: Array(draw.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    return ArrayRecord({**arrays, "norm.num_batches_tracked": Array(np.array(0))})


def plain_app() -> ClientApp:
    """Clients that take a random step: most of it the same for all, some of their own."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        ours, own = np.random.default_rng(1), np.random.default_rng(10 + number)
        arrays = ArrayRecord()
        for name, array in message.content["arrays"].items():
            value = array.numpy()
            step = 0.1 * (ours.normal(size=value.shape) + 0.3 * own.normal(size=value.shape))
            step = 5 + number if value.dtype == int else step
            arrays[name] = Array(np.asarray(value + step).astype(value.dtype))
        metrics = MetricRecord({"train-loss": 1.0 + number, "num-examples": 10 + number})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def train(strategy: FedAvg, grid: AppGrid | None = None, rounds: int = 1, model: ArrayRecord | None = None) -> Result:
    return strategy.start(grid or AppGrid(plain_app()), model or initial_model(), num_rounds=rounds)


def assert_close(ours: ArrayRecord, other: ArrayRecord, tolerance: float = 1e-6) -> None:
    assert list(ours) == list(other)
    for name in ours:
        expected = other[name].numpy()
        expected = np.round(expected) if ours[name].dtype == "int64" else expected  # Flower's average is float64
        np.testing.assert_allclose(ours[name].numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the quickstart app."""
    monkeypatch.syspath_prepend(str(APP))
    from quickstart import client_app, task

    yield task, client_app.app
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def test_q_0_is_flowers_fedavg_in_the_quickstart_app(quickstart: Any) -> None:
    task, app = quickstart
    torch.manual_seed(0)
    net = task.Net()
    start = ArrayRecord(net.state_dict())
    ours, flowers = (train(s, AppGrid(app, 2, of=20), 2, start) for s in (FedTiltStrategy(), FedAvg()))
    assert_close(ours.arrays, flowers.arrays, 1e-5)
    assert ours.evaluate_metrics_clientapp == flowers.evaluate_metrics_clientapp
    assert ours.arrays["features.1.num_batches_tracked"].dtype == "int64"  # Flower's is float64
    loss = ours.train_metrics_clientapp[2].pop("train-loss")
    assert loss == pytest.approx(flowers.train_metrics_clientapp[2]["train-loss"], rel=1e-4)
    assert ours.train_metrics_clientapp[2] == {"rejected-replies": 0}
    net.load_state_dict(ours.arrays.to_torch_state_dict())


def krum_of_mixed(models: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    given = ServerRound(received=received, clients=range(5), population=5, selected=5)
    return robust.multi_krum(NNM(bad_share=0.2).apply(models, given, {}).models, 0.2)


def parameters(record: ArrayRecord) -> torch.Tensor:
    """The parameters (P,) of a model, without the statistics of BatchNorm."""
    names = [name for name in record if name.rpartition(".")[2] in ("weight", "bias")]
    return torch.cat([torch.tensor(record[name].numpy()).flatten() for name in names])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"aggregator": "median"}, lambda models, received: models.median(0).values),
        ({"aggregator": Tilted(q=5.0), "weighting": "equal"}, lambda models, _: ft.aggregate.tilted(models, 5.0)),
        ({"aggregator": Krum(bad_share=0.2)}, lambda models, _: robust.krum(models, 0.2)),
        ({"aggregator": MultiKrum(bad_share=0.2), "before": [NNM(bad_share=0.2)]}, krum_of_mixed),
        ({"optimizer": {"rule": "sgd", "lr": 0.5, "momentum": 0.0}, "weighting": "equal"},
         lambda models, received: received + 0.5 * (models.mean(0) - received)),
    ],
)  # fmt: skip
def test_a_round_is_the_rule_applied_to_the_replies(settings: dict, expected: Any) -> None:
    strategy = FedTiltStrategy(**settings, screen=0, fraction_evaluate=0.0)
    grid, start = AppGrid(plain_app(), nodes=5), initial_model()
    result = train(strategy, grid, 1, start)
    models = torch.stack([parameters(reply.content["arrays"]) for reply in grid.replies])
    wanted = expected(models, parameters(start))
    torch.testing.assert_close(parameters(result.arrays), wanted, rtol=1e-5, atol=1e-6)
    stack = np.stack([reply.content["arrays"]["norm.running_var"].numpy() for reply in grid.replies])
    samples = [reply.content["metrics"]["num-examples"] for reply in grid.replies]
    weights = samples if strategy.method.weighting.label == "samples" else None
    average = np.average(stack, axis=0, weights=weights)
    np.testing.assert_allclose(result.arrays["norm.running_var"].numpy(), average, rtol=1e-5)


def test_the_median_is_flowers_median() -> None:
    settings = {"fraction_evaluate": 0.0}
    ours = train(FedTiltStrategy(aggregator="median", screen=0, buffers=(), **settings), AppGrid(plain_app(), 3))
    assert_close(ours.arrays, train(FedMedian(**settings), AppGrid(plain_app(), 3)).arrays)


def changed(name: str, value: Any) -> Callable[[RecordDict], RecordDict]:
    def change(content: RecordDict) -> RecordDict:
        content["arrays"][name] = Array(value(content["arrays"][name].numpy()))
        return content

    return change


def with_another_array(content: RecordDict) -> RecordDict:
    content["arrays"]["other"] = Array(np.zeros(2, np.float32))
    return content


def without_metrics(content: RecordDict) -> RecordDict:
    del content["metrics"]
    return content


def with_metrics(**values: Any) -> Callable[[RecordDict], RecordDict]:
    def change(content: RecordDict) -> RecordDict:
        content["metrics"].update({key.replace("_", "-"): value for key, value in values.items()})
        return content

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: Error(2, "x"), "failed; see its log"),
        (changed("head.bias", lambda a: a * np.nan), "is not finite"),
        (changed("norm.running_var", lambda a: a * np.inf), "has buffers that are wrong: the vector is not"),
        (changed("head.bias", lambda a: a[:1]), "has shape (1,) instead of (10,) in 'head.bias'"),
        (changed("head.bias", lambda a: a.astype(np.float64)), "has type float64 instead of float32 in 'head.bias'"),
        (with_another_array, "has other parameters: 0 are missing and 1 are unknown"),
        (without_metrics, "has 1 ArrayRecords and 0 MetricRecords, not 1 each"),
        (with_metrics(num_examples=-5), "has num-examples = -5, which is not between 0 and"),
        (with_metrics(accuracy=1.0), "has other metrics than the others"),
    ],
)  # fmt: skip
def test_an_invalid_reply_is_named_and_changes_nothing(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = AppGrid(plain_app(), 4, lambda number, content: change(content) if number == 2 else content)
    with caplog.at_level("WARNING", "flwr"):
        result = train(FedTiltStrategy(fraction_evaluate=0.0), grid)
    assert f"round 1: the reply of node 7002 is not used: it {reason}" in caplog.text
    assert result.train_metrics_clientapp[1]["rejected-replies"] == 1
    kept = [reply.content for reply in grid.replies if reply.metadata.src_node_id != 7002]
    assert_close(result.arrays, aggregate_arrayrecords(kept, "num-examples"), 1e-5)


def test_arrays_may_be_stored_by_columns() -> None:
    by_columns = changed("head.weight", np.asfortranarray)
    found = train(FedTiltStrategy(fraction_evaluate=0.0), AppGrid(plain_app(), 4, lambda _, reply: by_columns(reply)))
    assert found.train_metrics_clientapp[1]["rejected-replies"] == 0
    assert_close(found.arrays, train(FedTiltStrategy(fraction_evaluate=0.0)).arrays, 0)


def test_screening_bounds_a_client_that_stands_out_and_knows_clients_that_join_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def attack(number: int, content: RecordDict) -> RecordDict:
        return content if number else changed("head.weight", lambda a: a + 1e6)(content)

    settings, attacked = {"fraction_evaluate": 0.0}, AppGrid(plain_app(), 4, attack)
    strategy = FedTiltStrategy(**settings)
    with caplog.at_level("WARNING", "flwr"):
        result = train(strategy, attacked)
    assert "round 1: the reply of node 7000 is not used: it sent an update" in caplog.text
    honest = train(FedTiltStrategy(**settings))
    assert (parameters(result.arrays) - parameters(honest.arrays)).norm() < 1
    later = train(strategy, AppGrid(plain_app(), 6), 1, result.arrays)  # two nodes more
    assert later.train_metrics_clientapp[1]["rejected-replies"] == 0
    assert parameters(train(FedTiltStrategy(screen=0, **settings), attacked).arrays).norm() > 1e5


def test_without_a_valid_reply_the_model_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    broken = changed("head.bias", lambda a: a * np.nan)
    strategy, grid = FedTiltStrategy(), AppGrid(plain_app(), 2, lambda _, content: broken(content))
    messages = strategy.configure_train(1, initial_model(), ConfigRecord(), grid)
    with caplog.at_level("WARNING", "flwr"):
        arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is None
    assert metrics == {"rejected-replies": 2}
    assert "no reply can be used" in caplog.text


def test_losses_that_clients_declare_reach_q_ffl() -> None:
    strategy = FedTiltStrategy(aggregator={"rule": "q_ffl", "exponent": 1.0}, lr=0.1, screen=0)
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    replies = []
    for message in strategy.configure_train(1, arrays, ConfigRecord(), AppGrid(None, 2)):
        number = message.metadata.dst_node_id - 7000
        model = ArrayRecord({"w": Array(np.full(2, (1.0, 3.0)[number], np.float32))})
        metrics = MetricRecord({"num-examples": 1, "declared-loss": (0.5, 2.0)[number]})
        replies.append(Message(RecordDict({"a": model, "m": metrics}), reply_to=message))
    found, _ = strategy.aggregate_train(1, replies)
    models = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    expected = fair.q_ffl(models, torch.zeros(2), torch.tensor([0.5, 2.0]), 1.0, 0.1)
    np.testing.assert_allclose(found["w"].numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregator": "fltrust"}, "aggregator 'fltrust' needs training data on the server; use another aggregator"),
        ({"weighting": "afl"}, "weighting 'afl' needs to know all clients before the first round"),
        ({"aggregator": "q_ffl"}, "needs the clients' learning rate; give lr, such as lr=0.01"),
        ({"lr": 0.1}, "lr = 0.1 has no effect on aggregator 'tilted'; leave it out"),
        ({"aggregator": "krum", "weighting": "samples"}, "takes no weights"),
        ({"screen": 0.5}, "would clip ordinary updates"),
        ({"aggregator": "nothing"}, "unknown aggregator 'nothing'"),
    ],
)  # fmt: skip
def test_settings_without_effect_or_sense_are_rejected(settings: dict, message: str) -> None:
    with pytest.raises(ft.InputError, match=message.replace("(", "\\(")):
        FedTiltStrategy(**settings)


@pytest.mark.parametrize(("pattern", "message"), [("stats.*", "no such array"), ("*", "no array that the rule")])
def test_buffers_that_leave_nothing_or_match_nothing_are_rejected(pattern: str, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        train(FedTiltStrategy(buffers=[pattern]))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
def test_flwr_run_of_the_quickstart_app(tmp_path: Path) -> None:
    """`flwr run` with Flower's simulation engine, as its users start it."""
    pytest.importorskip("ray")
    port, home = free_port(), tmp_path / "flwr"
    home.mkdir()
    environment = {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONWARNINGS": "default",
    }  # fmt: skip
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    log = (tmp_path / "link.txt").open("w")
    link = subprocess.Popen(
        ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)],
        env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        done = subprocess.run(
            ["flwr", "run", str(APP), "--stream", "--federation-config", "num-supernodes=3 client-resources-num-cpus=1",
             "--run-config", f'num-server-rounds=2 lam=-1.0 out="{tmp_path}/model.pt"'],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(link.pid, signal.SIGKILL)  # with the SuperExec and the simulation, which it does not wait for
        link.wait(60)
        log.close()
    text = done.stdout + done.stderr + (tmp_path / "link.txt").read_text()
    assert (tmp_path / "model.pt").exists(), text
    assert "Starting FedTiltStrategy strategy" in text, text
    tensors = torch.load(tmp_path / "model.pt", weights_only=True)
    assert sorted(tensors) == sorted(_net_names())


def _net_names() -> list[str]:
    layers = ["features.0.weight", "features.0.bias", "head.weight", "head.bias"]
    norms = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    return layers + [f"features.1.{name}" for name in norms]
