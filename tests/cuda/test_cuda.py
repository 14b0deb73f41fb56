"""On a CUDA device: the same numbers as on the CPU, for every way, model, rule and command.

make test-cuda
"""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import models, seeds
from fedtilt.math import aggregate
from fedtilt.math.tilt import nested_tilt
from fedtilt.runs.export import exported
from fedtilt.training import BACKENDS, LocalJob, choose_backend, make_batches, stacked
from tests.helpers.models import CLASSES, MODELS, SHAPE, work

# torch's compiler warns of parts of torch that it uses itself
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")]

INF = math.inf
QUIET = [name for name in MODELS if "dropout" not in name]
TRAIN = {"rounds": 3, "participation": 0.5, "epochs": 2, "batch_size": 10, "lr": 0.1}
METHODS = [ft.fedavg(), ft.ditto(0.1), ft.fedtilt(tau=1, lam=-2, mu=0.1, q=-0.01)]


@pytest.fixture(autouse=True)
def _there() -> None:
    assert torch.cuda.is_available(), "these tests need a CUDA device"


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(
        ft.data.load("digits"), clients=6, classes_per_client=2, outliers="flips", outlier_clients=0.5, max_train=50,
        validation=0.2, seed=1,
    )  # fmt: skip


def apart(a: Tensor, b: Tensor) -> float:
    return float((a.cpu().double() - b.cpu().double()).norm())


# -- formulas --------------------------------------------------------------------------------------------------------


def test_tilts() -> None:
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(100) % 7
    tilts = torch.tensor([0.0, INF, -INF, 1e-9, -1e-3, 0.5, -2.0, 30.0, 1e6], dtype=torch.float64)
    torch.testing.assert_close(
        ft.tilted_mean(losses.cuda(), tilts.cuda()).cpu(), ft.tilted_mean(losses, tilts), rtol=1e-12, atol=0
    )
    for tau, lam in ((0.0, 0.0), (5.0, -2.0), (INF, -INF), (-1.0, 1e-4)):
        there = nested_tilt(losses.cuda(), [y.cuda()], [lam, tau])
        torch.testing.assert_close(there.cpu(), nested_tilt(losses, [y], [lam, tau]), rtol=1e-12, atol=0)


def test_random_numbers_are_the_same_integers() -> None:
    key = seeds.key(3, "order", round=2, client=1)
    assert torch.equal(seeds.permutations(key, 3, 100, "cuda").cpu(), seeds.permutations(key, 3, 100))
    assert torch.equal(seeds.uniform(key, (50, 7), "cuda").cpu(), seeds.uniform(key, (50, 7)))
    torch.testing.assert_close(seeds.normal(key, (50, 7), "cuda").cpu(), seeds.normal(key, (50, 7)), rtol=1e-6, atol=0)


AGGREGATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": aggregate.mean,
    "median": aggregate.median,
    "trimmed_mean": lambda m: aggregate.trimmed_mean(m, 0.3),
    "krum": lambda m: aggregate.krum(m, 0.3),
    "multi_krum": lambda m: aggregate.multi_krum(m, 0.3),
    "geometric_median": aggregate.geometric_median,
    "norm_clipped": aggregate.norm_clipped,
    "tilted q=0.01": lambda m: aggregate.tilted(m, 0.01),
    "tilted q=inf": lambda m: aggregate.tilted(m, INF),
    "tilted q=-0.01": lambda m: aggregate.tilted(m, -0.01, start=aggregate.median(m)),
    "tilted q=-inf": lambda m: aggregate.tilted(m, -INF, start=aggregate.median(m)),
    "tilted l2": lambda m: aggregate.tilted(m, distance="l2"),
    "tilted l1": lambda m: aggregate.tilted(m, distance="l1"),
    "tilted steps": lambda m: aggregate.tilted(m, 1e-3, steps=(3, 0.2)),
}


@pytest.mark.parametrize("far", [0.0, 1e6], ids=["near", "one far away"])
@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregation(name: str, far: float) -> None:
    clients = 100 + torch.randn(10, 20_000, generator=torch.Generator().manual_seed(0))
    clients[7] += far
    here, there = AGGREGATORS[name](clients), AGGREGATORS[name](clients.cuda())
    assert there.is_cuda
    assert apart(here, there) <= 1e-6 * max(1.0, here.norm())


# -- ways --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUIET)
def test_every_way_agrees_with_the_loop_on_the_cpu(name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3)
    expected = BACKENDS["autograd"](model, *work(model))
    model.cuda()
    jobs, feeds = work(model, device="cuda")
    chosen = choose_backend(model, "cuda", sample=torch.zeros(1, *SHAPE, device="cuda"))
    assert chosen == ("autograd" if name == "lstm" else "stacked")
    for backend in dict.fromkeys(["autograd", chosen]):
        first, again = BACKENDS[backend](model, jobs, feeds), BACKENDS[backend](model, jobs, feeds)
        for job, trained, twice, reference in zip(jobs, first, again, expected, strict=True):
            assert torch.equal(trained, twice)
            assert apart(trained, reference) <= 1e-4 * apart(reference, job.start)


@pytest.mark.parametrize("name", ["dropout", "functional dropout"])
def test_dropout_is_keyed_and_leaves_the_generators_alone(name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    assert choose_backend(model, "cuda", sample=torch.zeros(1, *SHAPE, device="cuda")) == "autograd"
    jobs, feeds = work(model, count=1, device="cuda")
    before = torch.cuda.get_rng_state()
    first = BACKENDS["autograd"](model, jobs, feeds)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.cuda.manual_seed(99)
    again = BACKENDS["autograd"](model, jobs[::-1], feeds[::-1])[::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert apart(first[0], jobs[0].start) > 0.01


@pytest.mark.parametrize("name", ["mlp", "norm"])
@pytest.mark.parametrize("size", [100, 700])
def test_large_batches_repeat_their_bits(size: int, name: str) -> None:
    model = models.build(MODELS[name], SHAPE, CLASSES, seed=3).cuda()
    received = models.flat(model)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(1400, *SHAPE, generator=rng), torch.randint(0, CLASSES, (1400,), generator=rng)
    feed = make_batches(x.cuda(), y.cuda(), seed=0, round=1, client=0, epochs=3, batch_size=size)
    job = LocalJob(start=received, anchor=received, prox=0.1, tau=2.0, lam=-1.0, lr=0.1)
    for backend in ("autograd", "stacked"):
        first, *others = (BACKENDS[backend](model, [job], [feed])[0] for _ in range(4))
        assert all(torch.equal(first, other) for other in others)


class Strided(nn.Module):
    """Convolutions that are no shifted slices, and a skip."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(input_shape[0], 6, 3, stride=2, padding=1)
        self.mix = nn.Conv2d(6, 6, 3, padding="same", groups=2)
        self.head = nn.Linear(6 * 4 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.down(x))
        return self.head((x + torch.relu(self.mix(x))).flatten(1))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "norm", "strided"])
def test_precisions(name: str, precision: str) -> None:
    model = models.build(MODELS.get(name, Strided), SHAPE, CLASSES, seed=3)
    expected = BACKENDS["autograd"](model, *work(model, count=1))
    model.cuda()
    jobs, feeds = work(model, count=1, device="cuda")
    trained = stacked.train(model, jobs, feeds, precision)
    moved = [apart(a, b) / apart(b, job.start) for job, a, b in zip(jobs, trained, expected, strict=True)]
    if precision == "float32":
        assert max(moved) <= 1e-4
    else:  # in few bits the worst sample may be another one
        most = max(m for m, job in zip(moved, jobs, strict=True) if math.isfinite(job.lam))
        assert 1e-5 < most <= {"tf32": 0.05, "bfloat16": 0.4}[precision]


def test_any_number_of_shapes_in_one_process() -> None:
    model = models.build(MODELS["norm"], SHAPE, CLASSES, seed=3).cuda()
    received = models.flat(model)
    x, y = torch.randn(24, *SHAPE, device="cuda"), torch.arange(24, device="cuda") % CLASSES
    for size in range(2, 14):  # torch compiles the same code eight times and no more
        feed = make_batches(x, y, seed=0, round=1, client=0, epochs=1, batch_size=size)
        job = LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1)
        (a,), (b,) = (BACKENDS[backend](model, [job], [feed]) for backend in ("stacked", "autograd"))
        assert apart(a, b) <= 1e-4 * apart(b, received)


def test_what_the_program_around_has_set_does_not_matter() -> None:
    """Training and judging are in float32 where TF32 is allowed everywhere, said in torch's new way."""
    model = models.build(Strided, SHAPE, CLASSES, seed=3).cuda()
    jobs, feeds = work(model, count=1, device="cuda")
    plain = {backend: BACKENDS[backend](model, jobs, feeds) for backend in ("autograd", "stacked")}
    stacked.forget()
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        matmul.fp32_precision = conv.fp32_precision = "tf32"
        for backend, expected in plain.items():
            assert all(torch.equal(a, b) for a, b in zip(BACKENDS[backend](model, jobs, feeds), expected, strict=True))
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "tf32")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def test_a_stack_larger_than_the_memory_is_split() -> None:
    model = models.build(lambda: models.mlp((64,), 4, (2000, 2000)), (64,), 4, seed=0).cuda()  # 16 MB
    received = models.flat(model)
    x, y = torch.randn(20, 64, device="cuda"), torch.arange(20, device="cuda") % 4
    feeds = [make_batches(x, y, seed=0, round=1, client=c, epochs=1, batch_size=10) for c in range(16)]
    jobs = [LocalJob(start=received, anchor=received, prox=0.1, tau=1.0, lam=-1.0, lr=0.1) for _ in feeds]
    whole = [t.cpu() for t in stacked.train(model, jobs, feeds)]
    stacked.forget()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() + 400 * 2**20  # theta, anchors and hidden slopes of 16 take more
    torch.cuda.set_per_process_memory_fraction(held / torch.cuda.get_device_properties(0).total_memory)
    try:
        parts = stacked.train(model, jobs, feeds)
        assert stacked._fits[model] < 16
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(apart(a, b) <= 1e-4 * apart(a, received) for a, b in zip(whole, parts, strict=True))


# -- federations -------------------------------------------------------------------------------------------------------


def test_a_clients_round_is_the_same_there(federation: ft.Federation) -> None:
    for client in range(federation.clients):
        here, there = (federation.train(client, seed=0, round=1, device=device) for device in ("cpu", "cuda"))
        assert torch.equal(here[1], there[1].cpu())
        torch.testing.assert_close(here[0], there[0].cpu())


def recurrent(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(input_shape[-1], 12, batch_first=True), nn.Linear(12, classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x.squeeze(1))[0][:, -1])

    return Rows()


FACTORIES = {"mlp": ft.models.mlp, "cnn": ft.models.cnn, "logistic": ft.models.logistic, "recurrent": recurrent}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_federation_is_the_one_of_the_cpu(name: str, federation: ft.Federation) -> None:
    ends = {}
    for device in ("cpu", "cuda"):
        *_, ends[device] = ft.simulate(METHODS, federation, FACTORIES[name], device=device, **TRAIN)
    here, there = ends["cpu"], ends["cuda"]
    start = models.flat(models.build(FACTORIES[name], federation.input_shape, 10, seeds.key(0, "init")))
    for method in METHODS:
        a, b = here.state.shared[method.name], there.state.shared[method.name]
        assert b.is_cuda
        assert apart(a, b) <= 1e-3 * apart(a, start)
        assert (here.counts[method.name].shared - there.counts[method.name].shared).abs().sum() <= 2
    assert here.state.client_states.owners() == there.state.client_states.owners() != []
    for owner in here.state.client_states.owners():
        a, b = here.state.client_states.get(owner), there.state.client_states.get(owner)
        assert apart(a, b) <= 1e-3 * apart(a, start)


def test_resumed_exported_and_pickled(federation: ft.Federation, tmp_path: Path) -> None:
    settings = TRAIN | {"device": "cuda", "checkpoint_seconds": 0}
    whole = ft.run(METHODS, federation, ft.models.mlp, **settings)

    class Killed(Exception):
        pass

    def kill(r: ft.Round, _: object) -> None:
        if r.number == 2:
            raise Killed

    with pytest.raises(Killed):
        ft.run(METHODS, federation, ft.models.mlp, out=tmp_path, on_round=kill, **settings)
    notes: list[str] = []
    resumed = ft.run(METHODS, federation, ft.models.mlp, out=tmp_path, notice=notes.append, **settings)
    assert notes == []
    assert repr(resumed) == repr(whole)
    copied = pickle.loads(pickle.dumps(whole))
    for name in whole:
        for a, b, c in zip(*(r[name].personal(0).state_dict().items() for r in (whole, resumed, copied)), strict=True):
            assert a[1].device.type == b[1].device.type == c[1].device.type == "cpu"
            assert torch.equal(a[1], b[1])
            assert torch.equal(a[1], c[1])
        net = whole[name].shared
        net.load_state_dict(exported(tmp_path, name))
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), whole[name].shared.parameters(), strict=True))
        assert copied[name]._shared.device.type == next(copied[name]._net.parameters()).device.type == "cpu"
    # folders travel between devices, and say so
    on_cpu = TRAIN | {"device": "cpu", "workers": 0, "out": tmp_path, "notice": notes.append}
    assert repr(ft.run(METHODS, federation, ft.models.mlp, **on_cpu)) == repr(whole)
    assert any("device" in note for note in notes), notes


def test_a_model_may_be_on_the_device_already(federation: ft.Federation) -> None:
    mine = ft.models.mlp(federation.input_shape, federation.classes)
    one, other = (
        ft.run([ft.ditto(0.1)], federation, net, device="cuda", **TRAIN) for net in (mine, mine.cuda())
    )  # fmt: skip
    assert repr(one) == repr(other)
    assert next(mine.parameters()).is_cuda


def test_many_settings_at_once_are_each_alone(federation: ft.Federation) -> None:
    many = [ft.fedtilt(tau=tau, lam=-2, mu=0.1, name=f"tau {tau}") for tau in (0, 1, 5)]
    together = ft.run(many, federation, ft.models.mlp, device="cuda", **TRAIN)
    for method in many:
        alone = ft.run([method], federation, ft.models.mlp, device="cuda", **TRAIN)[method.name]
        a, b = together[method.name].personal(0), alone.personal(0)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


# -- commands ----------------------------------------------------------------------------------------------------------


def test_run_and_tune(fedtilt, tmp_path: Path) -> None:
    said = fedtilt("run", "--device", "cuda", "--set", "train.rounds=5", "--out", "run")
    assert said.code == 0, said.err
    environment = json.loads((tmp_path / "run" / "run.json").read_text())["environment"]
    assert environment["device"] == torch.cuda.get_device_name()
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000
    said = fedtilt("tune", "--device", "cuda", "--set", "train.rounds=5", "--over", "tau=0,10", "--out", "tuned")
    assert said.code == 0, said.err
    assert (tmp_path / "tuned" / "results.json").exists()


@pytest.mark.parametrize("what", ["propositions", "toy", "convergence", "signs", "outliers", "flips", "tilts"])
def test_reproduce(what: str, fedtilt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTILT_DATA", str(tmp_path / "empty"))
    said = fedtilt("reproduce", what, "--quick", "--device", "cuda", "--out", "r")
    assert said.code == 0, said.err
    cells = [json.loads(path.read_text()) for path in (tmp_path / "r" / what).glob("*.json")]
    assert {cell["environment"]["device"] for cell in cells} == {torch.cuda.get_device_name()}
