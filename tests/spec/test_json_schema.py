"""The JSON schema of specs accepts what `fedtilt run` accepts, and refuses wrong keys and values."""

import copy
import json
import tomllib
from typing import Any

import pytest

from fedtilt import spec
from fedtilt.methods import COMPONENTS, PRESETS
from fedtilt.spec.method import required_settings


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")  # here: importing it takes long
    schema = json.loads(spec.json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", spec.builtin_names()[:6])  # files, and one federation of the many
def test_the_built_in_specs_are_valid(validator, name: str) -> None:
    loaded = spec.load(name)
    assert validator.is_valid(tomllib.loads(spec.dump(loaded)))
    assert validator.is_valid(tomllib.loads(spec.annotated(spec=loaded)))


@pytest.mark.parametrize("preset", [*PRESETS, "custom"])
def test_every_preset_is_valid(validator, preset: str) -> None:
    method = {"preset": preset, "name": "mine"} | dict.fromkeys(required_settings(preset), 1.0)
    assert validator.is_valid({"methods": [method]})
    assert not validator.is_valid({"methods": [method | {"no_such": 1}]})


def test_every_component_is_valid_as_a_name_and_as_a_table(validator) -> None:
    for kind, known in COMPONENTS.items():
        for rule, cls in known.items():
            for value in (rule, {"rule": rule}):
                assert validator.is_valid({"methods": [{"name": "mine", kind: value}]}), (kind, rule)
            wrong = {"rule": rule, "no_such": 1}
            assert not validator.is_valid({"methods": [{"name": "mine", kind: wrong}]}), (kind, rule, cls)


POSSIBLE = [
    ("methods", [{"preset": "fedavg", "before": ["nnm", {"rule": "clipping", "radius": 1}]}]),
    ("methods", [{"name": "mine", "aggregator": {"rule": "tilted", "q": float("inf"), "steps": [5, 0.1]}}]),
    ("methods", [{"name": "mine", "local": ["head.*"], "objective": {"tau": 1, "lam": -1.0}, "personal": {"mu": 1}}]),
    ("methods", [{"name": "mine", "weighting": {"rule": "mine:Weights", "any": 1}, "training": "mine:Training"}]),
    ("methods", [{"preset": "fedtilt", "levels": [["class", 5]], "lam": 1}]),
    ("data", {"file": "a.csv", "target": 1, "group": ["sex", 2]}),
    ("data", {"images": "photos", "image_size": [8, 16], "image_channels": 3}),
    ("model", {"name": "mine:net", "arguments": {"width": 64, "deep": {"a": [1]}}}),
    ("outliers", {"kind": "flips", "pairs": {"3": 5}}),
    (
        "train",
        {"optimizer": {"name": "sgd", "nesterov": True}, "lr": 1, "init": "weights.safetensors", "loss": "mine:loss"},
    ),
]
WRONG = [
    ("methods", []),
    ("methods", [{}]),
    ("methods", [{"preset": "fedtlt"}]),
    ("methods", [{"preset": "fedtilt", "tau": 1}]),
    ("methods", [{"preset": "fedavg", "tau": 1}]),
    ("methods", [{"preset": "ditto", "mu": -1}]),
    ("methods", [{"preset": "fedrep", "head_epochs": 0}]),
    ("methods", [{"preset": "fedavg", "client_momentum": 1}]),
    ("methods", [{"preset": "fedprox", "mu": "0.1"}]),
    ("methods", [{"name": "mine", "aggregator": "krumm"}]),
    ("methods", [{"name": "mine", "aggregator": {"bad_share": 0.2}}]),
    ("methods", [{"name": "mine", "aggregator": {"rule": "krum", "bad_share": 0.5}}]),
    ("seed", -1),
    ("seeds", 1.5),
    ("trian", {}),
    ("train", {"round": 5}),
    ("train", {"rounds": 0}),
    ("train", {"rounds": "5"}),
    ("train", {"participation": 0}),
    ("train", {"backend": "fast"}),
    ("train", {"optimizer": {"name": "sgd", "nesterov": 1}}),
    ("train", {"loss": {"name": "focal", "delta": 1.0}}),
    ("train", {"seed": 1}),
    ("data", {"image_size": [1, 2, 3]}),
    ("data", {"drop": "id"}),
    ("model", {"hidden": [8, 0]}),
    ("privacy", {"delta": 1}),
    ("attack", {"kind": "no_such"}),
]
ONE = {"methods": [{"preset": "fedavg"}]}


@pytest.mark.parametrize(("key", "value"), POSSIBLE)
def test_a_possible_value_is_valid(validator, key: str, value: object) -> None:
    assert validator.is_valid({**ONE, key: value})


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_key_or_value_is_not_valid(validator, key: str, value: object) -> None:
    raw: dict[str, Any] = {**ONE, key: value}
    assert not validator.is_valid(raw)
    with pytest.raises(spec.read.InputError):
        spec.parse(copy.deepcopy({"name": "a", **raw}))


def test_every_key_has_a_description(validator) -> None:
    def tables(schema: dict[str, Any]) -> list[dict[str, Any]]:
        found = [each for each in schema.get("properties", {}).values() if "properties" in each]
        return [schema, *(inner for each in found for inner in tables(each))]

    for table in tables(validator.schema):
        assert all(each["description"] for each in table["properties"].values())
    train = validator.schema["properties"]["train"]["properties"]
    assert train["participation"] == {
        "type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.1,
        "description": "the share of clients that take part in a round (a number in (0, 1])",
    }  # fmt: skip
