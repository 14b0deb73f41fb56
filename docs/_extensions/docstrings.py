"""Docstrings of fedtilt as reStructuredText.

They are plain text: code in single backticks, formulas as indented blocks, arguments below `Args:`. Characters that
reStructuredText would take as markup are escaped. The comments beside the fields of a dataclass or named tuple become a
list of its fields.
"""

import ast
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

_ARGUMENT = re.compile(r"    (\*{0,2}\w+): (.*)")
_MARKUP = re.compile(r"([*|_\\])")


def to_rst(lines: list[str]) -> list[str]:
    """Plain text as reStructuredText."""
    converted: list[str] = []
    inside = ""  # "arguments", "doctest" or "formula"
    for line in lines:
        indented = line.startswith(" ")
        if not line.strip():
            inside = "" if inside == "doctest" else inside
            converted.append("")
        elif line == "Args:":
            inside = "arguments"
        elif inside == "arguments" and (argument := _ARGUMENT.match(line)):
            converted.append(f":param {_escaped(argument[1])}: {_escaped(argument[2])}")
        elif inside == "arguments" and indented:
            converted.append(f"    {_escaped(line.strip())}")
        else:
            if line.startswith(">>>"):
                inside = "doctest"
            elif indented and not inside:
                converted += ["::", ""]
                inside = "formula"
            elif not indented and inside != "doctest":
                inside = ""
            converted.append(line if inside else _escaped(line))
    return converted


def _escaped(line: str) -> str:
    parts = re.split(r"`([^`]*)`", line)
    return "".join(f"``{part}``" if i % 2 else _MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts))


def field_comments(cls: type) -> dict[str, str]:
    """The comment beside each public field of a class that has one."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    comments = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            _, _, comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
            if comment:
                comments[node.target.id] = comment
    return comments


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "module":  # the rest of it is about the code, not its use
        lines[:] = lines[: lines.index("")]
    lines[:] = to_rst(lines)
    if what == "class" and (hasattr(obj, "__dataclass_fields__") or hasattr(obj, "_fields")):
        fields = field_comments(obj)
        if fields:
            lines += ["", "Fields:", ""]
            lines += [f"* ``{name}``: {_escaped(text)}" for name, text in fields.items()]


def setup(app: Sphinx) -> dict[str, bool]:
    """Convert every docstring."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
