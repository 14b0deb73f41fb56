"""Import what is named at run time: packages that are extras, and functions of the user that a spec names."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from fedtilt.errors import InputError


def import_extra(module: str, what: str, extra: str) -> Any:
    """A package of an extra, or an InputError that says what needs it, and how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is installed, and imports another that is not
        package = {"PIL.Image": "Pillow", "dp_accounting": "dp-accounting", "ray": "Ray"}.get(module, module)
        raise InputError(f"{what} needs {package}, which is not installed; {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra: by their names, so it works for a clone and for a wheel.

    >>> install_command("report")
    'pip install "pandas>=2.2"'
    """
    try:
        requirements = metadata.requires("fedtilt") or []
    except metadata.PackageNotFoundError:  # the folder src on the path, without an installation
        requirements = []
    pairs = [line.replace('"', "'").split(";") for line in requirements]
    packages = [pair[0].strip() for pair in pairs if pair[1:] and f"extra == '{extra}'" in pair[1]]
    if not packages:  # also in a clone that was installed before it had this extra
        return f'pip install -e ".[{extra}]" in the clone'
    return "pip install " + " ".join(f'"{package}"' for package in packages)


def is_function_path(path: str) -> bool:
    """Whether this names a function.

    >>> is_function_path("mypackage.losses:huber"), is_function_path("focal")
    (True, False)
    """
    module_name, _, function_name = path.partition(":")
    return function_name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))


def find_modules_in(folder: str | os.PathLike[str]) -> None:
    """Let `import_function` find modules in this folder; it stays, for a function may import more when it is called."""
    if (path := os.path.abspath(folder)) not in sys.path:
        sys.path.insert(0, path)


def function_path(function: Callable[..., object]) -> str | None:
    """The name with which `import_function` finds a function or class; None: it has none, as a lambda or a script's."""
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = getattr(sys.modules.get(module_name or ""), name, None)
    return f"{module_name}:{name}" if found is function and module_name != "__main__" else None


def is_in_current_folder(path: str) -> bool:
    """Whether the module of `package.module:function` is a file in the current folder, not an installed one."""
    if not is_function_path(path):
        return False
    file = Path.cwd().joinpath(*path.partition(":")[0].split("."))
    return file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()


def import_function(path: str, what: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; `what` is the setting that names it, for messages."""
    module_name, _, function_name = path.partition(":")
    module = import_user_module(module_name, f"{what} = {path!r}")
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"{what} = {path!r}: module {module_name!r} has no function {function_name!r}; check its name")
    return cast(Callable[..., Any], function)


def import_user_module(name: str, what: str) -> ModuleType:
    """A module of the user; those in the current folder are found, as by `python -m`, and with `find_modules_in`."""
    find_modules_in(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:  # of code that is not ours
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise InputError(
                f"{what}: there is no module {name!r}; install it, or start fedtilt in its folder"
            ) from error
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        where = error if isinstance(error, SyntaxError) else frames[-1]
        raise InputError(
            f"{what}: module {name!r} cannot be imported: {type(error).__name__} in {where.filename}, line "
            f"{where.lineno}: {' '.join(str(error).split())}; correct it there"
        ) from error
