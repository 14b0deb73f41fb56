"""A folder is locked by one process, or one line says why not."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt.locks import locked


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
