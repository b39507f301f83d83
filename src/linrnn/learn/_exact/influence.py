"""The state of a whole model, as numbers that go with their derivatives by its parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from linrnn.learn._exact.owners import real_parts, with_real_parts
from linrnn.typing import State


class _Owing(torch.autograd.Function):
    """Numbers (batch, size) as they are, with derivatives of them by parameters."""

    @staticmethod
    def forward(ctx: Any, influence: list[Tensor], h: Tensor, *parameters: Tensor) -> Tensor:
        ctx.influence = influence
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        grads = [torch.tensordot(g.to(m.dtype), m, 2) for m in ctx.influence]
        return (None, None, *grads)


def flat(state: State) -> Tensor:
    """The numbers of a state, (batch, size), a complex one as two."""
    return torch.cat(real_parts(state), 1)


def owing(
    state: State | None, named: Mapping[str, Tensor], influence: Mapping[str, Tensor]
) -> State | None:
    """A state that depends on the parameters as ``influence`` (batch, size, *shape) says."""
    names = [name for name in influence if name in named]
    if state is None or not names:
        return state
    parts = real_parts(state)
    h: Tensor = _Owing.apply(
        [influence[name] for name in names], torch.cat(parts, 1), *(named[n] for n in names)
    )
    return with_real_parts(state, h.split([part.shape[1] for part in parts], 1))


def advanced(
    model: nn.Module,
    influence: Mapping[str, Tensor],
    previous_state: State | None,
    run: Callable[[Callable[..., Any], State | None], State],
) -> dict[str, Tensor]:
    """The derivatives after a window: ``M <- J M + dF/dtheta``, with J and dF/dtheta of it.

    The window is read once more, with the random numbers and running statistics it was read with,
    by operators that are differentiated for all numbers of a state at once.

    Args:
        model: whose parameters and statistics are those before the window.
        influence: by the name of a parameter, (batch, size, *shape).
        previous_state: the state that the window begins with.
        run: of a model and a state, the state after the window.

    Returns:
        As ``influence``, of those parameters that move a state.
    """
    named = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    fixed = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    parts = [] if previous_state is None else real_parts(previous_state)

    def next_state(parameters: Mapping[str, Tensor], parts: list[Tensor]) -> Tensor:
        buffers = {n: b.clone() for n, b in model.named_buffers()}  # that a norm changes

        def called(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, {**fixed, **buffers, **parameters}, args, kwargs)

        return flat(
            run(called, None if previous_state is None else with_real_parts(previous_state, parts))
        )

    h, pull = vjp(next_state, named, parts)  # type: ignore[misc]  # no has_aux, so two
    each = torch.eye(h.numel(), dtype=h.dtype, device=h.device).view(-1, *h.shape)
    direct, across = vmap(pull)(each)
    updated = {n: m.detach().view(*h.shape, *named[n].shape) for n, m in direct.items()}
    if parts and influence:
        step = torch.cat(across, 2).detach().view(*h.shape, *h.shape)  # (batch, size, batch, size)
        for n, m in influence.items():
            updated[n] = updated[n] + torch.tensordot(step.to(m.dtype), m, 2)
    return {n: m for n, m in updated.items() if bool((m != 0).any())}
