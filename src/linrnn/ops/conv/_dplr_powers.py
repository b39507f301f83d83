"""Powers of ``A = diag(a) - sum_r p_r q_r``, as blocks of time need them, without a dense product.

A power is a diagonal less as many outer products as it has factors,

``A^n = diag(a^n) - sum_{j < n} (a^(n-1-j) p) (q A^j)``,

so that the first n powers applied to a vector make the next n of two thin products: all that a
block of Q steps reads and leaves takes O(K Q^2) operations, and its dense power one product of
(K, Q) and (Q, K).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.pairs import columns, conjugate, rows
from linrnn.compute.product import Product
from linrnn.ops.conv._blocks import Blocks, add_now, spans
from linrnn.ops.conv.vandermonde import table


class Matrices(NamedTuple):
    """The matrices of blocks of Q steps, and of a shorter one; K real numbers are a state."""

    response: Tensor  # (H, Q): c A^j b
    into: Tensor  # (H, Q, K): A^j b, the highest power first
    out: Tensor  # (H, Q, K): c A^(j+1)
    decay: Tensor  # (H, K, K): what `rows` of a state are multiplied with for A^Q
    rest_decay: Tensor  # that of the shorter block, or empty

    @classmethod
    def of(
        cls,
        transition: Sequence[Tensor],
        time: int,
        max_size: int,
        dtype: torch.dtype,
    ) -> "Matrices":
        """For blocks of at most ``max_size`` steps, a power of two, and no more than there are.

        Args:
            transition: ``a, b, c`` (H, M) and ``p, q`` (H, rank, M), complex128.
            time: steps in all.
            max_size: steps of a block at most, a power of two.
            dtype: of the matrices, which are computed in double precision.
        """
        size = min(max_size, 1 << (time.bit_length() - 1))
        return cls(*_PRODUCT(*transition, size, time % size, dtype))

    def blocks(self, time: int, d: Tensor, dtype: torch.dtype) -> list[tuple[int, int, Blocks]]:
        """List begin, end and matrices of the full blocks, and of the shorter last one, if any."""
        response, into, out, decay, rest_decay = (x.to(dtype) for x in self)
        size, blocks = into.shape[1], []
        for lo, hi, n in spans(time, size):
            kernel = add_now(response[:, :n], d)
            carried = decay if n == size else rest_decay
            blocks.append((lo, hi, Blocks(kernel, into[:, size - n :], out[:, :n].mT, carried)))
        return blocks

    def after(self, c: Tensor, time: int) -> Tensor:
        """``c A^time`` as `columns`, (H, K), of ``c`` (H, M)."""
        count, remainder = divmod(time, self.into.shape[1])
        row = (self.out[:, remainder - 1] if remainder else columns(c))[..., None]  # (H, K, 1)
        matrix = self.decay
        while count:
            row = matrix @ row if count & 1 else row  # (H, K, 1)
            count >>= 1
            matrix = matrix @ matrix if count else matrix  # (H, K, K)
        return row[..., 0]


class Powers(NamedTuple):
    """The first n powers, in double precision: `rows` of states, `columns` of what reads them."""

    a: Tensor  # (H, n + 1, M): a^j
    into: Tensor  # (H, n, K): A^j b
    out: Tensor  # (H, n, K): c A^(j+1)
    left: Tensor  # (H, n rank, K): q A^j
    right: Tensor  # (H, n rank, K): a^j p, the highest power first

    @classmethod
    def of(cls, a: Tensor, b: Tensor, c: Tensor, p: Tensor, q: Tensor, size: int) -> "Powers":
        """From ``a, b, c`` (H, M) and ``p, q`` (H, rank, M); ``size`` is a power of two."""
        rank, all_a = p.shape[1], table(a, size + 1, a.dtype)
        # (H, size rank, K)
        right = rows(p[:, None] * all_a[:, :size].flip(1)[:, :, None]).flatten(1, 2)
        p, left, into, c = rows(p), columns(q), rows(b)[:, None], columns(c)[:, None]
        out = _times_complex(c, conjugate(a)[:, None]) - (c @ p.mT) @ left  # (H, 1, K)
        for n in (1 << i for i in range(size.bit_length() - 1)):
            last_rows, power = right[:, (size - n) * rank :], all_a[:, n, None]
            # (H, 2 n, K)
            into = torch.cat([into, _times_complex(into, power) - (into @ left.mT) @ last_rows], 1)
            both = torch.cat([out, left], 1)  # (H, n + n rank, K)
            # (H, n + n rank, K)
            both = _times_complex(both, conjugate(power)) - (both @ last_rows.mT) @ left
            # (H, 2 n, K), (H, 2 n rank, K)
            out, left = torch.cat([out, both[:, :n]], 1), torch.cat([left, both[:, n:]], 1)
        return cls(all_a, into, out, left, right)

    def dense(self, n: int) -> Tensor:
        """(H, K, K): what a row, the real numbers of a state, is multiplied with for ``A^n h``."""
        used = n * (self.left.shape[1] // self.into.shape[1])
        power = self.a[:, n]
        turns = torch.stack([rows(power), rows(1j * power)], -1)  # of 1 and of i, (H, K, 2)
        turns = turns.unflatten(1, (-1, 2)).permute(0, 3, 2, 1)  # (H, from, to, M)
        # (H, M, from, M, to), then (H, K, K)
        diagonal = turns.diag_embed().permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
        left, right = self.left[:, :used], self.right[:, self.right.shape[1] - used :]
        return torch.baddbmm(diagonal, left.mT, right, alpha=-1)  # (H, K, K)


def _matrices(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    p: Tensor,
    q: Tensor,
    size: int,
    remainder: int,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """The definition of `Matrices`."""
    powers = Powers.of(a, b, c, p, q, size)
    response = (powers.into @ columns(c)[..., None])[..., 0]  # (H, Q)
    dense = powers.dense(size), powers.dense(remainder) if remainder else response.new_empty(0)
    tensors = response, powers.into.flip(1), powers.out, *dense
    return tuple(x.to(dtype) for x in tensors)


def _times_complex(x: Tensor, a: Tensor) -> Tensor:
    """Complex numbers as real ones, times complex numbers."""
    return rows(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * a)  # (..., K)


_PRODUCT = Product(
    "dplr_powers",
    _matrices,
    gradients=5,
    keeps=1,
    kernels={
        "triton": "linrnn.ops.conv._dplr_powers_triton",
        "cpu": "linrnn.ops.conv._dplr_powers_cpu",
    },
)
