"""Functions of the user that a spec names."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from fedtilt.errors import InputError


def is_function_path(path: str) -> bool:
    """Whether this names a function.

    >>> is_function_path("mypackage.losses:huber"), is_function_path("focal")
    (True, False)
    """
    module_name, _, function_name = path.partition(":")
    return function_name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))


def check_name(name: str, what: str, choices: Iterable[str]) -> None:
    """Raise InputError for a name that is neither built in nor a function's; nothing is imported."""
    if name not in choices and not is_function_path(name):
        raise InputError(
            f"unknown {what} {name!r}; choose one of {', '.join(choices)}, or name your own function as "
            "package.module:function"
        )


def find_modules_in(folder: str | os.PathLike[str]) -> None:
    """Let `import_function` find modules in this folder; it stays, for a function may import more when it is called."""
    if (path := os.path.abspath(folder)) not in sys.path:
        sys.path.insert(0, path)


def import_function(path: str, what: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; modules in the current folder are found, as by `python -m`.

    Those beside a spec are found too: `find_modules_in`.

    Args:
        path: the name, such as "mypackage.losses:huber"
        what: the setting that names it, for error messages
    """
    module_name, _, function_name = path.partition(":")
    find_modules_in(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists and imports another that does not
        raise InputError(
            f"{what} = {path!r}: there is no module {module_name!r}; install it, or start fedtilt in its folder"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"{what} = {path!r}: module {module_name!r} has no function {function_name!r}; check its name")
    return cast(Callable[..., Any], function)
