"""How weights and options of a layer of flash-linear-attention are those of a mixer, both ways.

The table of the layers, `linrnn.interop._fla_layer_table`, is made of these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]
Mixer = Any


class Form(NamedTuple):
    """How a tensor of theirs lies in a mixer, and back."""

    into: Callable[[Tensor, Mixer], Tensor]
    out: Callable[[Tensor, Mixer], Tensor]


def _neighbours(x: Tensor, size: int, last: int) -> Tensor:
    """Rows of heads of ``size`` whose ``last`` are pairs half of them apart, made neighbours."""
    rest, turned = x.unflatten(0, (-1, size)).split([size - last, last], 1)
    turned = turned.unflatten(1, (2, last // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([rest, turned], 1).flatten(0, 1)


def _halves(x: Tensor, size: int, last: int) -> Tensor:
    """The inverse of `_neighbours`."""
    rest, turned = x.unflatten(0, (-1, size)).split([size - last, last], 1)
    turned = turned.unflatten(1, (last // 2, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([rest, turned], 1).flatten(0, 1)


def turned(size: Callable[[Mixer], tuple[int, int]]) -> Form:
    """Turned by positions: pairs are halves of a head apart there, and neighbours here.

    ``size`` gives the rows of a head, and how many of them, its last, are turned.
    """
    return Form(lambda x, m: _neighbours(x, *size(m)), lambda x, m: _halves(x, *size(m)))


def _equal_parts(x: Tensor, parts: Tensor, what: str) -> Tensor:
    """``parts[0]``, which all others must equal."""
    if bool((parts != parts[0]).any()):
        raise ArgumentError(
            f"to_layer: {what} must share these weights, for there is one of them in fla, got "
            f"others in {tuple(x.shape)}. Set them equal."
        )
    return parts[0]


def _each(x: Tensor, mixer: Mixer) -> Tensor:
    return x.repeat_interleave(mixer.n_heads // len(x))


def _of_key_heads(x: Tensor, mixer: Mixer) -> Tensor:
    return _equal_parts(x, x.unflatten(0, (mixer.key_heads, -1)).T, "heads of the same key")


def _first_head(x: Tensor, mixer: Mixer) -> Tensor:
    return _equal_parts(x, x.unflatten(0, (mixer.n_heads, -1)), "all heads")


#: Of (channels, 1, taps), or (heads, 1, channels).
TAPS = Form(lambda x, m: x.squeeze(1), lambda x, m: x.unsqueeze(1))
#: One vector (1, 1, channels), a row here.
ROW = Form(lambda x, m: x.flatten(0, 1), lambda x, m: x.unsqueeze(0))
#: One number a head of keys, there for all heads that share it.
EACH = Form(_each, _of_key_heads)
#: One vector for all heads.
ALL_HEADS = Form(lambda x, m: x.repeat(m.n_heads), _first_head)
#: Numbers of a mean over twice as many channels.
OF_TWICE = Form(lambda x, m: x * 0.5**0.5, lambda x, m: x * 2**0.5)
_ORDER, _BACK = [1, 2, 3, 0, 4], [3, 0, 1, 2, 4]  # r, w, k, v, g there; w, k, v, r, g here
#: Five mixtures of RWKV-6, one below another.
MIXES = Form(
    lambda x, m: x.unflatten(0, (5, -1))[_ORDER].flatten(0, 1),
    lambda x, m: x.unflatten(0, (5, -1))[_BACK].flatten(0, 1),
)
#: Their second maps, side by side there.
MIXES_UP = Form(
    lambda x, m: x.unflatten(1, (5, -1)).permute(1, 2, 0)[_ORDER],
    lambda x, m: x[_BACK].permute(2, 0, 1).flatten(1),
)


class Part(NamedTuple):
    """A tensor of theirs, a stretch of one of ours; without a name it is zero."""

    name: str | None
    form: Form | None = None


class Joined(NamedTuple):
    """A tensor of ours and those of theirs that it is made of, one after another.

    ``widths`` of a mixer says how long each is; without it all have the same length.
    """

    ours: str
    theirs: Sequence[Part]
    widths: Callable[[Mixer], Sequence[int]] | None = None
    axis: int = 0

    def names(self, config: Config) -> list[str]:
        """Names of their parameters."""
        return [part.name for part in self.theirs if part.name is not None]

    def into(self, weights: Weights, mixer: Mixer, config: Config) -> Tensor:
        """Ours, as a function of theirs."""
        shape, dtype = mixer.get_parameter(self.ours).shape, next(iter(weights.values()))
        parts: list[Tensor] = []
        for part in self.theirs:
            if part.name is None:
                zeros = list(shape)
                zeros[self.axis] //= len(self.theirs)
                parts.append(dtype.new_zeros(zeros))
            else:
                x = weights[part.name]
                parts.append(x if part.form is None else part.form.into(x, mixer))
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.axis)

    def out(self, mixer: Mixer, config: Config) -> dict[str, Tensor]:
        """Theirs."""
        ours = mixer.get_parameter(self.ours).detach()
        each = ours.shape[self.axis] // len(self.theirs)
        widths = [each] * len(self.theirs) if self.widths is None else list(self.widths(mixer))
        weights = {}
        for part, x in zip(self.theirs, ours.split(widths, self.axis), strict=True):
            if part.name is not None:
                weights[part.name] = (x if part.form is None else part.form.out(x, mixer)).clone()
            elif bool(x.any()):
                raise ArgumentError(
                    f"to_layer: {self.ours} must be zero where fla has no weights, got a largest "
                    f"of {x.abs().max().item():.3g}. Set it to zero."
                )
        return weights


class Folded(NamedTuple):
    """A last map of ours, in which the weights of the norm before it are.

    There they may be missing with ``elementwise_affine=False``; they come back as ones.
    """

    ours: str
    theirs: str
    norm: Callable[[Config], str]
    size: Callable[[Mixer], int]

    def names(self, config: Config) -> list[str]:
        """Names of their parameters."""
        affine = config.get("elementwise_affine", True)
        return [self.theirs, *([self.norm(config)] if affine else [])]

    def into(self, weights: Weights, mixer: Mixer, config: Config) -> Tensor:
        """Ours, as a function of theirs."""
        out = weights[self.theirs]
        if not config.get("elementwise_affine", True):
            return out
        scale = weights[self.norm(config)]
        return out * scale.repeat(out.shape[1] // len(scale))

    def out(self, mixer: Mixer, config: Config) -> dict[str, Tensor]:
        """Theirs."""
        out = mixer.get_parameter(self.ours).detach().clone()
        return {self.theirs: out, self.norm(config): out.new_ones(self.size(mixer))}


Rule = Joined | Folded


class Option(NamedTuple):
    """Options of theirs, with their defaults, as options of ours, and back from a mixer."""

    theirs: Mapping[str, Any]
    into: Callable[[Config], Mapping[str, Any]]
    out: Callable[[Mixer], Mapping[str, Any]]


def same(theirs: str, default: Any, ours: str | None = None, times: float | None = None) -> Option:
    """An option under another name, ``times`` as large here."""
    name, factor = theirs if ours is None else ours, times
    if factor is None:
        return Option(
            {theirs: default}, lambda c: {name: c[theirs]}, lambda m: {theirs: getattr(m, name)}
        )
    return Option(
        {theirs: default},
        lambda c: {name: c[theirs] * factor},
        lambda m: {theirs: getattr(m, name) / factor},
    )


def choice(theirs: str, default: Any, ours: str, values: Mapping[Any, Any]) -> Option:
    """An option whose values have other names, or other values."""

    def into(config: Config) -> Mapping[str, Any]:
        _check_one_of(theirs, config[theirs], values)
        return {ours: values[config[theirs]]}

    def out(mixer: Mixer) -> Mapping[str, Any]:
        value = getattr(mixer, ours)
        _check_one_of(ours, value, list(values.values()))
        return {theirs: next(x for x, y in values.items() if y == value)}

    return Option({theirs: default}, into, out)


def only(theirs: str, default: Any, *values: Any) -> Option:
    """An option that must have one of these values, the first in what is written."""
    allowed = values or (default,)

    def into(config: Config) -> Mapping[str, Any]:
        _check_one_of(theirs, config[theirs], allowed)
        return {}

    return Option({theirs: default}, into, lambda m: {theirs: allowed[0]})


def ignored(**defaults: Any) -> Option:
    """Options without influence on what a trained layer computes."""
    return Option(defaults, lambda c: {}, lambda m: {})


def fixed(**ours: Any) -> Option:
    """Options of ours that are always so there."""
    return Option({}, lambda c: ours, lambda m: {})


def equal_heads(*theirs: str) -> Option:
    """Counts of heads that must equal ``num_heads``, or be None."""

    def into(config: Config) -> Mapping[str, Any]:
        for name in theirs:
            _check_one_of(name, config[name], (None, config["num_heads"]))
        return {}

    return Option(dict.fromkeys(theirs), into, lambda m: dict.fromkeys(theirs, m.n_heads))


def _check_one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ArgumentError(
            f"linrnn.interop.fla: {name} must be one of {words} between fla's layer and the mixer, "
            f"got {value!r}. The other values have no counterpart."
        )


def exact(x: float, what: str) -> int:
    """A number of channels that must come out whole."""
    if abs(x - round(x)) > 1e-6 or x < 0.5:
        raise ArgumentError(
            f"from_layer: {what} must be a whole number, got {x}. Check hidden_size and num_heads."
        )
    return round(x)
