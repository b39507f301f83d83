"""Handle matrices and their gradients, for the kernels of every device."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import CONTRACTIONS, Program
from linrnn.ops.half_linear import half_outer_sum

#: Into how many pieces a sum over steps is divided on a GPU, where these steps allow;
#: not measured beside other numbers.
PIECES = 64


def products_read(program: Program) -> list[int]:
    """The sums over channels whose values the adjoint reads: kept, they need not be redone.

    These are products with matrices, and folds.
    """
    if not program.mixes:
        return []
    sums = (*CONTRACTIONS, "fold", "fold_each")
    every = tuple([i for i, node in enumerate(program.nodes) if node.op in sums])
    first = len(program.inputs) + len(program.states) + len(program.outputs)
    read = adjoint(program, every).leaves["input"]
    return [node for i, node in enumerate(every) if first + i in read]


def outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """The sum over steps of outer products: of (steps, heads, m) and (steps, heads, n).

    A GPU does one long sum after the other with most of it idle; of pieces it does many at once.
    """
    pieces = 1 if left.is_cpu else math.gcd(left.shape[0], PIECES)
    if pieces == 1:
        return torch.einsum("shm,shn->hmn", left, right)  # (heads, m, n)
    # (pieces, steps / pieces, heads, width)
    left, right = (x.unflatten(0, (pieces, -1)) for x in (left, right))
    return torch.einsum("pshm,pshn->phmn", left, right).sum(0)  # (heads, m, n)


def of_matrices(
    matrices: Sequence[Tensor],
    products: Iterable[tuple[int, Tensor, Tensor]],
    half: bool = False,
) -> list[Tensor]:
    """The gradient of each matrix, (rows, columns) or (heads, rows, columns), over all steps.

    Args:
        matrices: what the gradients are of.
        products: the parts of them: of which matrix, and the values (batch, time, width) on its
            left and on its right, whose outer product is summed over batch and time.
        half: round both to bfloat16; sums are float32.
    """
    gradients: list[Tensor | None] = [None] * len(matrices)
    for i, *pair in products:
        like = matrices[i]
        heads = like.shape[0] if like.ndim == 3 else 1
        left, right = pair[0].flatten(0, 1), pair[1].flatten(0, 1)  # (batch * time, width) each
        if half and heads == 1:
            product = half_outer_sum(left.bfloat16(), right.bfloat16())  # (rows, columns)
            product = product.to(like.dtype).reshape(like.shape)  # (..., rows, columns)
        else:
            steps, rows, columns = left.shape[0], left.shape[1], right.shape[1]
            # (steps, heads, rows / heads)
            left = left.to(like.dtype).reshape(steps, heads, rows // heads)
            # (steps, heads, columns / heads)
            right = right.to(like.dtype).reshape(steps, heads, columns // heads)
            product = outer_sum(left, right).reshape(like.shape)  # (..., rows, columns)
        total = gradients[i]
        gradients[i] = product if total is None else total + product
    pairs = zip(matrices, gradients, strict=True)
    return [torch.zeros_like(m) if g is None else g for m, g in pairs]
