"""One flipped bit in what the server or a site has stored: the resumed run is bit-identical, or a line says it."""

import logging
import random
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

SETTINGS = "train.eval_every=1\ntrain.lr=0.02\ntrain.epochs=1\ntrain.rounds="


def result(home: Path) -> object:
    """What a run leaves behind: models of the server and of the sites, and metrics."""
    run = home / "run/seed-0"
    server = RunFolder(run).latest()
    kept = [load_file(path) for path in sorted((home / "state").rglob("round-00003.safetensors"))]
    tensors = [*(state.to_tensors() for state in server.server.values()), *kept]
    values = [{name: tensor.tolist() for name, tensor in named.items()} for named in tensors]
    return server.round, values, (run / "metrics.jsonl").read_text()


OWN = ("history.json", "participation.json", "round-00002.safetensors")  # not in a folder of the simulator


@pytest.mark.parametrize(("flips", "names"), [(4, OWN), pytest.param(240, None, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_silent(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture, flips: int, names: tuple[str, ...] | None
) -> None:
    deployment.run(set=f"{SETTINGS}2")
    for name in ("run", "state"):
        shutil.move(tmp_path / name, tmp_path / "original" / name)
    original = tmp_path / "original"
    unread = ("lock", ".lock", "report.html", "report.json", "report.txt", "results.json", "stopped.json")
    files = [p.relative_to(original) for p in sorted(original.rglob("*")) if p.is_file() and p.name not in unread]
    files = [path for path in files if (original / path).stat().st_size and (names is None or path.name in names)]

    def resume() -> object:
        deployment.run(set=f"{SETTINGS}3")
        return result(tmp_path)

    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    expected, rng = resume(), random.Random(0)
    assert {path.name for path in files} >= set(OWN)
    for flip in range(flips):
        for name in ("run", "state"):
            shutil.rmtree(tmp_path / name)
        shutil.copytree(original, tmp_path, dirs_exist_ok=True)
        path = tmp_path / files[flip % len(files)]
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        caplog.clear()
        try:
            with caplog.at_level(logging.WARNING, "flwr"):
                found = resume()
            told = caplog.text
        except ft.InputError as error:
            found, told = None, str(error) + caplog.text
        is_named = path.name in told or path.parent.name in told
        assert found == expected or is_named, f"byte {at} of {path.relative_to(tmp_path)} is damaged in silence: {told}"
