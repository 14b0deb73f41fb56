"""A folder is locked by one process, or one line says why not; torch by one thread."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import locks, seeds
from fedtilt.locks import locked
from fedtilt.training.dropout import keyed_dropout
from fedtilt.training.precision import fp32_deterministic
from fedtilt.training.stacked import batched_functions


def is_free() -> bool:
    """Whether this thread gets the lock of torch's global state at once."""
    found = locks._torch_lock.acquire(blocking=False)
    if found:
        locks._torch_lock.release()
    return found


@pytest.mark.parametrize(
    "changed",
    [
        lambda: seeds.seeded_global_rng(0),
        lambda: fp32_deterministic(torch.device("cuda", 0)),
        keyed_dropout,
        batched_functions,
    ],
)
def test_one_thread_at_a_time_changes_what_is_global_in_torch(changed: Callable[[], AbstractContextManager]) -> None:
    with ThreadPoolExecutor(1) as other:
        with changed(), changed():
            assert not other.submit(is_free).result()
        assert other.submit(is_free).result()


def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with keyed_dropout():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if is_free() else 1)
    status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join(60)
    assert status == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def lockf(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(ft.InputError) as error, locked(tmp_path / "run"):
        pass
    assert str(error.value).startswith(f"cannot lock {tmp_path / 'run'}: {os.strerror(number)}, ")
    assert "choose a folder on another file system" in str(error.value)
    monkeypatch.undo()
    with locked(tmp_path / "run"):  # nothing is left that keeps it locked
        pass
