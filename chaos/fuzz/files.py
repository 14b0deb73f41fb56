"""Files that fedtilt reads back: run folders, image files and tensors."""

import contextlib
import gzip
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save

import fedtilt as ft
from chaos.fuzz.mutate import dump_json, mutated_bytes, mutated_json
from chaos.fuzz.runner import Read
from chaos.small_run import METHOD, write_spec
from fedtilt import spec
from fedtilt.data.tables.schema import read_schema
from fedtilt.errors import InputError
from fedtilt.files import read_json, read_metadata, read_tensors
from fedtilt.report.run_reader import read_run
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import resume, run_spec, spec_of
from fedtilt.storage.integrity import check_run


def run_folders(folder: Path) -> Read:
    """One damaged or changed file in a run folder: reports, exports and resumes read it."""
    original, run = folder / "original", folder / "run"
    loaded = spec.load(write_spec(folder))
    run_spec(loaded, original)
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.stat().st_size)

    def read(rng: random.Random) -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        _change_file(run / rng.choice(files), rng)
        for use in rng.sample(USES, len(USES)):
            with contextlib.suppress(InputError):
                use(run)
        rng.choice(USES)(run)

    return read


USES: list[Callable[[Path], object]] = [
    read_run,
    check_run,
    spec_of,
    lambda run: export_model(run, METHOD, 0),
    lambda run: export_model(run, "fedavg"),
    resume,
]


def _change_file(path: Path, rng: random.Random) -> None:
    """Mutate a file; of JSON also the values, without the digest, so that it is not just refused as damaged."""
    content = path.read_bytes()
    match rng.randrange(10):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.symlink_to("/nowhere" if rng.random() < 0.5 else path.name)
        case 2:
            path.unlink()
            path.mkdir()
        case 3 | 4 | 5 | 6 if path.suffix == ".json":
            path.write_text(dump_json(mutated_json(read_json(path), rng)))
        case 3 | 4 | 5 | 6 if path.suffix == ".jsonl":
            lines = [{k: v for k, v in json.loads(line).items() if k != "digest"} for line in content.splitlines()]
            lines[rng.randrange(len(lines))] = mutated_json(rng.choice(lines), rng)
            path.write_text("\n".join(map(dump_json, lines)) + "\n")
        case _:
            path.write_bytes(mutated_bytes(content, rng))


def image_files(folder: Path) -> Read:
    """The idx files of MNIST, compressed or not."""
    names = [content.name for content in ft.data.published.catalog.entry("mnist").contents]
    arrays = [torch.zeros(6, 28, 28), torch.arange(6) % 10, torch.zeros(4, 28, 28), torch.arange(4) % 10]
    blobs = {
        name: bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.to(torch.uint8).numpy().tobytes()
        for name, a in zip(names, arrays, strict=True)
    }
    data = folder / "mnist"
    data.mkdir()

    def write(compressed: bool) -> None:
        shutil.rmtree(data)
        data.mkdir()
        for name, blob in blobs.items():
            (data / (name + ".gz" * compressed)).write_bytes(gzip.compress(blob, 1) if compressed else blob)

    def read(rng: random.Random) -> None:
        compressed = rng.random() < 0.5
        write(compressed)
        path = data / (rng.choice(names) + ".gz" * compressed)
        content = path.read_bytes()
        if compressed and rng.random() < 0.5:
            path.write_bytes(gzip.compress(mutated_bytes(gzip.decompress(content), rng), 1))
        else:
            path.write_bytes(mutated_bytes(content, rng))
        ft.data.load("mnist", folder)

    return read


def tensors(folder: Path) -> Read:
    """Exported models and the other files of tensors: bytes, and headers with other values."""
    path = folder / "model.safetensors"
    model = ft.models.mlp((2,), 2, hidden=(4,))
    recipe = {"name": "mlp", "input_shape": [2], "classes": 2, "hidden": [4]}
    content = save(model.state_dict(), {"model": json.dumps(recipe)})  # without a digest: it would just differ
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]

    def read(rng: random.Random) -> None:
        if rng.random() < 0.4:
            changed = dump_json(mutated_json(header, rng)).encode(errors="replace")
            path.write_bytes(len(changed).to_bytes(8, "little") + changed + body)
        else:
            path.write_bytes(mutated_bytes(content, rng))
        reader = rng.choice((read_tensors, read_metadata, read_schema, ft.models.load))
        reader(path)

    return read
