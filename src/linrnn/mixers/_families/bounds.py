"""Lower bounds of forget gates that grow with the depth of a stack, as of HGRN."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide
from linrnn.nn.parameters import KeepsPrecision


class CumulativeBounds(KeepsPrecision):
    r"""A lower bound for each layer of a stack, and channel, that no later layer falls below.

    Equation::

        beta_l = sum over i = 1 .. l of softmax(gamma)_i      l = 0 .. n_layers - 1

    where the softmax is over the layers: 0 in the first, below 1 in the last.

    Args:
        n_layers: at least 2.
        width: channels.
        device, dtype: of gamma, float32 at least.

    Initially gamma is 0, and so ``beta_l = l / n_layers``.

    Example:
        >>> [round(layer["bound"].sigmoid().item(), 4) for layer in CumulativeBounds(4, 1)()]
        [0.0, 0.25, 0.5, 0.75]

    Reference:
        Qin, Yang and Zhong 2023, arXiv:2311.04823, section 3.2.
    """

    single_precision: ClassVar[tuple[str, ...]] = ("gamma",)
    weight_parameters: ClassVar[tuple[str, ...]] = ()
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("gamma",)

    def __init__(self, n_layers: int, width: int, **factory: Any) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(n_layers, width, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from bounds that are as far apart as each other."""
        nn.init.zeros_(self.gamma)

    def forward(self) -> list[dict[str, Tensor]]:
        """``bound`` of each layer (width,): the logit of beta, minus infinity in the first.

        From sums of exponentials on either side, so that neither beta nor 1 - beta cancels.
        """
        first, *later = wide(self.gamma).unbind()  # (channels,) each
        above, tail = [], first  # the layers after each, and the first
        for gamma in reversed(later):
            above.append(tail)
            tail = torch.logaddexp(tail, gamma)
        bounds, below = [torch.full_like(first, -torch.inf)], later[0]
        for gamma, over in zip([*later[1:], first], reversed(above), strict=True):
            bounds.append(below - over)
            below = torch.logaddexp(below, gamma)
        return [{"bound": bound} for bound in bounds]
