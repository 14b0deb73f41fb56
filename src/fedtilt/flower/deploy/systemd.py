"""systemd units for the programs of a server or a site."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_TEMPLATE = """\
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
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def unit(
    description: str,
    command: Sequence[str],
    *,
    folder: Path,
    user: str,
    env: Mapping[str, str],
    memory: str,
    after: str = "network-online.target",
) -> str:
    """A service that is restarted when it ends, whose files only its user can read, and whose memory is limited.

    Args:
        description: one line
        command: the program with its full path, and its arguments
        folder: the working directory
        user: who runs it
        env: its environment
        memory: the limit of all its processes together, such as "4G" or "50%"
        after: the unit to wait for
    """
    return _TEMPLATE.format(
        description=description,
        after=after,
        user=user,
        folder=folder,
        environment="\n".join(f"Environment={_quote(f'{key}={value}')}" for key, value in env.items()),
        command=" ".join(_quote(argument).replace("$", "$$") for argument in command),
        memory=memory,
    )


def _quote(text: str) -> str:
    """One word of a systemd setting."""
    text = text.replace("%", "%%")
    if re.fullmatch(r"[\w%$@:=,./+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
