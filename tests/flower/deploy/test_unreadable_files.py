"""A file of a deployment that cannot be read is one line that names it."""

from pathlib import Path

import pytest

from fedtilt.errors import InputError
from fedtilt.flower.deploy.credentials import _load_authority, read_site_keys
from fedtilt.flower.deploy.project import default_run_config


def test_a_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(InputError, match=r"pyproject.toml cannot be read \(Is a directory\)"):
        default_run_config(tmp_path)
    (tmp_path / "pyproject.toml").rmdir()
    (tmp_path / "pyproject.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InputError, match=r"pyproject.toml is not valid TOML: 'utf-8' codec"):
        default_run_config(tmp_path)


def test_the_public_key_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "site-0.pub").mkdir()
    with pytest.raises(InputError, match=r"site-0.pub cannot be read \(Is a directory\)"):
        read_site_keys(tmp_path)


def test_the_authority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no ca.crt; create ca.crt and ca.key with fedtilt deploy server"):
        _load_authority(tmp_path)
    (tmp_path / "ca.crt").write_text("damaged")
    (tmp_path / "ca.key").write_text("damaged")
    with pytest.raises(InputError, match=r"has no usable ca.crt and ca.key"):
        _load_authority(tmp_path)
