"""Parameters before they are drawn, and what they are."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

LARGEST_LOG = 40.0
"""Where `bounded_exp` ends: e^40 is 2.4e17, whose square and the inverse of it float32 still holds.

A double has no digit after the point left at 9e15, so that no larger rate, step size or frequency
means anything to a step of length 1; and one of 4.2e-18 changes nothing in 1e10 steps."""


#: A tensor, or a value of a graph that `linrnn.engine` reads.
Numbers = TypeVar("Numbers")


def bounded_exp(log: Numbers) -> Numbers:
    """``exp(log)`` of what is kept as a logarithm, from e^-40 to e^40 for any number.

    The bounds are the same in every dtype, and what is computed from it stays finite, gradients
    included: those of logarithms beyond are 0. Without them ``exp(-exp(100))`` has the gradient
    ``0 * inf`` in float32.

    Example:
        >>> bounded_exp(torch.tensor([0.0, 100.0, -100.0]))
        tensor([1.0000e+00, 2.3539e+17, 4.2484e-18])
    """
    numbers: Any = log
    result: Numbers = numbers.clamp(-LARGEST_LOG, LARGEST_LOG).exp()
    return result


_WEIGHTED = (
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.MultiheadAttention),
    *(nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase),
)
_UNWEIGHTED = (
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.PReLU),
    *(nn.modules.batchnorm._NormBase, nn.modules.instancenorm._InstanceNorm),
)


def has_decay(module: nn.Module, name: str) -> bool:
    """Whether weight decay is for a parameter: a weight, and no bias, gain, skip or first state.

    The class of the module says so by ``weight_parameters``, the names of those parameters that
    are weights. For modules of torch.nn weights are those of maps, convolutions, embeddings and
    recurrent layers, and none of a norm. For a class that says nothing they are the parameters of
    two or more axes.

    Args:
        module: that the parameter belongs to itself, and not to a part of it.
        name: of the parameter.

    Example:
        >>> linear, norm = nn.Linear(2, 3), nn.LayerNorm(3)
        >>> has_decay(linear, "weight"), has_decay(linear, "bias"), has_decay(norm, "weight")
        (True, False, False)
    """
    declared: tuple[str, ...] | None = getattr(module, "weight_parameters", None)
    if declared is not None:
        return name in declared
    if isinstance(module, _UNWEIGHTED):
        return False
    if isinstance(module, _WEIGHTED):
        return "weight" in name
    parameter = module.get_parameter(name)
    return parameter.ndim >= 2


class KeepsPrecision(nn.Module):
    """A module some of whose parameters are float32 at least, whatever the dtype of the others.

    Mixers are, and so are parts with eigenvalues, angles or step sizes of their own.
    """

    single_precision: ClassVar[tuple[str, ...]] = ()
    """Parameters that are float32 at least, whatever the dtype of the others: eigenvalues, angles
    and step sizes, whose rounding to half precision is felt at every step and adds up over time.
    Neither ``dtype=`` of the constructor nor ``.to(torch.bfloat16)`` makes them smaller."""

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register as `torch.nn.Module` does; `single_precision` ones become float32 at least."""
        if param is not None and name in self.single_precision and _is_half(param):
            param = nn.Parameter(param.detach().float(), param.requires_grad)
        super().register_parameter(name, param)

    def _apply(self, fn: Any, recurse: bool = True) -> "KeepsPrecision":
        """Convert as ``.to`` and its like do; `single_precision` only moves to the device."""
        parameters = [(name, self._parameters.get(name)) for name in self.single_precision]
        saved = [(name, p.detach(), p.grad) for name, p in parameters if p is not None]
        saved = [(name, x, g if g is None else g.detach()) for name, x, g in saved]
        super()._apply(fn, recurse)
        for name, value, grad in saved:
            parameter = self._parameters[name]
            if parameter is not None and _is_half(parameter):
                device = parameter.device
                parameter.grad = None
                parameter.data = value.to(device)
                parameter.grad = None if grad is None else grad.to(device)
        return self


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def parameters_of(module: nn.Module) -> Sequence[Tensor]:
    """The parameters of a module and its parts, also of a replica.

    `torch.nn.DataParallel` makes replicas for other devices, with plain tensors in the places of
    parameters, so their ``parameters()`` are none.

    Example:
        >>> [*map(len, parameters_of(nn.Linear(2, 3)))]
        [3, 3]
    """
    return [*module.parameters()] or [
        tensor
        for part in module.modules()
        for tensor in vars(part).get("_former_parameters", {}).values()
    ]


def working_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of a module's weights: a recurrence may keep parameters of more precision.

    Example:
        >>> working_dtype(nn.Linear(2, 3, dtype=torch.bfloat16))
        torch.bfloat16
    """
    parameters = parameters_of(module)
    smallest = parameters[0].dtype
    for parameter in parameters:  # a loop, which compilers read
        if parameter.dtype.itemsize < smallest.itemsize:
            smallest = parameter.dtype
    return smallest


def empty_parameters(
    device: torch.device | str | None, dtype: torch.dtype | None
) -> Callable[..., nn.Parameter]:
    """A function of sizes that makes parameters there and of that dtype, not yet filled.

    Example:
        >>> empty_parameters(None, None)(2, 3).shape
        torch.Size([2, 3])
    """
    return lambda *shape: nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def lecun_normal(*linears: nn.Linear) -> None:
    """Normal weights of variance one over the channels in, no bias."""
    for linear in linears:
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
