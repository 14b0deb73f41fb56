"""Every setting has an effect, or is refused by its name: keys of a spec, `ft.run`, `Federation.build`, every method.

The cases are held against the lists of settings themselves: one without a case fails.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from safetensors.torch import save_file

import fedtilt as ft
from fedtilt.config.setting_fields import settings_of
from fedtilt.engine.prepare import check_effects, make_executor, prepare
from fedtilt.engine.settings import TrainSettings, train_settings
from fedtilt.errors import InputError
from fedtilt.executors.forked import can_fork
from fedtilt.executors.in_process import InProcessExecutor
from fedtilt.methods import COMPONENTS, PRESETS, Method, check_rates_used
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import MethodSpec, Spec, build, dataset_of, federation_of, model_of, train_settings_of
from fedtilt.spec.fields import TABLES
from fedtilt.spec.method import METHOD_FACTORIES, method_keys, preset_settings, required_settings
from fedtilt.training import native
from tests.effects.cases import AGAIN, CASES, COMPONENT_CASES, NOT_IN_RESULTS, OBJECT_CASES, PLAIN, Keys, method
from tests.effects.outcome import digest, outcome, prepared_of, spec_of

KEYS = [key for key in settings_of(Spec) if key not in (*TABLES, "methods")]
KEYS += [f"{name}.{key}" for name, table in TABLES.items() for key in settings_of(table)]
KEYS += [f"methods.{key}" for key in (*settings_of(MethodSpec), *method_keys())]


@pytest.fixture(autouse=True, scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files of the cases, in the working folder."""
    folder = tmp_path_factory.mktemp("effects")
    columns = "site,ill,smoker,age,pressure,visits,fold,patient,admitted"
    rows = [
        f"{'abcd'[i % 4]},{(i * i) % 3 % 2},{'no' if i % 3 else 'yes'},{30 + i * 7 % 40},{90 + i * 13 % 50},"
        f"{1 + i % 3},{'test' if i % 5 == 4 else 'train'},{'abcd'[i % 4]}{i // 8},2026-01-{1 + i * 11 % 28:02}"
        for i in range(96)
    ]
    (folder / "table.csv").write_text("\n".join([columns, *rows]) + "\n")
    (folder / "half.csv").write_text("\n".join([columns, *rows[:40]]) + "\n")
    unlabelled = [row.replace(",0,", ",,", 1) for row in rows]
    (folder / "unlabelled.csv").write_text("\n".join([columns, *rows, *unlabelled]) + "\n")
    messy = [
        f"{row};{['1.200', '950'][i % 2]};{'Aa'[i % 2]};{'Äü'[i % 3 % 2]};{-999 if i % 5 == 0 else i % 7}"
        for i, row in enumerate(rows)
    ]
    text = "\n".join([f"{columns};platelets;ward;city;score", *messy]).replace(",", ";") + "\n"
    (folder / "messy.csv").write_bytes(text.encode("cp850"))
    book = openpyxl.Workbook()
    for title, part in (("first", rows), ("second", rows[:64])):
        sheet = book.create_sheet(title)
        for line in [columns, *part]:
            sheet.append([int(cell) if cell.isdecimal() else cell for cell in line.split(",")])
    book.save(folder / "book.xlsx")
    (folder / "suspects.csv").write_text("row,label,looks_like\n" + "".join(_suspects(rows)))
    _write_images(folder / "images")
    _write_leaf(folder / "leaf")
    net = ft.models.mlp((1, 8, 8), 10, hidden=(6,))
    save_file({name: torch.full_like(t, 0.01) for name, t in net.state_dict().items()}, folder / "start.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(build, "load", functools.cache(build.load))  # a data set is read once
        schema = ft.data.table("half.csv", target="ill", client="site").schema
        assert schema is not None
        schema.write("schema.json")
        yield


def _suspects(rows: list[str]) -> Iterator[str]:
    for number, row in enumerate(rows[:20]):
        label = row.split(",")[1]
        yield f"row {number + 2},{label},{1 - int(label)}\n"


def _write_images(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(48):
        place = folder / "ab"[number % 2] / "xy"[number // 2 % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture = image.new("L", (8, 8), 5 * number)
        picture.putpixel((number % 8, number // 8), 255)
        picture.save(place / f"{number}.png")


def _write_leaf(folder: Path) -> None:
    for split, count in (("train", 12), ("test", 6)):
        users = {
            user: {"x": [[i / 12, shift] for i in range(count)], "y": [i % 2 for i in range(count)]}
            for shift, user in enumerate("ab")
        }
        (folder / split).mkdir(parents=True)
        content = {"users": list(users), "num_samples": [count] * 2, "user_data": users}
        (folder / split / "all.json").write_text(json.dumps(content))


def once(run: Callable[[Keys], str]) -> Callable[[Keys], str]:
    """The same function, which runs the same keys once."""
    cached = functools.cache(lambda text: run(json.loads(text)))
    return lambda keys: cached(json.dumps(keys, sort_keys=True))


outcome_of = once(outcome)


def is_named(key: str, value: Any, error: InputError) -> bool:
    """Whether an error of one line names a key, its value, or the table that it is a part of."""
    table, _, name = key.rpartition(".")
    names = [name, *([value] if isinstance(value, str) else []), *([table] if table in ("privacy", "attack") else [])]
    return any(re.search(rf"\b{re.escape(word)}\b", str(error)) for word in names) and "\n" not in str(error)


# Keys of a spec


def test_every_key_of_a_spec_has_a_case() -> None:
    of_published_files = ["data.labels"]  # those of CIFAR-N: tests/data/published/test_annotations.py
    assert sorted([*CASES, *NOT_IN_RESULTS, *of_published_files]) == sorted(KEYS)


@pytest.mark.parametrize("key", CASES)
def test_a_key_changes_the_run_beside_what_it_needs(key: str) -> None:
    case = CASES[key]
    base = PLAIN | case.base
    assert case.value != base.get(key)
    assert outcome_of(base | case.also | {key: case.value}) != outcome_of(base)


OTHER_BASES = {
    "plain": ({}, ()),
    "iid": ({"clients.partition": "iid", "model.name": "logistic", "model.hidden": None}, ("clients", "model")),
    "fedavg": (method(preset="fedavg"), ("train", "methods")),
}


@pytest.mark.parametrize(
    ("base", "key"),
    [
        (name, key)
        for name, (changes, tables) in OTHER_BASES.items()
        for key, case in CASES.items()
        if (not tables or key.partition(".")[0] in tables) and changes.get(key) != case.value
    ],
)
def test_a_key_changes_any_run_or_is_refused_by_name(base: str, key: str) -> None:
    keys, value = PLAIN | OTHER_BASES[base][0], CASES[key].value
    try:
        changed = keys | {key: value}
        methods = [m.to_method() for m in spec_of(changed).methods]
        check_rates_used(methods, [key.removeprefix("train.")])  # as --set does
        assert outcome_of(changed) != outcome_of(keys)
    except InputError as error:
        if not is_named(key, value, error):
            raise


# Keys that are not in the results


def _in_folder(spec: Spec, tmp_path: Path) -> Any:
    run_spec(spec, tmp_path / "run")
    return sorted(path.name for path in (tmp_path / "run").rglob("*")), (tmp_path / "run/spec.toml").read_text()


def _in_executor(spec: Spec, tmp_path: Path) -> Any:
    prepared = prepared_of(spec, 0)
    executor = make_executor(prepared, print)
    try:
        return type(executor), executor._stack_size if isinstance(executor, InProcessExecutor) else None
    finally:
        executor.close()


SEEN = {
    "name": _in_folder,
    "storage.checkpoint_seconds": lambda spec, path: _in_folder(spec, path)[0],
    "storage.memory_limit_mb": lambda spec, path: _in_folder(spec, path)[0],
    "device": lambda spec, path: prepared_of(spec, 0).device,  # without a GPU, refused
    "data.folder": lambda spec, path: dataset_of(spec, 0),
    "train.backend": lambda spec, path: prepared_of(spec, 0).backend.name,
    "train.precision": lambda spec, path: prepared_of(spec, 0).settings.precision,  # without a GPU, refused
    "train.micro_batch_size": lambda spec, path: prepared_of(spec, 0).backend.reasons,
    "train.workers": _in_executor,
    "train.stack_size": _in_executor,
    "train.cluster": lambda spec, path: train_settings_of(spec, 0).on_cluster,
    "train.cluster_timeout": lambda spec, path: train_settings_of(spec, 0).cluster_timeout,
}


@pytest.mark.parametrize("key", NOT_IN_RESULTS)
def test_a_key_that_is_not_in_the_results_arrives_where_it_is_used(key: str, tmp_path: Path) -> None:
    if key == "train.workers" and not can_fork("autograd"):
        pytest.skip("workers cannot be forked here")
    if key == "train.backend" and not native.available():
        pytest.skip("autograd is the only backend here")
    case, seen = NOT_IN_RESULTS[key], SEEN[key]
    base = PLAIN | case.base
    if key == "data.folder":
        base |= {"data.name": "mnist"}  # digits comes with scikit-learn, without a folder
    before = "refused" if key == "data.folder" else seen(spec_of(base), tmp_path / "before")
    try:
        assert seen(spec_of(base | {key: case.value}), tmp_path / "after") != before
    except InputError as error:
        if not is_named(key, case.value, error):
            raise


# Parameters in Python

OTHERS = (
    "methods",
    "federation",
    "model",
    "out",
    "callbacks",
    "progress",
    "checkpoint_seconds",
    "memory_limit",
    "settings",
)


def test_every_parameter_of_run_is_a_training_setting_or_has_a_test_here() -> None:
    settings = [field.name for field in dataclasses.fields(TrainSettings)]
    assert list(inspect.signature(ft.run).parameters) == [*OTHERS, *settings]
    of_spec = {key.partition(".")[2] for key in KEYS if key.startswith("train.")}
    assert set(settings) - of_spec == {"seed", "device", "privacy", "attack"}


SETTINGS = {key.partition(".")[2]: value for key, value in PLAIN.items() if key.startswith("train.")} | {
    "device": "cpu"
}


@once
def python_outcome(keys: Keys) -> str:
    """The digest of `ft.run` with the training settings of these keys as arguments, and nothing else."""
    spec = spec_of({key: value for key, value in keys.items() if not key.startswith("train.")})
    settings = {key.partition(".")[2]: v for key, v in keys.items() if key.startswith("train.") and v is not None}
    methods = [m.to_method() for m in spec.methods]
    federation = federation_of(spec, spec.seed)
    return digest(ft.run(methods, federation, model_of(spec), device="cpu", seed=spec.seed, **settings))


@pytest.mark.parametrize("key", [key for key in CASES if key.startswith("train.")])
def test_a_training_setting_in_python_is_that_of_a_spec(key: str) -> None:
    case = CASES[key]
    keys = PLAIN | case.base | case.also | {key: case.value}
    keywords = {key.partition(".")[2]: v for key, v in keys.items() if key.startswith("train.") and v is not None}
    if "init" in keywords:
        keywords["init"] = str(Path(keywords["init"]).absolute())  # as a spec does
    found, expected = train_settings(keywords, None), spec_of(keys).train
    assert {name: getattr(found, name) for name in keywords} == {name: getattr(expected, name) for name in keywords}


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in CASES if key.startswith("train.")])
def test_a_training_setting_in_python_changes_the_run_beside_what_it_needs(key: str) -> None:
    case = CASES[key]
    base = PLAIN | case.base
    assert python_outcome(base | case.also | {key: case.value}) != python_outcome(base)


def test_the_other_parameters_of_run(tmp_path: Path) -> None:
    spec = spec_of(PLAIN)
    federation, model, rounds = federation_of(spec, 0), model_of(spec), []

    class Rounds(ft.Callback):
        def on_round(self, round: Any, summaries: Any) -> None:
            rounds.append(round.number)

    def run(methods: list[Method] | None = None, fed: Any = federation, net: Any = model, **settings: Any) -> str:
        return digest(ft.run(methods or [ft.ditto(0.1)], fed, net, **(SETTINGS | settings)))

    base = run()
    assert run([ft.ditto(0.5)]) != base
    assert run(fed=ft.Federation.build(ft.data.load("digits"), clients=20)) != base
    assert run(net=ft.models.logistic) != base
    assert run(seed=1) != base
    assert run(privacy=ft.Privacy(clip=0.1, noise=1.0, delta=0.001)) != base
    assert run(attack=ft.Attack(kind="scale")) != base
    assert run(callbacks=[Rounds()]) == base
    assert rounds == [1, 2]
    assert run(progress=False) == base  # in a notebook, nothing is shown
    for name, settings in (("a", {}), ("b", {"checkpoint_seconds": 0}), ("c", {"memory_limit": 0})):
        assert run(out=tmp_path / name, **settings) == base
    files = [sorted(path.name for path in (tmp_path / name).rglob("*")) for name in "abc"]
    assert files[0] != files[1]
    assert files[0] != files[2]


def _samples(federation: ft.Federation) -> str:
    """A digest of everything that a federation gives its clients."""
    found = hashlib.sha256()
    for client in range(federation.clients):
        for x, y in (federation.train(client, seed=0, round=2), federation.validation(client)):
            found.update(x.numpy().tobytes() + y.numpy().tobytes())  # type: ignore[union-attr]
    return found.hexdigest()


def _parameter(key: str) -> str:
    """The parameter of `Federation.build` of a key."""
    table, _, name = key.rpartition(".")
    return {"count": "clients", "kind": "outliers"}.get(name) or f"{'outlier_' * (table == 'outliers')}{name}"


PARAMETERS = {_parameter(key): key for key in KEYS if key.startswith(("clients.", "outliers.")) or key == "seed"}


def test_every_parameter_of_build_is_a_key_of_a_spec() -> None:
    assert {"dataset", *PARAMETERS} == set(inspect.signature(ft.Federation.build).parameters)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_of_build_changes_the_federation_or_is_refused_by_name(name: str) -> None:
    data, case = ft.data.load("digits"), CASES[PARAMETERS[name]]
    base = {"clients": 30} | {_parameter(key): value for key, value in case.base.items()}
    with_value = ft.Federation.build(data, **(base | {name: case.value}))
    assert _samples(with_value) != _samples(ft.Federation.build(data, **base))
    try:
        changed = ft.Federation.build(data, **{"clients": 30, name: case.value})
        assert _samples(changed) != _samples(ft.Federation.build(data, clients=30))
    except InputError as error:
        if name not in str(error):
            raise


# Settings of methods

REMEMBERING = ("apfl", "fedala", "fedas", "feddbe", "fedminmax", "moon")  # methods whose clients must take part twice
REQUIRED = {"tau": 1.0, "lam": 1.0, "t": 1.0}


@pytest.mark.parametrize("preset", METHOD_FACTORIES)
def test_every_setting_of_a_method_changes_it_or_is_refused_by_name(preset: str) -> None:
    keys = PLAIN | (AGAIN if preset in REMEMBERING else {})
    spec = spec_of(keys)
    settings = {key.partition(".")[2]: value for key, value in keys.items() if key.startswith("train.")}
    settings["device"] = "cpu"
    federation, model = federation_of(spec, 0), model_of(spec)
    own = {key: REQUIRED[key] for key in required_settings(preset)} | ({"mu": 1.0} if preset == "pfedme" else {})
    make = METHOD_FACTORIES[preset]
    methods = [make(name="base", **own)]
    for key in preset_settings(preset):
        try:
            changed = make(name=key, **(own | {key: _other(methods[0], key)}))
            check_effects(prepare([changed], federation, model, TrainSettings(**settings)))
        except InputError as error:
            if not is_named(f"methods.{key}", CASES[f"methods.{key}"].value, error):
                raise
            continue
        methods.append(changed)
    result = ft.run(methods, federation, model, **settings)
    alone = {name: digest({name: r}) for name, r in result.items()}
    assert [name for name in alone if name != "base" and alone[name] == alone["base"]] == []


def _other(method: Method, key: str) -> Any:
    """The value of the case, or another one if the method has it already."""
    value = CASES[f"methods.{key}"].value
    others = {"personal_start": "last", "alpha": 0.25, "mu": 0.2}
    return value if method.settings().get(key) != value else others.get(key, value)


def test_every_parameter_of_a_preset_is_a_key_of_a_spec() -> None:
    parameters = {key for preset in PRESETS for key in preset_settings(preset)}
    assert parameters == {*method_keys()}


# Settings of components


def test_every_setting_of_every_component_has_a_case() -> None:
    settings = [
        f"{kind}.{rule}.{field.name}"
        for kind, known in COMPONENTS.items()
        for rule, cls in known.items()
        for field in dataclasses.fields(cls)
    ]
    assert sorted(COMPONENT_CASES) == sorted(settings)


@pytest.mark.parametrize("key", COMPONENT_CASES)
def test_a_setting_of_a_component_changes_the_run(key: str) -> None:
    kind, rule, setting = key.split(".")
    case = COMPONENT_CASES[key]

    def with_settings(**settings: Any) -> str:
        table = {"rule": rule, **case.beside, **settings}
        return outcome_of(PLAIN | method(preset="fedavg") | case.base | {f"methods.{kind}": _listed(kind, table)})

    assert with_settings(**{setting: case.value}) != with_settings()


@pytest.mark.parametrize("key", OBJECT_CASES)
def test_a_setting_of_an_object_changes_the_run(key: str) -> None:
    name, rule, setting = key.split(".")
    case = OBJECT_CASES[key]

    def with_settings(**settings: Any) -> str:
        return outcome_of(PLAIN | case.base | {f"train.{name}": {"name": rule, **case.beside, **settings}})

    assert with_settings(**{setting: case.value}) != with_settings()


def test_every_setting_of_an_object_has_a_case() -> None:
    named = {name: field.metadata["named"] for name, field in settings_of(TrainSettings).items()}
    settings = [
        f"{name}.{rule}.{field.name}"
        for name, known in named.items() if name != "server_optimizer"  # a component
        for rule, cls in known.items()
        for field in dataclasses.fields(cls)
    ]  # fmt: skip
    assert sorted(OBJECT_CASES) == sorted(settings)


@pytest.mark.parametrize("kind", COMPONENTS)
def test_every_built_in_component_changes_the_run(kind: str) -> None:
    """Each gives another run than no component of its kind, and than each other."""
    found = {}
    for rule, cls in COMPONENTS[kind].items():
        names = [field.name for field in dataclasses.fields(cls)]
        settings = {"bad_share": 0.1} if "bad_share" in names else {}
        table = {"rule": rule, **settings, **NOT_DEFAULT.get(rule, {})}
        base = PLAIN | method(preset="fedavg") | {"train.participation": 0.4} | BESIDE.get(rule, {})
        found[rule] = outcome_of(base | {f"methods.{kind}": _listed(kind, table)})
        assert found[rule] != outcome_of(base) or rule in DEFAULTS[kind]
    assert len(set(found.values())) == len(found) - (kind == "aggregator")  # the mean is that of a tilt of 0


NOT_DEFAULT = {"propfair": {"utility": 5.0}}
BESIDE = {
    "bucketing": {"methods.aggregator": "median"}, "foundation": {"methods.aggregator": "median"},
    "fisher": {"methods.training": "fedas"},
}  # fmt: skip
DEFAULTS = dict.fromkeys(COMPONENTS, ()) | {
    "objective": ("tilted",), "weighting": ("equal",), "aggregator": ("tilted", "mean"),
}  # fmt: skip


def _listed(kind: str, table: Keys) -> Any:
    """The value of the key of a component: steps before the rule are a list."""
    return [table] if kind == "before" else table
