"""The native backend: compilation, the library cache and rejected input; `test_backends.py` tests its results."""

import os
import stat
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import compiler, models, spec
from fedtilt.errors import InputError
from fedtilt.losses import CrossEntropy, Focal
from fedtilt.optimizers import SGD, Optimizer
from fedtilt.runs import spec_run
from fedtilt.training import Batches, LocalJob, choose_backend, make_batches, native
from tests.helpers.callbacks import Calls

needs_kernel = pytest.mark.skipif(
    not native.available(), reason=f"native cannot run because {native.unavailable_reason()}"
)
MODEL = models.mlp((6,), 3, hidden=(9,))


def perceptron(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return models.mlp(input_shape, classes, hidden=(12,))


def make_data(**changes: object) -> Batches:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 6, generator=rng), torch.randint(0, 3, (20,), generator=rng)
    data = make_batches(x, y, seed=1, round=1, client=0, epochs=2, batch_size=8)
    return Batches(**{"x": x, "y": y, "order": data.order, "bounds": data.bounds, "key": 0} | changes)


def make_job(**changes: object) -> LocalJob:
    start = models.parameters_to_vector(MODEL)
    return LocalJob(**{"start": start, "anchor": start, "prox": 0.0, "tau": 0.0, "lam": 0.0, "lr": 0.1} | changes)


# -- training --------------------------------------------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), SGD(clip_norm=1.0)])
@pytest.mark.parametrize("tilt", [0.0, 3.0, -3.0, float("inf"), float("-inf")])
def test_a_diverging_job_ends_with_non_finite_numbers(tilt: float, optimizer: Optimizer) -> None:
    diverging = {"lr": 1e30, "tau": tilt, "lam": tilt, "optimizer": optimizer}
    (trained,) = native.train(MODEL, [make_job(**diverging)], [make_data()])
    assert not trained.parameters.isfinite().all()
    model = models.cnn((1, 4, 4), 3, channels=(5,))
    start = models.parameters_to_vector(model)
    (trained,) = native.train(
        model, [make_job(start=start, anchor=start, **diverging)], [make_data(x=torch.ones(20, 1, 4, 4))]
    )
    assert not trained.parameters.isfinite().all()


@needs_kernel
@pytest.mark.parametrize("tilt", [float("inf"), float("-inf"), 40.0])
def test_tied_losses_share_the_gradient(tilt: float) -> None:
    """Identical samples have equal losses: every tilt is the mean."""
    data = make_data(x=torch.ones(20, 6), y=torch.ones(20, dtype=torch.long))
    mean, tilted = native.train(MODEL, [make_job(), make_job(tau=tilt, lam=-tilt)], [data, data])
    torch.testing.assert_close(tilted.parameters, mean.parameters, rtol=1e-6, atol=1e-7)


@needs_kernel
def test_non_contiguous_samples() -> None:
    data = make_data()
    wide = torch.zeros(20, 2, 6)
    wide[:, 0] = data.x
    expected, trained = native.train(MODEL, [make_job(), make_job()], [data, make_data(x=wide[:, 0])])
    assert torch.equal(trained.parameters, expected.parameters)


@needs_kernel
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.full((20,), 3)}, "labels range from 3 to 3, but the model has classes 0 to 2"),
        ({"y": torch.full((20,), -1)}, "labels range from -1 to -1"),
        ({"y": torch.zeros(20, dtype=torch.int32)}, r"labels must be torch.int64 of shape \(20,\)"),
        ({"x": torch.zeros(20, 6, dtype=torch.float64)}, "samples must be torch.float32"),
        ({"x": torch.zeros(20, 5)}, r"samples must be torch.float32 of shape \(20, 6\)"),
        ({"x": torch.zeros(19, 6)}, r"samples must be torch.float32 of shape \(20, 6\)"),
        ({"order": torch.full((2, 20), 20)}, "sample indices from 20 to 20, but there are 20 samples"),
        ({"bounds": torch.tensor([0, 0, 20])}, "must rise from 0 to at most 20, got \\[0, 0, 20\\]"),
        ({"bounds": torch.tensor([0, 21])}, "must rise from 0 to at most 20"),
    ],
)
def test_invalid_batches_are_rejected(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        native.train(MODEL, [make_job()], [make_data(**changes)])


@needs_kernel
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 12, 4), "samples of shape .3, 12, 4. do not fit the model: its convolutions must give 20 features"),
        ((2, 8, 4), r"samples must be torch.float32 of shape \(20, 3, 8, 4\)"),
        ((96,), "do not fit"),
    ],
)
def test_images_of_another_shape_are_rejected(shape: tuple[int, ...], message: str) -> None:
    model = models.cnn((3, 8, 4), 3, channels=(4, 10))
    start = models.parameters_to_vector(model)
    with pytest.raises(InputError, match=message):
        native.train(model, [make_job(start=start, anchor=start)], [make_data(x=torch.zeros(20, *shape))])


@needs_kernel
def test_parameters_of_another_model_are_rejected() -> None:
    for wrong in ({"start": torch.zeros(5)}, {"anchor": torch.zeros(94, dtype=torch.float64)}):
        with pytest.raises(InputError, match=r"must be torch.float32 of shape \(93,\)"):
            native.train(MODEL, [make_job(**wrong)], [make_data()])


@needs_kernel
def test_class_weights_of_another_number_of_classes_are_rejected() -> None:
    loss = CrossEntropy(class_weights=(1.0, 2.0)).function
    with pytest.raises(InputError, match="class_weights has 2 values for 3 classes; give one each"):
        native.train(MODEL, [make_job(loss=loss)], [make_data()])


def test_a_loss_that_inherits_from_a_known_one_is_not_taken_for_it() -> None:
    class Own(Focal):
        def _unweighted(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return super()._unweighted(logits, targets) + 1

    reason = native.unsupported_reason(MODEL, make_job(loss=Own(gamma=2.0)), "cpu")
    assert reason == "the loss is a Python function, which the C kernel cannot call"


# -- compilation -----------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty library cache; the kernel is not loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDTILT_NATIVE", raising=False)
    native._load_kernel.cache_clear()
    yield tmp_path / "fedtilt" / "native"
    native._load_kernel.cache_clear()


def install_compiler(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this script the only compiler on the PATH."""
    folder.mkdir()
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def write_source(tmp_path: Path, answer: int) -> Path:
    path = tmp_path / "small.c"
    path.write_text(f"int answer(void) {{ return {answer}; }}\n")
    return path


@needs_kernel
def test_a_library_is_compiled_once_into_a_private_folder(empty_cache: Path, tmp_path: Path) -> None:
    first = compiler.compile_library(write_source(tmp_path, 7))
    assert first.library.answer() == 7
    (file,) = empty_cache.iterdir()  # and no temporary file
    assert stat.S_IMODE(empty_cache.stat().st_mode) == 0o700
    before = file.stat().st_mtime_ns
    assert compiler.compile_library(write_source(tmp_path, 7)).build_id == first.build_id
    assert file.stat().st_mtime_ns == before
    assert compiler.compile_library(write_source(tmp_path, 8)).library.answer() == 8  # another source
    (tmp_path / "number.h").write_text("#define NUMBER 9")
    (tmp_path / "small.c").write_text('#include "number.h"\nint answer(void) { return NUMBER; }')
    assert compiler.compile_library(tmp_path / "small.c").library.answer() == 9
    (tmp_path / "number.h").write_text("#define NUMBER 10")  # and another header too
    assert compiler.compile_library(tmp_path / "small.c").library.answer() == 10
    assert len(list(empty_cache.iterdir())) == 4


@needs_kernel
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_library_is_compiled_again(empty_cache: Path, tmp_path: Path, damage: str) -> None:
    source = write_source(tmp_path, 9)
    compiler.compile_library(source)
    (file,) = empty_cache.iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index((9).to_bytes(4, "little"))] ^= 1  # the answer itself: nothing else would notice
    file.unlink()  # this process has it mapped
    file.write_bytes({"truncated": whole[: len(whole) // 2], "flipped": bytes(flipped), "empty": b""}[damage])
    assert compiler.compile_library(source).library.answer() == 9
    (again,) = empty_cache.iterdir()
    assert again.read_bytes() == whole


@needs_kernel
def test_another_processor_or_compiler_is_another_library(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path, 7)
    build_id = compiler.compile_library(source).build_id
    run = compiler._run

    def other_compiler(command: list[str]) -> bytes:
        return run(command).replace(b"__VERSION__", b"__OTHER__") if "-E" in command else run(command)

    monkeypatch.setattr(compiler, "_run", other_compiler)
    assert compiler.compile_library(source).build_id != build_id
    assert len(list(empty_cache.iterdir())) == 2


@needs_kernel
def test_a_folder_writable_by_others_is_rejected(empty_cache: Path, tmp_path: Path) -> None:
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    with pytest.raises(compiler.LibraryUnavailable, match="is writable by others"):
        compiler.compile_library(write_source(tmp_path, 7))


@pytest.mark.parametrize(("variable", "name"), [("TORCHINDUCTOR_CACHE_DIR", "torch"), ("TRITON_CACHE_DIR", "triton")])
def test_torch_and_triton_read_no_cache_that_others_can_write(
    variable: str, name: str, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run what they find; torch's default is a folder in /tmp with a name that others can guess."""
    for each in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(each, str(tmp_path))  # restored afterwards
    shared = empty_cache.with_name(name)
    for mode, is_used in ((0o700, True), (0o777, False), (0o770, False)):
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(mode)
        monkeypatch.delenv(variable)
        compiler.use_private_caches()
        folder = Path(os.environ[variable])
        assert (folder == shared) == is_used
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setenv(variable, str(shared))
    with pytest.raises(ft.InputError, match=f"{variable} = {shared} is a folder that others can write"):
        compiler.use_private_caches()
    shared.chmod(0o755)
    compiler.use_private_caches()
    assert os.environ[variable] == str(shared)


@needs_kernel
def test_a_folder_of_another_user_is_rejected(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(compiler.LibraryUnavailable, match="belongs to another user"):
        compiler.compile_library(write_source(tmp_path, 7))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo syntax error >&2; exit 1", "cc failed .syntax error."),
        ("exit 0", "could not be written"),
        ('for a; do if [ "$last" = -o ]; then echo junk > "$a"; fi; last=$a; done', "cannot be loaded"),
    ],
)
def test_with_a_broken_compiler_fused_is_used(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    install_compiler(tmp_path / "bin", script, monkeypatch)
    assert not native.available()
    assert native.build_id() == "none"
    assert choose_backend(MODEL, [make_job()], "cpu").name == "fused"
    with pytest.raises(InputError, match=f"backend 'native' cannot train this because the C kernel .*{message}"):
        choose_backend(MODEL, [make_job()], "cpu", "native")
    with pytest.raises(InputError, match=message):
        native.train(MODEL, [make_job()], [make_data()])


def test_without_a_compiler_fused_is_used(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in native.unavailable_reason()
    assert choose_backend(MODEL, [make_job()], "cpu").name == "fused"


def test_without_a_writable_folder_fused_is_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = empty_cache.parent.parent / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert native.unavailable_reason() is not None
    assert choose_backend(MODEL, [make_job()], "cpu").name == "fused"


def test_an_environment_variable_turns_it_off(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    choice = choose_backend(MODEL, [make_job()], "cpu")
    assert choice == ("fused", {"native": "the C kernel cannot run: FEDTILT_NATIVE=0 turns it off"}, None)
    assert native.build_id() == "none"
    assert not empty_cache.exists()  # nothing was compiled
    with pytest.raises(InputError, match="because the C kernel cannot run: FEDTILT_NATIVE=0 turns it off; use"):
        choose_backend(MODEL, [make_job()], "cpu", "native")


# -- in a run --------------------------------------------------------------------------------------------------------


@needs_kernel
def test_worker_processes_give_the_same_bits() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=5, classes_per_client=2, outliers="flips")
    settings = {"rounds": 2, "participation": 0.6, "epochs": 2, "lr": 0.1, "backend": "native", "device": "cpu"}
    shared_models = []
    for workers in (0, 2):
        *_, last = ft.simulate([ft.fedtilt(tau=2, lam=-2)], federation, perceptron, workers=workers, **settings)
        shared_models.append(last.state.shared["fedtilt"])
    assert torch.equal(*shared_models)


@needs_kernel
def test_resuming_without_the_kernel_gives_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ["train.rounds=1", "train.epochs=1", "clients.count=4", "model.hidden=[8]"]
    spec_run.run_spec(spec.load("digits", overrides=quick), tmp_path / "run")
    build_id = native.build_id()
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    calls = Calls()
    spec_run.resume(tmp_path / "run", callbacks=[calls])
    assert calls.notices == [f"native kernel was {build_id} and is none now: the last bits may differ"]
