"""What sites declare beside their counts: nothing unless they agree, and nothing impossible is used."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, RecordDict

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.evaluation.prediction_sets import counts_of
from fedtilt.files import read_json
from fedtilt.flower.evaluation import DECLARED_RECORD, Declared, decode_declared, measure_declared
from fedtilt.flower.message_fields import RejectedReply
from fedtilt.report import write as fedtilt_report
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.predictions import declared_sets
from tests.flower.test_schema_exchange import NUMBERS_SPEC, SPEC, north_and_south, stays, write
from tests.helpers.loopback import Deployment

AGREE = {"declare-groups": True, "declare-metrics": True}


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_groups_and_metrics_of_sites_that_agree(task: str, tmp_path: Path) -> None:
    spec, frames = (SPEC, north_and_south()) if task == "classes" else (NUMBERS_SPEC, stays())
    spec = spec.replace('drop = ["patient"]', 'drop = ["patient"]\ngroup = ["smokes"]')
    deployment = Deployment(write(tmp_path / "data", frames, spec), tmp_path)
    grid = deployment.run(node_config={0: AGREE, 1: {"declare-groups": True}})
    result = run_spec(load(tmp_path / "data/spec.toml"), tmp_path / "simulated")[0]["fedtilt"]
    deployed, simulated = (
        read_json(tmp_path / name / "results.json")["methods"]["fedtilt"]["groups"]["smokes"]
        for name in ("run", "simulated")
    )
    assert deployed["spread"]["mean"] == pytest.approx(simulated["spread"]["mean"], rel=1e-5)
    assert deployed["client_spread_mean"]["mean"] == pytest.approx(simulated["client_spread_mean"]["mean"], rel=1e-5)
    declared = read_json(tmp_path / "run/seed-0/declared.json")["sites"]
    assert set(declared["0"]) == {"groups", "metrics"}
    assert set(declared["1"]) == {"groups"}
    name = "accuracy" if task == "classes" else "mae"
    frame = result.metrics_frame(name, by="client", resamples=0)
    assert declared["0"]["metrics"][name] == pytest.approx(frame.by_group[name]["north"], rel=1e-5)
    assert all(
        DECLARED_RECORD in reply.content for message, reply in grid.sent if message.metadata.message_type == "evaluate"
    )


def test_nothing_is_declared_unless_a_site_agrees(tmp_path: Path) -> None:
    spec = SPEC.replace('drop = ["patient"]', 'drop = ["patient"]\ngroup = ["smokes"]')
    grid = Deployment(write(tmp_path / "data", north_and_south(), spec), tmp_path).run(set="train.rounds=1")
    assert not any(DECLARED_RECORD in reply.content for _, reply in grid.sent)
    assert not (tmp_path / "run/seed-0/declared.json").exists()
    assert "groups" not in read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]


@pytest.mark.parametrize(
    "values",
    [
        {"groups": {"smokes": {"yes": [4, 1]}}},  # too few samples
        {"groups": {"smokes": {"yes": [10, 11]}}},  # more correct than samples
        {"groups": {"smokes": {"yes": [10**9, 1]}}},
        {"groups": {"smokes": {"yes": [10, 1.5]}}},
        {"groups": {"smokes": {"yes": [10]}}},
        {"metrics": {"mae": 1.0}},
        {"metrics": {"auroc": "high"}},
        {"scores": {"validation": {"3": 1}}},  # nothing of test data
        {"scores": {"validation": {"3": 1}, "test": {"3": 19}}},  # of 20 samples
        {"scores": {"validation": {"12800": 1}, "test": {"3": 20}}},
        {"scores": {"validation": {"3": 10**12}, "test": {"3": 20}}},
        {"secrets": {}},
        [],
    ],
)
def test_an_impossible_declaration_is_rejected(values: object) -> None:
    reply = SimpleNamespace(content=RecordDict({DECLARED_RECORD: ConfigRecord({"json": json.dumps(values)})}))
    with pytest.raises(RejectedReply, match="declares what cannot be used"):
        decode_declared(reply, 20, 1)  # type: ignore[arg-type]


def test_a_site_with_an_impossible_declaration_is_left_out_and_named(tmp_path: Path) -> None:
    def tamper(reply, site, round):  # type: ignore[no-untyped-def]
        if site == 0 and "by-class" in reply.content.get("metrics", {}):
            reply.content[DECLARED_RECORD] = ConfigRecord({"json": "[]"})
        return [reply]

    deployment = Deployment(write(tmp_path / "data", north_and_south()), tmp_path)
    deployment.run(tamper, set="train.rounds=1\ntrain.eval_every=1")
    rejected = read_json(tmp_path / "run/seed-0/participation.json")["rejected"]
    assert "declares what cannot be used" in json.dumps(rejected["site 0"])


def test_figures_are_over_the_sites_that_declare_a_column() -> None:
    sites = {0: Declared({"sex": {"f": [10, 9], "m": [10, 5]}}), 2: Declared({"sex": {"f": [10, 10]}}), 1: Declared()}
    found = measure_declared(sites, 3, 1)["sex"]
    assert found.accuracy == {"f": 95.0, "m": 50.0}
    assert found.client_spread == (10.0, 10.0)


@pytest.mark.parametrize("task", ["classes", pytest.param("numbers", marks=pytest.mark.slow)])
def test_prediction_sets_of_sites_that_declare_their_scores_are_those_of_the_simulator(
    task: str, tmp_path: Path
) -> None:
    spec, frames = (SPEC, north_and_south()) if task == "classes" else (NUMBERS_SPEC, stays())
    spec = spec.replace("validation = 0.1", "validation = 0.4")
    deployment = Deployment(write(tmp_path / "data", frames, spec), tmp_path)
    grid = deployment.run(node_config={site: {"declare-scores": True} for site in (0, 1)})
    declared = read_json(tmp_path / "run/seed-0/declared.json")["sites"]
    assert set(declared["0"]["scores"]) == {"validation", "test"}
    simulated = run_spec(load(tmp_path / "data/spec.toml"), tmp_path / "simulated")[0]["fedtilt"].prediction_sets(0.8)
    sets = declared_sets(tmp_path / "run/seed-0", ("0", "1"), 0.8)
    for n, rule in simulated.rules.items():
        assert sets.rules[n].samples == rule.samples
        assert abs(sets.rules[n].bin - rule.bin) <= 1  # the last bits of a probability may differ
        assert sets.shares[n] == pytest.approx(simulated.shares[n], abs=2)
        site = next((tmp_path / f"state/{n}").rglob("predictions.safetensors")).parent
        model = ft.load(site)
        assert model.scores is not None
        assert counts_of(model.scores.validation[0]) == declared[str(n)]["scores"]["validation"]
    report = tmp_path / "report.html"
    fedtilt_report([tmp_path / "run"], report)
    assert "Prediction sets" in report.read_text()
    assert len([1 for _, reply in grid.sent if DECLARED_RECORD in reply.content]) == 2


def test_a_server_without_scores_says_who_must_declare_them(tmp_path: Path) -> None:
    Deployment(write(tmp_path / "data", north_and_south()), tmp_path).run(set="train.rounds=1")
    with pytest.raises(InputError, match="no site declares scores .* declare-scores=true in the --node-config"):
        declared_sets(tmp_path / "run/seed-0", ("0", "1"))
