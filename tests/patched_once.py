"""Triton's interpreter patches its language once in a grid, and not in each call of a function.

By itself it looks at every name of the language whenever a kernel calls a function: half of its
time. The functions it sets are the same each time.

To be imported in a process of its own, with ``TRITON_INTERPRET=1``.
"""

from triton.runtime import interpreter

_patch, _run = interpreter._patch_lang, interpreter.GridExecutor.__call__
#: Modules whose functions were called in this grid, by the identities of their names.
_patched = set()


def patch_once(function):
    """Patch what functions of a module see of the language, at the first call of one."""
    names = id(function.__globals__)
    if names in _patched:
        return None
    _patched.add(names)
    return _patch(function)


def run(executor, *arguments, **options):
    """A grid; what it patched is taken back at its end."""
    _patched.clear()
    _run(executor, *arguments, **options)


assert hasattr(interpreter, "_patch_lang")
interpreter._patch_lang = patch_once
interpreter.GridExecutor.__call__ = run
