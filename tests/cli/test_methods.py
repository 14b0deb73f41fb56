"""`fedtilt methods` lists what a spec can name, and `fedtilt run --method` takes it."""

import json
from pathlib import Path

import pytest

from fedtilt.attacks.attack import KINDS
from fedtilt.losses import LOSSES
from fedtilt.methods import COMPONENTS, PRESETS
from fedtilt.spec import load
from fedtilt.spec.catalog import catalog
from fedtilt.spec.method import required_settings

WITHOUT_PAPER = {
    "local", "cross_entropy", "squared", "token_cross_entropy", "label_cross_entropy", "clipping", "mean",
    "equal", "samples", "root_selected",
}  # fmt: skip


def test_the_catalog_has_everything_with_one_line_and_a_paper() -> None:
    entries = catalog()
    names = [entry.name for entry in entries]
    components = [rule for known in COMPONENTS.values() for rule in known]
    assert sorted(names) == sorted([*PRESETS, *components, *LOSSES, *KINDS])
    for entry in entries:
        assert entry.summary
        assert "\n" not in entry.summary
        assert "arXiv" not in entry.summary
        assert entry.reference or entry.name in WITHOUT_PAPER, entry.name
    assert next(e for e in entries if e.name == "pfedme").settings == {"mu": 5.0, "inner_steps": 5, "lr_personal": None}
    assert next(e for e in entries if e.name == "krum")[:3] == ("server rules", "krum", "methods.METHOD.aggregator")
    assert next(e for e in entries if e.name == "krum").settings == {"bad_share": 0.1}


def test_the_command_prints_a_table_and_json(fedtilt) -> None:
    entries = json.loads(fedtilt("methods", "--json").out)
    assert [entry["name"] for entry in entries] == [entry.name for entry in catalog()]
    printed = fedtilt("methods").out
    assert all(
        f" {name} " in printed
        for name in (*PRESETS, *(rule for known in COMPONENTS.values() for rule in known), *KINDS)
    )


def test_the_command_lists_the_components_of_a_module_of_the_user(fedtilt, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    (entry,) = json.loads(fedtilt("methods", "own_objective", "--json").out)
    assert entry["name"] == "own_objective:CVaR"
    assert entry["key"] == "methods.METHOD.objective"
    assert "share" in entry["settings"]
    assert "own_objective:CVaR" in fedtilt("methods", "own_objective").out
    refused = fedtilt("methods", "own_table")
    assert refused.code == 2
    assert f"module 'own_table' ({examples / 'own_table.py'}) has no component; expected subclasses of" in refused.err
    assert "there is no module 'nowhere'" in fedtilt("methods", "nowhere").err


@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_of_the_catalog_can_be_added_to_a_spec(preset: str) -> None:
    values = [f"methods.{preset}.{key}=1.0" for key in required_settings(preset)]
    (method,) = load("mnist", methods=[preset], overrides=values).methods
    assert method.to_method().name == preset


def test_run_takes_a_method_that_the_spec_has_not(fedtilt) -> None:
    settings = ("train.rounds=1", "train.epochs=1", "clients.count=4", "clients.max_train=10", "train.lr=0.01")
    arguments = [part for text in settings for part in ("--set", text)]
    done = fedtilt("run", "--method", "scaffold", "--method", "qffl", "--out", "run", "--quiet", *arguments)
    assert done.code == 0, done.err
    assert {*json.loads(Path("run/results.json").read_text())["methods"]} == {"scaffold", "qffl"}
    refused = fedtilt("run", "--method", "scafold", "--out", "no")
    assert refused.code == 2
    assert refused.err.strip().endswith("nor a preset; did you mean scaffold?")
    assert not Path("no").exists()
