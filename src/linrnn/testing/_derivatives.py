"""The law of derivatives: one function, every way PyTorch has to differentiate it.

Arguments are made functions of one another, as they are in a layer: a second derivative that is
right for independent ones may count a path twice.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from linrnn.testing._tolerance import BrokenPropertyError, check_close, check_true

_STEP = 1e-4  # of central differences, whose error is its square
_DIFFERENCE = 2**31  # roundings that those are allowed: 5e-7 of the largest number
_ROUNDINGS = 2**12  # sums are added up in different orders
_SINGLE = 1e-3  # of the largest number, of derivatives in float32
_POINT = torch.tensor([0.3, -0.2], dtype=torch.float64)
# An error of the Hessian hides from differences along one direction only where it maps that
# direction to 0; differences along both axes would cost two gradients more.
_DIRECTION = torch.tensor([0.8, 0.6], dtype=torch.float64)

Scalar = Callable[[Tensor], Tensor]
Layer = Callable[[Tensor], Tensor]


def check_derivatives(
    what: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    singly: bool | str = True,
) -> None:
    """Compare first and second derivatives of ``function(**arguments)`` in every mode.

    All floating tensors among the arguments become functions of one point: the first directly,
    each further one of the one before it, in both orders; and each alone. At the point,

    * the gradient is the same with ``create_graph`` and without,
    * the Hessian is symmetric, and along a direction that of central differences of the gradient,
    * `torch.func`'s ``grad``, ``hessian``, ``jacrev(jacrev)``, ``jacfwd(jacfwd)`` and ``vmap``
      agree, and so does ``vmap`` over backward passes of a graph that was made without it, without
      PyTorch falling back to a loop,
    * such passes agree by PyTorch's older ``vmap`` as well, that of ``is_grads_batched``.

    Args:
        what: names the case in messages.
        function: returns a tensor, or a tree of tensors; real or complex, in double precision.
        arguments: by name; tensors in double precision are varied, everything else is passed on.
        singly: vary each argument alone too; a name varies that one.

    Raises:
        BrokenPropertyError: two of them differ.
    """
    names = varied(arguments)
    alone = [[n] for n in names if singly in (True, n)] if len(names) > 1 else []
    for order in (names, names[::-1], *alone):
        path = f"{what}: {' -> '.join(order[:4])}"
        _check(path, _chained(function, arguments, order), modes=order is names)


def check_forward_mode(
    what: str, single: Layer, double: Layer, x: Tensor, direction: Tensor
) -> None:
    """Compare derivatives of float32 along a direction with those of float64.

    A kernel that one dtype has may lack a derivative that another has. Compared are ``jvp`` of the
    outputs, and of the gradient of the sum of their sines: a product with the Hessian.

    Args:
        what: names the case in messages.
        single, double: the same function of x (batch, time, channels), in either precision.
        x, direction: in float64.

    Raises:
        BrokenPropertyError: they differ by more than a thousandth of the largest number, or there
            is none of float32.
    """

    def slope(f: Layer, x: Tensor, v: Tensor) -> Tensor:
        return cast(Tensor, jvp(f, (x,), (v,))[1])

    def curvature(f: Layer, x: Tensor, v: Tensor) -> Tensor:
        return slope(grad(lambda x: f(x).sin().sum()), x, v)

    for name, derivative in (("func.jvp", slope), ("func.jvp(func.grad)", curvature)):
        expected = derivative(double, x, direction).detach()
        try:
            derived = derivative(single, x.float(), direction.float()).detach()
        except (NotImplementedError, RuntimeError) as error:
            raise BrokenPropertyError(f"{what}: {name} of float32: {error}") from error
        error_size = float((derived - expected).abs().max())
        scale = float(expected.abs().max())
        check_true(
            f"{what}: {name} of float32 differs by {error_size:.1e} of {scale:.1e}",
            error_size <= _SINGLE * max(scale, 1e-3),
        )


def varied(arguments: Mapping[str, Any]) -> list[str]:
    """The names of arguments that become functions of the point."""
    return [n for n, x in arguments.items() if isinstance(x, Tensor) and _varies(x)]


def _varies(x: Tensor) -> bool:
    return x.dtype in (torch.float64, torch.complex128) and x.numel() > 0


def _chained(
    function: Callable[..., Any], arguments: Mapping[str, Any], order: list[str]
) -> Scalar:
    """A real number made of all results, as a function of the point."""
    causes = (_POINT, *(arguments[name] for name in order))
    drifts = {
        name: _drift(_real(cause).numel(), arguments[name], seed=i)
        for i, (name, cause) in enumerate(zip(order, causes, strict=False))
    }

    def value(point: Tensor) -> Tensor:
        moved, cause = dict(arguments), point
        for name, drift in drifts.items():
            moved[name] = arguments[name] + drift(cause)
            cause = moved[name]
        results = torch.utils._pytree.tree_leaves(function(**moved))
        total = point.new_zeros(())
        for i, y in enumerate(y for y in results if _varies(y)):
            total = total + (_numbers(_real(y).shape, seed=100 + i) * _real(y).sin()).sum()
        return total

    return value


def _drift(numel: int, like: Tensor, *, seed: int) -> Scalar:
    """Small numbers of the shape of ``like`` that follow from a cause of ``numel`` numbers.

    The numbers that are mixed are made here once: a law evaluates the function some fifty times.
    """
    near, far = (_numbers(torch.Size([numel]), seed=seed + k) / numel for k in (200, 300))
    parts = [0.1 * _numbers(like.shape, seed=seed + k).to(like.dtype) for k in (400, 500, 600)]

    def drift(cause: Tensor) -> Tensor:
        cause = _real(cause).flatten()
        first, second = (cause * near).sum().sin(), (cause * far).sum().sin()
        return first * parts[0] + second * parts[1] + first * second * parts[2]

    return drift


def _check(what: str, f: Scalar, *, modes: bool) -> None:
    point = _POINT.clone().requires_grad_()
    y = f(point)

    def back(credit: Tensor, **options: bool) -> Tensor:
        return torch.autograd.grad(y, point, credit, retain_graph=True, **options)[0]

    gradient = back(torch.ones_like(y))
    with_graph, hess = _with_graph(f, _POINT)
    check_close(f"{what}: gradient with create_graph", with_graph, gradient, roundings=_ROUNDINGS)
    check_close(f"{what}: Hessian, transposed", hess.T, hess, roundings=_ROUNDINGS)
    ahead, behind = (_gradient(f, _POINT + step * _DIRECTION) for step in (_STEP, -_STEP))
    slope = (ahead - behind) / (2 * _STEP)
    check_close(f"{what}: Hessian", hess @ _DIRECTION, slope, roundings=_DIFFERENCE)
    if not modes:
        return
    several, credits = torch.stack([gradient, 2 * gradient]), _POINT.new_tensor([1.0, 2.0])
    passes = back(credits, is_grads_batched=True)
    check_close(f"{what}: is_grads_batched", passes, several, roundings=_ROUNDINGS)
    with _no_fallback():
        check_close(f"{what}: func.grad", grad(f)(_POINT), gradient, roundings=_ROUNDINGS)
        for name, mode in (
            ("func.hessian", hessian),
            ("jacrev(jacrev)", lambda f: jacrev(jacrev(f))),
            ("jacfwd(jacfwd)", lambda f: jacfwd(jacfwd(f))),
        ):
            check_close(f"{what}: {name}", mode(f)(_POINT), hess, roundings=_ROUNDINGS)
        points = torch.stack([_POINT, -_POINT])
        mapped = vmap(grad(f))(points)[0]
        check_close(f"{what}: vmap(grad)", mapped, gradient, roundings=_ROUNDINGS)
        passes = vmap(back)(credits)
        check_close(f"{what}: vmap of backward", passes, several, roundings=_ROUNDINGS)


def _gradient(f: Scalar, point: Tensor) -> Tensor:
    point = point.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(point), point)
    return gradient


def _with_graph(f: Scalar, point: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient with ``create_graph``, and the Hessian by a backward pass of each part of it."""
    point = point.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(point), point, create_graph=True)
    if not gradient.requires_grad:  # of a function that is linear
        return gradient, point.new_zeros(len(point), len(point))
    rows = [
        torch.autograd.grad(part, point, retain_graph=True, materialize_grads=True)[0]
        for part in gradient
    ]
    return gradient.detach(), torch.stack(rows)


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def _numbers(shape: torch.Size, *, seed: int) -> Tensor:
    """Irregular numbers in [-1, 1]; vmap forbids random ones."""
    count = torch.arange(1.0, shape.numel() + 1, dtype=torch.float64)
    return (count.square() * (seed + 1.7)).sin().view(shape)


@contextmanager
def _no_fallback() -> Iterator[None]:
    """Make an operator without a batching rule an error; PyTorch would loop, with a warning."""
    functorch: Any = torch._C._functorch
    was_enabled = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(was_enabled)
