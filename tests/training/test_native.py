"""The native way beyond its agreement with the loop: how it is compiled and kept, and what it refuses."""

import os
import stat
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import models, spec
from fedtilt.errors import InputError
from fedtilt.runs import spec_run
from fedtilt.training import Batches, LocalJob, choose_backend, make_batches, native
from fedtilt.training.native import compiler

needs_kernel = pytest.mark.skipif(not native.available(), reason=f"native cannot run because {native.why_not()}")
MODEL = models.mlp((6,), 3, hidden=(9,))


def perceptron(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return models.mlp(input_shape, classes, hidden=(12,))


def feed(**changes: object) -> Batches:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 6, generator=rng), torch.randint(0, 3, (20,), generator=rng)
    data = make_batches(x, y, seed=1, round=1, client=0, epochs=2, batch_size=8)
    return Batches(**{"x": x, "y": y, "order": data.order, "size": 8, "key": 0} | changes)


def job(**changes: object) -> LocalJob:
    start = models.flat(MODEL)
    return LocalJob(**{"start": start, "anchor": start, "prox": 0.0, "tau": 0.0, "lam": 0.0, "lr": 0.1} | changes)


# -- what is trained -------------------------------------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize("tilt", [0.0, 3.0, -3.0, float("inf"), float("-inf")])
def test_a_lane_that_diverges_ends_with_numbers_that_are_not_finite(tilt: float) -> None:
    wild = {"lr": 1e30, "tau": tilt, "lam": tilt}
    (trained,) = native.train(MODEL, [job(**wild)], [feed()])
    assert not trained.isfinite().all()
    model = models.cnn((1, 4, 4), 3, channels=(5,))
    start = models.flat(model)
    (trained,) = native.train(model, [job(start=start, anchor=start, **wild)], [feed(x=torch.ones(20, 1, 4, 4))])
    assert not trained.isfinite().all()


@needs_kernel
@pytest.mark.parametrize("tilt", [float("inf"), float("-inf"), 40.0])
def test_ties_share(tilt: float) -> None:
    """Samples that are all alike have equal losses: every tilt is the mean."""
    same = feed(x=torch.ones(20, 6), y=torch.ones(20, dtype=torch.long))
    mean, tilted = native.train(MODEL, [job(), job(tau=tilt, lam=-tilt)], [same, same])
    torch.testing.assert_close(tilted, mean, rtol=1e-6, atol=1e-7)


@needs_kernel
def test_samples_with_gaps_in_memory_are_read_right() -> None:
    data = feed()
    wide = torch.zeros(20, 2, 6)
    wide[:, 0] = data.x
    expected, trained = native.train(MODEL, [job(), job()], [data, feed(x=wide[:, 0])])
    assert torch.equal(trained, expected)


@needs_kernel
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": torch.full((20,), 3)}, "labels lie in 3 to 3, but the model has classes 0 to 2"),
        ({"y": torch.full((20,), -1)}, "labels lie in -1 to -1"),
        ({"y": torch.zeros(20, dtype=torch.int32)}, r"labels must be torch.int64 of shape \(20,\)"),
        ({"x": torch.zeros(20, 6, dtype=torch.float64)}, "samples must be torch.float32"),
        ({"x": torch.zeros(20, 5)}, r"samples must be torch.float32 of shape \(20, 6\)"),
        ({"x": torch.zeros(19, 6)}, r"samples must be torch.float32 of shape \(20, 6\)"),
        ({"order": torch.full((2, 20), 20)}, "names samples 20 to 20 of 20"),
        ({"size": 0}, "at least one sample, got size 0"),
    ],
)
def test_what_a_kernel_must_not_read_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        native.train(MODEL, [job()], [feed(**changes)])


@needs_kernel
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 12, 4), "samples of shape .3, 12, 4. do not fit a model whose blocks should give 20 numbers"),
        ((2, 8, 4), r"samples must be torch.float32 of shape \(20, 3, 8, 4\)"),
        ((96,), "do not fit"),
    ],
)
def test_images_of_another_shape_are_refused(shape: tuple[int, ...], words: str) -> None:
    model = models.cnn((3, 8, 4), 3, channels=(4, 10))
    start = models.flat(model)
    with pytest.raises(InputError, match=words):
        native.train(model, [job(start=start, anchor=start)], [feed(x=torch.zeros(20, *shape))])


@needs_kernel
def test_parameters_of_another_model_are_refused() -> None:
    for wrong in ({"start": torch.zeros(5)}, {"anchor": torch.zeros(94, dtype=torch.float64)}):
        with pytest.raises(InputError, match=r"must be torch.float32 of shape \(93,\)"):
            native.train(MODEL, [job(**wrong)], [feed()])


# -- how it is compiled ----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that has not looked for the kernel yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDTILT_NATIVE", raising=False)
    native._kernel.cache_clear()
    yield tmp_path / "fedtilt" / "native"
    native._kernel.cache_clear()


def only_compiler(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `cc` of our own, the only compiler there is."""
    folder.mkdir()
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def small(tmp_path: Path, answer: int) -> Path:
    path = tmp_path / "small.c"
    path.write_text(f"int answer(void) {{ return {answer}; }}\n")
    return path


@needs_kernel
def test_a_library_is_compiled_once_into_a_folder_of_the_users_own(fresh: Path, tmp_path: Path) -> None:
    first = compiler.compile_library(small(tmp_path, 7))
    assert first.library.answer() == 7
    (file,) = fresh.iterdir()  # and nothing half made beside it
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    before = file.stat().st_mtime_ns
    assert compiler.compile_library(small(tmp_path, 7)).made_by == first.made_by
    assert file.stat().st_mtime_ns == before
    assert compiler.compile_library(small(tmp_path, 8)).library.answer() == 8  # another source is another library
    (tmp_path / "number.h").write_text("#define NUMBER 9")
    (tmp_path / "small.c").write_text('#include "number.h"\nint answer(void) { return NUMBER; }')
    assert compiler.compile_library(tmp_path / "small.c").library.answer() == 9
    (tmp_path / "number.h").write_text("#define NUMBER 10")  # and so is another header
    assert compiler.compile_library(tmp_path / "small.c").library.answer() == 10
    assert len(list(fresh.iterdir())) == 4


@needs_kernel
def test_a_damaged_library_is_compiled_again(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path, 9)
    compiler.compile_library(source)
    (whole,) = fresh.iterdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    damaged = tmp_path / "other" / "fedtilt" / "native" / whole.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(whole.read_bytes()[:100])
    assert compiler.compile_library(source).library.answer() == 9
    assert damaged.read_bytes() == whole.read_bytes()


@needs_kernel
def test_another_processor_or_compiler_is_another_library(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path, 7)
    here = compiler.compile_library(source).made_by
    output = compiler._output

    def elsewhere(command: list[str]) -> bytes:
        return output(command).replace(b"__VERSION__", b"__ELSEWHERE__") if "-E" in command else output(command)

    monkeypatch.setattr(compiler, "_output", elsewhere)
    assert compiler.compile_library(source).made_by != here
    assert len(list(fresh.iterdir())) == 2


@needs_kernel
def test_a_folder_that_others_can_write_is_not_trusted(fresh: Path, tmp_path: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    with pytest.raises(compiler.Unavailable, match="can be written by others"):
        compiler.compile_library(small(tmp_path, 7))


@needs_kernel
def test_a_folder_of_someone_else_is_not_trusted(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(compiler.Unavailable, match="belongs to someone else"):
        compiler.compile_library(small(tmp_path, 7))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo it hurts >&2; exit 1", "cc failed .it hurts."),
        ("exit 0", "could not be made"),
        ('for a; do if [ "$last" = -o ]; then echo junk > "$a"; fi; last=$a; done', "cannot be loaded"),
    ],
)
def test_without_a_working_compiler_fused_trains(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    only_compiler(tmp_path / "bin", script, monkeypatch)
    assert not native.available()
    assert native.made_by() == "none"
    assert choose_backend(MODEL, "cpu") == "fused"
    with pytest.raises(InputError, match=f"backend 'native' cannot run because .*{words}"):
        choose_backend(MODEL, "cpu", "native")
    with pytest.raises(InputError, match=words):
        native.train(MODEL, [job()], [feed()])


def test_without_any_compiler_fused_trains(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in native.why_not()
    assert choose_backend(MODEL, "cpu") == "fused"


def test_without_a_folder_to_write_to_fused_trains(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = fresh.parent.parent / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert native.why_not() is not None
    assert choose_backend(MODEL, "cpu") == "fused"


def test_a_variable_turns_it_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    assert choose_backend(MODEL, "cpu") == "fused"
    assert native.made_by() == "none"
    assert not fresh.exists()  # nothing was compiled
    with pytest.raises(InputError, match="because FEDTILT_NATIVE=0 turns it off; use 'auto'"):
        choose_backend(MODEL, "cpu", "native")


# -- in a run --------------------------------------------------------------------------------------------------------


@needs_kernel
def test_workers_give_the_same_bits() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=5, classes_per_client=2, outliers="flips")
    settings = {"rounds": 2, "participation": 0.6, "epochs": 2, "lr": 0.1, "backend": "native", "device": "cpu"}
    ends = []
    for workers in (0, 2):
        *_, end = ft.simulate([ft.fedtilt(tau=2, lam=-2)], federation, perceptron, workers=workers, **settings)
        ends.append(end.state.shared["fedtilt"])
    assert torch.equal(*ends)


@needs_kernel
def test_a_run_resumed_without_the_kernel_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ["train.rounds=1", "train.epochs=1", "clients.count=4", "model.hidden=[8]"]
    spec_run.run_spec(spec.load("digits", overrides=quick), tmp_path / "run")
    made_by = native.made_by()
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    said: list[str] = []
    spec_run.resume(tmp_path / "run", notice=said.append)
    assert said == [f"native kernel was {made_by} and is none now: the last bits may differ"]
