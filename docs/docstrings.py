"""How a docstring of this project becomes a page: a griffe extension, run before parsing.

Our section titles are a superset of Google's. Those Google's style does not know become bold
titles; equations are typeset. So does "Returns", whose first words Google's style would take for a
type.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import griffe

sys.path.append(str(Path(__file__).parent))
import equations
from tex import NotUnderstoodError

SHARED = re.compile(r"^(    )(\w+(?:, \w+)+):(?= )", re.MULTILINE)
TITLE = re.compile(r"^(Equation|Returns|Departures from the paper|Reference|Example):{1,2}$")


class Sections(griffe.Extension):
    """Rewrite the sections of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Griffe calls this for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)

    def on_function_instance(self, *, node: Any, func: griffe.Function, **kwargs: Any) -> None:
        """Annotations as written: griffe reads axes such as "seqs *channels" as expressions."""
        if not isinstance(node, ast.FunctionDef):
            return
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                func.parameters[argument.arg].annotation = ast.unparse(argument.annotation)
        if node.returns is not None:
            func.returns = ast.unparse(node.returns)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Griffe calls this when it has read everything, so that inherited parameters are known."""
        for obj in objects(pkg):
            if obj.docstring is not None:
                obj.docstring.value = with_types(obj.docstring.value, obj.parameters)


def objects(parent: griffe.Object) -> Iterator[griffe.Class | griffe.Function]:
    """Every class and function defined below that one."""
    for member in parent.members.values():
        if isinstance(member, griffe.Class | griffe.Function):
            yield member
        if isinstance(member, griffe.Class | griffe.Module):
            yield from objects(member)


def with_types(docstring: str, parameters: griffe.Parameters) -> str:
    """The docstring with types at names that share an entry, where griffe finds none by itself."""

    def typed(entry: re.Match[str]) -> str:
        names = entry[2].split(", ")
        if not all(name in parameters for name in names):
            return entry[0]
        kinds = dict.fromkeys(signature(parameters[name]) for name in names)
        return f"{entry[1]}{entry[2]} ({', '.join(kinds)}):"

    return SHARED.sub(typed, docstring)


def signature(parameter: griffe.Parameter) -> str:
    """Type and default as in a call's signature."""
    default = "" if parameter.default is None else f" = {parameter.default}"
    return f"{parameter.annotation}{default}"


def rewrite(docstring: str) -> str:
    """The docstring with our own sections in Markdown and Google's untouched."""
    lines, out = docstring.split("\n"), []
    while lines:
        line = lines.pop(0)
        match = TITLE.match(line)
        if match is None:
            out.append(line)
            continue
        body = []
        while lines and (not lines[0].strip() or lines[0].startswith(" ")):
            body.append(lines.pop(0))
        out.append(section(match[1], dedent("\n".join(body)).strip("\n")))
    return "\n".join(out)


def section(title: str, body: str) -> str:
    """One section: equations typeset, or as they stand where they cannot be, prose elsewhere."""
    if title == "Example":
        return f"Examples:\n{indent(body, '    ')}\n"
    if title == "Equation":
        body = typeset(body)
    return f"**{title}:**\n\n{body}\n"


def typeset(body: str) -> str:
    """Equations as HTML, or a fenced block of them where one is not understood."""
    try:
        return equations.html(body)
    except NotUnderstoodError:
        return f"```text\n{body}\n```"
