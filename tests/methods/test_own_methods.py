"""Methods from outside the package: one file in a folder, by value and by name, with every error in one line."""

import multiprocessing
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import cli
from fedtilt.errors import InputError
from fedtilt.methods import (
    PRESETS,
    Aggregator,
    Before,
    ClientBatches,
    ClientResult,
    Correction,
    Objective,
    Prepared,
    ServerOptimizer,
    ServerRound,
    ServerStep,
    Slot,
    Training,
    Weighting,
    component_of,
)
from fedtilt.storage.run_folder import RunFolder

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = {
    "objective": {"rule": "own_objective:CVaR", "share": 0.3},
    "weighting": {"rule": "own_server_rule:OnlineWeights", "step": 0.2},
    "training": {"rule": "own_client_update:Memory", "share": 0.4},
}
FED = ft.Federation.build(ft.data.load("digits"), clients=4, partition="iid", max_train=20, seed=1)
MODEL = partial(ft.models.mlp, hidden=(4,))
ARGUMENTS: dict[str, dict[str, Any]] = {"fedtilt": {"tau": 2.0, "lam": -1.0, "q": 0.5}, "term": {"t": 1.0}}


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with the three example files, which is the working folder."""
    for name in ("own_objective", "own_server_rule", "own_client_update"):
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize("kind", OWN)
def test_every_example_keeps_the_contract(kind: str) -> None:
    ft.testing.check_method(ft.Method(name="own", **{kind: OWN[kind]}))


@pytest.mark.parametrize("preset", ["fedtilt", "scaffold", "afl", "pfedme"])
def test_built_in_methods_keep_the_contract(preset: str) -> None:
    ft.testing.check_method(PRESETS[preset](**ARGUMENTS.get(preset, {})), deployment=False)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_built_in_method_keeps_the_contract(preset: str) -> None:
    ft.testing.check_method(PRESETS[preset](**ARGUMENTS.get(preset, {})))


SPEC = """
[clients]
count = 4
max_train = 20
[model]
hidden = [4]
[train]
rounds = 3
participation = 1.0
epochs = 1
workers = 0
[storage]
checkpoint_seconds = 0.0
[[methods]]
name = "foo"
training = { rule = "fedfoo:Foo", pull = 0.5 }
weighting = { rule = "own_server_rule:OnlineWeights" }
"""
FOO = '''
import os, signal
from dataclasses import dataclass
from pathlib import Path
import torch
from fedtilt.methods import ClientResult, Training, setting

@dataclass(frozen=True)
class Foo(Training):
    """Plain SGD, with a count of its rounds."""

    pull: float = setting(0.1, "of nothing much", gt=0)

    def init_client(self, model):
        return {"rounds": torch.zeros(1)}

    def train(self, model, batches, received, slot):
        if batches.round == 2 and Path("kill").exists():
            Path("kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        for x, y in batches:
            grads = torch.autograd.grad(batches.loss(model(x), y).mean(), list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads):
                    p -= self.pull * g
        return ClientResult(model, slot={"rounds": slot["rounds"] + 1})
'''


def test_one_file_runs_is_killed_resumed_reported_and_deployed(
    own_files: Path, fedtilt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from fedtilt.flower import Task
    from fedtilt.flower.loopback import run_loopback

    monkeypatch.chdir(own_files)
    (own_files / "fedfoo.py").write_text(FOO)
    (own_files / "spec.toml").write_text(SPEC)
    assert fedtilt("run", "spec.toml", "--out", "whole", "--quiet").code == 0
    (own_files / "kill").touch()
    monkeypatch.setattr(sys, "argv", ["fedtilt", "run", "spec.toml", "--out", "killed", "--quiet"])

    def run_in_child() -> None:
        torch.set_num_threads(1)  # the threads of the parent are not here
        cli.main()

    killed = multiprocessing.get_context("fork").Process(target=run_in_child)  # torch is imported once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which are idle
        killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert fedtilt("resume", "killed", "--quiet").code == 0
    states = [RunFolder(own_files / folder / "seed-0").latest() for folder in ("whole", "killed")]
    whole, resumed = (state.server["foo"].to_tensors() for state in states)
    assert {*whole} == {*resumed}
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert float(states[0].client_states.get(("foo", 2)).slot("training")["rounds"]) == 3.0
    assert "regret" in states[0].server["foo"].slot("weighting")
    assert fedtilt("report", "whole").code == 0
    assert "fedfoo:Foo" in (own_files / "whole/spec.toml").read_text()
    run_loopback(Task(spec=own_files / "spec.toml"), 4, own_files / "deployed")
    deployed = RunFolder(own_files / "deployed/run/seed-0").latest()
    torch.testing.assert_close(deployed.server["foo"].parameters, states[0].server["foo"].parameters)


@dataclass(frozen=True)
class WrongShape(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return models.mean(), slot


@dataclass(frozen=True)
class WrongType(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return models.mean(0).double(), slot


@dataclass(frozen=True)
class NotFinite(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return models.mean(0) * torch.nan, slot


@dataclass(frozen=True)
class UndeclaredSlot(Weighting):
    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        return None, {"more": torch.zeros(1)}


@dataclass(frozen=True)
class NotOneNumber(Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return losses


@dataclass(frozen=True)
class UndeclaredMessage(Training):
    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(model, sends={"labels": batches.y.float()})


@dataclass(frozen=True)
class NoResult(Training):
    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return model  # type: ignore[return-value]


@dataclass(frozen=True)
class FewerColumns(Before):
    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        return Prepared(models[:, :-1], None, slot)


@dataclass(frozen=True)
class NoStep(ServerOptimizer):
    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        return aggregated, {"momentum": aggregated}


@dataclass(frozen=True)
class NoSlot(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return models.mean(0)  # type: ignore[return-value]


@dataclass(frozen=True)
class ListAsSlot(Aggregator):
    def init(self, parameters: Tensor, population: int) -> Slot:
        return {"count": [0.0]}  # type: ignore[dict-item]


@dataclass(frozen=True)
class InPlace(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return round.received.lerp_(models.mean(0), 0.5), slot


@dataclass(frozen=True)
class InPlaceSlot(ServerOptimizer):
    def init(self, parameters: Tensor) -> Slot:
        return {"count": torch.zeros(1)}

    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        slot["count"].add_(1)
        return aggregated, slot


@dataclass(frozen=True)
class InPlaceData(Training):
    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        batches.x.sub_(batches.x.mean())
        return ClientResult(model)


@dataclass(frozen=True)
class NoGradient(Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return losses.detach().mean()


@dataclass(frozen=True)
class NotFiniteObjective(Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return losses.mean() * torch.nan


@dataclass(frozen=True)
class HalfModel(Training):
    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(model.half())


@dataclass(frozen=True)
class DoubleSlot(Training):
    def init_client(self, model: nn.Module) -> Slot:
        return {"count": torch.zeros(1).double()}


@dataclass(frozen=True)
class ShortDrift(Correction):
    def drift(self, server: Slot, client: Slot) -> Tensor:
        return torch.zeros(3)


@dataclass(frozen=True)
class ShortModel(Correction):
    def drift(self, server: Slot, client: Slot) -> Tensor:
        return torch.zeros(310)

    def server_step(self, step: ServerStep) -> tuple[Tensor, Slot]:
        return step.aggregated[1:], step.slot


@dataclass(frozen=True)
class DoubleStep(ServerOptimizer):
    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        return aggregated.double(), slot


@dataclass(frozen=True)
class ModelsAlone(Before):
    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        return models  # type: ignore[return-value]


@dataclass(frozen=True)
class OfNoLosses(Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return 2 * torch.ones((), requires_grad=True)


@dataclass(frozen=True)
class InPlaceWeights(Objective):
    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return (weights.div_(weights.sum()) * losses).sum()


@dataclass(frozen=True)
class NegativeWeights(Weighting):
    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        return torch.arange(-1.0, len(round.clients) - 1.0), slot


@dataclass(frozen=True)
class WholeMessage(Training):
    def sends(self, model: nn.Module) -> Slot:
        return {"counts": torch.zeros(2, dtype=torch.int64)}


@dataclass(frozen=True)
class NoMessages(Training):
    def sends(self, model: nn.Module) -> Slot:
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class FirstAlone(Before):
    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        return Prepared(models[:1], None, slot)


@dataclass(frozen=True)
class WrongMixing(Before):
    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        return Prepared(models[:2], torch.ones(2, 3), slot)


@dataclass(frozen=True)
class SlotWithoutName(Aggregator):
    def init(self, parameters: Tensor, population: int) -> Slot:
        return {"": torch.zeros(1)}


@dataclass(frozen=True)
class NoOptimizerSlot(ServerOptimizer):
    def init(self, parameters: Tensor) -> Slot:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("component", "problem"),
    [
        (OfNoLosses(), "returned a number that does not depend on the losses; compute it from them"),
        (InPlaceWeights(), "changed a tensor in place that __call__ was given"),
        (NegativeWeights(), "returned [-1.0, 0.0, 1.0, 2.0] as weights; expected numbers ≥ 0"),
        (WholeMessage(), "returned torch.int64 as 'counts' of what a client sends; expected a tensor of torch.float32"),
        (NoMessages(), "returned NoneType as what a client sends; expected a dictionary of tensors by name"),
        (FirstAlone(), "returned 1 models for 4 clients, and no mixing; expected a model for every client, or as"),
        (WrongMixing(), "returned shape (2, 3) as mixing; expected finite numbers of shape (2, 4)"),
        (SlotWithoutName(), "returned dict as the slot of the server; expected a dictionary of tensors by name"),
        (NoOptimizerSlot(), "returned NoneType as its slot; expected a dictionary of tensors by name"),
        (NoSlot(), "returned Tensor from aggregate; expected two things, of which the last is its next slot"),
        (ListAsSlot(), "returned list as 'count' of the slot of the server; expected a tensor"),
        (InPlace(), "changed a tensor in place that aggregate was given; expected new tensors"),
        (InPlaceSlot(), "changed a tensor in place that step was given"),
        (InPlaceData(), "changed a tensor in place that train was given"),
        (NoGradient(), "returned a number without a gradient; compute it from the losses"),
        (NotFiniteObjective(), "diverged in round 1 on client 0: its model is not finite; check objective"),
        (HalfModel(), "whose '1.weight' has shape (4, 64), torch.float16, on cpu; expected shape (4, 64)"),
        (DoubleSlot(), "returned torch.float64 as 'count' of the slot of a client; expected a tensor of torch.float32"),
        (ShortDrift(), "returned shape (3,) as drift; expected finite numbers of shape (310,)"),
        (ShortModel(), "returned shape (309,) as the model"),
        (DoubleStep(), "returned type torch.float64 as the model"),
        (ModelsAlone(), "returned Tensor from apply; expected Prepared(models, mixing, slot)"),
        (WrongShape(), "returned shape () as the aggregated model; expected finite numbers of shape (310,)"),
        (WrongType(), "returned type torch.float64 as the aggregated model"),
        (NotFinite(), "returned values that are not finite as the aggregated model"),
        (UndeclaredSlot(), "returned 'more' as the slot of the server; it declared nothing"),
        (NotOneNumber(), "expected one number, a tensor of shape ()"),
        (UndeclaredMessage(), "returned 'labels' as what a client sends; it declared nothing"),
        (NoResult(), "returned Sequential from train; expected ClientResult"),
        (FewerColumns(), "returned shape (4, 309) as models"),
        (NoStep(), "returned 'momentum' as its slot; it declared nothing"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_a_component_returns_wrongly_is_one_line(component: Any, problem: str) -> None:
    value = [component] if component.kind == "before" else component
    method = ft.Method(name="own", **{component.kind: value})
    with pytest.raises(InputError) as error:
        list(ft.simulate([method], FED, MODEL, rounds=1, participation=1.0, epochs=1, workers=0))
    text = str(error.value)
    assert problem in text
    assert f"{component.kind} 'tests.methods.test_own_methods:{type(component).__name__}'" in text
    assert "test_own_methods.py" in text
    assert "\n" not in text


@dataclass(frozen=True)
class Remembers(Aggregator):
    seen: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BroadcastsNothing(ShortDrift):
    broadcasts: ClassVar[tuple[str, ...]] = ("control",)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Remembers, "has a setting that can change (unhashable type: 'list'); expected tuples instead of lists"),
        (BroadcastsNothing, "broadcasts 'control', which is none of its server_vectors: it has none"),
    ],
)
def test_a_component_that_cannot_work_is_not_made(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        ft.Method(name="own", **{make.kind: make()})  # type: ignore[attr-defined]
    assert problem in str(error.value)
    assert f"test_own_methods:{make.__name__}' ({__file__})" in str(error.value)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class OfAny(Objective):
    value: Any = None

    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        return (weights * losses).sum() / weights.sum()


@pytest.mark.parametrize(
    ("components", "problem"),
    [
        ({"objective": OfAny(torch.relu)}, "OfAny' .* has value = <built-in .*, which no spec can hold"),
        ({"objective": OfAny(torch.ones(2))}, r"has value = tensor\(\[1., 1.\]\), which no spec can hold"),
        ({"aggregator": lambda models: models.mean(0)}, "<lambda>' .* has no name in a module; put it there"),
    ],
    ids=["function", "tensor", "lambda"],
)  # fmt: skip
def test_what_no_spec_can_hold_is_named_before_a_deployment(components: dict[str, Any], problem: str) -> None:
    pytest.importorskip("flwr")
    with pytest.raises(InputError, match=problem):
        ft.testing._check_deployment(ft.fedavg(**components, name="own"))


def test_a_tensor_as_a_setting_is_part_of_the_record_of_a_run(tmp_path: Path) -> None:
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "workers": 0, "out": tmp_path / "run"}
    ft.run([ft.fedavg(objective=OfAny(torch.tensor([0.5, 2.0])))], FED, MODEL, **settings)
    with pytest.raises(InputError, match="objective"):
        ft.run([ft.fedavg(objective=OfAny(torch.tensor([0.5, 3.0])))], FED, MODEL, **settings)


@dataclass(frozen=True)
class WithGraph(Aggregator):
    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return nn.Parameter(models.mean(0)), {"last": (slot["last"] + 1).requires_grad_()}

    def init(self, parameters: Tensor, population: int) -> Slot:
        return {"last": torch.zeros(1)}


def test_a_state_keeps_no_graph_of_earlier_rounds() -> None:
    methods = [ft.fedavg(), ft.fedavg(aggregator=WithGraph(), name="own")]
    *_, last = ft.simulate(methods, FED, MODEL, rounds=2, participation=1.0, epochs=1, workers=0)
    state = last.state.server["own"]
    torch.testing.assert_close(state.parameters, last.state.server["fedavg"].parameters)
    assert state.slot("aggregator")["last"].tolist() == [2.0]
    assert type(state.parameters) is Tensor
    assert not any(tensor.requires_grad for tensor in state.to_tensors().values())


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("aggregator", "nowhere:Rule", "there is no module 'nowhere'"),
        ("aggregator", "fedtilt.methods:Missing", "has no function 'Missing'"),
        ("aggregator", "fedtilt.methods:Objective", "is not a class of Aggregator"),
        ("aggregator", {"rule": "krum", "share": 0.2}, "share = 0.2 of aggregator is not a setting of 'krum'"),
        ("aggregator", {"rule": "krum", "bad_share": 0.9}, "bad_share must be a number ≥ 0 and < 0.5, got 0.9"),
        ("weighting", "sampels", "unknown weighting 'sampels'; choose one of equal, samples, loss, afl"),
        ("training", {"share": 1}, "training needs rule; choose one of"),
    ],
)  # fmt: skip
def test_a_component_that_cannot_be_made_is_one_line(kind: str, value: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        component_of(kind, value)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["x = 1 / 0", "import not_installed_here", "x ="])
def test_a_module_that_cannot_be_imported_is_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"broken_{len(text)}.py"
    file.write_text(f'"""A module of the user."""\n{text}\n')
    with pytest.raises(InputError) as error:
        component_of("aggregator", f"{file.stem}:Rule")
    assert f"aggregator = '{file.stem}:Rule': module '{file.stem}' cannot be imported: " in str(error.value)
    assert f"in {file}, line 2: " in str(error.value)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class CountsInPlace(Training):
    def init_client(self, model: nn.Module) -> Slot:
        return {"count": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        slot["count"].add_(1)
        return ClientResult(own_loop(model, batches), slot=slot)


def test_a_client_may_change_its_copy_of_its_slot() -> None:
    ft.testing.check_method(ft.Method(name="own", training=CountsInPlace()), deployment=False)


def test_an_objective_without_a_gradient_is_found_in_a_stack() -> None:
    method = ft.fedavg(objective=NoGradient(), name="own")
    with pytest.raises(InputError, match="returned a number without a gradient"):
        list(ft.simulate([method], FED, MODEL, rounds=1, participation=1.0, epochs=1, backend="stacked"))


def test_an_own_objective_is_stacked_and_agrees_with_the_loop(own_files: Path) -> None:
    method = ft.fedavg(objective=OWN["objective"], name="own")
    settings = {"rounds": 2, "participation": 1.0, "epochs": 2, "batch_size": 7, "workers": 0}
    ends = []
    for backend in ("autograd", "stacked"):
        *_, last = ft.simulate([method], FED, MODEL, **settings, backend=backend)
        ends.append(last.state.shared["own"])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)
    mean = [*ft.simulate([ft.fedavg(name="own")], FED, MODEL, **settings)][-1].state.shared["own"]
    assert not torch.allclose(ends[0], mean, atol=1e-4)


def plain_mean(losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    return (weights * losses).sum() / weights.sum()


def mean_model(models: Tensor) -> Tensor:
    return models.mean(0)


def unchanged(models: Tensor, round: ServerRound) -> Tensor:
    return models


def full_step(received: Tensor, aggregated: Tensor) -> Tensor:
    return aggregated


def own_loop(model: nn.Module, batches: ClientBatches) -> nn.Module:
    step = batches.stepper(model.parameters())
    for batch in batches.steps:
        step(batch.mean(batches.loss(model(batch.x), batch.y)))
    return model


def by_samples(round: ServerRound) -> Tensor | None:
    return round.samples


FUNCTIONS: dict[str, Any] = {
    "aggregator": mean_model, "objective": plain_mean, "before": [unchanged], "optimizer": full_step,
    "training": own_loop, "weighting": by_samples,
}  # fmt: skip


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("backend", ["autograd", "stacked"])
def test_a_plain_function_trains_as_the_built_in_component_does(kind: str, backend: str) -> None:
    if (kind, backend) == ("training", "stacked"):
        pytest.skip("the user's code trains one client at a time")
    built_in = ft.fedavg(weighting="samples" if kind == "weighting" else "equal")
    methods = [built_in, ft.Method(name="own", **{kind: FUNCTIONS[kind]})]
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 7, "workers": 0, "backend": backend}
    *_, last = ft.simulate(methods, FED, MODEL, **settings)
    torch.testing.assert_close(last.state.shared["own"], last.state.shared["fedavg"], rtol=1e-4, atol=1e-6)


def test_plain_functions_keep_the_contract() -> None:
    """Resumed, with workers and deployed, as "module:function" of a spec."""
    ft.testing.check_method(ft.Method(name="own", objective=plain_mean, aggregator=mean_model))


@pytest.mark.parametrize(
    ("kind", "function", "problem"),
    [
        ("aggregator", lambda models: models.mean(), "returned shape () as the aggregated model"),
        ("weighting", lambda round: torch.ones(1), "returned shape (1,) as weights"),
        ("before", lambda models: models[:2], "returned 2 models for 4; a function gives one for each"),
        ("training", lambda model, batches: None, "returned NoneType as model; expected an nn.Module"),
    ],
)
def test_what_a_function_returns_wrongly_is_one_line(kind: str, function: Any, problem: str) -> None:
    method = ft.Method(name="own", **{kind: function})
    with pytest.raises(InputError) as error:
        list(ft.simulate([method], FED, MODEL, rounds=1, participation=1.0, epochs=1, workers=0))
    assert problem in str(error.value)
    assert "test_own_methods" in str(error.value)
    assert "\n" not in str(error.value)


def test_training_that_ignores_the_optimiser_of_the_run_is_rejected() -> None:
    def loop(model: nn.Module, batches: ClientBatches) -> nn.Module:
        return model

    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "workers": 0}
    method = ft.Method(name="own", training=loop)
    list(ft.simulate([method], FED, MODEL, **settings))
    with pytest.raises(InputError, match=r"never calls batches.stepper, so the optimiser .* \(adam\)"):
        list(ft.simulate([method], FED, MODEL, **settings, optimizer="adam"))


@dataclass(frozen=True)
class Remembers(Aggregator):
    """The mean, and the number of rounds that it has seen."""

    needs_losses: ClassVar[bool] = False

    def init(self, parameters: Tensor, population: int) -> Slot:
        return {"rounds": torch.zeros(1)}

    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        assert {*slot} == {"rounds"}  # its own slot alone
        return models.mean(0), {"rounds": slot["rounds"] + 1}


def test_a_component_sees_its_own_slot_alone() -> None:
    method = ft.methods.scaffold(aggregator=Remembers(), optimizer="adam", name="own")
    *_, last = ft.simulate([method], FED, MODEL, rounds=3, participation=1.0, epochs=1, workers=0)
    server = last.state.server["own"]
    assert float(server.slot("aggregator")["rounds"]) == 3.0
    assert float(server.slot("correction")["control"].norm()) > 0
    assert float(server.slot("optimizer")["momentum"].norm()) > 0


@dataclass(frozen=True)
class OneTensorTwice(Training):
    """A slot of two names for the same tensor, which safetensors does not write."""

    def init_server(self, model: nn.Module, population: int) -> Slot:
        return {"first": torch.zeros(2), "second": torch.zeros(2)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(model)

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        both = slot["first"] + 1
        return {"first": both, "second": both}


def test_one_tensor_under_two_names_is_checkpointed(tmp_path: Path) -> None:
    method = ft.Method(name="own", training=OneTensorTwice())
    saved = RunFolder(tmp_path)
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "workers": 0}
    *_, last = ft.simulate([method], FED, MODEL, **settings, client_states=saved.client_states)
    saved.checkpoint(last.state)
    server = RunFolder(tmp_path).latest().server["own"]
    assert [tensor.tolist() for tensor in server.slot("training").values()] == [[2.0, 2.0]] * 2


@dataclass(frozen=True)
class Doubles(Remembers):
    """The same with as many zeros as SCAFFOLD's control has, of a type of their own."""

    def init(self, parameters: Tensor, population: int) -> Slot:
        return {"zeros": torch.zeros(len(parameters), dtype=torch.float64)}

    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        return models.mean(0), dict(slot)


@pytest.mark.parametrize("first", [True, False])
def test_equal_values_of_other_types_in_another_method_change_no_type(first: bool) -> None:
    methods = [ft.fedavg(aggregator=Doubles(), name="own"), ft.methods.scaffold()]
    run = ft.simulate(methods if first else methods[::-1], FED, MODEL, rounds=2, participation=1.0, epochs=1, workers=0)
    *_, last = run
    assert last.state.server["own"].slot("aggregator")["zeros"].dtype == torch.float64
    assert last.state.server["scaffold"].slot("correction")["control"].dtype == torch.float32


@dataclass(frozen=True)
class SendsMuch(Training):
    """More than its model has."""

    def sends(self, model: nn.Module) -> Slot:
        return {"much": torch.zeros(100_000)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(model, sends={"much": torch.full((100_000,), float(batches.round))})

    def init_server(self, model: nn.Module, population: int) -> Slot:
        return {"sum": torch.zeros(1)}

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        return {"sum": slot["sum"] + sent["much"].mean()}


def test_workers_return_messages_that_are_larger_than_the_model() -> None:
    method = ft.Method(name="own", training=SendsMuch())
    *_, last = ft.simulate([method], FED, MODEL, rounds=2, participation=1.0, epochs=1, workers=2)
    assert last.state.server["own"].slot("training")["sum"].tolist() == [3.0]


def unweighted_objective(losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    return losses.mean()


def weighted_objective(losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    return (weights * losses).sum() / weights.sum()


def worst_half(losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    return losses.topk(-(-len(losses) // 2)).values.mean()


@pytest.mark.parametrize("objective", [unweighted_objective, worst_half])
def test_an_objective_that_counts_samples_of_weight_0_is_not_stacked(objective: Any) -> None:
    data = ft.data.load("digits")
    unequal = ft.Federation.build(data, clients=24, partition="dirichlet", alpha=0.3, seed=0)
    assert len({len(index) for index in unequal.train_index}) > 2
    settings = {"rounds": 1, "participation": 0.2, "epochs": 1, "workers": 0, "batch_size": 7}

    def shared(own: Any, backend: str, *others: ft.Method) -> Tensor:
        methods = [ft.fedavg(objective=own, name="own"), *others]
        *_, last = ft.simulate(methods, unequal, MODEL, backend=backend, **settings)
        return last.state.server["own"].parameters

    torch.testing.assert_close(shared(weighted_objective, "stacked"), shared(weighted_objective, "autograd"))
    with pytest.raises(InputError, match=f"{objective.__name__}' counts samples of weight 0, which fill a stack"):
        shared(objective, "stacked")
    assert torch.equal(shared(objective, "stacked", ft.fedavg()), shared(objective, "autograd"))


@dataclass(frozen=True)
class CountsRows(Training):
    def init_client(self, model: nn.Module) -> Slot:
        return {"rows": torch.zeros(2)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(own_loop(model, batches), slot={"rows": torch.tensor([len(batches.y), len(batches)]) * 1.0})


def test_a_client_update_is_given_all_samples_whatever_its_steps() -> None:
    method = ft.Method(name="own", training=CountsRows())
    *_, last = ft.simulate([method], FED, MODEL, rounds=1, participation=1.0, local_steps=1, workers=0)
    rows = [last.state.client_states.get(("own", n)).slot("training")["rows"].tolist() for n in range(FED.clients)]
    assert rows == [[len(index), 1] for index in FED.train_index]


def unweighted_training(model: nn.Module, batches: ClientBatches) -> nn.Module:
    step = batches.stepper(model.parameters())
    for x, y in batches:
        step(batches.loss(model(x), y).mean())
    return model


@pytest.mark.parametrize(
    ("components", "problem"),
    [
        ({"objective": unweighted_objective}, "ignores the weights that the samples have; count them by `weights`"),
        ({"training": unweighted_training}, "the samples have weights, which `for x, y in batches` does not give"),
    ],
    ids=["objective", "training"],
)
def test_weights_of_samples_are_not_ignored_in_silence(components: dict[str, Any], problem: str) -> None:
    data = FED.dataset
    weights = {"weight_train": torch.ones(len(data.y_train)), "weight_test": torch.ones(len(data.y_test))}
    weighted = replace(FED, dataset=replace(data, **weights))
    method = ft.Method(name="own", **components)
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "workers": 0}
    list(ft.simulate([method], FED, MODEL, **settings))
    with pytest.raises(InputError, match=problem):
        list(ft.simulate([method], weighted, MODEL, **settings))
