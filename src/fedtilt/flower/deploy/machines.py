"""The files of a real server and of a real site: certificates, keys, secrets, systemd units, the proxy's configuration.

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
from pathlib import Path

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

CONNECTION = "fedtilt"  # the name of the SuperLink in Flower's configuration on the server
_SUPERNODE_PORT = 9094  # on loopback


def make_secret(folder: Path) -> Path:
    """The file of the secret that a SuperExec shares with its SuperLink or SuperNode, made if it is missing."""
    path = folder / "executor.secret"
    if not path.exists():
        write_secret(path, secrets.token_bytes(32))
    return path


def make_token(folder: Path) -> Path:
    """The file of the token that the SuperLink asks everyone for who submits a run, made if it is missing."""
    path = folder / "control.token"
    if not path.exists():
        write_secret(path, secrets.token_hex(32).encode())
    return path


def make_port_certificates(folder: Path) -> Path:
    """The certificates of a SuperNode's port on loopback: nobody who takes the port gets a task of its SuperExec."""
    if not (folder / "server.crt").exists():
        make_authority(folder)
        make_server_certificate(folder, [programs.HOST], days=3650)
        (folder / "ca.key").unlink()
    return folder


def write_server(home: Path, hosts: Sequence[str], *, port: int, superlink_port: int, days: int) -> list[Path]:
    """Write or renew the files of the server; returns the units and the proxy's configuration.

    Args:
        home: a folder of the user who runs the server
        hosts: the names and addresses by which the sites reach it
        port: that the sites see
        superlink_port: of the SuperLink, on loopback
        days: how long the server's certificate is valid
    """
    home = private_folder(home.resolve())
    certificates, link = home / "certificates", private_folder(home / "link")
    if not (certificates / "ca.crt").exists():
        make_authority(certificates)
    make_server_certificate(certificates, [*hosts, "localhost", programs.HOST], days=days)
    token = make_token(link)
    write_flwr_config(home, CONNECTION, superlink_port, certificates / "ca.crt", token)
    secret, env = make_secret(link), programs.environment(link / "flwr")
    server = {KEYS_VARIABLE: str(private_folder(home / "keys")), "FEDTILT_RUNS": str(private_folder(home / "runs"))}
    units = {
        "fedtilt-link.service": services.unit(
            "fedtilt server: Flower SuperLink, on loopback",
            programs.superlink(superlink_port, link / "link.db", secret, certificates),
            home=home, folder=link, env=env | {programs.TOKEN_VARIABLE: str(token)}, memory="25%",
        ),
        "fedtilt-executor.service": services.unit(
            "fedtilt server: Flower SuperExec, which runs the aggregation",
            programs.superexec("server-executor", superlink_port, secret, certificates / "ca.crt"),
            home=home, folder=link, env=env | server, memory="50%", after="fedtilt-link.service", is_executor=True,
        ),
        "fedtilt-proxy.conf": services.nginx_configuration(hosts[0], port, superlink_port, certificates),
    }  # fmt: skip
    return _write_units(home, units)


def write_site(home: Path, site: int, server: str, authority: Path, *, node_config: Mapping[str, object]) -> list[Path]:
    """Write the files of a site; returns the units.

    Args:
        home: a folder of the user who runs the site
        site: its number, from 0 up
        server: HOST:PORT of the server
        authority: the server's ca.crt
        node_config: more keys for the SuperNode's `--node-config`
    """
    home = private_folder(home.resolve())
    if not authority.is_file():
        raise InputError(f"{authority} does not exist; copy ca.crt from the server")
    if authority.resolve() != home / "ca.crt":
        shutil.copyfile(authority, home / "ca.crt")
    if not (home / "site.key").exists():
        make_site_key(home / "site.key")
    secret, own = make_secret(home), make_port_certificates(home / "port")
    env = programs.environment(home / "flwr") | {ALLOWED_VARIABLE: str(home / FILE_NAME)}
    config = {"partition-id": site, "state-dir": str(private_folder(home / "state")), **node_config}
    units = {
        "fedtilt-site.service": services.unit(
            "fedtilt site: Flower SuperNode",
            programs.supernode(server, _SUPERNODE_PORT, config, secret, (home / "ca.crt", home / "site.key", own)),
            home=home, folder=home, env=env, memory="25%",
        ),
        "fedtilt-site-executor.service": services.unit(
            "fedtilt site: Flower SuperExec, which runs the training",
            programs.superexec("site-executor", _SUPERNODE_PORT, secret, own / "ca.crt"),
            home=home, folder=home, env=env, memory="50%", after="fedtilt-site.service", is_executor=True,
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


def write_flwr_config(home: Path, connection: str, port: int, authority: Path | None, token: Path) -> None:
    """Write Flower's configuration in HOME/flwr: the SuperLink's address on this machine, the owner's token."""
    security = "insecure = true" if authority is None else f"root-certificates = {format_toml(str(authority))}"
    address, flwr_home = f"{programs.HOST}:{port}", private_folder(home / "flwr")
    text = f'[superlink]\ndefault = "{connection}"\n\n[superlink.{connection}]\naddress = "{address}"\n{security}\n'
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
