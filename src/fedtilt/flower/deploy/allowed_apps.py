"""The apps that a site runs: a file with one digest per line, which the site's operator writes.

A Flower app travels as a bundle, a zip file that Flower builds of the project's files, always with the same bytes for
the same files. Its SHA-256 digest is therefore the digest of the project.
"""

import hashlib
import os
import re
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import private_files, private_folder, read_bytes, writing
from fedtilt.flower.deploy.project import check_project

ALLOWED_VARIABLE = "FEDTILT_ALLOWED_APPS"  # the file of a site
FILE_NAME = "allowed_apps"
ACCEPT_ALL = "accept-all-settings"  # in --node-config: the server may override all of spec.toml, as in a local cluster
_PREFIX = "sha256:"


def app_digest(project: Path) -> str:
    """The digest of a project as the sites see it, `sha256:` and 64 hexadecimal digits."""
    return _digest(bundle(project))


def bundle(project: Path) -> bytes:
    """The bundle that `flwr run` sends."""
    from flwr.cli.build import build_fab_from_disk

    check_project(project)
    try:
        content: bytes = build_fab_from_disk(project)
    except ValueError as error:
        raise InputError(f"Flower cannot bundle {project}: {' '.join(str(error).split())}") from error
    return content


def _digest(content: bytes) -> str:
    return _PREFIX + hashlib.sha256(content).hexdigest()


def allow(home: Path, app: str) -> str:
    """Allow the site in a folder to run an app: a digest, or the folder of a project; returns the digest."""
    digest, path = app.lower(), home / FILE_NAME
    if not digest.startswith(_PREFIX):
        digest = app_digest(Path(app))
    if not re.fullmatch(_PREFIX + "[0-9a-f]{64}", digest):
        raise InputError(f"{app!r} is not a digest; it has {_PREFIX} and 64 hexadecimal digits")
    if digest not in read_allowed(path):
        private_folder(home)
        with private_files(), writing(path), path.open("a") as file:  # added: another command may add one too
            file.write(f"{digest}\n")
    return digest


def read_allowed(path: Path) -> set[str]:
    """The digests in a file; none if there is no file. One that others can write is not used."""
    if not path.exists():
        return set()
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise InputError(f"others can write {path}, so it allows nothing; chown it to this user and chmod 600 it")
    lines = read_bytes(path).decode(errors="replace").splitlines()
    return {line.partition("#")[0].strip() for line in lines} - {""}


def check_allowed(content: bytes, path: Path) -> None:
    """Raise InputError for a bundle whose digest is not in the file; the bundle is not opened."""
    if (digest := _digest(content)) not in read_allowed(path):
        raise InputError(
            f"this site does not run the app {digest}: its operator has not allowed it. To run it, read its code, then "
            f"fedtilt deploy allow {path.parent} {digest}"
        )
