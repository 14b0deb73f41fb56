"""Keys without effect: refused where the user gives them, left out of built-in specs."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import spec
from fedtilt.errors import InputError
from fedtilt.flower.deploy.project import write_project
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import federation_of
from fedtilt.spec.fields import TABLES
from fedtilt.spec.table_spec import table_spec
from fedtilt.tuning.tune import tune_spec

TINY = [
    "train.rounds=1", "train.epochs=1", "train.workers=0", "clients.count=4", "clients.max_train=8", "device=cpu",
    "model.hidden=[4]",
]  # fmt: skip
UNUSED = [
    (["clients.alpha=2"], "clients.alpha = 2.0 has no effect here; set clients.partition = 'dirichlet'"),
    (["clients.partition=iid", "clients.classes_per_client=3"], "clients.classes_per_client = 3 has no effect here"),
    (["outliers.kind=none", "clients.validation_outliers=true"], "clients.validation_outliers = True has no effect"),
    (["outliers.kind=none", "outliers.rate=0.1"], "outliers.rate = 0.1 has no effect here; set outliers.kind = "),
    (["outliers.kind=none", "outliers.strength=0.1"], "outliers.strength = 0.1 has no effect here"),
    (["outliers.kind=none", "outliers.clients=0.5"], "outliers.clients = 0.5 has no effect here"),
    (["outliers.kind=none", "outliers.redraw=once"], "outliers.redraw = 'once' has no effect here"),
    (["outliers.kind=none", "outliers.flip_to=any"], "outliers.flip_to = 'any' has no effect here; set outliers.kind"),
    (["outliers.kind=gaussian", "outliers.pairs.3=5"], "outliers.pairs = {'3': '5'} has no effect here"),
    (["model.channels=[8]"], "model.channels = [8] has no effect here; set model.name = 'cnn', or leave it out"),
    (["model.name=cnn", "model.hidden=[8]"], "model.hidden = [8] has no effect here; set model.name = 'mlp'"),
    (["model.name=a:b", "model.hidden=[8]"], "model.hidden = [8] has no effect here"),
    (["data.leaf=a", "data.name=mnist"], "data.name = 'mnist' has no effect here; leave out data.leaf or data.name"),
]


@pytest.mark.parametrize(("overrides", "message"), UNUSED, ids=[" ".join(case[0]) for case in UNUSED])
def test_a_key_without_effect_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        spec.load("digits", overrides=overrides)
    assert str(error.value).startswith(message)


DEFAULTS = [  # in a file beside one of them, without effect
    ("clients.alpha=0.5", "", "clients.alpha = 0.5 has no effect here; set clients.partition = 'dirichlet'"),
    ("model.channels=[32, 64, 128]", "", "model.channels = [32, 64, 128] has no effect here; set model.name = 'cnn'"),
    ("model.arguments={}", "", "model.arguments = {} has no effect here; leave it out"),
    ("outliers.redraw=round", "", "outliers.redraw = 'round' has no effect here; set outliers.kind = "),
    (
        "data.name=digits",
        "data.file=a.csv data.target=y",
        "data.name = 'digits' has no effect here; leave out data.file or data.name",
    ),
    (
        "data.name=digits",
        "data.images=a",
        "data.name = 'digits' has no effect here; leave out data.images or data.name",
    ),
    ("data.folder=sets", "", "data.folder = '"),
    ("data.folder=sets", "data.file=a.csv data.target=y", "data.folder = '"),
    ("data.drop=[]", "data.images=a", "data.drop = () has no effect here; leave it out"),
    ("data.group_is_input=true", "data.file=a.csv data.target=y", "data.group_is_input = True has no effect here"),
    ("train.momentum=0.0", "train.optimizer=adam", "train.momentum = 0.0 has no effect here; leave it out"),
    ("train.cluster_timeout=600.0", "", "train.cluster_timeout = 600.0 has no effect here; leave it out"),
    ("attack.from_round=1", "", "attack.from_round = 1 has no effect here; leave it out"),
]


@pytest.mark.parametrize(("unused", "beside", "message"), DEFAULTS, ids=[" ".join(case[:2]) for case in DEFAULTS])
def test_a_key_without_effect_is_refused_with_its_default_too(
    unused: str, beside: str, message: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[methods]]\npreset = "fedavg"\n')
    spec.load(own, overrides=beside.split())
    with pytest.raises(InputError) as error:
        spec.load(own, overrides=[*beside.split(), unused])
    assert str(error.value).startswith(message)


def _given(text: str) -> dict[str, object]:
    raw = tomllib.loads(text)
    return {f"{name}.{key}": value for name in TABLES for key, value in raw.get(name, {}).items()}


def test_written_specs_have_only_keys_with_effect(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "age,site,sex,ill\n" + "".join(f"{i},{'ab'[i % 2]},{'fm'[i % 3 % 2]},{i // 7 % 2}\n" for i in range(80))
    )
    with_clients = table_spec(tmp_path / "a.toml", table, target="ill", client="site")
    without = table_spec(tmp_path / "b.toml", table, target="ill", drop=["site"])
    grouped = table_spec(tmp_path / "c.toml", table, target="ill", client="site", group=["sex"])
    images = spec.parse({"name": "d", "data": {"images": "photos"}, "methods": [{"preset": "fedavg"}]})
    write_project(tmp_path / "project", 3)
    sites = spec.load(tmp_path / "project" / "spec.toml")
    for written in (with_clients, without, grouped, images, sites, *map(spec.load, ("digits", "toy", "mnist", "cgd"))):
        for write in (spec.dump, lambda s: spec.starter("x.toml", s), lambda s: spec.annotated("x.toml", s)):
            path = tmp_path / "written.toml"
            path.write_text(write(written))
            assert replace(spec.load(path), name="") == replace(
                written, name="", data=spec.load(path).data, methods=spec.load(path).methods
            )
            assert [m.to_method() for m in spec.load(path).methods] == [m.to_method() for m in written.methods]
    given = _given(spec.dump(with_clients))
    assert not {"data.name", "data.folder", "clients.count", "clients.alpha", "model.arguments"} & set(given)
    assert not {"attack.clients", "train.cluster_timeout", "clients.classes_per_client"} & set(given)
    assert _given(spec.dump(without))["clients.count"] == 3
    assert "data.drop" not in _given(spec.dump(images))


def test_a_count_beside_the_data_s_own_clients_must_be_theirs(tmp_path: Path) -> None:
    for count in (100, 5):
        with pytest.raises(InputError, match=f"clients = {count} differs from the 2 clients that 'toy-1' has"):
            federation_of(spec.load("toy", overrides=[f"clients.count={count}"]), 0)
    assert federation_of(spec.load("toy", overrides=["clients.count=2"]), 0).clients == 2
    with pytest.raises(InputError, match="classes_per_client = 2 has no effect here"):
        federation_of(spec.load("toy", overrides=["clients.partition=", "clients.classes_per_client=2"]), 0)


def test_the_spec_of_an_earlier_run_may_have_defaults_without_effect(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[clients]\nalpha = 0.5\n[[methods]]\npreset = "fedavg"\n')
    assert spec.load(own, of_run=True).clients.alpha == 0.5
    with pytest.raises(InputError, match="clients.alpha"):
        spec.load(own)


def test_keys_of_a_built_in_spec_are_left_out_where_they_lose_their_effect(tmp_path: Path) -> None:
    assert spec.load("digits", overrides=["model.name=cnn"]).model.hidden == (200, 200)
    own = tmp_path / "own.toml"
    own.write_text(spec.annotated(str(own)))
    assert spec.load(own).model.hidden == (64, 64)
    message = r"model.hidden = \[64, 64\] has no effect here; set model.name = 'mlp', or leave it out"
    with pytest.raises(InputError, match=f"{message}: --set model.hidden=$"):
        spec.load(own, overrides=["model.name=cnn"])
    own.write_text(own.read_text().replace("epochs = 10", "epochs = 3"))
    with pytest.raises(InputError, match="epochs = 3 has no effect here; .*: --set train.epochs=$"):
        spec.load(own, overrides=["train.local_steps=3"])
    assert spec.load(own, overrides=["model.name=cnn", "model.hidden="]).model.name == "cnn"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["clients.count=5"], "clients = 5 differs from the 2 clients that 'toy-1' has of its own; leave it out"),
        (["clients.partition=", "clients.classes_per_client=1"], "clients.classes_per_client = 1 has no effect here"),
        (["train.buffers=average"], "buffers = 'average' has no effect here: the model has no buffers that change"),
        (
            ["methods.fedavg.before=['bucketing']"],
            "bucketing before the rule of method 'fedavg' has no effect: the mean of buckets of the same size",
        ),
        (
            ["outliers.kind=flips", "clients.validation_outliers=true"],
            "clients.validation_outliers = True has no effect here; set validation, or leave it out",
        ),
    ],
)
def test_a_key_without_effect_on_the_data_is_refused_before_the_run(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    loaded = spec.load("toy", overrides=["device=cpu", *overrides], methods=["fedavg"])
    with pytest.raises(InputError) as error:
        run_spec(loaded, tmp_path / "run")
    assert str(error.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_the_model_and_the_clients_of_a_toy_are_those_of_the_spec(tmp_path: Path) -> None:
    hidden = ["model.name=mlp", "model.hidden=[7]", "clients.partition=iid", "clients.count=5"]
    small = ["device=cpu", "train.rounds=1", "train.workers=0"]
    result = run_spec(spec.load("toy", overrides=[*small, *hidden], methods=["fedavg"]), tmp_path / "run")[0]
    shapes = [tuple(p.shape) for p in result["fedavg"].shared.parameters()]
    assert shapes == [(7, 2), (7,), (2, 7), (2,)]
    assert len(result["fedavg"].predictions.groupings["client"].names) == 5


def test_a_search_draws_validation_data_and_refuses_other_keys_without_effect(tmp_path: Path) -> None:
    noisy = spec.load("digits", overrides=[*TINY, "clients.validation_outliers=true"])
    assert tune_spec(noisy, tmp_path / "search", over={"lam": [-1, 0]}).setting
    with pytest.raises(InputError, match="buffers = 'frozen' has no effect here"):
        tune_spec(spec.load("digits", overrides=[*TINY, "train.buffers=frozen"]), tmp_path / "x", over={"lam": [-1]})


def test_python_refuses_settings_without_effect() -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"))
    for settings, method, message in (
        ({"buffers": "frozen"}, ft.fedavg(), "buffers = 'frozen' has no effect here"),
        ({"checkpoint_seconds": 0}, ft.fedavg(), "checkpoint_seconds = 0 has no effect here; set out, or leave it out"),
        ({}, ft.fedavg(aggregator="mean", before=["clipping", "bucketing"]), "bucketing before the rule of method"),
    ):
        with pytest.raises(InputError, match=message):
            ft.run([method], federation, ft.models.logistic, rounds=1, participation=1.0, device="cpu", **settings)
    uneven = ft.Federation.from_clients([(torch.randn(8, 2), [0, 1] * 4)] * 3)
    bucketing = ft.fedavg(before=["bucketing"])
    ft.run([bucketing], uneven, ft.models.logistic, rounds=1, participation=1.0, epochs=1, device="cpu", workers=0)
