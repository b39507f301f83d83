"""Normalisation of the residual stream."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in

NORMS = ("batch", "layer", "rms", "none")


class _BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of the channels of (B, T, D) or (B, D): statistics over all the rest."""

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis.

        Raises:
            ArgumentError: in training, where one step in all has no statistics.
        """
        if x.numel() == 0:
            return x
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        if self.training:
            if flat.shape[0] == 1:
                raise ArgumentError(
                    "norm: a batch must hold more than one step for batch norm in training, got "
                    "one. Take norm 'layer' (--model.norm layer), or another batch size."
                )
            y = super().forward(flat)
        else:
            # what nn.BatchNorm1d comes to, without the Python around it, which one step feels
            y = torch.batch_norm(
                flat, self.weight, self.bias, self.running_mean, self.running_var,
                False, 0.0, self.eps, torch.backends.cudnn.enabled,
            )  # fmt: skip
        return y if x.ndim == 2 else y.view(x.shape)


def make_norm(
    kind: str,
    d_model: int,
    *,
    eps: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A normalisation layer over the last axis: ``batch``, ``layer``, ``rms`` or ``none``.

    Args:
        kind: which one.
        d_model: channels.
        eps: added to the variance, or mean square, under the root. Default: PyTorch's, 1e-5, and
            for ``rms`` the rounding of the dtype.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: another kind.
        ArgumentError: an eps that is not positive and finite.

    Example:
        >>> make_norm("layer", 8)(torch.zeros(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """
    check_in("make_norm", "kind", kind, NORMS)
    where: dict[str, Any] = {"device": device, "dtype": dtype}
    if eps is not None:
        if not 0 < eps < float("inf"):
            raise ArgumentError(f"make_norm: eps must be positive and finite, got {eps}.")
        where["eps"] = eps
    if kind == "batch":
        return _BatchNorm(d_model, **where)
    if kind == "layer":
        return nn.LayerNorm(d_model, **where)
    if kind == "rms":
        return nn.RMSNorm(d_model, **where)
    return nn.Identity()
