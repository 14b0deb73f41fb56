"""A Flower federation gives the simulator's models: over a real network, and with every part of a recipe."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.engine.prepare import check_effects, prepare
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.runs.spec_run import run_spec
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.spec import federation_of, load, model_of, train_settings_of
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment
from tests.helpers.network import write_app
from tests.helpers.recipe_model import RecipeModel, other_backbone, other_head, other_statistics


@pytest.mark.slow  # a dozen processes that import torch and Flower
def test_a_real_federation_gives_the_simulators_models(tmp_path: Path) -> None:
    spec = load(write_app(tmp_path / "app") / "spec.toml")
    sizes = federation_of(spec, 0).train_sizes()
    assert sizes[0] != sizes[1]
    cluster = LocalCluster(home=tmp_path / "cluster", tls=False)
    run = tmp_path / "run"
    cluster.up(timeout=0)
    try:
        number = cluster.submit(tmp_path / "app", {"out": str(run), "quorum": 1.0})
        assert cluster.wait_for_run(number, 240, is_done=(run / "results.json").exists) == "finished:completed"
    finally:
        cluster.down()
    assert cluster.running() == []

    run_spec(spec, tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated/seed-0").latest()
    torch.testing.assert_close(RunFolder(run / "seed-0").latest().shared, simulated.shared)
    for site in (0, 1):
        (file,) = (cluster.home / f"site-{site}/state").rglob("round-00002.safetensors")
        torch.testing.assert_close(load_file(file), simulated.client_states.get(("fedtilt", site)).to_tensors())
    assert read_json(run / "results.json") == read_json(tmp_path / "simulated/results.json")
    assert read_json(run / "seed-0/participation.json")["rejected"] == {}


MOMENTUM = "train.momentum=0.9\ntrain.weight_decay=0.01\ntrain.lr=0.02"
RECIPES = {
    "local buffers": MOMENTUM,
    "averaged buffers": f"{MOMENTUM}\ntrain.buffers=average\nmethods.fedtilt.weighting=samples",
    "frozen buffers": f"{MOMENTUM}\ntrain.buffers=frozen",
    "local head": f'{MOMENTUM}\ntrain.local=["head.*"]',
    "all of it": 'train.optimizer=adamw\ntrain.optimizer.clip_norm=1.0\ntrain.schedule={name="exponential",decay=0.5}\n'
    'train.local=["head.*"]\ntrain.buffers=average\ntrain.server_optimizer=adam\ntrain.server_optimizer.lr=0.05',
}  # fmt: skip


def simulated(spec: Path, settings: str) -> Round:
    loaded = load(spec, overrides=settings.splitlines())
    methods = [m.to_method() for m in loaded.methods]
    *_, last = simulate_prepared(
        prepare(methods, federation_of(loaded, 0), RecipeModel, train_settings_of(loaded, 0))
    )  # fmt: skip
    return last


@pytest.mark.parametrize(
    ("recipe", "preset"),
    [*((recipe, "fedtilt") for recipe in RECIPES), ("local buffers", "fedavg"), ("all of it", "fedavg")],
)
def test_every_part_of_a_recipe_gives_the_simulators_states(
    recipe: str, preset: str, spec: Path, tmp_path: Path
) -> None:
    settings = RECIPES[recipe].replace("fedtilt", preset) + "\ntrain.rounds=3\ntrain.epochs=1\ntrain.batch_size=40"
    if preset == "fedavg":
        text = spec.read_text().split("[[methods]]")[0] + '[[methods]]\npreset = "fedavg"\n'
        spec = tmp_path / "fedavg.toml"
        spec.write_text(text)
    Deployment(Task(spec=spec, model=RecipeModel), tmp_path).run(set=settings)
    last = simulated(spec, f"{settings}\ntrain.screen=3")  # the default of a deployment
    deployed = RunFolder(tmp_path / "run/seed-0").latest()
    torch.testing.assert_close(*(state.server[preset].to_tensors() for state in (deployed, last.state)))
    for site in (0, 1):
        kept = last.state.client_states.get((preset, site))
        files = list((tmp_path / "state" / str(site)).rglob("round-00003.safetensors"))
        assert bool(files) != kept.is_empty
        if files:
            torch.testing.assert_close(load_file(files[0]), kept.to_tensors())
    counts, _ = RunFolder(tmp_path / "run/seed-0").evaluations.counts(3)
    assert torch.equal(counts[preset].shared, last.counts[preset].shared)


LOCAL_HEAD = 'train.local=["head.*"]'


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        (other_backbone, "", "another frozen parameter 'backbone.bias'"),
        (other_statistics, "", "another initial buffer 'norm.running_var'"),
        (other_head, LOCAL_HEAD, "another initial local parameter 'head.bias'"),
        (other_head, "methods.fedtilt.personal_start=initial", "another initial parameter 'head.bias'"),
    ],
)
def test_a_site_with_other_values_that_no_message_carries_cannot_join(
    model: object, settings: str, reason: str, spec: Path, tmp_path: Path
) -> None:
    task = Task(spec=spec, model=RecipeModel)
    tasks = {1: dataclasses.replace(task, model=model)}
    with pytest.raises(ft.InputError) as error:
        Deployment(task, tmp_path).run(tasks=tasks, set=settings, **{"join-quorum": 1.0})
    assert f"site 1 cannot join: has {reason}; give every site the same model" in str(error.value)
    assert "site 0" not in str(error.value)
    assert not (tmp_path / "run/seed-0").exists()


def test_other_initial_values_that_the_server_sends_do_not_matter(spec: Path, tmp_path: Path) -> None:
    task = Task(spec=spec, model=RecipeModel)
    tasks = {1: dataclasses.replace(task, model=other_head)}
    Deployment(task, tmp_path / "other").run(tasks=tasks, set="train.rounds=1")
    Deployment(task, tmp_path).run(set="train.rounds=1")
    a, b = (RunFolder(home / "run/seed-0").latest().shared for home in (tmp_path, tmp_path / "other"))
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_sites_augment_their_batches_as_the_simulator_does(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_noise.py").write_text(
        "import torch\n\ndef noise(x):\n    return x + 0.3 * torch.randn(x.shape)\n\ndef same(x):\n    return x\n"
    )
    monkeypatch.chdir(tmp_path)
    shared = {}
    for name in ("noise", "same", ""):
        settings = f"train.transform=own_noise:{name}" if name else "train.lr=0.1"
        run_spec(load(spec, overrides=[*settings.split(), "train.screen=3"]), tmp_path / f"simulated {name}")
        Deployment(Task(spec=spec), tmp_path / name).run(set=settings)
        folders = tmp_path / f"simulated {name}/seed-0", tmp_path / name / "run/seed-0"
        simulated, deployed = (RunFolder(folder).latest().server["fedtilt"] for folder in folders)  # type: ignore
        assert torch.equal(simulated.parameters, deployed.parameters)
        shared[name] = deployed.parameters
    assert torch.equal(shared["same"], shared[""])
    assert not torch.equal(shared["noise"], shared[""])


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (None, "train.buffers=average"),
        (None, "train.server_optimizer=sgd\nmethods.fedtilt.optimizer=adam"),
        (RecipeModel, "train.micro_batch_size=4"),
    ],
)
def test_what_has_no_effect_or_cannot_train_is_the_simulators_error(
    model: object, settings: str, spec: Path, tmp_path: Path
) -> None:
    loaded = load(spec, overrides=settings.splitlines())
    methods = [m.to_method() for m in loaded.methods]
    with pytest.raises(ft.InputError) as error:
        check_effects(
            prepare(methods, federation_of(loaded, 0), model or model_of(loaded), train_settings_of(loaded, 0))
        )
    with pytest.raises(ft.InputError, match=f"^{re.escape(str(error.value))}$"):
        Deployment(Task(spec=spec, model=model), tmp_path).run(set=settings)
    assert not (tmp_path / "run/seed-0").exists()
