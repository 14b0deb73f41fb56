"""`fedtilt deploy server`, `site` and `register`: the files of real machines."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.errors import InputError


def server(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="The server's folder, such as /var/lib/fedtilt.")],
    host: Annotated[list[str], typer.Option(help="A name or address by which the sites reach the server.")],
    port: Annotated[int, typer.Option(help="The port that the sites see.")] = 9092,
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on this machine.")] = 9093,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.")] = 365,
) -> None:
    """Write the server's certificates, systemd units and proxy configuration; again, to renew the certificate."""
    from fedtilt.flower.deploy.machines import write_server

    link, executor, proxy = write_server(home, host, port=port, superlink_port=superlink_port, days=days)
    echo(f"wrote  {home / 'certificates'}: ca.crt is for every site; the certificate is valid for {days} days")
    echo(f"wrote  {link}, {executor.name} and {proxy.name}")
    echo(f"next   sudo cp {link.parent}/*.service /etc/systemd/system/ && sudo systemctl daemon-reload")
    echo(f"       sudo systemctl enable --now {link.stem} {executor.stem}")
    echo(f"       sudo cp {proxy} /etc/nginx/conf.d/ && sudo systemctl reload nginx")
    echo(f"       fedtilt deploy register {home} --site 0 --key site.key.pub, for each site")


def site(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="The site's folder, such as /var/lib/fedtilt.")],
    number: Annotated[int, typer.Option("--site", min=0, help="The site's number: 0, 1, …")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's address.")],
    ca: Annotated[Path, typer.Option(metavar="FILE", help="The server's ca.crt.")],
    node_config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Add to the SuperNode's --node-config, such as data='\"/a.csv\"'."),
    ] = None,
) -> None:
    """Write a site's key and systemd units on its machine; give only site.key.pub to the server."""
    import tomllib

    from fedtilt.flower.deploy.machines import write_site

    try:
        config = tomllib.loads("\n".join(node_config or []))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--node-config is not KEY=VALUE ({error}); write for example data='\"/a.csv\"'") from None
    node, executor = write_site(home, number, server, ca, node_config=config)
    echo(f"wrote  {home / 'site.key'}, which stays here, and site.key.pub for the server")
    echo(f"wrote  {node} and {executor.name}")
    echo(f"next   sudo cp {node.parent}/*.service /etc/systemd/system/ && sudo systemctl daemon-reload")
    echo(f"       sudo systemctl enable --now {node.stem} {executor.stem}, after the key is registered")


def register(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="The server's folder.")],
    number: Annotated[int, typer.Option("--site", min=0, help="The site's number: 0, 1, …")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The site's public key, site.key.pub.")],
) -> None:
    """Register a site's key on the server: only its owner can be this site."""
    from fedtilt.flower.deploy.machines import register_site

    path = register_site(home, number, key)
    echo(f"wrote  {path}: the owner of this key is site {number}, and no other")
