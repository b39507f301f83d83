"""A cell as C++ made for it alone: the yardstick of the native machine, not a part of the library.

One loop over time and one over channels, all of a step in registers, each array read and written
once; compiled for this very processor. Elementwise cells in float32, whole batches.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _report import ROOT
from linrnn.cells import Cell
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import Node, Program

#: What differs from the machine's name in `functions.h`; others are ``v<name>``.
_WRITTEN = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "magnitude({0})",
    "reciprocal": "1.0f / {0}",
    "square": "{0} * {0}",
    "maximum": "(({0} > {1}) | ({0} != {0}) ? {0} : {1})",
    "lt": "({0} < {1} ? 1.0f : 0.0f)",
    "le": "({0} <= {1} ? 1.0f : 0.0f)",
    "eq": "({0} == {1} ? 1.0f : 0.0f)",
    "where": "({0} != 0.0f ? {1} : {2})",
    "relu": "({0} < 0.0f ? 0.0f : {0})",
    "logsigmoid": "-vsoftplus_to(-{0})",
}
_FLAGS = "-O3 -march=native -mprefer-vector-width=512 -std=c++17 -shared -fPIC -ffp-contract=fast"
_MORE = "-fno-math-errno -fno-trapping-math -Wno-psabi -w"


def source(program: Program, previous: range, backward: bool) -> str:
    """The text of a program; ``previous`` are the inputs that are states one step earlier."""
    names, body = {}, []
    for i, node in enumerate(program.nodes):
        names[i] = f"v{i}"
        body.append(f"const float v{i} = {_value(node, names)};")
    body += [f"out[{i}][at + c] = {names[x]};" for i, x in enumerate(program.outputs)]
    body += [f"sum[{i} * D + c] += {names[x]};" for i, x in program.sums]
    body += [f"s[{i} * D + c] = {names[x]};" for i, x in enumerate(program.next_states)]
    rows = [
        f"const float* in{i} = t ? in[{i}] + at - D : first[{i - previous.start}] + b * D;"
        if i in previous
        else f"const float* in{i} = in[{i}] + at;"
        for i in range(len(program.inputs))
    ]
    order = "i64 t = T - 1; t >= 0; --t" if backward else "i64 t = 0; t < T; ++t"
    return f"""#define LINRNN_ISA native
#include "functions.h"
using namespace linrnn; using namespace linrnn::native;
extern "C" void run(i64 B, i64 T, i64 D, const float* const* in, float* const* out, float* state,
                    const float* const* first, const float* const* par, float* sum) {{
    for (i64 b = 0; b < B; ++b) {{
        float* s = state + b * {len(program.states)} * D;
        for ({order}) {{
            const i64 at = (b * T + t) * D;
            {" ".join(rows)}
            #pragma GCC ivdep
            for (i64 c = 0; c < D; ++c) {{
                {" ".join(body)}
            }}
        }}
    }}
}}
"""


def _value(node: Node, names: dict[int, str]) -> str:
    index = int(node.attribute or 0) if node.op != "constant" else 0
    if node.op == "constant":
        return f"{float(node.attribute or 0.0)!r}f"
    if node.op == "state":
        return f"s[{index} * D + c]"
    if node.op == "input":
        return f"in{index}[c]"
    if node.op == "parameter":
        return f"par[{index}][c]"
    args = [names[x] for x in node.args]
    return _WRITTEN.get(node.op, f"v{node.op}({{0}})").format(*args)


@cache
def _compiled(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cell.cpp")
        path.write_text(text, encoding="utf-8")
        flags = [*_FLAGS.split(), *_MORE.split(), f"-I{ROOT / 'src' / 'native'}"]
        subprocess.run(["g++", *flags, str(path), "-o", f"{folder}/cell.so"], check=True)
        return ctypes.CDLL(f"{folder}/cell.so").run


def _addresses(tensors: list[Tensor]) -> Any:
    return (ctypes.c_void_p * (len(tensors) or 1))(*(x.data_ptr() for x in tensors))


def generated(cell: Cell, given: dict[str, Tensor], train: bool) -> Callable[[], object]:
    """A call of a cell, or one with all gradients, from the cell's starts."""
    program, n = cell.program, len(cell.inputs)
    kept = replace(program, outputs=(*program.outputs, *program.next_states))
    ahead = _compiled(source(kept if train else program, range(0), False))
    reverse = adjoint(program)
    back = _compiled(source(reverse, range(n, n + len(program.states)), True)) if train else None
    inputs = [given[name] for name in cell.inputs]
    parameters = [given[name] for name in cell.constants]
    batch, time, width = inputs[0].shape
    starts = torch.tensor(cell.starts())[:, None].expand(-1, width)
    states = [s.expand(batch, width).contiguous() for s in starts]
    into = [torch.randn(batch, time, width) for _ in program.outputs]

    def run(function: Any, arrays: list[Tensor], count: int, state: Tensor) -> list[Tensor]:
        out = [torch.empty(batch, time, width) for _ in range(count)]
        total = torch.zeros(max(1, len(parameters)), width)
        sizes = [ctypes.c_int64(x) for x in (batch, time, width)]
        places = [_addresses(x) for x in (arrays, out)]
        rest = (_addresses(states), _addresses(parameters), ctypes.c_void_p(total.data_ptr()))
        function(*sizes, *places, ctypes.c_void_p(state.data_ptr()), *rest)
        return [*out, total]

    def both() -> object:
        first = starts.expand(batch, -1, -1).contiguous()
        if not train:
            return run(ahead, inputs, len(program.outputs), first)
        *out, _ = run(ahead, inputs, len(kept.outputs), first)
        after = out[len(program.outputs) :]
        arrays = [*inputs, *after, *into]
        return run(back, arrays, len(reverse.outputs), torch.zeros_like(first))

    return both
