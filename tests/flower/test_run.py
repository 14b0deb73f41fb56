"""A complete run without a network: the simulator's models, metrics and folder; resume; what stays on the sites."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt import report
from fedtilt.evaluation.metrics import BEYOND_CHANCE
from fedtilt.flower import Task
from fedtilt.flower.site_data import site_federation
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment, LoopbackGrid
from tests.helpers.recipe_model import RecipeModel


def site_state(home: Path, site: int, round: int = 2) -> dict[str, torch.Tensor]:
    """What a site keeps after a round."""
    (path,) = (home / "state" / str(site)).rglob(f"round-{round:05d}.safetensors")
    return load_file(path)


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Bit-identical models."""
    torch.testing.assert_close(dict(a), dict(b), rtol=0, atol=0)


def metrics_lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "seed-0/metrics.jsonl").read_text().splitlines()]


def test_models_metrics_and_folder_equal_the_simulators(deployment: Deployment, spec: Path, tmp_path: Path) -> None:
    deployment.run()
    result = run_spec(load(spec), tmp_path / "simulated")[0]
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    deployed = RunFolder(tmp_path / "run/seed-0").latest()
    torch.testing.assert_close(deployed.shared, simulated.shared)
    assert deployed.client_states.owners() == []  # personal models are on their sites
    for site in (0, 1):
        torch.testing.assert_close(
            site_state(tmp_path, site), simulated.client_states.get(("fedtilt", site)).to_tensors()
        )
    assert metrics_lines(tmp_path / "run") == metrics_lines(tmp_path / "simulated")
    for name in ("spec.toml", "results.json"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "simulated" / name).read_text()
    assert result["fedtilt"].accuracy == metrics_lines(tmp_path / "run")[-1]["personal"]["accuracy"]
    pages = [report.markdown([tmp_path / name]).split("\n", 1)[1] for name in ("run", "simulated")]
    assert pages[0].replace("run", "simulated") == pages[1].replace("run", "simulated")
    names = [export_model(tmp_path / name, "fedtilt").tensors.keys() for name in ("run", "simulated")]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    "settings",
    [
        "methods.fedtilt.lr=0.05\nmethods.fedtilt.lr_personal=0.02\nmethods.fedtilt.epochs_personal=3",
        "methods.fedtilt.personal_start=initial\ntrain.last_batch=keep",
        "methods.fedtilt.personal_start=received\ntrain.batch_size=7",
    ],
)
def test_steps_and_starts_of_a_method_equal_the_simulators(
    deployment: Deployment, spec: Path, tmp_path: Path, settings: str
) -> None:
    deployment.run(set=settings)
    run_spec(load(spec, overrides=settings.splitlines()), tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    torch.testing.assert_close(RunFolder(tmp_path / "run/seed-0").latest().shared, simulated.shared)
    for site in (0, 1):
        torch.testing.assert_close(
            site_state(tmp_path, site), simulated.client_states.get(("fedtilt", site)).to_tensors()
        )


def test_a_site_writes_its_report(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run()
    (path,) = (tmp_path / "state/1").rglob("report.json")
    report = json.loads(path.read_text())
    assert report["round"] == 2
    assert report["accuracy"]["samples"] == sum(row["samples"] for row in report["classes"])
    assert Path(report["file"]).exists()
    assert report["kept"] == ["personal"]
    assert f"kept on this site: personal model in {report['file']}" in path.with_suffix(".txt").read_text()


RECIPE = 'train.local=["head.*"]\ntrain.momentum=0.9\ntrain.lr=0.02\ntrain.server_optimizer=adagrad'


@pytest.mark.parametrize("stop_at", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("model", "settings", "kept"),
    [(None, "", {"personal"}), (RecipeModel, RECIPE, {"personal", "personal_buffers", "local", "buffers"})],
)
def test_a_killed_server_resumes_to_the_same_models(
    spec: Path, tmp_path: Path, stop_at: str, model: type | None, settings: str, kept: set[str]
) -> None:
    """The server is killed after the sites have trained round 2: before it aggregates, or before it evaluates."""
    deployment = Deployment(Task(spec=spec, model=model), tmp_path)
    uninterrupted = Deployment(deployment.task, tmp_path / "uninterrupted")
    uninterrupted.run(set=settings)

    def interrupt(reply, site, round):
        if reply.metadata.message_type == stop_at and round == 2 and site == 1:
            raise KeyboardInterrupt
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        deployment.run(interrupt, set=settings)
    deployment.run(set=settings)
    a, b = (RunFolder(home / "run/seed-0").latest() for home in (tmp_path, tmp_path / "uninterrupted"))
    assert_equal(a.server["fedtilt"].to_tensors(), b.server["fedtilt"].to_tensors())
    for site in (0, 1):  # back by one round, and trained again
        a_kept, b_kept = site_state(tmp_path, site), site_state(tmp_path / "uninterrupted", site)
        assert a_kept.keys() == kept
        assert_equal(a_kept, b_kept)
    assert metrics_lines(tmp_path / "run") == metrics_lines(tmp_path / "uninterrupted/run")


def test_a_finished_run_is_not_trained_again(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run()
    before = (tmp_path / "run/results.json").read_bytes()
    assert deployment.run().sent == []
    assert (tmp_path / "run/results.json").read_bytes() == before


def test_a_finished_run_goes_on_with_more_rounds(deployment: Deployment, tmp_path: Path) -> None:
    planned = Deployment(deployment.task, tmp_path / "planned")
    planned.run(set="train.rounds=3\ntrain.eval_every=1")
    deployment.run(set="train.eval_every=")
    deployment.run(set="train.eval_every=\ntrain.rounds=3")
    a, b = (RunFolder(home / "run/seed-0").latest() for home in (tmp_path, tmp_path / "planned"))
    assert a.round == b.round == 3
    assert_equal(a.server["fedtilt"].to_tensors(), b.server["fedtilt"].to_tensors())
    for site in (0, 1):
        assert_equal(site_state(tmp_path, site, 3), site_state(tmp_path / "planned", site, 3))
    assert metrics_lines(tmp_path / "run") == metrics_lines(tmp_path / "planned/run")


def test_the_server_waits_no_longer_than_the_deadline(deployment: Deployment) -> None:
    assert deployment.run(deadline=7.0).timeouts == {7.0}


def test_another_run_in_the_same_folder_is_rejected(deployment: Deployment) -> None:
    deployment.run()
    with pytest.raises(ft.InputError, match=r"was started with train\.lr = 0\.1, and now it is 0\.2"):
        deployment.run(set="train.lr=0.2")
    participation = json.loads((deployment.home / "run/seed-0/participation.json").read_text())
    assert "1" in participation["rounds"]  # nothing is lost


def test_a_site_may_withhold_its_counts_by_class(deployment: Deployment, tmp_path: Path) -> None:
    settings = "train.lr=0.003\ntrain.rounds=1"  # trains so little that the classes differ
    deployment.run(set=settings)
    private = Deployment(deployment.task, tmp_path / "private")
    grid = private.run(node_config={1: {"declare-classes": False}}, set=settings)
    declared, withheld = metrics_lines(tmp_path / "run")[-1], metrics_lines(tmp_path / "private/run")[-1]
    for part in ("shared", "personal"):
        assert min(declared[part][f"client_data_fairness_{figure}"] for figure in ("mean", "std")) > 1
        del declared[part][BEYOND_CHANCE]  # the shares of the toy's classes are fixed: unknown from totals
        assert declared[part] == pytest.approx(withheld[part])
    markdown = report.markdown([tmp_path / "private/run"])
    assert "fedtilt" in markdown
    (metrics,) = (
        reply.content["metrics"] for message, reply in grid.sent
        if message.metadata.dst_node_id == 101 and message.metadata.message_type == "evaluate"
    )  # fmt: skip
    assert [len(metrics[key]) for key in ("shared", "personal", "total")] == [1, 1, 1]


def test_with_a_data_function_the_server_needs_no_data(spec: Path, tmp_path: Path) -> None:
    digits = ft.data.load("digits")

    def data(node):
        rows = slice(node["partition-id"] * 300, node["partition-id"] * 500 + 300)
        x, y = digits.x_train[rows], digits.y_train[rows]
        return ft.data.Dataset(name="site", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50], classes=10, image=True)

    task = Task(
        spec=spec, data=data, model=ft.models.logistic, input_shape=digits.input_shape,
        class_names=digits.class_names, image=True,
    )  # fmt: skip
    grid = Deployment(task, tmp_path).run()
    replies = [reply for message, reply in grid.sent if message.metadata.message_type == "train"]
    samples = [reply.content["metrics"]["num-examples"] for reply in replies]
    assert sorted(samples) == [300, 300, 500, 500]
    assert metrics_lines(tmp_path / "run")[-1]["personal"]["accuracy"] > 50


def test_a_site_may_join_late_or_return_as_another_node(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 1 is absent in round 1, joins, is restarted with another node id, and takes part again."""
    node_ids = iter([[100]] * 4 + [[100, 101], [100, 103]])  # read three times at the start, then once per round
    monkeypatch.setattr(LoopbackGrid, "get_node_ids", lambda self: next(node_ids))
    deployment.run(set="train.rounds=3", wait=0.5)
    participation = json.loads((tmp_path / "run/seed-0/participation.json").read_text())
    assert [entry["accepted"] for entry in participation["rounds"].values()] == [[0], [0, 1], [0, 1]]
    assert participation["rejected"] == {"site 1": {"is not connected": 1}}


def test_only_the_owner_can_read_models_reports_and_the_run_folder(deployment: Deployment, tmp_path: Path) -> None:
    umask = os.umask(0o022)  # as on most machines
    try:
        deployment.run()
        assert os.umask(0o022) == 0o022  # not changed
    finally:
        os.umask(umask)
    sites = [tmp_path / f"state/{n}/parity/fedtilt/seed-0/site-{n:05d}" for n in (0, 1)]
    names = set()
    for folder in (tmp_path / "run", *sites):
        for path in (folder, *folder.rglob("*")):
            names.add(path.name)
            assert path.stat().st_mode & 0o077 == 0, path
    assert {"report.txt", "round-00002.safetensors", "participation.json", "metrics.jsonl"} <= names


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "the data function must return a fedtilt.data.Dataset, got NoneType"),
        (ft.data.load("toy-1"), r"the site's data has samples of shape \(2,\) in 2 classes; the task has \(3,\) in 2"),
    ],
)
def test_the_data_must_match_the_task(spec: Path, returned: object, message: str) -> None:
    task = Task(spec=spec, data=lambda _: returned, input_shape=(3,), class_names=("no", "yes"))
    with pytest.raises(ft.InputError, match=message):
        site_federation(task, task.resolve({}).spec, {"partition-id": 0}, None)
    with pytest.raises(ft.InputError, match="'flips' would corrupt real data"):
        task.resolve({"set": "outliers.kind=flips"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "nothing"}, "method 'nothing' is neither in the spec"),
        ({"set": "train.rounds=0"}, "train.rounds"),
        ({"set": "seeds=2"}, "trains one seed and the spec has seeds = 2"),
        ({"quorum": 0.0}, "^quorum must be a number > 0 and ≤ 1, got 0.0"),
        ({"join-quorum": 1.5}, "^join-quorum must be a number ≥ 0 and ≤ 1, got 1.5"),
        ({"deadline": "soon"}, "deadline must be a number, got 'soon'"),
        ({"kept-rounds": 2.5}, "kept-rounds must be a whole number ≥ 1, got 2.5"),
    ],
)
def test_bad_settings_give_a_one_line_error(deployment: Deployment, config: dict, message: str) -> None:
    with pytest.raises(ft.InputError, match=message) as error:
        deployment.run(**config)
    assert "\n" not in str(error.value)


def test_a_spec_with_several_methods_needs_a_choice() -> None:
    with pytest.raises(ft.InputError, match="the spec has fedavg, ditto, fedtilt; choose one with --method"):
        Task(spec="digits").resolve({})


def test_a_join_reply_says_nothing_about_the_data(deployment: Deployment) -> None:
    grid = deployment.run()
    replies = [reply.content for m, reply in grid.sent if m.metadata.message_type == "query"]
    assert [sorted(content["metrics"]) for content in replies] == [["classes", "parameters", "site"]] * 2
    assert [content.keys() for content in replies] == [{"metrics", "constants"}] * 2
    assert [dict(content["constants"]) for content in replies] == [{}] * 2  # this model has no frozen part


@pytest.mark.parametrize(
    ("model", "settings", "kept"),
    [
        (None, "", {"personal"}),
        (RecipeModel, 'train.local=["head.*"]', {"personal", "personal_buffers", "local", "buffers"}),
        (RecipeModel, 'train.local=["head.*"]\ntrain.buffers=average', {"personal", "personal_buffers", "local"}),
    ],
)
def test_what_a_site_keeps_is_in_no_reply(
    spec: Path, tmp_path: Path, model: type | None, settings: str, kept: set[str]
) -> None:
    grid = Deployment(Task(spec=spec, model=model), tmp_path).run(set=settings)
    sent = b""
    for _, reply in grid.sent:
        for name, record in reply.content.items():
            assert name in ("arrays", "metrics", "constants")
            sent += b"".join(array.data for array in record.values()) if name == "arrays" else repr(record).encode()
    for path in (tmp_path / "state").rglob("round-*.safetensors"):
        state = load_file(path)
        assert state.keys() == kept
        for values in map(torch.Tensor.numpy, state.values()):
            parts = [part for i in range(0, len(values) - 4, 4) if (part := values[i : i + 4]).all()]
            assert parts
            assert not any(part.tobytes() in sent for part in parts)
    frozen = RunFolder(tmp_path / "run/seed-0").constants().get("backbone.weight", torch.zeros(0))
    requests = b"".join(
        array.data for message, _ in grid.sent for array in dict(message.content.get("arrays", {})).values()
    )
    assert len(requests) >= len(sent) // 2  # the shared models were sent to the sites
    assert not any(row.numpy().tobytes() in requests + sent for row in frozen)
    shared = RunFolder(tmp_path / "run/seed-0").latest().shared["fedtilt"]
    assert len(sent) > 4 * 4 * len(shared)  # two sites, two rounds: the trained shared models were sent
