"""NaN and infinity in tensors: whether there are any, and where the first one is."""

import cmath
from collections.abc import Iterable, Mapping

from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity, at one sum a tensor where none does.

    Example:
        >>> import torch
        >>> all_finite([torch.tensor([3e38, 3e38]), torch.arange(3)])
        True
        >>> all_finite([torch.tensor([torch.inf, -torch.inf])])
        False
    """
    return all(map(_finite, tensors))


def _finite(x: Tensor) -> bool:
    if not (x.is_floating_point() or x.is_complex()):
        return True
    # NaN and infinity make every sum such a one; finite numbers may overflow in theirs
    return cmath.isfinite(x.sum().item()) or bool(x.isfinite().all())


def first_bad(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Describe the first tensor that holds NaN or infinity, or return None.

    Example:
        >>> import torch
        >>> first_bad([("weight", torch.zeros(2)), ("bias", torch.tensor([1.0, float("nan")]))])
        'bias of shape (2,) has nan at (1,), the only such value'
    """
    for name, x in named:
        if not _finite(x):
            return in_words(name, x, ~x.isfinite())
    return None


def in_words(name: str, x: Tensor, bad: Tensor) -> str:
    """The first bad value of a tensor, where it is, and how many there are.

    Args:
        name: of the tensor.
        x: the tensor.
        bad: boolean, of its shape, true somewhere.
    """
    place = tuple(bad.nonzero()[0].tolist())
    count = int(bad.sum())
    number = "the only such value" if count == 1 else f"the first of {count:,} such values"
    return f"{name} of shape {tuple(x.shape)} has {x[place].item()} at {place}, {number}"


def misfit(stored: Mapping[str, object], expected: Mapping[str, Tensor]) -> str | None:
    """Say why stored tensors cannot take the places of others; None where they fit.

    They fit where the names, shapes and dtypes are the same: PyTorch would turn integers,
    booleans and the real part of complex numbers into weights without a word.

    Example:
        >>> import torch
        >>> misfit({"w": torch.ones(2, dtype=torch.int64)}, {"w": torch.zeros(2)})
        'w, torch.int64 of shape (2,) where torch.float32 of shape (2,) belongs'
    """
    if unmatched := stored.keys() ^ expected.keys():
        name = min(unmatched)
        return f"{'no ' if name in expected else 'a tensor '}{name}"
    for name, x in stored.items():
        ours = expected[name]
        if not isinstance(x, Tensor) or (x.dtype, x.shape) != (ours.dtype, ours.shape):
            return f"{name}, {_kind(x)} where {_kind(ours)} belongs"
    return None


def _kind(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
