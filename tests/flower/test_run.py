"""A whole run without a network: the simulator's models, metrics and folder; resume; what stays on the sites."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt import report
from fedtilt.flower import Task
from fedtilt.runs.export import exported
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment, Loopback


def personal(home: Path, site: int) -> torch.Tensor:
    (path,) = (home / "state" / str(site)).rglob("round-00002.safetensors")
    return load_file(path)["model"]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "seed-0/metrics.jsonl").read_text().splitlines()]


def test_models_metrics_and_folder_are_the_simulators(deployment: Deployment, spec: Path, tmp_path: Path) -> None:
    deployment.run()
    simulate_prepared = run_spec(load(spec), tmp_path / "simulated")[0]
    theirs = RunFolder(tmp_path / "simulated/seed-0").latest()
    ours = RunFolder(tmp_path / "run/seed-0").latest()
    torch.testing.assert_close(ours.shared, theirs.shared)
    assert ours.client_states.owners() == []  # personal models are on their sites
    for site in (0, 1):
        torch.testing.assert_close(personal(tmp_path, site), theirs.client_states.get(("fedtilt", site)))
    assert lines(tmp_path / "run") == lines(tmp_path / "simulated")
    for name in ("spec.toml", "results.json"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "simulated" / name).read_text()
    assert simulate_prepared["fedtilt"].accuracy == lines(tmp_path / "run")[-1]["personal"]["accuracy"]
    pages = [report.markdown([tmp_path / name]).split("\n", 1)[1] for name in ("run", "simulated")]
    assert pages[0].replace("run", "simulated") == pages[1].replace("run", "simulated")
    assert exported(tmp_path / "run", "fedtilt").keys() == exported(tmp_path / "simulated", "fedtilt").keys()


def test_a_site_writes_its_own_report(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run()
    (path,) = (tmp_path / "state/1").rglob("report.json")
    report = json.loads(path.read_text())
    assert report["round"] == 2
    assert report["accuracy"]["samples"] == sum(row["samples"] for row in report["classes"])
    assert Path(report["personal_model"]).exists()
    assert "personal" in path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("stop_at", ["train", "evaluate"])
def test_a_killed_server_goes_on_to_the_same_models(deployment: Deployment, tmp_path: Path, stop_at: str) -> None:
    """The server dies after the sites have trained round 2 and before it aggregates, or before it judges."""
    whole = Deployment(deployment.task, tmp_path / "whole")
    whole.run()

    def die(reply, site, round):
        if reply.metadata.message_type == stop_at and round == 2 and site == 1:
            raise KeyboardInterrupt
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        deployment.run(die)
    deployment.run()
    a, b = (RunFolder(home / "run/seed-0").latest() for home in (tmp_path, tmp_path / "whole"))
    assert torch.equal(a.shared["fedtilt"], b.shared["fedtilt"])
    for site in (0, 1):  # rolled back by one round, and trained again
        assert torch.equal(personal(tmp_path, site), personal(tmp_path / "whole", site))
    assert lines(tmp_path / "run") == lines(tmp_path / "whole/run")


def test_a_finished_run_is_finished(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run()
    before = (tmp_path / "run/results.json").read_bytes()
    assert deployment.run().sent == []
    assert (tmp_path / "run/results.json").read_bytes() == before


def test_no_site_is_waited_for_longer_than_the_deadline(deployment: Deployment) -> None:
    assert deployment.run(deadline=7.0).patience == {7.0}


def test_another_job_in_the_same_folder_is_refused(deployment: Deployment) -> None:
    deployment.run()
    with pytest.raises(ft.InputError, match=r"was begun with train\.lr = 0\.1, and now it is 0\.2"):
        deployment.run(set="train.lr=0.2")
    assert "1" in json.loads((deployment.home / "run/seed-0/faults.json").read_text())["rounds"]  # nothing is lost


def test_classes_may_be_withheld(deployment: Deployment, tmp_path: Path) -> None:
    poor = "train.lr=0.003\ntrain.rounds=1"  # so poor that there is a spread to be seen
    deployment.run(set=poor)
    shy = Deployment(deployment.task, tmp_path / "shy")
    grid = shy.run(node_config={1: {"declare-classes": False}}, set=poor)
    open_, withheld = lines(tmp_path / "run")[-1], lines(tmp_path / "shy/run")[-1]
    for part in ("shared", "personal"):
        fairness = [entry[part].pop("client_data_fairness") for entry in (open_, withheld)]
        assert fairness[0] == pytest.approx(fairness[1])
        assert min(fairness[0]) > 1
        assert open_[part] == pytest.approx(withheld[part])
    markdown = report.markdown([tmp_path / "shy/run"])
    assert "fedtilt" in markdown
    (said,) = (
        reply.content["metrics"] for message, reply in grid.sent
        if message.metadata.dst_node_id == 101 and message.metadata.message_type == "evaluate"
    )  # fmt: skip
    assert [len(said[key]) for key in ("shared", "personal", "total")] == [1, 1, 1]


def test_a_federation_of_own_data_needs_none_on_the_server(spec: Path, tmp_path: Path) -> None:
    whole = ft.data.load("digits")

    def data(node):
        own = slice(node["partition-id"] * 300, node["partition-id"] * 500 + 300)
        x, y = whole.x_train[own], whole.y_train[own]
        return ft.data.Dataset(name="own", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50], classes=10, image=True)

    task = Task(
        spec=spec, data=data, model=ft.models.logistic, input_shape=whole.input_shape, class_names=whole.class_names
    )
    grid = Deployment(task, tmp_path).run()
    told = [reply.content["metrics"]["num-examples"] for m, reply in grid.sent if m.metadata.message_type == "train"]
    assert sorted(told) == [300, 300, 500, 500]
    assert lines(tmp_path / "run")[-1]["personal"]["accuracy"] > 50


def test_a_site_may_come_late_or_come_back_as_another_node(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 1 is not there in round 1; it joins, is restarted under another node's number, and takes part again."""
    asked = iter([[100]] * 4 + [[100, 101], [100, 103]])  # asked for thrice at the start, then once a round
    monkeypatch.setattr(Loopback, "get_node_ids", lambda self: next(asked))
    deployment.run(set="train.rounds=3", wait=0.5)
    rounds = json.loads((tmp_path / "run/seed-0/faults.json").read_text())
    assert [entry["entered"] for entry in rounds["rounds"].values()] == [[0], [0, 1], [0, 1]]
    assert rounds["refused"] == {"site 1": {"is not connected": 1}}


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "the data function must return a fedtilt.data.Dataset, got NoneType"),
        (ft.data.load("toy-1"), r"the site's data has samples of shape \(2,\) in 2 classes; the task says \(3,\) in 2"),
    ],
)
def test_a_data_function_is_held_to_the_task(spec: Path, returned: object, words: str) -> None:
    task = Task(spec=spec, data=lambda _: returned, input_shape=(3,), class_names=("no", "yes"))
    with pytest.raises(ft.InputError, match=words):
        task.federation(task.job({}), 0, {})
    with pytest.raises(ft.InputError, match="'flips' spoils real data"):
        task.job({"set": "outliers.kind=flips"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": "nothing"}, "method 'nothing' is not in the spec"),
        ({"set": "train.rounds=0"}, "train.rounds"),
        ({"set": "seeds=2"}, "trains one seed and the spec has seeds = 2"),
        ({"quorum": 0.0}, r"quorum must be in \(0, 1\]"),
        ({"join-quorum": 1.5}, r"join-quorum must be in \[0, 1\], got 1.5"),
        ({"deadline": "soon"}, "deadline must be a number, got 'soon'"),
    ],
)
def test_bad_settings_are_one_sentence(deployment: Deployment, config: dict, words: str) -> None:
    with pytest.raises(ft.InputError, match=words) as error:
        deployment.run(**config)
    assert "\n" not in str(error.value)


def test_one_method_is_chosen() -> None:
    with pytest.raises(ft.InputError, match="the spec has fedavg, ditto, fedtilt; choose one with --method"):
        Task(spec="digits").job({})


def test_who_joins_says_nothing_of_its_data(deployment: Deployment) -> None:
    grid = deployment.run()
    said = [dict(reply.content["metrics"]) for m, reply in grid.sent if m.metadata.message_type == "query"]
    assert [sorted(answer) for answer in said] == [["classes", "parameters", "site"]] * 2


def test_personal_models_are_in_no_reply(deployment: Deployment, tmp_path: Path) -> None:
    grid = deployment.run()
    said = b""
    for _, reply in grid.sent:
        for name, record in reply.content.items():
            assert name in ("arrays", "metrics")
            said += b"".join(array.data for array in record.values()) if name == "arrays" else repr(record).encode()
    for path in (tmp_path / "state").rglob("round-*.safetensors"):
        own = load_file(path)["model"].numpy()
        assert not any(own[i : i + 4].tobytes() in said for i in range(0, len(own) - 4, 4) if own[i : i + 4].all())
    shared = RunFolder(tmp_path / "run/seed-0").latest().shared["fedtilt"]
    assert len(said) > 4 * 4 * len(shared)  # two sites, two rounds: the trained shared models were looked at
