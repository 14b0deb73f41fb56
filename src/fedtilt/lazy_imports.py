"""Names of a package that are imported when they are first used; its stub `__init__.pyi` lists them, once."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(namespace: dict[str, Any]) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` (PEP 562) and `__all__` of a package, from the imports of its stub.

    Type checkers and editors read the stub, as with Scientific Python's SPEC 1.

    Args:
        namespace: `globals()` of the package
    """
    stub = ast.parse(Path(namespace["__file__"]).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    modules = {alias.name: str(statement.module) for statement in imports for alias in statement.names}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module = modules[name]
        if module == namespace["__name__"]:
            return import_module(f"{module}.{name}")
        value = namespace[name] = getattr(__import__(module, fromlist=[name]), name)
        return value

    return get, lambda: sorted({*namespace, *modules}), sorted(modules)
