"""Certificates and keys: a certificate authority, a SuperLink certificate, a key pair per SuperNode.

They are made with the `cryptography` package, a dependency of Flower. The server knows a site by its key, not by the
number it claims: Flower checks that a node has the private key of a registered public key, and the files
FEDTILT_SITE_KEYS/site-0.pub, site-1.pub, … say which site that key belongs to.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedtilt.errors import InputError
from fedtilt.files import private_files, read_bytes, write_bytes

_DAY = datetime.timedelta(days=1)
_PEM, _NO_PASSWORD = serialization.Encoding.PEM, serialization.NoEncryption()


def make_authority(folder: Path, *, days: int = 3650) -> None:
    """Write ca.crt, which every machine needs, and ca.key, which must stay on this machine."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedtilt federation CA")
    certificate = (
        _certificate_builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_secret(folder / "ca.key", _pem(key))
    write_bytes(folder / "ca.crt", certificate.public_bytes(_PEM))


def make_server_certificate(folder: Path, hosts: Sequence[str], *, days: int = 365) -> None:
    """Write server.crt and server.key for a SuperLink with these host names and addresses."""
    authority, authority_key = _load_authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate_builder(_name(hosts[0]), authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_secret(folder / "server.key", _pem(key))
    write_bytes(folder / "server.crt", certificate.public_bytes(_PEM))


def make_site_key(path: Path) -> None:
    """Write a SuperNode's private key to `path`, and its public key to `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_bytes(path.with_name(path.name + ".pub"), public + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with private_files():
        write_bytes(path, content)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    paths = folder / "ca.crt", folder / "ca.key"
    for path in paths:
        if not path.is_file():
            raise InputError(f"{folder} has no {path.name}; create ca.crt and ca.key with fedtilt deploy server")
    certificate_text, key_text = map(read_bytes, paths)
    try:
        certificate = x509.load_pem_x509_certificate(certificate_text)
        key = serialization.load_pem_private_key(key_text, None)
    except ValueError as error:
        raise InputError(
            f"{folder} has no usable ca.crt and ca.key ({error}); create them with fedtilt deploy server"
        ) from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return certificate, key


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _DAY).not_valid_after(now + days * _DAY)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD)


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
