"""A server and a site: their programs and files (certificates, keys, secrets), and systemd units for real machines.

HOME of the server  certificates/, keys/site-N.pub, link/ with the database and the secrets, runs/, flwr/, units/
HOME of a site      ca.crt, site.key, site.key.pub, executor.secret, port/ with the certificates of the SuperNode's own
                    port, allowed_apps, state/ with the personal models, flwr/, units/
"""

import base64
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedtilt.errors import InputError
from fedtilt.files import private_folder, read_bytes, write_bytes
from fedtilt.flower.deploy import programs, services
from fedtilt.flower.deploy.allowed_apps import ALLOWED_VARIABLE, FILE_NAME
from fedtilt.flower.deploy.credentials import (
    KEYS_VARIABLE,
    make_authority,
    make_server_certificate,
    make_site_key,
    read_site_keys,
    write_secret,
)
from fedtilt.toml_text import format_toml

CONNECTION = "fedtilt"  # the name of the SuperLink in Flower's configuration
_SUPERNODE_PORT = 9094  # on loopback


def make_secret(path: Path) -> Path:
    """A file with a secret, made if it is missing."""
    if not path.exists():
        write_secret(path, secrets.token_hex(32).encode())
    return path


class Commands(NamedTuple):
    """The programs of a server or of a site."""

    main: list[str]  # SuperLink or SuperNode
    executor: list[str]  # its SuperExec, which runs the project's code
    env: dict[str, str]  # of both, beside `programs.environment`


def server_commands(home: Path, hosts: Sequence[str], port: int, *, days: int = 365, tls: bool = True) -> Commands:
    """The programs of a server, whose certificates, secrets and configuration of `flwr` are made or renewed."""
    link, certificates = private_folder(home / "link"), home / "certificates"
    if tls:
        if not (certificates / "ca.crt").exists():
            make_authority(certificates)
        make_server_certificate(certificates, hosts, days=days)
    authority = certificates / "ca.crt" if tls else None
    secret, token = make_secret(link / "executor.secret"), make_secret(link / "control.token")
    write_flwr_config(home, port, authority, token)
    main = programs.superlink(port, link / "link.db", secret, certificates if tls else None)
    executor = programs.superexec("server-executor", port, secret, authority)
    return Commands(main, executor, {programs.TOKEN_VARIABLE: str(token)})


def site_commands(
    home: Path, server: str, port: int, node_config: Mapping[str, object], credentials: tuple[Path, Path] | None
) -> Commands:
    """The programs of a site of the server at HOST:PORT; its secret, key and certificates are made if they are missing.

    `credentials` are the authority of the server and the key of the site; None: no TLS.
    """
    secret, config = make_secret(home / "executor.secret"), {"state-dir": str(home / "state"), **node_config}
    security, own = None, home / "port"
    if credentials is not None:
        security = (*credentials, own)  # of its own port: nobody who takes it gets a task of its SuperExec
        if not (own / "server.crt").exists():
            make_authority(own)
            make_server_certificate(own, [programs.HOST], days=3650)
            (own / "ca.key").unlink()
        if not credentials[1].exists():
            make_site_key(credentials[1])
    main = programs.supernode(server, port, config, secret, security)
    executor = programs.superexec("site-executor", port, secret, None if security is None else own / "ca.crt")
    return Commands(main, executor, {ALLOWED_VARIABLE: str(home / FILE_NAME)})


def write_server(home: Path, hosts: Sequence[str], *, port: int, superlink_port: int, days: int) -> list[Path]:
    """Write or renew the files of the server; returns the units and the proxy's configuration.

    The sites reach it at these hosts and this port. Its certificate is valid for this number of days.
    """
    home = private_folder(home.resolve())
    commands = server_commands(home, [*hosts, "localhost", programs.HOST], superlink_port, days=days)
    keys, runs = private_folder(home / "keys"), private_folder(home / "runs")
    unit = partial(services.unit, home=home, folder=home / "link")
    env = programs.environment(home / "link" / "flwr")
    units = {
        "fedtilt-link.service": unit(
            "fedtilt server: Flower SuperLink, on loopback", commands.main, env=env | commands.env, memory="25%"
        ),
        "fedtilt-executor.service": unit(
            "fedtilt server: Flower SuperExec, which runs the aggregation", commands.executor, memory="50%",
            env=env | {KEYS_VARIABLE: str(keys), "FEDTILT_RUNS": str(runs)}, after="fedtilt-link.service",
            is_executor=True,
        ),
        "fedtilt-proxy.conf": services.nginx_configuration(hosts[0], port, superlink_port, home / "certificates"),
    }  # fmt: skip
    return _write_units(home, units)


def write_site(home: Path, site: int, server: str, authority: Path, *, node_config: Mapping[str, object]) -> list[Path]:
    """Write the files of site 0, 1, … for a server at HOST:PORT with this ca.crt; returns the units."""
    home = private_folder(home.resolve())
    if not authority.is_file():
        raise InputError(f"{authority} does not exist; copy ca.crt from the server")
    if authority.resolve() != home / "ca.crt":
        shutil.copyfile(authority, home / "ca.crt")
    private_folder(home / "state")
    config = {"partition-id": site, **node_config}
    commands = site_commands(home, server, _SUPERNODE_PORT, config, (home / "ca.crt", home / "site.key"))
    unit = partial(services.unit, home=home, folder=home, env=programs.environment(home / "flwr") | commands.env)
    units = {
        "fedtilt-site.service": unit("fedtilt site: Flower SuperNode", commands.main, memory="25%"),
        "fedtilt-site-executor.service": unit(
            "fedtilt site: Flower SuperExec, which runs the training", commands.executor, memory="50%",
            after="fedtilt-site.service", is_executor=True,
        ),
    }  # fmt: skip
    return _write_units(home, units)


def register_site(home: Path, site: int, key: Path) -> Path:
    """Register a site's public key with the running SuperLink, and bind it to the site's number."""
    if not (home / "flwr" / "config.toml").exists():
        raise InputError(f"{home} is not the folder of a server; write one with fedtilt deploy server")
    path = home.resolve() / "keys" / f"site-{site}.pub"
    if path.exists():
        raise InputError(f"site {site} has the key {path}; to replace it, unregister the old one and delete the file")
    if not key.is_file():
        raise InputError(f"{key} does not exist; give the site.key.pub that fedtilt deploy site wrote")
    write_bytes(path, read_bytes(key))
    try:
        read_site_keys(path.parent)  # a public key, and of no other site
        programs.run_flwr(
            os.environ | programs.environment(home / "flwr"), "supernode", "register", str(path), CONNECTION
        )
    except BaseException:
        path.unlink()
        raise
    return path


def write_flwr_config(home: Path, port: int, authority: Path | None, token: Path) -> None:
    """Write Flower's configuration in HOME/flwr: the SuperLink's address on this machine, the owner's token."""
    security = "insecure = true" if authority is None else f"root-certificates = {format_toml(str(authority))}"
    address, flwr_home = f"{programs.HOST}:{port}", private_folder(home / "flwr")
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{security}\n'
    write_bytes(flwr_home / "config.toml", text.encode())
    key, value = f"flower.account-auth.{address}.", read_bytes(token).strip()
    # where `flwr` finds what its login leaves; there is no token to renew, and it wants one
    found = {"authn-type": b"oidc", "oidc-access-token": value, "oidc-refresh-token": b"none"}
    credentials = {key + name: base64.b64encode(entry).decode() for name, entry in found.items()}
    write_secret(flwr_home / "credentials.yaml", json.dumps(credentials).encode())  # JSON is YAML


def _write_units(home: Path, units: Mapping[str, str]) -> list[Path]:
    paths = [private_folder(home / "units") / name for name in units]
    for path, text in zip(paths, units.values(), strict=True):
        write_bytes(path, text.encode())
    return paths
