"""The spec: round trips, overrides, and generated documents that are up to date."""

import importlib.util
import inspect
import math
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from fedtilt import spec
from fedtilt.config.setting_fields import allowed_values, default_of, settings_of
from fedtilt.data import Division, Federation, Outliers, load
from fedtilt.data.tables.settings import OF_TABLE
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import (
    COMPONENTS,
    PARTS,
    Local,
    Method,
    Personal,
    ditto,
    fedavg,
    fedprox,
    fedtilt,
    objectives,
    term,
)
from fedtilt.methods.aggregators import Krum, Median, Tilted
from fedtilt.methods.before import NNM, Clip
from fedtilt.methods.weightings import Afl
from fedtilt.spec.fields import TABLES
from fedtilt.spec.method import METHOD_FACTORIES, method_keys, preset_settings

SPEC_PAGE = importlib.util.module_from_spec(
    _found := importlib.util.spec_from_file_location("spec_page", Path(__file__).parents[2] / "docs/spec_page.py")
)
_found.loader.exec_module(SPEC_PAGE)
ONE = '[[methods]]\npreset = "fedavg"\n'
ALL_TABLES = {**TABLES, "methods": spec.MethodSpec, "": spec.Spec}


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


# Round trips and built-ins


@pytest.mark.parametrize("name", spec.builtin_names())
def test_a_built_in_spec_loads_and_survives_a_round_trip(name, file):
    loaded = spec.load(name)
    assert loaded.name == name
    assert [m.to_method().name for m in loaded.methods] == ["fedavg", "ditto", "fedtilt"]
    again = spec.load(file(spec.dump(loaded), "other.toml"))
    assert again == loaded


def test_the_paper_s_settings():
    for name, rounds, tau, lam, model in (
        ("mnist", 50, 50, 100, "mlp"),
        ("fashion-mnist", 50, 50, 100, "mlp"),
        ("cifar10", 500, 2, 1, "cnn"),
    ):
        loaded = spec.load(name)
        train, clients = loaded.train, loaded.clients
        assert (train.rounds, train.participation, train.epochs, train.batch_size, train.lr) == (
            rounds,
            0.1,
            10,
            10,
            0.01,
        )
        assert (clients.count, clients.classes_per_client, loaded.outliers.kind) == (100, 2, "none")
        assert loaded.model.name == model
        assert [m.to_method() for m in loaded.methods] == [fedavg(), ditto(0.01), fedtilt(tau=tau, lam=lam, mu=0.01)]


def test_every_example_in_the_comments_of_built_in_specs_loads():
    paths = sorted((Path(inspect.getfile(spec)).parent / "builtin").glob("*.toml"))
    assert [path.stem for path in paths] == spec.builtin_names()[: len(paths)]
    for path in paths:
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith("#   fedtilt run")]
        assert len(lines) >= 2
        for _, _, _, name, *words in lines:
            options = list(pairwise(words))
            overrides = [value for option, value in options if option == "--set"]
            methods = [value for option, value in options if option == "--method"]
            assert spec.load(name, overrides=overrides, methods=methods).name == path.stem


def test_unusual_values_survive_a_round_trip(file):
    raw = {
        "name": 'a "b"   ü 😀',
        "train": {"lr": 1e-17, "lr_personal": 0.1 + 0.2},
        "methods": [
            {
                "preset": "fedtilt",
                "tau": math.inf,
                "lam": -math.inf,
                "name": "x.y z",
                "aggregator": {"rule": "tilted", "q": -1e300, "steps": [5, 0.1]},
            },
            {
                "name": "mine",
                "prox": 5e-324,
                "aggregator": {"rule": "krum", "bad_share": 0.2},
                "local": ["last"],
                "before": ["clipping", {"rule": "nnm", "bad_share": 0.2}],
            },
        ],
    }
    loaded = spec.parse(raw)
    assert spec.load(file(spec.dump(loaded))) == loaded
    assert loaded.methods[0].to_method().aggregator == Tilted(q=-1e300, steps=(5, 0.1))
    mine = loaded.methods[1].to_method()
    assert mine == Method(name="mine", prox=5e-324, aggregator=Krum(0.2), local=Local(), before=(Clip(), NNM(0.2)))


def test_a_spec_is_frozen_and_named_after_its_file(file):
    loaded = spec.load(file("\ufeff" + ONE.replace("\n", "\r\n"), "my run.toml"))
    assert loaded.name == "my run"
    with pytest.raises(AttributeError, match="cannot assign to field"):
        loaded.train.rounds = 3


def test_paths_are_relative_to_the_file_and_in_overrides_to_the_working_folder(file, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = file('[data]\nimages = "a"\nfolder = "sets"\n' + ONE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert spec.load(path).data.images == str(tmp_path / "a")
    assert spec.load(path).data.folder == str(tmp_path / "sets")
    assert spec.load(path, overrides=["data.images=b"]).data.images == str(tmp_path / "elsewhere" / "b")


# Defaults equal those of the library


def test_the_keys_of_clients_and_outliers_are_the_keywords_of_the_federation():
    """Each is declared once: name, type, default and meaning."""
    build = inspect.signature(Federation.build).parameters
    keywords = {key: field for key, field in settings_of(Division).items() if key != "count"}
    keywords |= {f"outlier_{key}": field for key, field in settings_of(Outliers).items() if key != "kind"}
    assert list(build) == ["dataset", "clients", "outliers", "seed", *keywords]
    for name, field in keywords.items():
        assert build[name].default == default_of(field)
        assert f"{name}: {field.metadata['meaning']}" in Federation.build.__doc__
    assert spec.load("digits").clients == Division(count=20, classes_per_client=2, max_train=60)


def test_the_device_and_the_seed_are_those_of_the_training_settings():
    of_run = {field.name: field for field in fields(TrainSettings)}
    for key in ("device", "seed"):
        declared = settings_of(spec.Spec)[key]
        assert declared.default == of_run[key].default
        assert declared.metadata == {**of_run[key].metadata, "in_table": True}


def test_a_division_is_what_its_keywords_are():
    data = load("digits")
    made = Federation.build(data, clients=Division(count=7, partition="dirichlet", max_train=9, validation=0.2), seed=3)
    same = Federation.build(data, clients=7, partition="dirichlet", max_train=9, validation=0.2, seed=3)
    for a, b in zip(made.train_index, same.train_index, strict=True):
        assert a.equal(b)
    with pytest.raises(
        InputError, match=r"alpha = 0.1 does not apply to Division\(count=7, .*use Division\(alpha=0.1\)"
    ):
        Federation.build(data, clients=Division(count=7), alpha=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'outlier_kind'"):
        Federation.build(data, outlier_kind="flips")


def test_a_method_has_every_setting_of_the_library():
    assert set(method_keys()) == {key for preset in METHOD_FACTORIES for key in preset_settings(preset)}
    assert {*COMPONENTS} < {*PARTS}
    assert list(method_keys())[-len(PARTS) :] == list(PARTS)
    assert all(method_keys().values())


@pytest.mark.parametrize(
    ("raw", "method"),
    [
        ({"preset": "fedavg"}, fedavg()),
        (
            {"preset": "fedavg", "aggregator": {"rule": "tilted", "q": math.inf}, "name": "ball"},
            fedavg(aggregator=Tilted(q=math.inf), name="ball"),
        ),
        ({"preset": "fedprox", "mu": 1}, fedprox(1.0)),
        ({"preset": "ditto"}, ditto()),
        ({"preset": "term", "t": -2, "weighting": "samples"}, term(-2, weighting="samples")),
        (
            {"preset": "fedtilt", "tau": 1, "lam": -math.inf, "aggregator": {"rule": "tilted", "distance": "l1"}},
            fedtilt(1, -math.inf, aggregator=Tilted(distance="l1")),
        ),
        (
            {"preset": "custom", "objective": {"tau": 3}, "prox": 0.5, "personal": {"mu": 0.1}},
            Method(name="custom", objective=objectives.Tilted(tau=3), prox=0.5, personal=Personal(mu=0.1)),
        ),
        ({"name": "mine", "weighting": "afl"}, Method(name="mine", weighting=Afl())),
    ],
)
def test_methods_equal_those_of_the_library(raw, method):
    assert spec.parse({"name": "a", "methods": [raw]}).methods[0].to_method() == method


# Overrides


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("train.rounds=5", lambda s: s.train.rounds, 5),
        (" train.lr = 1 ", lambda s: s.train.lr, 1.0),
        ("outliers.kind=none", lambda s: s.outliers.kind, "none"),
        ('outliers.kind="none"', lambda s: s.outliers.kind, "none"),
        ("outliers.redraw=once", lambda s: s.outliers.redraw, "once"),
        ("outliers.pairs.3=5", lambda s: s.outliers.pairs, {"3": "5"}),
        ('outliers.pairs={3 = "5", 5 = 3}', lambda s: s.outliers.pairs, {"3": "5", "5": "3"}),
        ("model.hidden=[8]", lambda s: s.model.hidden, (8,)),
        ("seeds=3", lambda s: s.seeds, 3),
        ("name=2026-01-01", lambda s: s.name, "2026-01-01"),
        ("name=a=b", lambda s: s.name, "a=b"),
        ("clients.max_train=", lambda s: s.clients.max_train, None),
        ("methods.ditto.lr_personal=0.1", lambda s: s.methods[1].to_method().personal.lr, 0.1),
        ("methods.fedtilt.lam=-inf", lambda s: s.methods[2].to_method().objective.lam, -math.inf),
        ("methods.fedtilt.aggregator=median", lambda s: s.methods[2].to_method().aggregator, Median()),
        ("methods.fedtilt.aggregator.rule=krum", lambda s: s.methods[2].to_method().aggregator, Krum()),
        ('methods.ditto.before=["nnm"]', lambda s: s.methods[1].to_method().before, (NNM(),)),
        ("methods.fedtilt.name=ours", lambda s: s.methods[2].name, "ours"),
    ],
)
def test_overrides(override, get, value):
    assert get(spec.load("digits", overrides=[override])) == value


def test_overrides_of_settings_of_components(file):
    path = file('[[methods]]\npreset = "fedavg"\naggregator = "krum"\nbefore = ["clipping", "nnm"]\n')
    overrides = ["aggregator.bad_share=0.3", "before.1.bad_share=0.2", "before.0.radius=0.5", "weighting.rule=equal"]
    method = spec.load(path, overrides=[f"methods.fedavg.{text}" for text in overrides]).methods[0].to_method()
    assert method == fedavg(aggregator=Krum(0.3), before=(Clip(0.5), NNM(0.2)))


def test_overrides_of_a_method_whose_name_has_equals_signs(file):
    path = file('[[methods]]\nname = "a=b"\npreset = "ditto"\n[[methods]]\nname = "a"\npreset = "ditto"')
    loaded = spec.load(path, overrides=["methods.a=b.mu=2", " methods.a.mu = 3"])
    assert [m.to_method().personal.mu for m in loaded.methods] == [2, 3]


def test_overrides_of_a_method_whose_name_has_dots(file):
    path = file('[[methods]]\npreset = "ditto"\nname = "mu 0.1"\n')
    assert spec.load(path, overrides=["methods.mu 0.1.mu=0.1"]).methods[0].to_method().personal.mu == 0.1


def test_arguments_set_the_keys_of_the_same_name():
    loaded = spec.load("digits", seed=7, seeds=2, device="cpu", overrides=["seed=1"])
    assert (loaded.seed, loaded.seeds, loaded.device) == (7, 2, "cpu")


def test_methods_are_selected_in_order_and_presets_added():
    loaded = spec.load(
        "digits", methods=["fedtilt", "fedprox", "fedavg", "fedtilt"], overrides=["methods.fedprox.mu=1"]
    )
    assert [m.name for m in loaded.methods] == ["fedtilt", "fedprox", "fedavg"]
    assert loaded.methods[1].to_method() == fedprox(1.0)


# Documents


def test_every_key_has_a_meaning_and_allowed_values():
    for name, table in ALL_TABLES.items():
        for key, field in settings_of(table).items():
            assert field.metadata["meaning"], f"{name}.{key} needs a meaning"
            assert allowed_values(field), f"{name}.{key}"
            if field.default is None and key not in TABLES:
                assert field.metadata["example"], f"{name}.{key} has no default: it needs an example for `fedtilt init`"


def test_the_annotated_spec_is_the_digits_spec_with_every_key(file):
    text = spec.annotated("specs/mine.toml")
    assert spec.load(file(text)) == spec.load("digits", overrides=["name=mine"])
    assert "fedtilt run specs/mine.toml --set" in text
    assert max(len(line) for line in text.splitlines()) <= 120
    for name, table in TABLES.items():
        section = text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]
        for key in settings_of(table):
            assert f"\n{key} = " in section or f"\n# {key} = " in section
    for key in method_keys():
        assert f"\n# {key} " in text


def test_the_examples_in_the_annotated_spec_are_valid(file):
    lines = spec.annotated().splitlines()
    keys = {key for table in TABLES.values() for key in settings_of(table)}
    uncommented = [
        line[2:] if line.startswith("# ") and line[2:].partition(" = ")[0] in keys else line for line in lines
    ]
    only_with = {  # a spec has one of these sources
        "name": ("name",),
        "file": ("file", "schema", *OF_TABLE),
        "images": ("images", "image_size", "image_channels"),
        "leaf": ("leaf",),
    }
    cases = {  # beside which keys of other tables have an effect
        "file": "train.loss=huber model.name=own:net clients.partition=column train.local_steps=",
        "images": "train.loss=focal model.name=cnn clients.partition=dirichlet",
        "leaf": "train.loss=gce model.name=mlp clients.partition=column",
        "name": "data.name=cifar10 train.loss=cross_entropy clients.partition=classes train.optimizer=sgd",
    }
    given = set()
    for source, beside in cases.items():
        left_out = [key for other, keys in only_with.items() if other != source for key in keys]
        overrides = [f"data.{key}=" for key in [*left_out, *(["test_share"] if source in ("leaf", "name") else [])]]
        flips = source == "leaf"
        overrides += (
            ["outliers.kind=flips", "outliers.strength="] if flips else ["outliers.kind=gaussian", "outliers.flip_to="]
        )
        overrides += ["train.optimizer=adam", "train.screen=0", *beside.split()]  # privacy refuses the example
        if source == "file":  # numbers as targets: what is for classes is left out
            overrides += ["task=regression", "data.exclude=", "data.relabel="]
        overrides += ["attack.kind=backdoor"] if source == "images" else ["attack.target=", "attack.poisoned="]
        # updates are screened, or clipped for privacy
        private = source == "file"
        overrides += ["train.screen="] if private else [f"privacy.{key}=" for key in settings_of(TABLES["privacy"])]
        loaded = spec.load(file("\n".join(uncommented)), overrides=overrides, of_run=True)
        given |= {(name, key) for name in TABLES for key, value in loaded.table(name).items() if value is not None}
    assert given == {(name, key) for name, table in TABLES.items() for key in settings_of(table)}


def test_the_reference_lists_every_key_and_preset():
    text = SPEC_PAGE.page()
    for name, table in TABLES.items():
        section = text.partition(f"## `[{name}]`")[2].partition("\n## ")[0]
        assert all(f"\n| `{key}` |" in section for key in settings_of(table))
    methods = text.partition("## `[[methods]]`")[2]
    assert all(
        f"\n| `{key}` |" in methods for key in (*METHOD_FACTORIES, *settings_of(spec.MethodSpec), *method_keys())
    )
    for kind, known in COMPONENTS.items():
        section = methods.partition(f"### `{kind}`")[2].partition("\n### ")[0]
        assert all(f"\n| `{rule}` |" in section for rule in known)
    assert {len(line.split(" | ")) for line in text.splitlines() if line.startswith("| ")} == {2, 3, 4, 5}


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "spec.md"
    assert page.read_text(encoding="utf-8") == SPEC_PAGE.page(), (
        "docs/spec.md is out of date: run `python docs/spec_page.py > docs/spec.md`"
    )
