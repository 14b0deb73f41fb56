"""What a server may change of the project that a site's operator has allowed: how long and how fast it trains.

A run configuration comes from the server and can override any key of the spec: functions to import, files to read, the
smallest group of rows that a summary tells. A site accepts numbers, true and false for [train], the methods and the
seed, and the words that a key of [train] lists. Everything else is part of the project: its digest is what the operator
has allowed.
"""

import tomllib
from collections.abc import Mapping

from fedtilt.config.setting_fields import settings_of
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.flower.deploy.allowed_apps import ACCEPT_ALL
from fedtilt.spec import load


def check_server_settings(spec: str, config: Mapping[str, object]) -> None:
    """Raise InputError for a run configuration that changes more of a spec than a server may."""
    name = str(config.get("method") or "")
    if name and name not in (known := [method.name for method in load(spec).methods]):
        raise InputError(f"the server asks for the method {name!r}, and the allowed project has {', '.join(known)}")
    for line in filter(str.strip, str(config.get("set") or "").splitlines()):
        key, _, value = line.partition("=")
        if not _is_accepted(key.strip(), value.strip()):
            raise InputError(
                f"the server changes {key.strip()[:60]!r} of the allowed project to {value.strip()[:60]!r}, and may "
                f"change only numbers of [train] and of the methods; write it into spec.toml and allow that project, "
                f"or accept all settings of this server with {ACCEPT_ALL}=true in --node-config"
            )


def _is_accepted(key: str, value: str) -> bool:
    """Whether a server may give this key this value.

    >>> _is_accepted("train.lr", "0.1"), _is_accepted("train.schedule", "cosine"), _is_accepted("seed", "3")
    (True, True, True)
    >>> _is_accepted("train.loss", "module:function"), _is_accepted("data.min_count", "1")
    (False, False)
    """
    table, _, name = key.partition(".")
    if table not in ("train", "methods", "seed"):
        return False
    try:
        (parsed,) = tomllib.loads(f"value = {value}").values()
    except (tomllib.TOMLDecodeError, ValueError):
        parsed = value  # a word, which `--set` takes without quotes
    if isinstance(parsed, bool | int | float):
        return True
    field = settings_of(TrainSettings).get(name) if table == "train" else None
    return field is not None and parsed in [*(field.metadata["choices"] or ()), *(field.metadata["named"] or ())]
