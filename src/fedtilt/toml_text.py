"""A value as TOML, and TOML as values."""

import json
import re
import tomllib
from typing import Any

from fedtilt.checks import is_nested_too_deeply

_LONG_DOTTED_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}""")


def format_toml(value: Any) -> str:
    r"""One value as TOML.

    >>> format_toml([1, 0.1, float("-inf"), True, 'a "word"'])
    '[1, 0.1, -inf, true, "a \\"word\\""]'
    >>> format_toml({"rule": "krum", "bad_share": 0.2, "a b": 1})
    '{ rule = "krum", bad_share = 0.2, "a b" = 1 }'
    """
    if hasattr(value, "to_value"):  # an object of settings
        value = value.to_value()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_toml(part) for part in value)}]"
    if isinstance(value, dict):
        pairs = [f"{_format_key(str(key))} = {format_toml(part)}" for key, part in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL, TOML forbids it
    return repr(value)  # int and float: shortest text that reads back as the same number; inf and -inf are TOML


def _format_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else format_toml(key)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; more levels than any spec needs are a `RecursionError`."""
    # a dotted key costs tomllib the square of its length
    raw = None if _LONG_DOTTED_KEY.search(text) else tomllib.loads(text)
    if raw is None or is_nested_too_deeply(raw):
        raise RecursionError
    return raw
