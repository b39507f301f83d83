"""Normalisation of the residual stream."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_in
from linrnn.nn.lengths import without_padding

NORMS = ("batch", "layer", "rms", "none")


class _BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of the channels of (B, T, D) or (B, D): statistics over all the rest.

    Padding is not counted: of a layer that is told which steps are valid, mean and variance are
    those of these steps, and so are the running statistics.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalise the last axis.

        Args:
            x: (batch, time, channels) or (batch, channels).
            valid: boolean (batch, time), False at padding; None where there is none.

        Raises:
            ArgumentError: in training, where one step in all has no statistics.
        """
        if x.numel() == 0:
            return x
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])  # (steps, channels)
        if self.training:
            if flat.shape[0] == 1:
                raise ArgumentError(
                    "norm: a batch must hold more than one step for batch norm in training, got "
                    "one. Take norm 'layer' (--model.norm layer), or another batch size."
                )
            if valid is not None:
                return self._of_valid(x, valid)
            y = super().forward(flat)
        else:
            # what nn.BatchNorm1d comes to, without the Python around it, which one step feels
            y = torch.batch_norm(
                flat, self.weight, self.bias, self.running_mean, self.running_var,
                False, 0.0, self.eps, torch.backends.cudnn.enabled,
            )  # fmt: skip
        return y if x.ndim == 2 else y.view(x.shape)

    def _of_valid(self, x: Tensor, valid: Tensor) -> Tensor:
        """Training, with the statistics of valid steps; what padding gives is finite.

        Fewer than two of them, as the last window of long rows may have, have no statistics: they
        are read with the running ones.
        """
        steps = wide(without_padding(x, valid)).flatten(0, -2)  # (steps, channels)
        counted = valid.flatten().to(steps.dtype)
        n = counted.sum()
        mean = steps.sum(0) / n.clamp_min(1)
        with without_autocast(x.device):
            variance = (counted @ (steps - mean).square()) / n.clamp_min(1)
        centre, spread = mean, variance
        if self.running_mean is not None and self.running_var is not None:
            centre = torch.where(n < 2, self.running_mean.clone(), mean)
            spread = torch.where(n < 2, self.running_var.clone(), variance)
            self._follow(mean.detach(), variance.detach(), n)
        scale = torch.rsqrt(spread + self.eps)
        scale = wide(self.weight) * scale if self.affine else scale
        y = (steps - centre) * scale
        y = y + wide(self.bias) if self.affine else y
        return y.to(x.dtype).view(x.shape)

    def _follow(self, mean: Tensor, variance: Tensor, n: Tensor) -> None:
        """Move the running statistics, with the variance of a sample, as `torch.nn` does."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_((n > 1).long())
        step: Any = self.momentum
        if step is None:  # the mean over all batches
            step = 1 / self.num_batches_tracked.clamp_min(1)
        step = step * (n > 1)
        unbiased = variance * (n / (n - 1).clamp_min(1))
        for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.add_(step * (now - running))


def normalise(norm: Any, x: Tensor, valid: Tensor | None) -> Tensor:
    """Apply a norm of `make_norm`; one that averages over a batch counts valid steps alone.

    Args:
        norm: of the last axis.
        x: (batch, time, channels).
        valid: boolean (batch, time), False at padding; None where there is none.
    """
    y: Tensor = norm(x, valid) if valid is not None and isinstance(norm, _BatchNorm) else norm(x)
    return y


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
    check_in("norm", "kind", kind, NORMS)
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
