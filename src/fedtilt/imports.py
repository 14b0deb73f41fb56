"""Functions of the user that a spec names."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from fedtilt.errors import InputError


def import_function(path: str, what: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; modules beside the current folder are found too.

    Args:
        path: the name, such as "mypackage.losses:huber"
        what: the setting that names it, for error messages
    """
    module_name, colon, function_name = path.partition(":")
    if not colon or not module_name or not function_name:
        raise InputError(
            f"unknown {what} {path!r}; choose a built-in one, or name a function as package.module:function"
        )
    try:
        with _current_folder_first():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise  # the module exists and imports another that does not
        raise InputError(
            f"{what} = {path!r}: there is no module {module_name!r}; install it, or start fedtilt in its folder"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"{what} = {path!r}: module {module_name!r} has no function {function_name!r}")
    return cast(Callable[..., Any], function)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """The current folder is on the path, as it is for `python -m`."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
