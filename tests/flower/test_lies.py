"""One site of four lies in a message; the others keep their accuracy, and it is named."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from fedtilt.data.tables.schema import read_schema
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.flower.membership import MissingSitesError
from tests.helpers.loopback import Deployment

pandas = pytest.importorskip("pandas")

SPEC = """
name = "clinics"
[data]
file = "pooled.csv"
target = "ill"
client = "clinic"
[clients]
count = 4
[model]
name = "logistic"
[train]
rounds = 3
participation = 1.0
epochs = 3
lr = 0.1
eval_every = 1
[[methods]]
preset = "fedavg"
"""


@pytest.fixture
def clinics(tmp_path: Path) -> Deployment:
    """Four sites, in whose tables age and pressure tell who is ill."""
    (tmp_path / "data").mkdir()
    frames = []
    for site in range(4):
        rng = np.random.default_rng(site)
        ill = rng.random(80) < 0.5
        frame = pandas.DataFrame({"age": rng.normal(50 + 12 * ill, 6), "pressure": rng.normal(90 + 20 * ill, 10)})
        frames.append(frame.assign(ill=np.where(ill, "yes", "no"), clinic=f"c{site}"))
        frames[-1].drop(columns="clinic").to_csv(tmp_path / f"data/{site}.csv", index=False)
    pandas.concat(frames).to_csv(tmp_path / "data/pooled.csv", index=False)
    (tmp_path / "data/spec.toml").write_text(SPEC)
    task = Task(spec=tmp_path / "data/spec.toml", table=lambda node: tmp_path / f"data/{node['partition-id']}.csv")
    return Deployment(task, tmp_path, sites=4)


def in_summary(change):
    """Site 3 sends another summary than it should."""

    def tamper(reply: Message, site: int, round: int) -> list[Message]:
        if site == 3 and reply.metadata.message_type == "query.summary":
            summary = json.loads(reply.content["config"]["summary"])
            change(summary)
            reply.content["config"]["summary"] = json.dumps(summary)
        return [reply]

    return tamper


def thousandfold(summary: dict) -> None:  # type: ignore[type-arg]
    for column in summary["columns"]:
        column["mean"] *= 1000
        column["quantiles"] = [1000 * value for value in column["quantiles"]]
        column["squares"] *= 1e6


def many_rows(summary: dict) -> None:  # type: ignore[type-arg]
    for values in (summary, *summary["columns"]):
        values["rows"] = 10_000_000
    for column in summary["columns"]:
        column["missing"] = 0


def accuracy(home: Path) -> float:
    """Of the evaluated models, in %."""
    return read_json(home / "run/results.json")["methods"]["fedavg"]["accuracy"]["mean"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (thousandfold, "has a column 'age' whose mean is"),
        (lambda s: s["columns"][0].update(mean=1000 * s["columns"][0]["mean"]), "are not those of rows with its quant"),
        (many_rows, "are not those of rows with its quantiles"),
    ],
)
def test_a_lying_summary_changes_no_model(
    clinics: Deployment, caplog: pytest.LogCaptureFixture, change, reason
) -> None:
    """The schema is that of the three others, and the fourth takes part with it."""
    with caplog.at_level(logging.WARNING, "flwr"):
        clinics.run(in_summary(change))
    assert any(f"no summary of site 3 is used: it {'sent' if 'rows' in reason else 'has'}" in m and reason in m
               for m in caplog.messages), caplog.messages  # fmt: skip
    honest = Deployment(clinics.task, clinics.home / "honest", sites=4)
    honest.run(lambda r, site, _: [] if site == 3 and r.metadata.message_type == "query.summary" else [r])
    schemas = [read_schema(home / "run/schema.json") for home in (clinics.home, honest.home)]
    assert schemas[0] == schemas[1]
    assert accuracy(clinics.home) == accuracy(honest.home) > 85
    rounds = read_json(clinics.home / "run/seed-0/participation.json")["rounds"]
    assert all(entry["accepted"] == [0, 1, 2, 3] for entry in rounds.values())
    strict = Deployment(clinics.task, clinics.home / "strict", sites=4)
    with pytest.raises(MissingSitesError, match="3 of 4 sites agree on a schema and all must") as error:
        strict.run(in_summary(change), **{"join-quorum": 1.0})
    assert error.value.sites == [3]


def test_the_extra_column_of_one_site_concerns_that_site_alone(
    clinics: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    path = clinics.home / "data/3.csv"
    frame = pandas.read_csv(path)
    frame.assign(more=np.arange(80.0)).to_csv(path, index=False)
    with caplog.at_level(logging.WARNING, "flwr"):
        clinics.run(**{"join-quorum": 1.0})
    assert "column 'more' of site '3' is no feature: most sites lack it" in caplog.messages
    assert read_schema(clinics.home / "run/schema.json").column("more").kind == "ignore"
    rounds = read_json(clinics.home / "run/seed-0/participation.json")["rounds"]
    assert all(entry["accepted"] == [0, 1, 2, 3] for entry in rounds.values())


def test_ten_million_tests_do_not_lower_the_accuracy(clinics: Deployment) -> None:
    def tamper(reply: Message, site: int, round: int) -> list[Message]:
        if site == 3 and reply.metadata.message_type == "evaluate":
            metrics = reply.content["metrics"]
            metrics["total"], metrics["shared"] = [5_000_000, 5_000_000], [0, 0]
        return [reply]

    clinics.run(tamper)
    rejected = read_json(clinics.home / "run/seed-0/participation.json")["rejected"]["site 3"]
    assert rejected == {"claims 10000000 test samples, and 60 training samples": 3}
    assert accuracy(clinics.home) > 85
