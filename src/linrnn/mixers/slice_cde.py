"""SLiCE, a linear differential equation that the input controls, with structured matrices."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import block_scan, linear_scan
from linrnn.state_spec import Part, integer, real

_GROWS = "nothing bounds a product of matrices that are affine in the input"


class SliceCDE(Mixer):
    r"""SLiCE: the state is multiplied by a matrix that is affine in the input.

    Equation:
        dX_t = step_size [dt_t, u_t]      increments of a path, dt_t 1 unless given
        y_t = y_{t-1} + A(dX_t) y_{t-1}   y in R^{d_model},  A(dX) = sum over c of dX[c] A_c
        y_0 = W u_0 + b                   the first step of a sequence sets y, and moves it no more
        "diagonal"  A_c is diagonal
        "block"     A_c has blocks of block_size; d_model of them is a dense matrix
        "low_rank"  A(dX) = diag(D(dX)) + U(dX) V(dX)^T, of which D, U and V are linear in dX
        Initially all is normal with standard deviation std, of blocks over sqrt(block_size), of U
        and V over sqrt(rank).
        Parameters: A (d_model + 1, d_model block_size) holds the rows of the blocks, one after the
        other; U and V (d_model + 1, d_model rank)

    Args:
        kind: "block", "diagonal" or "low_rank", see above.
        block_size: divides d_model. Default: 4, or the largest divisor below it.
        rank: of U and V. Their products are written out, d_model^2 numbers a step.
        step_size: factor on all increments.
        std: see above.

    Departures from the paper:
        Extension beyond the survey. Without the public code's tanh, which bends what a step adds
        to y where it comes near 1e11. The skips, the gate and the norm that follow in the paper
        belong to the block around a mixer. Sparse and Hadamard matrices are not there.

    Example:
        >>> y, state = SliceCDE(d_model=8)(torch.randn(2, 100, 8))
        >>> y.shape, state["y"].shape, state["begun"]
        (torch.Size([2, 100, 8]), torch.Size([2, 8]), tensor([1, 1]))

    Reference:
        Walker et al., "Structured Linear CDEs: Maximally Expressive and Parallel-in-Time Sequence
        Models", NeurIPS 2025, arXiv:2505.17761. Key: walker2025structured.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("A", "U", "V")
    single_precision: ClassVar[tuple[str, ...]] = ("A", "U", "V")

    family: ClassVar[str] = "continuous"
    choices = Choices(transition="local", gate="input", memory="vector")
    timed: ClassVar[bool] = True
    constant_state: ClassVar[tuple[str, ...]] = ("begun",)
    declared: ClassVar[Mapping[str, str]] = {"edges": _GROWS, "finite_when_long": _GROWS}
    overflows: ClassVar[str] = _GROWS
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "U", "V")

    def __init__(
        self,
        d_model: int,
        *,
        kind: Literal["block", "diagonal", "low_rank"] = "block",
        block_size: int | None = None,
        rank: int = 1,
        step_size: float = 0.025,
        std: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.kind, self.rank, self.step_size, self.std = (
            d_model,
            kind,
            rank,
            step_size,
            std,
        )
        check_in("SliceCDE", "kind", kind, ("block", "diagonal", "low_rank"))
        self.block_size = (
            next(n for n in (4, 3, 2, 1) if d_model % n == 0) if block_size is None else block_size
        )
        check_positive_int("SliceCDE", block_size=self.block_size, rank=rank)
        check_positive("SliceCDE", step_size=step_size, std=std)
        if d_model % self.block_size:
            raise ArgumentError(
                f"SliceCDE: block_size must divide d_model={d_model}, got {self.block_size}."
            )
        empty, width = empty_parameters(device, dtype), self.block_size if kind == "block" else 1
        self.A = empty(d_model + 1, d_model * width)
        low_rank = kind == "low_rank"
        self.U = empty(d_model + 1, d_model * rank) if low_rank else None
        self.V = empty(d_model + 1, d_model * rank) if low_rank else None
        self.first = Linear(d_model, d_model, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        width = self.block_size if self.kind == "block" else 1
        nn.init.normal_(self.A, std=self.std * width**-0.5)
        for factor in (self.U, self.V):
            if factor is not None:
                nn.init.normal_(factor, std=self.std * self.rank**-0.5)
        for parameter in self.first.parameters():
            nn.init.normal_(parameter, std=self.std)

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: y, and 1 after the first step, which sets it."""
        return {"y": real(d_model=self.d_model), "begun": integer()}

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Any]:
        begins = (state["begun"] == 0).unsqueeze(1)  # (B, 1)
        begins = torch.cat([begins, torch.zeros_like(x[:, 1:, 0], dtype=torch.bool)], 1)  # (B, T)
        begins = begins if reset is None else begins | reset  # (B, T)
        first = wide(self.first(x.to(self.first.weight.dtype)))
        b = torch.where(begins.unsqueeze(-1), first, 0)  # (B, T, d_model)
        with without_autocast(x.device):
            path = self._increments(x, dt)
            y, last = self._scan(path, b, state["y"], reset)
        return y, {"y": last, "begun": torch.ones_like(state["begun"])}

    def _increments(self, x: Tensor, dt: Tensor | None) -> Tensor:
        """``dX``, (B, T, d_model + 1)."""
        u = x.to(self.A.dtype)
        time = torch.ones_like(u[..., :1]) if dt is None else dt.to(u.dtype).unsqueeze(-1)
        return self.step_size * torch.cat([time, u], -1)

    def _scan(
        self, path: Tensor, b: Tensor, y: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        moved = path @ self.A
        if self.kind == "diagonal":
            return linear_scan(1 + moved, b, y, reset=reset)
        if self.kind == "block":
            side = self.block_size
            moved = moved.unflatten(-1, (-1, side, side))  # (B, T, blocks, side, side)
            A = moved + torch.eye(side, device=moved.device, dtype=moved.dtype)
            b, y = b.unflatten(-1, (-1, side)), y.unflatten(-1, (-1, side))
            h, last = block_scan(A, b, y, reset=reset)
            return h.flatten(2), last.flatten(1)
        assert self.U is not None
        assert self.V is not None
        U, V = ((path @ W).unflatten(-1, (-1, self.rank)) for W in (self.U, self.V))
        diagonal = torch.eye(self.d_model, device=moved.device, dtype=moved.dtype)
        A = (1 + moved).unsqueeze(-1) * diagonal + U @ V.mT  # (B, T, d_model, d_model)
        return block_scan(A, b, y, reset=reset)
