"""Binary codes of unit vectors by kernelised hash functions, fitted to which vectors are alike."""

import torch
from torch import Tensor, nn

from linrnn.compute.layout import accumulator_dtype
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.nn.heads import l2_normalise

_SAMPLES = 256  # of unit vectors, for the mean of a kernel before anything is fitted


class KernelHash(nn.Module):
    """``sum_i weight_ri (exp(-|x - point_i|^2 / (2 width)) - mean_i)``; a code has its signs.

    All of it is buffers, for each head its own: nothing is trained by gradients through it. Before
    `fit` points are random unit vectors, weights N(0, 1), and width their mean squared distance, 2.

    Args:
        size: channels of a vector.
        n_heads: heads.
        bits: of a code.
        n_points: points that a vector is compared with.
        device, dtype: as in torch.nn; half precision becomes float32.

    Example:
        >>> KernelHash(4, 3)(torch.zeros(2, 7, 3, 4)).shape
        torch.Size([2, 7, 3, 16])
    """

    points: Tensor
    """(n_heads, n_points, size)."""
    mean: Tensor
    """(n_heads, n_points)."""
    width: Tensor
    """(n_heads,)."""
    weight: Tensor
    """(n_heads, bits, n_points)."""
    fits: Tensor
    """How often they were fitted since `reset_parameters`."""

    def __init__(
        self,
        size: int,
        n_heads: int = 1,
        bits: int = 16,
        n_points: int = 25,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("KernelHash", size=size, n_heads=n_heads, bits=bits, n_points=n_points)
        dtype = accumulator_dtype(torch.get_default_dtype() if dtype is None else dtype)
        shapes = {
            "points": (n_heads, n_points, size),
            "mean": (n_heads, n_points),
            "width": (n_heads,),
            "weight": (n_heads, bits, n_points),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype))
        self.register_buffer("fits", torch.zeros((), device=device, dtype=torch.int64))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw points and weights from torch's global generator."""
        n_heads, n_points, size = self.points.shape
        points, samples = (
            l2_normalise(torch.randn(n_heads, n, size)) for n in (n_points, _SAMPLES)
        )
        width = torch.full((n_heads,), 2.0)
        self._put(
            points=points,
            mean=_kernel(samples, points, width).mean(1),
            width=width,
            weight=torch.randn(self.weight.shape),
            fits=torch.zeros((), dtype=torch.int64),
        )

    def _put(self, **values: Tensor) -> None:
        """New tensors: a graph may hold the old ones."""
        for name, value in values.items():
            setattr(self, name, value.to(getattr(self, name)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the values before the sign, (..., H, bits), for unit vectors (..., H, size)."""
        rows = x.flatten(0, -3).transpose(0, 1)  # (H, all, size)
        points, mean, width, weight = (
            b.to(x.dtype) for b in (self.points, self.mean, self.width, self.weight)
        )
        z = (_kernel(rows, points, width) - mean[:, None]) @ weight.mT  # (H, all, bits)
        y: Tensor = z.transpose(0, 1).unflatten(0, x.shape[:-2])  # (..., H, bits)
        return y

    @torch.no_grad()
    def fit(self, x: Tensor, *, pairs: int = 10, steps: int = 100, lr: float = 5e-4) -> None:
        """Take points from ``x``, and fit the weights bit by bit.

        Codes shall agree for the most similar vectors of each one, differ for the least similar
        ones, and have half their bits in common for all others. Every bit follows the gradient of a
        smooth sign, and takes what it finds if that is better with the sign itself; the next bit
        has to mend what is left.

        Args:
            x: unit vectors (N, H, size), at least as many as there are points.
            pairs: how many are to be alike, and how many different, of each vector; at most N / 2.
            steps: of gradient descent, for each bit.
            lr: of gradient descent, with Nesterov's momentum of 0.9.

        Raises:
            ArgumentError: fewer vectors than points, or no pairs or steps.
        """
        check_positive_int("KernelHash.fit", pairs=pairs, steps=steps)
        n_points, bits = self.points.shape[1], self.weight.shape[1]
        if len(x) < n_points:
            raise ArgumentError(
                f"KernelHash.fit: x must hold at least {n_points} vectors, got {len(x)}."
            )
        rows = x.transpose(0, 1).to(self.points)  # (H, N, size)
        points = rows[:, torch.randperm(len(x))[:n_points]]
        similar = rows @ rows.mT  # (H, N, N)
        square = rows.square().sum(-1)
        width = (2 * square.mean(1) - 2 * similar.mean((1, 2))).clamp(min=1e-6)
        kernel = _kernel(rows, points, width)
        mean = kernel.mean(1)
        left, weight = bits * _targets(similar, min(pairs, len(x) // 2)), []
        for start in self.weight.unbind(1):
            bit_weight = _fit_bit(kernel - mean[:, None], left, start, steps, lr, bits)
            code = sign(((kernel - mean[:, None]) @ bit_weight[..., None]).squeeze(-1))
            left = left - code[:, :, None] * code[:, None]
            weight.append(bit_weight)
        self._put(points=points, mean=mean, width=width, weight=torch.stack(weight, 1))
        self.fits = self.fits + 1


def sign(z: Tensor) -> Tensor:
    """1 or -1, never 0.

    Example:
        >>> sign(torch.tensor([-2.0, 0.0]))
        tensor([-1.,  1.])
    """
    return torch.where(z < 0, -1.0, torch.ones_like(z))


def _kernel(rows: Tensor, points: Tensor, width: Tensor) -> Tensor:
    """``exp(-|x - p|^2 / (2 width))``, (H, N, n_points)."""
    square = rows.square().sum(-1)[..., None] + points.square().sum(-1)[:, None]
    return ((rows @ points.mT - square / 2) / width[:, None, None]).exp()


def _targets(similar: Tensor, pairs: int) -> Tensor:
    """1 for the most similar ones of each row, -1 for the least similar, 0 else: (H, N, N)."""
    order = similar.argsort(-1)
    targets = torch.zeros_like(similar)
    targets.scatter_(-1, order[..., :pairs], -1.0)
    return targets.scatter_(-1, order[..., order.shape[-1] - pairs :], 1.0)


def _loss(y: Tensor, left: Tensor, bits: int) -> Tensor:
    """``-y^T left y / (N bits)`` of each head."""
    return -torch.einsum("hn,hnm,hm->h", y, left, y) / (y.shape[1] * bits)


def _fit_bit(
    kernel: Tensor, left: Tensor, start: Tensor, steps: int, lr: float, bits: int
) -> Tensor:
    """Weights (H, n_points) of one bit."""

    def z(weight: Tensor) -> Tensor:
        return (kernel @ weight[..., None]).squeeze(-1)

    weight, speed, both = start, torch.zeros_like(start), left + left.mT
    for _ in range(steps):
        y = 2 * z(weight).sigmoid() - 1
        slope = -(both @ y[..., None]).squeeze(-1) / (y.shape[1] * bits)
        slope = ((slope * (1 - y.square()) / 2)[:, None] @ kernel).squeeze(1)
        speed = 0.9 * speed + slope
        weight = weight - lr * (slope + 0.9 * speed)
    start_loss, fitted_loss = (_loss(sign(z(w)), left, bits) for w in (start, weight))
    return torch.where((fitted_loss < start_loss)[:, None], weight, start)
