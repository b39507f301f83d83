"""Messages of a compiler that cannot trace a layer, on one line."""

import os
import re

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\s*\n\s*(?P<code>.+)')
_REASON = re.compile(r"^  - (.+)", re.MULTILINE)  # of sizes that a graph does not keep open
_CONTEXT = re.compile(r"Developer debug context: (.+)")
_LIBRARIES = (os.path.dirname(torch.__file__), os.path.dirname(os.__file__))


def compiler_error(error: Exception) -> str:
    """The first line, what it lists first, its context, and the line of code that it stopped at.

    That line is the innermost one in neither PyTorch nor the standard library nor the internals of
    this package, so for a layer it is one of its file.
    """
    text = str(error).strip()
    words = f"{type(error).__name__}: {text.split(chr(10))[0].strip()}".rstrip(": ")
    if reason := _REASON.search(text):
        words += f" {reason[1].strip()}"
    if context := _CONTEXT.search(text):
        words += f" ({context[1].strip()})"
    frames = [frame for frame in _FRAME.finditer(text) if _of_the_layer(frame["file"])]
    if frames:
        file, line, code = frames[-1].group("file", "line", "code")
        words += f", at {os.path.basename(file)}:{line}: {code.strip()}"
    return words


def _of_the_layer(file: str) -> bool:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if file.startswith(package + os.sep):
        folder, name = os.path.split(os.path.relpath(file, package))
        return folder == "mixers" and not name.startswith("_")
    return not file.startswith(_LIBRARIES)
