"""Products of matrices as instructions of a recorded step: see `_recorded_ops`."""

from typing import Any

from torch import Tensor

from linrnn.engine.replay.instructions import RULES, real, rule, target
from linrnn.engine.replay.operands import Number, Real, RefusedError, View
from linrnn.engine.replay.tape import Tape

__all__ = ["RULES"]


@rule("mm", "bmm")
def _product(tape: Tape, to: Number, x: Any, y: Any, c: Real | None = None) -> None:
    a, b = tape.number(x), tape.number(y)
    if to.im is None:
        _real_matrices(tape, target(to), (real(a), x), (real(b), y), c)
        return
    if a.im is None or b.im is None:
        raise RefusedError("of real and complex numbers")
    assert isinstance(to.re, View)
    assert isinstance(to.im, View)
    minus = tape.new("neg", tape.view(a.im, x.shape))
    _real_matrices(tape, to.re, (a.re, x), (b.re, y), c)
    _real_matrices(tape, to.re, (minus, x), (b.im, y), to.re)
    _real_matrices(tape, to.im, (a.re, x), (b.im, y), None)
    _real_matrices(tape, to.im, (a.im, x), (b.re, y), to.im)


def _real_matrices(
    tape: Tape, output: View, x: tuple[Real, Tensor], y: tuple[Real, Tensor], c: Real | None
) -> None:
    a, b = (tape.view(part, tensor.shape) for part, tensor in (x, y))
    if len(output.shape) == 2:
        output, a, b = output.wider(0), a.wider(0), b.wider(0)
        c = c.wider(0) if isinstance(c, View) else c
    tape.product(output, a, b.moved((0, 2, 1)), c)


@rule("addmm", "baddbmm")
def _addmm(
    tape: Tape, to: Number, c: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1
) -> None:
    if (beta, alpha) != (1, 1):
        raise RefusedError("with factors")
    added = real(tape.number(c))
    if isinstance(added, View):
        added = added.over(target(to).shape)
    _product(tape, to, x, y, added)


@rule("mv")
def _mv(tape: Tape, to: Number, x: Any, y: Any) -> None:
    a, b, output = (tape.view(z) for z in (real(tape.number(x)), real(tape.number(y)), target(to)))
    tape.product(output.wider(0).wider(0), b.wider(0).wider(0), a.wider(0), None)


@rule("quantized_linear")
def _quantized(
    tape: Tape,
    to: Number,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *sizes: int,
) -> None:
    """Write a product with weights that lie as `linrnn.ops.quantized_linear` lays them."""
    bytes_at, scales_at = tape.slot(packed), tape.slot(scales)
    if bytes_at is None or scales_at is None or {bytes_at.kind, scales_at.kind} != {"weight"}:
        raise RefusedError("it reads a tensor that is no parameter or buffer")
    _, _, bits, group, digits = sizes
    form = bits + 16 * ((scales.shape[2] > 1) + 2 * (digits + 4 * group))
    rows, output = tape.view(real(tape.number(x)), x.shape), target(to)
    tape.quantized(output, rows, bytes_at, scales_at, form)
    if bias is not None:
        tape.put("add", output, output, real(tape.number(bias)))
