"""The systemd units of a server or a site, and the nginx configuration of the port that sites see.

Flower serves three APIs on one port: control (submit and list runs, register keys), runtime (take the server's task)
and fleet (a site's messages). The first asks for the owner's token, the second for the executor's secret, the third for
a site's key. The SuperLink listens on loopback, and the proxy passes the fleet's paths of a registered SuperNode, and
nothing else.
"""

import getpass
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtilt.flower.deploy import programs

_UNIT = """\
# Written by fedtilt deploy.
[Unit]
Description={description}
After={after}
Wants=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
{environment}
ExecStart={command}
Restart=always
RestartSec=5
KillMode=control-group
UMask=0077
MemoryMax={memory}
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={home}
ProtectHome=read-only
ProtectProc=invisible
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
{more}

[Install]
WantedBy=multi-user.target
"""

# The code of a project runs here: it reaches this machine alone, and its GPU.
_EXECUTOR = """\
# If the project reads its data over the network, add the address: IPAddressAllow=10.0.0.7
IPAddressDeny=any
IPAddressAllow=localhost"""
_NO_PROJECT = """\
PrivateDevices=yes
ProtectClock=yes"""


def unit(
    description: str, command: Sequence[str], *, home: Path, folder: Path, env: Mapping[str, str], memory: str,
    after: str = "network-online.target", is_executor: bool = False,
) -> str:  # fmt: skip
    """A unit of this user, restarted when it ends, whose files only its user can read.

    It runs in `folder` and can write `home` alone; `memory`, such as "4G" or "50%", limits all its processes together.
    An executor runs the code of a project, which reaches no other machine.
    """
    env = {**env, "XDG_CACHE_HOME": str(home / "cache")}
    return _UNIT.format(
        description=description,
        after=after,
        user=getpass.getuser(),
        home=_quote(str(home)),
        folder=folder,
        environment="\n".join(f"Environment={_quote(f'{key}={value}')}" for key, value in env.items()),
        command=" ".join(_quote(argument).replace("$", "$$") for argument in command),
        memory=memory,
        more=_EXECUTOR if is_executor else _NO_PROJECT,
    )


def _quote(text: str) -> str:
    """One word of a systemd setting."""
    text = text.replace("%", "%%")
    if re.fullmatch(r"[\w%$@:=,./+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# All requests that a SuperNode with a registered key sends. Registering itself is not among them.
FLEET_PATHS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab", "pull-messages", "push-messages",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip

MAX_REQUEST = "8m"  # Flower sends a model in parts of 5 MiB

_PROXY = """\
# Written by fedtilt deploy server. Sites reach the paths of Flower's Fleet API, and nothing else of the SuperLink.
server {{
    listen {port} ssl;
    server_name {host};
    ssl_certificate {certificates}/server.crt;
    ssl_certificate_key {certificates}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;

    client_max_body_size {max_request};   # Flower sends a model in parts of 5 MiB
    client_body_timeout 60s;
    keepalive_timeout 75s;

    location ~ ^/v1/fleet/({paths})$ {{
        limit_except POST {{ deny all; }}
        proxy_pass https://{superlink}/v1/fleet/$1;   # the path that was matched, never the one that was sent
        proxy_http_version 1.1;
        proxy_read_timeout 300s;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate {certificates}/ca.crt;
        proxy_ssl_name localhost;
    }}

    location / {{
        return 403;
    }}
}}
"""


def nginx_configuration(host: str, port: int, superlink_port: int, certificates: Path) -> str:
    """A server for nginx's http section: `host` and `port` are what sites see, the SuperLink is on this machine.

    `certificates` is the folder of ca.crt, server.crt and server.key.
    """
    return _PROXY.format(
        port=port,
        host=host,
        certificates=certificates,
        max_request=MAX_REQUEST,
        paths="|".join(FLEET_PATHS),
        superlink=f"{programs.HOST}:{superlink_port}",
    )
