"""Names of a package that are imported when they are first used, so that a command imports only what it needs."""

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    namespace: dict[str, Any], sources: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        namespace: `globals()` of the package
        sources: of each name, where it is: a module, or module:name
    """

    def get(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = pkgutil.resolve_name(sources[name])
        return value

    return get, lambda: sorted({*namespace, *sources})
