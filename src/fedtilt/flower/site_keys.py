"""The public key of each site: the server knows a site by its key, not by the number it claims.

FEDTILT_SITE_KEYS/site-0.pub, site-1.pub, …

Flower checks that a node has the private key of a registered public key. The files say which site that key belongs to.
"""

import os
import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedtilt.errors import InputError
from fedtilt.files import read_bytes

KEYS_VARIABLE = "FEDTILT_SITE_KEYS"


def site_keys() -> dict[bytes, int] | None:
    """The site of each public key, in the form Flower reports it; None if the server binds no keys."""
    folder = os.environ.get(KEYS_VARIABLE, "")
    return read_site_keys(Path(folder)) if folder else None


def read_site_keys(folder: Path) -> dict[bytes, int]:
    """The site of each public key in a folder."""
    sites: dict[bytes, int] = {}
    for path in sorted(folder.glob("site-*.pub")):
        if not (match := re.fullmatch(r"site-(\d{1,9})\.pub", path.name)):
            continue
        key = _read_key(path)
        if key in sites:
            raise InputError(f"{path} is also the key of site {sites[key]}; give every site its own")
        sites[key] = int(match[1])
    if not sites:
        raise InputError(f"{folder} has no site-N.pub; register the sites' keys with fedtilt deploy register")
    return sites


def _read_key(path: Path) -> bytes:
    content = read_bytes(path)
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a public key ({error}); fedtilt deploy site writes one") from None
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
