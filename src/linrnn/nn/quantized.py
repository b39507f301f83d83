"""A linear map whose weights are stored in 8 or 4 bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, show
from linrnn.nn.head import CappedLinear
from linrnn.ops.quantized_linear import TILE, Form, pack, quantized_linear, weights

BITS = (8, 4)
GROUPS = (32, 64, 128)
_LONGEST = 1 << 15  # inputs of one scale: the sum of that many products of bytes fits 32 bits
#: What the scale of 4 bits may be, as part of that which the largest number of a group needs.
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)
_BLOCK = 1 << 22  # numbers that are rounded at once


class QuantizedLinear(nn.Linear):
    """A linear map that stores its weights in 8 or 4 bits, and reads them as such.

    Equation::

        w[o, i] = (u[o, i] - zero[o, g]) * scale[o, g],   i in group g
        y = x w^T + bias

    ``zero`` is half of the range of u, or is stored beside the scales. On a CPU a few rows of x
    cost about what reading the bytes does. Where the processor multiplies bytes,
    x is split into digits of 8 bits, by the largest number of each group of it: three, which is as
    precise as float32, or two where x is of half precision. An infinity in a row of x makes all of
    the row's answer NaN there.

    The weights are not trained: they are buffers, ``packed`` and ``scales``, beside an empty
    parameter, ``like``, of the dtype of the map. Gradients flow through to x and to the bias.

    Args:
        linear: what it stands for; stays as it is.
        bits: 8 or 4.
        group_size: inputs that share a scale, 32, 64 or 128; None, of 8 bits: all of an output.
        symmetric: zero is half of the range; otherwise it is chosen for each group.
        activation_bits: 24, 16 or 8 bits for the largest number of each group of x. Default: 24 of
            float32, 16 of half precision.

    Raises:
        ArgumentError: another argument, or weights that are not finite.

    Example:
        >>> linear = nn.Linear(64, 16)
        >>> small = QuantizedLinear(linear)
        >>> x = torch.randn(2, 64)
        >>> bool((small(x) - linear(x)).abs().max() < 0.05)
        True
    """

    packed: Tensor
    scales: Tensor

    def __init__(
        self,
        linear: nn.Linear,
        bits: int = 8,
        group_size: int | None = 64,
        *,
        symmetric: bool = True,
        activation_bits: int | None = None,
    ) -> None:
        check_form(type(self).__name__, bits, group_size, activation_bits)
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bits, self.group_size, self.symmetric = bits, group_size, symmetric
        self.activation_bits = activation_bits
        self.cap = linear.cap if isinstance(linear, CappedLinear) else None
        self.form = Form(linear.in_features, linear.out_features, bits, self._group())
        weight = linear.weight.detach()
        packed, scales = rounded(weight, self.form, symmetric)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        # of no numbers: says what dtype and device the map has, as those do that ask a parameter
        self.like = nn.Parameter(weight.new_empty(0), requires_grad=False)
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), False)
        self.train(linear.training)

    def _group(self) -> int:
        """Inputs of a group, a multiple of 8 where there is but one."""
        if self.group_size is not None:
            return self.group_size
        if self.in_features > _LONGEST:
            raise ArgumentError(
                f"QuantizedLinear: group_size must be a number beyond {_LONGEST} inputs, got None. "
                "Use group_size=128."
            )
        return -(-self.in_features // 8) * 8

    @property
    def weight(self) -> Any:  # type: ignore[override]
        """The weights, as a tensor that is made when it is read."""
        return _Weight(self)

    def dequantize(self) -> Tensor:
        """The weights (out_features, in_features) as they are used, rounded to the map's dtype."""
        return weights(self.packed, self.scales, self.form, self.like.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis, whatever precedes it."""
        bits = self.activation_bits or (16 if x.dtype.itemsize == 2 else 24)
        y = quantized_linear(x, self.packed, self.scales, self.bias, self.form, bits // 8)
        return y if self.cap is None else self.cap * torch.tanh(y / self.cap)

    def reset_parameters(self) -> None:
        """Refuse: nothing can be drawn.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "QuantizedLinear.reset_parameters: weights must be trained before they are quantised, "
            f"got {self.bits} bits. Call it on the model that was quantised."
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        """Scales go to another device, and to no other dtype."""
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype is not scales.dtype:
            self.scales = scales.to(self.packed.device)
        return self

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        text = f"in_features={self.in_features}, out_features={self.out_features}"
        text += f", bias={self.bias is not None}, bits={self.bits}, group_size={self.group_size}"
        text += "" if self.symmetric else ", symmetric=False"
        text += "" if self.activation_bits is None else f", activation_bits={self.activation_bits}"
        return text if self.cap is None else f"{text}, cap={self.cap}"


class _Weight:
    """Stands for the weights of a map: sizes at no cost, and numbers where a function reads them.

    Layers ask for the dtype of a weight at each step, and a few hand it to functions.
    """

    requires_grad = False
    grad = None
    ndim = 2

    def __init__(self, module: QuantizedLinear) -> None:
        self._module = module

    @property
    def dtype(self) -> torch.dtype:
        return self._module.like.dtype

    @property
    def device(self) -> torch.device:
        return self._module.packed.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._module.out_features, self._module.in_features))

    def requires_grad_(self, requires_grad: bool = True) -> "_Weight":
        if requires_grad:
            raise ArgumentError(
                "QuantizedLinear: weights must be trained before they are quantised, got a request "
                "for their gradient. Train the model that was quantised."
            )
        return self

    def __len__(self) -> int:
        return self._module.out_features

    def __getitem__(self, place: Any) -> Tensor:
        return self._module.dequantize()[place]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._module.dequantize(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = torch.utils._pytree.tree_map_only(
            cls, lambda x: x._module.dequantize(), (tuple(args), kwargs or {})
        )
        return function(*args, **kwargs)


def check_form(where: str, bits: Any, group_size: Any, activation_bits: Any) -> None:
    """Raise unless these are bits, a group and digits that there are.

    Raises:
        ArgumentError: otherwise.
    """
    _check_one_of(where, "bits", bits, BITS)
    _check_one_of(where, "group_size", group_size, (*GROUPS, None) if bits == 8 else GROUPS)
    _check_one_of(where, "activation_bits", activation_bits, (8, 16, 24, None))


def check_trainable(where: str, model: nn.Module) -> None:
    """Raise where a map of the model has weights that cannot be trained.

    Raises:
        ArgumentError: one has.
    """
    for name, part in model.named_modules():
        if isinstance(part, QuantizedLinear):
            raise ArgumentError(
                f"{where}: model must have weights that can be trained, got {part.bits} bits in "
                f"{name or 'it'}. Train it first, and quantise what comes out."
            )


def _check_one_of(where: str, what: str, value: Any, choices: tuple[int | None, ...]) -> None:
    if isinstance(value, bool) or value not in choices:
        words = [str(x) for x in choices]
        raise ArgumentError(
            f"{where}: {what} must be {', '.join(words[:-1])} or {words[-1]}, got {show(value)}. "
            f"Use {what}={choices[0]}."
        )


def rounded(weight: Tensor, form: Form, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Bytes and scales of a matrix, some rows at a time: see `QuantizedLinear`."""
    rows = max(TILE, _BLOCK // max(form.inputs, 1) // TILE * TILE)
    parts = [_rounded(part.float(), form, symmetric) for part in weight.split(rows)]
    if not parts:
        parts = [_rounded(weight.float(), form, symmetric)]
    packed, scales = (torch.cat(part) for part in zip(*parts, strict=True))
    return packed, scales


def _rounded(weight: Tensor, form: Form, symmetric: bool) -> tuple[Tensor, Tensor]:
    form = form._replace(outputs=len(weight))
    if not bool(weight.isfinite().all()):
        raise ArgumentError(
            "QuantizedLinear: weights must be finite, got NaN or an infinity among them. Look at "
            "the training that left them."
        )
    missing = form.groups * form.group - form.inputs
    groups = nn.functional.pad(weight, (0, missing)).unflatten(1, (form.groups, form.group))
    shrinks = _SHRINKS if form.bits == 4 else (1.0,)
    best = _fitted(groups, form.bits, symmetric, shrinks[0])
    for shrink in shrinks[1:]:
        other = _fitted(groups, form.bits, symmetric, shrink)
        better = other[3] < best[3]
        best = tuple(
            torch.where(better if y.ndim == 2 else better[..., None], x, y)
            for x, y in zip(other, best, strict=True)
        )
    u, scale, zero, _ = best
    padding = (0, 0, 0, form.tiles * TILE - form.outputs)
    stored = [nn.functional.pad(x, padding) for x in ((scale,) if symmetric else (scale, zero))]
    # (parts, tiles, 16, groups) to (tiles, groups, parts, 16)
    scales = torch.stack(stored).unflatten(1, (form.tiles, TILE)).permute(1, 3, 0, 2)
    whole = u.flatten(1)[:, : form.inputs]
    return pack(whole, form), scales.to(torch.bfloat16).contiguous()


def _fitted(groups: Tensor, bits: int, symmetric: bool, shrink: float) -> tuple[Tensor, ...]:
    """Numbers without sign (N, G, group), scales and zeros (N, G), and the squared error."""
    top = (1 << bits) - 1
    if symmetric:
        # the number that is largest is -2^(bits - 1) times the scale, which may be negative
        largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
        scale = -shrink * largest / (1 << (bits - 1))
        zero = torch.full_like(scale, 1 << (bits - 1))
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = shrink * (high - low) / top
        zero = (-shrink * low / scale.where(scale != 0, 1)).round().clamp(0, top)
    scale = scale.to(torch.bfloat16).float()
    inverse = (1 / scale).where(scale != 0, 0)
    u = (groups * inverse[..., None] + zero[..., None]).round_().clamp_(0, top)
    error = ((u - zero[..., None]) * scale[..., None] - groups).square().sum(-1)
    return u, scale, zero, error
