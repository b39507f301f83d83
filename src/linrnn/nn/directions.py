"""Random directions to project on, kept with the weights and drawn anew from their own seed."""

from typing import Any

import torch
from torch import Tensor, nn

from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.precision import wide
from linrnn.errors import check_positive_int


class RandomDirections(nn.Module):
    """``n`` vectors of independent normal numbers for every head, which are not trained.

    They follow from two numbers, a seed and how often they were drawn. All are buffers, so a
    checkpoint holds them, and training that is resumed draws what it would have drawn.

    Args:
        n: vectors of a head.
        size: channels of each.
        n_heads: heads; 1 shares the vectors among all.
        orthogonal: make as many of them orthogonal as there are channels, and so on.
        regularised: give orthogonal ones the length ``size ** 0.5`` instead of a random one.
        device, dtype: as in torch.nn; half precision becomes float32.

    Example:
        >>> RandomDirections(16, 4)(torch.zeros(2, 7, 3, 4)).shape
        torch.Size([2, 7, 3, 16])
    """

    weight: Tensor
    """(n_heads, n, size)."""
    seed: Tensor
    draws: Tensor
    """How often they were drawn since `reset_parameters`."""

    def __init__(
        self,
        n: int,
        size: int,
        n_heads: int = 1,
        *,
        orthogonal: bool = False,
        regularised: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("RandomDirections", n=n, size=size, n_heads=n_heads)
        self.orthogonal, self.regularised = orthogonal, regularised
        dtype = accumulator_dtype(torch.get_default_dtype() if dtype is None else dtype)
        to: Any = {"device": device}
        self.register_buffer("weight", torch.empty(n_heads, n, size, dtype=dtype, **to))
        for name in ("seed", "draws"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, **to))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Take a new seed from torch's global generator, and draw."""
        seed = torch.randint(2**62, (), device="cpu")
        self.seed = seed.to(self.seed.device)
        self.draws = torch.zeros_like(self.draws)
        if not self.seed.is_meta:
            self._draw(int(seed))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw them anew; what was computed with the old ones is of no use with these."""
        self.draws = self.draws + 1
        if not self.draws.is_meta:
            self._draw(int(self.seed) + int(self.draws))

    def _draw(self, seed: int) -> None:
        """New tensors: a graph may hold the old ones."""
        generator = torch.Generator().manual_seed(seed)
        n_heads, n, size = self.weight.shape
        heads = [self._of_head(n, size, generator) for _ in range(n_heads)]
        self.weight = torch.stack(heads).to(self.weight)

    def _of_head(self, n: int, size: int, generator: torch.Generator) -> Tensor:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu")

        if not self.orthogonal:
            return normal(n, size)
        q, r = torch.linalg.qr(normal(-(-n // size), size, size))
        # as they come, the first entry of the first direction always has the same sign
        blocks = (q * r.diagonal(dim1=1, dim2=2).sign()[:, None]).mT
        length = normal(n, size).norm(dim=1)
        if self.regularised:
            length = torch.full_like(length, size**0.5)
        rows: Tensor = length[:, None] * blocks.flatten(0, 1)[:n]  # (n, size)
        return rows

    def forward(self, x: Tensor) -> Tensor:
        """Products of (..., H, size) with the directions, (..., H, n), at least float32."""
        each = wide(self.weight).expand(x.shape[-2], -1, -1)
        y: Tensor = torch.einsum("...hd,hnd->...hn", x, each)
        return y

    def extra_repr(self) -> str:
        """Sizes, for ``print(layer)``."""
        n_heads, n, size = self.weight.shape
        return f"{n}, {size}, n_heads={n_heads}, orthogonal={self.orthogonal}"
