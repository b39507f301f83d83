"""Linear recurrence with a full transition matrix."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.errors import check_in
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.dense import DenseRNN
from linrnn.ops.half_linear import half_linear, rounded_linear
from linrnn.ops.linear.matrix_scan import dense_loop, dense_scan
from linrnn.typing import Complex


class LinearRNN(DenseRNN):
    r"""Linear RNN with a full real matrix; the starting point of the LRU's derivation.

    Equation:
        h_t = A h_{t-1} + B x_t                      h in R^{d_state}
        y_t = C h_t + D * x_t                        y in R^{d_model}
        A is unconstrained. Initially its entries are N(0, 1 / d_state), so its eigenvalues fill
        the unit disk (circular law) and the largest lies near 1, on either side: over long
        sequences the state may grow as |lam|^t, and it overflows where that does. Nothing is
        clipped.

    Args:
        d_state: channels of h. Default: d_model.
        form: how a sequence is computed, with the same numbers: "chunked", products with powers
            of A up to the 128th, many steps at a time; or "loop", one step after another. The
            first needs |lam| < 2, below which A^128 is finite in float32.

    Departures from the paper:
        D is diagonal, as it is in the paper's LRU.

    Example:
        >>> y, state = LinearRNN(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences",
        ICML 2023, arXiv:2303.06349. Key: orvieto2023resurrecting.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("C",)
    single_precision: ClassVar[tuple[str, ...]] = ("A",)

    choices = Choices(transition="dense", gate="learned", memory="vector")

    overflows: ClassVar[str] = "the largest eigenvalue of a random matrix may exceed 1"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "parallel"
    forms: ClassVar[tuple[str, ...]] = ("chunked", "loop")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "B")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        form: Literal["chunked", "loop"] = "chunked",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state, False, device, dtype)
        self.form = form
        check_in("LinearRNN", "form", form, self.forms)
        self.reset_parameters()

    def eigenvalues(self) -> Complex[Tensor, " d_state"]:
        """Those of ``A``, in no particular order."""
        lam: Tensor = torch.linalg.eigvals(wide(self.A))
        return lam

    def _states(
        self, x: Tensor, h: Tensor, weights: list[Tensor], reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        b = wide(rounded_linear(x, weights[0]))  # (B, T, N)
        scan = dense_scan if self.form == "chunked" else dense_loop
        return scan(wide(self.A), b, h, reset)

    def _next_state(self, x_t: Tensor, h: Tensor) -> Tensor:
        return torch.addmm(wide(half_linear(x_t, self.B)), h, wide(self.A).t())
