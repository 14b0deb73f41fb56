"""Components: how they are named, checked and written, and the slots in which they remember."""

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.config.setting_fields import setting
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.errors import InputError
from fedtilt.methods import (
    COMPONENTS,
    PRESETS,
    Aggregator,
    Before,
    Component,
    Correction,
    Local,
    Method,
    Moreau,
    Personal,
    Prepared,
    ServerOptimizer,
    ServerRound,
    ServerStep,
    Weighting,
    component_of,
)
from fedtilt.methods.aggregators import Krum, Median, Tilted
from fedtilt.methods.before import NNM, Bucketing, Clip
from fedtilt.methods.component import Slot, check_slot, check_tensor
from fedtilt.methods.corrections import FedDyn
from fedtilt.methods.objectives import PropFair
from fedtilt.methods.objectives import Tilted as TiltedLosses
from fedtilt.methods.server_optimizers import Adam, Sgd
from fedtilt.methods.weightings import Afl, ByLoss, BySamples
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState

BUILT_IN = [(kind, rule) for kind, known in COMPONENTS.items() for rule in known]
MODULE = '''
from dataclasses import dataclass

from fedtilt.config.setting_fields import setting
from fedtilt.methods import Aggregator


@dataclass(frozen=True)
class First(Aggregator):
    """The model of one client."""

    place: int = setting(0, "its place", ge=0)
    power: float = 2.0  # a plain field

    def aggregate(self, models, round, slot):
        return models[self.place], slot


def shrunk(models):
    return 0.9 * models.mean(0)


def function():
    pass
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with a component of the user."""
    name = f"own_components_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


# -- how components are named ----------------------------------------------------------------------------------------


def test_a_component_is_itself_a_name_or_a_table() -> None:
    krum = Krum(0.2)
    assert component_of("aggregator", krum) is krum
    assert component_of("aggregator", "median") == Median()
    assert component_of("aggregator", {"rule": "krum", "bad_share": 0.2}) == krum
    assert component_of("aggregator", {"rule": "tilted", "steps": [3, 0.5]}) == Tilted(steps=(3, 0.5))
    assert component_of("weighting", {"rule": "loss", "tilt": 2}) == ByLoss(2.0)
    assert component_of("correction", {"rule": "feddyn", "alpha": 0.5}) == FedDyn(0.5)
    assert component_of("optimizer", {"rule": "adam", "lr": 0.1}) == Adam(lr=0.1)


def test_a_table_may_leave_out_the_only_obvious_rule() -> None:
    assert component_of("personal", {"mu": 0.5, "start": "initial"}) == Personal(mu=0.5, start="initial")
    assert component_of("objective", {"tau": 1, "levels": ()}) == TiltedLosses(tau=1.0)
    assert component_of("local", ["head.*"]) == component_of("local", {"names": ["head.*"]}) == Local(("head.*",))


def test_a_method_takes_components_in_every_form() -> None:
    by_value = Method(
        name="m", objective=PropFair(4.0), personal=Moreau(2.0, 3), weighting=BySamples(), before=(Clip(0.5),),
        aggregator=Median(), optimizer=Sgd(lr=0.5),
    )  # fmt: skip
    by_name = Method(
        name="m", objective={"rule": "propfair", "utility": 4}, personal={"rule": "moreau", "mu": 2, "inner_steps": 3},
        weighting="samples", before={"rule": "clipping", "radius": 0.5}, aggregator="median",
        optimizer={"rule": "sgd", "lr": 0.5},
    )  # fmt: skip
    assert by_value == by_name
    assert hash(by_value) == hash(by_name)
    assert list(by_value.components()) == ["objective", "personal", "weighting", "aggregator", "optimizer", "before.0"]
    assert Method(name="m", before="nnm") == Method(name="m", before=[NNM()])


def test_a_component_of_the_user_is_named_by_its_module(own: str) -> None:
    made = component_of("aggregator", {"rule": f"{own}:First", "place": 1})
    assert isinstance(made, Aggregator)
    assert made.settings(all=True) == {"place": 1, "power": 2.0}
    assert made.label == f"{own}:First"
    assert component_of("aggregator", f"{own}:First") == dataclasses.replace(made, place=0)
    assert component_of("aggregator", made.to_table()) == made
    assert pickle.loads(pickle.dumps(made)) == made
    models = {n: ClientUpdate(torch.full((2,), float(n)), 1) for n in range(3)}
    state = server_update(Method(name="m", aggregator=made), ServerState(torch.zeros(2)), models, TrainSettings())
    assert state.state.parameters.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("aggregator", "best", "unknown aggregator 'best'; choose one of tilted, mean, median, geometric_median"),
        ("aggregator", {"rule": 3}, "unknown aggregator 3; choose one of tilted"),
        ("aggregator", {"bad_share": 0.1}, "aggregator needs rule; choose one of tilted"),
        ("training", "mooon", "unknown training 'mooon'; choose one of apfl, fedala"),
        ("aggregator", 3, "aggregator must be a name, a table, a component or a function, got 3"),
        ("aggregator", Krum, "aggregator must be a name, a table, a component or a function, got <class"),
        (
            "aggregator",
            max,
            "aggregator must be a name, a table, a component or a function, got <built-in",
        ),
        ("aggregator", {1: 2}, "aggregator must be a name, a table, a component or a function, got {1: 2}"),
        ("aggregator", BySamples(), "aggregator is 'samples', which is of kind 'weighting'; give it as weighting"),
        (
            "weighting",
            {"rule": "samples", "tilt": 1},
            "tilt = 1 of weighting is not a setting of 'samples', which has none",
        ),
        (
            "before",
            {"rule": "nnm", "size": 2},
            "size = 2 of before is not a setting of 'nnm', which has bad_share; leave",
        ),
        (
            "aggregator",
            {"rule": "krum", "bad_share": 0.7},
            "aggregator: krum: bad_share must be a number ≥ 0 and < 0.5",
        ),
        ("aggregator", {"rule": "krum", "bad_share": "a"}, "aggregator: krum: bad_share must be a number, got 'a'"),
        ("aggregator", {"rule": "krum", "bad_share": None}, "aggregator: krum: bad_share must be a number, got None"),
        ("personal", {"epochs": 1.5}, "personal: proximal: epochs must be a whole number ≥ 1, got 1.5"),
        (
            "personal",
            {"start": "end"},
            "personal: proximal: unknown start 'end'; choose one of last, initial, received",
        ),
        ("local", {"names": "last"}, "local: local is a list of patterns, such as ['last'], got 'last'"),
        ("local", [], "local: local names no parameters; give patterns such as ['last']"),
        ("local", {"first_epochs": 2, "trains": False}, "first_epochs = 2 has no effect with trains = False"),
        ("local", {"trains": 1}, "local: local: trains must be True or False, got 1"),
        ("objective", {"levels": [["ward"]]}, "objective: tilted: levels are pairs of groups, each once, and a tilt"),
        ("objective", {"levels": [["a", 1], ["a", 2]]}, "objective: tilted: levels are pairs of groups, each once"),
        (
            "aggregator",
            "no_such_module:Rule",
            "aggregator = 'no_such_module:Rule': there is no module 'no_such_module'",
        ),
        ("aggregator", "math:Rule", "aggregator = 'math:Rule': module 'math' has no function 'Rule'; check its name"),
        ("aggregator", "math:floor", "aggregator = 'math:floor' is not a class of Aggregator; make it a subclass"),
        ("aggregator", "fedtilt.methods:Personal", "'fedtilt.methods:Personal' is not a class of Aggregator"),
    ],
)
def test_what_is_no_component_is_one_line(kind: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        component_of(kind, value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError) as of_method:
        Method(name="mine", **{kind: [value] if kind == "before" else value})
    assert "method 'mine'" in str(of_method.value)


def test_a_wrong_setting_of_the_users_component_is_one_line(own: str) -> None:
    with pytest.raises(InputError, match="place must be a whole number ≥ 0, got -1") as error:
        component_of("aggregator", {"rule": f"{own}:First", "place": -1})
    assert f"{own}:First" in str(error.value)
    with pytest.raises(InputError, match=f"size = 1 of aggregator is not a setting of '{own}:First', which has place"):
        component_of("aggregator", {"rule": f"{own}:First", "size": 1})
    with pytest.raises(InputError, match=rf"the function function\(\) \(.*{own}.py\), which must take \(models\) or"):
        component_of("aggregator", f"{own}:function")
    with pytest.raises(InputError, match="is not a class of Aggregator.*, or give a function without settings"):
        component_of("aggregator", {"rule": f"{own}:shrunk", "share": 0.1})


def test_a_function_of_the_user_is_a_component(own: str) -> None:
    made = component_of("aggregator", f"{own}:shrunk")
    assert made.to_table() == {"rule": f"{own}:shrunk"}
    assert component_of("aggregator", made.function) == component_of("aggregator", made.to_table()) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert not made.takes_weights
    assert component_of("aggregator", lambda models, round: models[0]).takes_weights


# -- how they are written --------------------------------------------------------------------------------------------


def other_value(field: dataclasses.Field[Any]) -> Any:
    """A value of a setting that is not its default."""
    by_name = {"levels": (("class", 2.0),), "names": ("head.*",), "steps": (3, 0.5), "distance": "l2"}
    if field.name in by_name:
        return by_name[field.name]
    if field.metadata["choices"]:
        return field.metadata["choices"][1]
    if isinstance(field.default, bool):
        return not field.default
    if field.default is None:
        return field.metadata["example"]
    return field.default + 1 if isinstance(field.default, int) else field.default / 2 + 0.125


@pytest.mark.parametrize(("kind", "rule"), BUILT_IN)
def test_every_built_in_component_is_its_table(kind: str, rule: str) -> None:
    cls = COMPONENTS[kind][rule]
    plain = cls()
    assert (plain.kind, plain.label, plain.to_table()) == (kind, rule, {"rule": rule})
    for made in [plain, *(cls(**{field.name: other_value(field)}) for field in dataclasses.fields(cls))]:
        assert component_of(kind, made.to_table()) == made
        assert pickle.loads(pickle.dumps(made)) == made
        assert made.with_settings(**made.settings()) == made
    for field in dataclasses.fields(cls):
        assert field.metadata["meaning"]
        assert cls(**{field.name: other_value(field)}).to_table() == {"rule": rule, field.name: other_value(field)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.rule = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_its_table(name: str) -> None:
    needed = {"fedtilt": {"tau": 2, "lam": -1}, "term": {"t": 1.5}}
    method = PRESETS[name](**needed.get(name, {}))
    assert Method(name=name, **method.to_table()) == method
    assert "name" not in method.to_table()


def test_a_table_has_what_differs_from_the_default() -> None:
    assert ft.fedavg().to_table() == {}
    method = ft.ditto(0.5, before=[NNM(0.2), "clipping"], aggregator=Krum(0.2), lr=0.1)
    assert method.to_table() == {
        "personal": {"rule": "proximal", "mu": 0.5},
        "lr": 0.1,
        "before": [{"rule": "nnm", "bad_share": 0.2}, {"rule": "clipping"}],
        "aggregator": {"rule": "krum", "bad_share": 0.2},
    }


# -- settings of a method --------------------------------------------------------------------------------------------


def test_settings_are_those_of_the_preset_and_of_every_component() -> None:
    settings = ft.fedtilt(tau=2, lam=-1, before=[NNM(0.2)], aggregator=Krum(0.1)).settings()
    assert (settings["tau"], settings["lam"], settings["mu"], settings["lr"]) == (2, -1, 0.01, None)
    assert (settings["before.0.bad_share"], settings["aggregator.bad_share"]) == (0.2, 0.1)
    assert (settings["objective.tau"], settings["personal.mu"], settings["personal.start"]) == (2.0, 0.01, "last")
    assert "name" not in settings
    assert "mu" not in Method(name="m", personal=Personal()).settings()


def test_with_settings_changes_parameters_and_components() -> None:
    method = ft.fedtilt(tau=2, lam=-1, aggregator=Krum(0.1), before=[NNM(0.2), Bucketing(2)], name="m")
    changed = method.with_settings({"tau": 5, "aggregator.bad_share": 0.3, "before.1.size": 3, "lr": 0.5})
    assert changed == ft.fedtilt(tau=5, lam=-1, aggregator=Krum(0.3), before=[NNM(0.2), Bucketing(3)], lr=0.5, name="m")
    assert method == ft.fedtilt(tau=2, lam=-1, aggregator=Krum(0.1), before=[NNM(0.2), Bucketing(2)], name="m")
    assert method.with_settings({}) == method
    assert method.with_settings({"aggregator": "median"}).aggregator == Median()
    assert (
        ft.ditto(0.1).with_settings({"personal.mu": 0.5}) == ft.ditto(0.5) == ft.ditto(0.1).with_settings({"mu": 0.5})
    )
    assert method.with_settings(method.settings()) == method


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregator.bad_share": 0.1}, "aggregator.bad_share = 0.1 is not a setting of method 'ditto', which has mu"),
        ({"nothing": 1}, "nothing = 1 is not a setting of method 'ditto', which has mu, lr_personal"),
        ({"correction.alpha": 1}, "correction.alpha = 1 is not a setting of method 'ditto'"),
        ({"before.0.size": 1}, "before.0.size = 1 is not a setting of method 'ditto'"),
        ({"name": "x"}, "name = 'x' is not a setting of method 'ditto'"),
        ({"mu": -1}, "method 'ditto': proximal: mu must be a number ≥ 0, got -1"),
        ({"personal.mu": -1}, "proximal: mu must be a number ≥ 0, got -1"),
        ({"lr": 0}, "lr of method 'ditto' must be a number > 0, got 0"),
    ],
)
def test_settings_that_a_method_has_not_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        ft.ditto().with_settings(settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_preset_remembers_how_it_was_made() -> None:
    origin = ft.ditto(0.5, lr_personal=0.1, aggregator="median", name="mine").origin
    assert origin is not None
    assert origin.preset is ft.ditto
    assert origin.arguments == {
        "mu": 0.5, "lr_personal": 0.1, "epochs_personal": None, "personal_start": "last", "aggregator": "median",
    }  # fmt: skip
    assert ft.fedprox(0.5).origin.preset(**ft.fedprox(0.5).origin.arguments) == ft.fedprox(0.5)
    assert Method(name="m").origin is None
    assert pickle.loads(pickle.dumps(ft.ditto(0.5))).origin.arguments == ft.ditto(0.5).origin.arguments
    assert ft.ditto(0.5).with_settings({"mu": 2.0}).origin.arguments["mu"] == 2.0
    renamed = dataclasses.replace(ft.ditto(0.5), name="other")
    assert renamed.with_settings({"mu": 2.0}) == ft.ditto(2.0, name="other")


def test_a_changed_method_is_not_the_one_that_the_preset_made() -> None:
    """Its preset would make the old parts again."""
    changed = dataclasses.replace(ft.ditto(0.5), aggregator=Krum(0.2))
    assert changed.origin is None
    assert changed.with_settings({"personal.mu": 2.0}) == ft.ditto(2.0, aggregator=Krum(0.2))
    with pytest.raises(InputError, match="mu = 2.0 is not a setting of method 'ditto', which has lr"):
        changed.with_settings({"mu": 2.0})
    assert dataclasses.replace(ft.ditto(0.5), personal=Personal(2.0)).settings()["personal.mu"] == 2.0


# -- slots -----------------------------------------------------------------------------------------------------------


def test_a_slot_has_what_one_component_remembers() -> None:
    state = ServerState(torch.ones(2), slots={"correction": {"control": torch.zeros(2)}, "corrections": {}})
    assert list(state.slot("correction")) == ["control"]
    assert state.slot("weighting") == {}
    changed = state.with_slots({"correction": {"other": torch.ones(3)}})
    assert list(changed.to_tensors()) == ["parameters", "correction.other"]
    assert changed.parameters is state.parameters
    assert list(state.to_tensors()) == ["parameters", "correction.control"]  # which is as it was
    assert list(changed.without_slot("correction").to_tensors()) == ["parameters"]


def test_a_state_is_what_its_tensors_in_a_file_are() -> None:
    """Names of slots end at the first dot, but for the steps before the aggregator; names of tensors may have dots."""
    slots = {"before.1": {"x": torch.ones(1)}, "before.10": {"x": torch.zeros(1)}, "training": {"0.a.b": torch.ones(2)}}
    server = ServerState(torch.ones(2), torch.zeros(3), slots=slots)
    client = ClientState(personal=torch.ones(2), slots={"audit": {"p": torch.zeros(2, 3)}})
    for state in (server, client, ClientState()):
        tensors = state.to_tensors()
        again = type(state).from_tensors(tensors)
        assert {slot: [*found] for slot, found in again.slots.items()} == {
            s: [*found] for s, found in state.slots.items()
        }
        assert again.to_tensors().keys() == tensors.keys()
        assert all(again.to_tensors()[name] is tensor for name, tensor in tensors.items())
    assert list(server.to_tensors()) == ["parameters", "buffers", "before.1.x", "before.10.x", "training.0.a.b"]
    assert ClientState().is_empty
    assert not client.is_empty
    with pytest.raises(ValueError, match="'momentum' is no part of a state"):
        ServerState.from_tensors({"parameters": torch.ones(1), "momentum": torch.ones(1)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        server.parameters = torch.zeros(2)  # type: ignore[misc]


class Counting:
    """Counts its rounds in its slot, and writes down which names it was given."""

    seen: ClassVar[dict[str, list[list[str]]]] = {}

    def count(self, slot: Slot) -> Slot:
        self.seen.setdefault(type(self).__name__, []).append(sorted(slot))
        return {"count": slot["count"] + 1}


def zero() -> dict[str, Tensor]:
    return {"count": torch.zeros(1)}


@dataclass(frozen=True)
class CountingWeighting(Counting, Weighting):
    def init(self, population: int) -> Slot:
        return zero()

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        return torch.ones(len(round.clients)), self.count(slot)


@dataclass(frozen=True)
class CountingStep(Counting, Before):
    takes_weights: ClassVar[bool] = True

    def init(self, parameters: Tensor, population: int) -> Slot:
        return zero()

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        return Prepared(models, None, self.count(slot))


@dataclass(frozen=True)
class CountingRule(Counting, Aggregator):
    takes_weights: ClassVar[bool] = True
    result: str = setting("right", "what it returns")

    def init(self, parameters: Tensor, population: int) -> Slot:
        return zero()

    def aggregate(self, models: Tensor, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        mean, after = models.mean(0), self.count(slot)
        wrong: dict[str, tuple[Any, Any]] = {
            "right": (mean, after),
            "shape": (mean[:1], after),
            "type": (mean.double(), after),
            "nan": (mean * torch.nan, after),
            "number": (1.0, after),
            "no slot": (mean, None),
            "no name": (mean, {}),
            "another's slot": (mean, {**after, "optimizer.count": after["count"]}),
            "slot's shape": (mean, {"count": torch.zeros(3)}),
            "slot's values": (mean, {"count": torch.full((1,), torch.inf)}),
        }
        return wrong[self.result]


@dataclass(frozen=True)
class CountingCorrection(Counting, Correction):
    server_vectors: ClassVar[tuple[str, ...]] = ("count",)

    def server_step(self, step: ServerStep) -> tuple[Tensor, Slot]:
        return step.aggregated, self.count(step.slot)


@dataclass(frozen=True)
class CountingOptimizer(Counting, ServerOptimizer):
    def init(self, parameters: Tensor) -> Slot:
        return zero()

    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        return aggregated, self.count(slot)


def counting(result: str = "right") -> Method:
    return Method(
        name="m", weighting=CountingWeighting(), before=[CountingStep(), Clip()], aggregator=CountingRule(result),
        correction=CountingCorrection(), optimizer=CountingOptimizer(),
    )  # fmt: skip


PARTS = Parts.plain(torch.zeros(2))
UPDATES = {n: ClientUpdate(torch.full((2,), 1.0 + n), 1) for n in range(3)}
SLOTS = {"weighting", "before.0", "aggregator", "correction", "optimizer"}


def test_every_component_of_the_server_keeps_its_own_slot_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "seen", {})
    method = counting()
    server = initial_server(method, PARTS, 3)
    assert server.to_tensors().keys() == {"parameters", *(f"{slot}.count" for slot in SLOTS)}
    for rounds in (1, 2):
        before = server.map(Tensor.clone).to_tensors()
        after = server_update(method, server, UPDATES, TrainSettings(screen=1e6)).state
        # a state is never changed in place
        assert all(torch.equal(tensor, before[name]) for name, tensor in server.to_tensors().items())
        server = after
        assert {slot: server.slot(slot)["count"].max().item() for slot in SLOTS} == dict.fromkeys(SLOTS, rounds)
    screening = {f"screening.{name}" for name in ("lengths", "agreement", "suspected")}
    assert server.to_tensors().keys() == {"parameters", *screening, *(f"{slot}.count" for slot in SLOTS)}
    assert len(Counting.seen) == len(SLOTS)
    assert all(names == [["count"]] * 2 for names in Counting.seen.values())  # nobody is given another's


def test_what_others_remember_is_neither_seen_nor_restored() -> None:
    """Screening and the audit come before the components of a round, and the optimiser after them."""
    settings = TrainSettings(screen=1e6, audit=True, server_optimizer="adam")
    method = ft.Method(name="m", weighting=Afl(0.5), correction="scaffold")
    sent = {"correction": {"control": torch.ones(2)}}
    updates = {n: update._replace(declared={"loss": 1.0 + n}, sent=sent) for n, update in UPDATES.items()}
    server = initial_server(method, PARTS, 3)
    for rounds in (1, 2, 3):
        server = server_update(method, server, updates, settings, round=rounds).state
        assert len(server.slot("screening")["lengths"]) == rounds
        assert len(server.slot("audit")["distances"]) == 3 * rounds
        torch.testing.assert_close(server.slot("correction")["control"], torch.full((2,), float(rounds)))
    weights = server.slot("weighting")["weights"]
    assert weights.sum().item() == pytest.approx(1.0)
    assert weights[2] > weights[1] > weights[0] or weights[2] == 1
    assert server.to_tensors().keys() == {
        "parameters", "weighting.weights", "correction.control", "optimizer.momentum", "optimizer.second_moment",
        "screening.lengths", "screening.agreement", "screening.suspected", "audit.distances",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("shape", "returned shape (1,) as the aggregated model; expected finite numbers of shape (2,), torch.float32"),
        ("type", "returned type torch.float64 as the aggregated model; expected finite numbers of shape (2,)"),
        ("nan", "returned values that are not finite as the aggregated model"),
        ("number", "returned float, not a tensor as the aggregated model"),
        ("no slot", "returned NoneType as the slot of the server; expected a dictionary of tensors"),
        ("no name", "returned nothing as the slot of the server; it declared 'count'"),
        ("another's slot", "returned 'count', 'optimizer.count' as the slot of the server; it declared 'count'"),
        ("slot's shape", "returned shape (3,) as 'count' of the slot of the server"),
        ("slot's values", "returned values that are not finite as 'count' of the slot of the server"),
    ],
)
def test_what_a_component_may_not_return_is_one_line(result: str, message: str) -> None:
    method = counting(result)
    with pytest.raises(InputError) as error:
        server_update(method, initial_server(method, PARTS, 3), UPDATES, TrainSettings())
    assert message in str(error.value)
    assert f"aggregator '{__name__}:CountingRule' ({__file__})" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "method_name"),
    [
        (lambda c: c(Aggregator).aggregate(torch.ones(1, 1), None, {}), "aggregate(models, round, slot)"),
        (lambda c: c(Before).apply(torch.ones(1, 1), None, {}), "apply(models, round, slot)"),
        (lambda c: c(Correction).drift({}, {}), "drift(server, client)"),
        (lambda c: c(ServerOptimizer).step(torch.ones(1), torch.ones(1), {}), "step(received, aggregated, slot)"),
        (
            lambda c: c(ft.methods.Objective)(torch.ones(1), torch.ones(1), torch.ones(1)),
            "__call__(losses, groups, weights)",
        ),
        (lambda c: c(ft.methods.Training).train(None, None, {}, {}), "train(model, batches, received, slot)"),
    ],
)
def test_a_component_without_its_function_says_which(call: Callable[..., object], method_name: str) -> None:
    def component(base: type[Component]) -> Any:
        return dataclass(frozen=True)(type("Empty", (base,), {"__module__": __name__}))()

    with pytest.raises(InputError) as error:
        call(component)
    assert f"'{__name__}:Empty' has no {method_name}; write one" in str(error.value)


def test_built_in_components_are_not_looked_at() -> None:
    """A look at the values would wait for a GPU; a component of the user is looked at."""
    bad, like = torch.tensor([torch.nan]), torch.zeros(1)
    assert check_tensor(Median(), "model", bad, like) is bad
    assert check_slot(Afl(), "its slot", {"weights": bad}, {"weights": like})["weights"] is bad
    with pytest.raises(InputError, match="not finite"):
        check_tensor(CountingRule(), "model", bad, like)
    with pytest.raises(InputError, match="returned 'other' as its slot; it declared 'weights'"):
        check_slot(Afl(), "its slot", {"other": bad}, {"weights": like})
