"""The parts of a model: BatchNorm, frozen backbones, LoRA and local parts against loops written with PyTorch alone."""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import fedtilt as ft
from fedtilt.engine.settings import TrainSettings
from fedtilt.models import copy_with_parameters, parameters_to_vector, trained_parameters
from fedtilt.parts import Parts, buffers_to_vector, changing_buffers, match_names
from tests.helpers import plain_loop
from tests.helpers.plain_loop import last_round

FED = plain_loop.federation(clients=3)
RECIPE = {"rounds": 3, "epochs": 1, "lr": 0.05, "momentum": 0.9}
make_sgd = partial(SGD, lr=0.05, momentum=0.9)
STATISTICS = ("2.running_mean", "2.running_var", "2.num_batches_tracked")


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def correct_by_class(net: nn.Module, client: int) -> Tensor:
    x, y = FED.test(client)
    with torch.no_grad():
        return torch.bincount(y[net.eval()(x).argmax(1) == y], minlength=10)


@pytest.mark.parametrize("mode", ["local", "average", "frozen"])
def test_batch_norm_is_an_independent_loop(mode: str) -> None:
    last = last_round([ft.fedavg(), ft.ditto(0.1)], FED, with_batch_norm, buffers=mode, **RECIPE)
    net = plain_loop.initial(FED, with_batch_norm)
    if mode == "frozen":  # a model whose statistics were trained elsewhere would use them; here they are 0 and 1
        assert net[2].running_mean.tolist() == [0.0] * 12
    shared = net.state_dict()
    statistics = {n: {key: shared[key].clone() for key in STATISTICS} for n in range(3)}
    personal: dict[int, nn.Module] = {}
    for number in (1, 2, 3):
        trained = []
        anchor_net = copy.deepcopy(net)
        for client in range(3):
            own = copy.deepcopy(net)
            own.load_state_dict({**shared, **statistics[client]})
            anchor_net.load_state_dict(own.state_dict())
            v = personal.setdefault(client, copy.deepcopy(own))
            for model, prox in ((own, 0.0), (v, 0.1)):
                model.train()
                if mode == "frozen":
                    model[2].eval()
                plain_loop.train(
                    model, plain_loop.batches(FED, client, number, 1), make_sgd, prox=prox,
                    anchor=[p.detach() for p in anchor_net.parameters()],
                )  # fmt: skip
            trained.append(copy.deepcopy(own.state_dict()))
        shared = plain_loop.mean(trained)
        for client in range(3):
            source = shared if mode == "average" else trained[client]
            statistics[client] = {key: source[key] for key in STATISTICS}
    for client in range(3):
        net.load_state_dict({**shared, **statistics[client]})
        close(last.state.shared["fedavg"], parameters_to_vector(net))
        kept = last.state.client_states.get(("fedavg", client))
        assert set(kept.to_tensors()) == ({"buffers"} if mode == "local" else set())
        if mode == "local":
            close(kept.buffers, buffers_to_vector(net, STATISTICS))
        if mode == "average":
            close(last.state.server["fedavg"].buffers, buffers_to_vector(net, STATISTICS))
        assert torch.equal(last.counts["fedavg"].shared[client], correct_by_class(net, client))
        close(last.state.client_states.get(("ditto", client)).personal, parameters_to_vector(personal[client]))
        expected = correct_by_class(personal[client], client)
        assert torch.equal(last.counts["ditto"].personal[client], expected)
        exported = last.model("ditto", client)
        for key, value in personal[client].state_dict().items():
            close(exported.state_dict()[key].float(), value.float())
            assert exported.state_dict()[key].dtype == value.dtype
    if mode == "frozen":
        assert torch.equal(buffers_to_vector(exported, STATISTICS), buffers_to_vector(with_batch_norm(), STATISTICS))


class WithBackbone(nn.Module):
    """A frozen backbone, as if it was trained elsewhere, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "lr": 0.01, "momentum": 0.0}])
def test_a_frozen_backbone_is_training_the_head_alone(settings: dict) -> None:
    net = plain_loop.initial(FED, WithBackbone)
    methods = [ft.fedavg(), ft.ditto(0.1)]
    last = last_round(methods, FED, net, **(RECIPE | settings))
    data = FED.dataset
    with torch.no_grad():
        features = [net.backbone(FED.model_input(x)) for x in (data.x_train, data.x_test)]
    on_features = dataclasses.replace(
        FED, dataset=dataclasses.replace(data, x_train=features[0], x_test=features[1], image=False)
    )
    alone = last_round(methods, on_features, net.head, **(RECIPE | settings))
    for method in methods:
        close(last.state.shared[method.name], alone.state.shared[method.name])
    assert last.state.shared["fedavg"].shape == (20 * 10 + 10,)  # nothing else travels
    exported = last.model("ditto", 1)
    assert torch.equal(exported.backbone[1].weight, net.backbone[1].weight)
    close(parameters_to_vector(exported), last.state.client_states.get(("ditto", 1)).personal)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1)).tanh())


def with_lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["first"], modules_to_save=["second"])
    return peft.get_peft_model(Layers(), config)


def test_lora_is_a_low_rank_change_of_the_frozen_weight() -> None:
    """A model of peft as it comes, against W + 2 · B A written out, and against the merged model."""
    net = plain_loop.initial(FED, with_lora)
    last = last_round([ft.fedavg()], FED, net, **RECIPE)
    base = net.base_model.model
    frozen = base.first.base_layer.weight.detach(), base.first.base_layer.bias.detach()
    start = [p.detach().clone() for p in trained_parameters(net).values()]
    assert [tuple(p.shape) for p in start] == [(2, 64), (16, 2), (10, 16), (10,)]  # A, B, the new head
    shared = start
    for number in (1, 2, 3):
        trained = []
        for client in range(3):
            a, b, weight, bias = parameters = [p.clone().requires_grad_() for p in shared]
            optimizer = make_sgd(parameters)
            for x, y in plain_loop.batches(FED, client, number, 1):
                hidden = F.linear(x.flatten(1), frozen[0] + 2 * b @ a, frozen[1]).tanh()
                optimizer.zero_grad()
                F.cross_entropy(F.linear(hidden, weight, bias), y).backward()
                optimizer.step()
            trained.append([p.detach() for p in parameters])
        shared = [torch.stack(values).mean(0) for values in zip(*trained, strict=True)]
    close(last.state.shared["fedavg"], torch.cat([p.reshape(-1) for p in shared]))
    tuned = last.model("fedavg")
    x, _ = FED.test(0)
    with torch.no_grad():
        outputs = tuned(x)
        merged = copy.deepcopy(tuned).merge_and_unload()
        close(merged(x), outputs)
        close(merged.first.weight, frozen[0] + 2 * shared[1] @ shared[0])
        assert not torch.allclose(net(x), outputs)


def test_local_parts_stay_on_their_clients() -> None:
    """FedPer: the body is averaged, every client has a head of its own."""
    half = {"participation": 0.7, **RECIPE}  # two of three clients in a round
    last = last_round([ft.fedavg(), ft.ditto(0.1)], FED, Layers, local=["second"], **half)
    net = plain_loop.initial(FED, Layers)
    body = {key: value for key, value in net.state_dict().items() if key.startswith("first")}
    heads: dict[int, dict[str, Tensor]] = {}
    settings = TrainSettings(**half)
    initial_head = {key: value.clone() for key, value in net.state_dict().items() if key.startswith("second")}
    for number in (1, 2, 3):
        bodies = []
        for client in settings.selected(number, 3):
            own = copy.deepcopy(net)
            own.load_state_dict({**body, **heads.get(client, initial_head)})
            plain_loop.train(own, plain_loop.batches(FED, client, number, 1), make_sgd)
            state = own.state_dict()
            bodies.append({key: state[key] for key in body})
            heads[client] = {key: state[key] for key in initial_head}
        body = plain_loop.mean(bodies)
    close(last.state.shared["fedavg"], torch.cat([value.reshape(-1) for value in body.values()]))
    for client in range(3):
        net.load_state_dict({**body, **heads.get(client, initial_head)})
        assert torch.equal(last.counts["fedavg"].shared[client], correct_by_class(net, client))
        for key, value in last.model("fedavg", client).state_dict().items():
            close(value, net.state_dict()[key])
    for key, value in initial_head.items():
        assert torch.equal(last.model("fedavg").state_dict()[key], value)  # the shared model has the initial head


def test_models_are_returned_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    last = last_round([ft.ditto()], FED, net, rounds=1, epochs=1)
    assert not any(m.training for model in (last.model("ditto"), last.model("ditto", 0)) for m in model.modules())


class Counting(nn.Module):
    """A buffer of its own that counts the forward passes in training; the output depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        return self.head(x.flatten(1)) * self.scale


def test_any_buffer_that_forward_changes_is_kept() -> None:
    assert changing_buffers(Counting(), FED.input_shape) == ("passes", "scale")  # all of a layer that changes one
    last = last_round([ft.fedavg()], FED, Counting, **RECIPE)
    for client in range(3):
        assert last.model("fedavg", client).passes == 3 * 4  # rounds · steps
    spectral = lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))
    names = changing_buffers(spectral(), FED.input_shape)
    assert names == ("1.parametrizations.weight.0._u", "1.parametrizations.weight.0._v")
    last = last_round([ft.fedavg()], FED, spectral, **RECIPE)
    assert not torch.equal(*(last.state.client_states.get(("fedavg", n)).buffers for n in (0, 1)))


class Late(Counting):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 2:
            self.passes += 1
        return self.head(x.flatten(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_buffer_that_changes_now_and_then_is_refused(workers: int) -> None:
    with pytest.raises(ft.InputError, match="buffer 'passes' changed in training, but a forward pass of two samples"):
        last_round([ft.fedavg()], FED, Late, rounds=1, epochs=1, workers=workers)


def test_parts_have_names_shapes_and_digests() -> None:
    model = nn.Sequential(OrderedDict(body=with_batch_norm(), head=nn.Linear(10, 10)))
    model.body[1].requires_grad_(False)
    parts = Parts.of(model, FED.input_shape, local=["head.*"], buffers="average")
    assert parts.local_names == ("head.weight", "head.bias")
    assert parts.frozen_names == ("body.1.weight", "body.1.bias")
    assert list(parts.shared_shapes) == ["body.2.weight", "body.2.bias", "body.4.weight", "body.4.bias"]
    assert parts.shared_size == 12 + 12 + 120 + 10
    vector = torch.arange(float(sum(p.numel() for p in trained_parameters(model).values())))
    assert torch.equal(parts.merge(parts.shared(vector), parts.local(vector)), vector)
    assert set(parts.constants) == {*parts.frozen_names, *(f"body.{name}" for name in STATISTICS)}
    assert Parts.of(model, FED.input_shape).constants == parts.constants
    with torch.no_grad():
        model.body[2].running_mean += 1
    changed = Parts.of(model, FED.input_shape).constants
    assert [name for name in changed if changed[name] != parts.constants[name]] == ["body.2.running_mean"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [(["head"], "head.weight head.bias"), (["*.bias"], "body.bias head.bias"), (["body.*", "head.bias"], "body.weight "
     "body.bias head.bias"), (["head.weight"], "head.weight")],
)  # fmt: skip
def test_patterns_of_names(patterns: list[str], expected: str) -> None:
    assert match_names(patterns, ["body.weight", "body.bias", "head.weight", "head.bias"]) == tuple(expected.split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local": ["haed.*"]}, "local = 'haed.*' matches no trained parameter; they are first.weight, first.bi"),
        ({"local": "second"}, "local must be a list, got 'second'"),
        ({"buffers": "mean"}, "unknown buffers 'mean'; choose one of local, average, frozen"),
        ({"loss": ft.losses.CrossEntropy(class_weights=(1.0, 2.0))}, "class_weights has 2 values for 10 classes"),
        ({"loss": {"name": "focal", "class_weights": [1.0] * 9 + [0.0]}}, "class_weights must be a number > 0, got 0"),
        ({"loss": F.cross_entropy}, "the loss returns () for 2 samples; return one value per sample, as"),
        ({"loss": 5}, "loss must be a name, a table or an object, or a function"),
        ({"init": 5}, "init must be a safetensors file or an nn.Module, got 5"),
        ({"init": nn.Linear(2, 2)}, "init, a Linear, is of another model: it has 'weight', 'bias', and the model has"),
    ],
)  # fmt: skip
def test_bad_settings_of_parts_and_losses_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ft.InputError) as error:
        last_round([ft.fedavg()], FED, Layers, rounds=1, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_batch_of_one_is_refused_where_a_layer_normalises_over_the_batch() -> None:
    fed = ft.Federation.build(ft.data.load("digits"), clients=2, partition="iid", max_train=11)
    with pytest.raises(ft.InputError, match="client 0 has 11 samples and so a batch of one, over which layer '2'"):
        last_round([ft.fedavg()], fed, with_batch_norm, rounds=1, last_batch="keep")
    last_round([ft.fedavg()], fed, with_batch_norm, rounds=1, epochs=1)  # even batches of 6 and 5


def test_a_copy_shares_what_it_does_not_replace() -> None:
    net = WithBackbone()
    vector = parameters_to_vector(net)
    views: Callable = lambda: ft.models.vector_to_parameters(net, vector)
    copied = copy_with_parameters(net, views())
    assert copied.backbone[1].weight is net.backbone[1].weight
    assert copied.head.weight is not net.head.weight
    copied.head.bias.data.fill_(7.0)
    assert vector[-10:].tolist() == [7.0] * 10
    assert net.head.bias.abs().max() < 7


class TiedNet(nn.Module):
    def __init__(self, is_alias: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        if is_alias:
            self.other_name_of_head = self.head
        else:
            self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.first(x)))


def test_the_last_layer_has_parameters_of_its_own() -> None:
    """By its name alone, the last layer would be the middle one, whose parameters are the last in the model's list."""
    x, y = torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 8
    federation = ft.Federation.from_clients([((x, y), (x, y))] * 2)
    for method in (ft.methods.fedper(), ft.methods.moon()):
        with pytest.raises(
            ft.InputError, match=r"a last layer with parameters of its own; this model ties it to 'first.w"
        ):
            ft.run([method], federation, TiedNet(), rounds=1)
    named = Parts.of(TiedNet(), (8,), local=["first"])
    assert named.local_names == ("first.weight", "first.bias")
    assert Parts.of(TiedNet(is_alias=True), (8,), local=["last"]).local_names == ("head.weight",)
