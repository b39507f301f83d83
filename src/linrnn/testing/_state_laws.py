"""The law of states of zeros: they begin anew."""

import torch
from torch import Tensor

from linrnn.mixers import Mixer
from linrnn.state import leaves, map_state
from linrnn.testing._mixer_runs import (
    BATCH,
    FORM_ROUNDINGS,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    compare,
    detached,
    in_each_form,
    in_single,
    results,
    signal,
    to_single,
)
from linrnn.testing._options import few_option_sets, option_sets
from linrnn.testing._tolerance import check_close, check_true
from linrnn.typing import State

CLEARED_ROW = 1  # the row whose state is made zero


def zeros_begin_anew(make: MakeMixer, *, pairs: bool = False) -> None:
    """A state of zeros is `Mixer.init_state`, row by row: outputs, later states and gradients.

    In every form and with any option, or with ``pairs`` any two of them; so ``h * (1 - done)`` and
    ``torch.zeros_like(h)`` begin anew. Each parameter has a gradient, a learned start too: whatever
    lacks one on both sides of a comparison would pass it.
    """
    for form, mixer in in_each_form(make):
        start = mixer.init_state(BATCH)
        check_true(f"{form}: the start has numbers", not any(bool(h.any()) for h in leaves(start)))
        x, state = signal(BATCH, TIME, WIDTH), busy_state(mixer)
        zeros = map_state(torch.zeros_like, state)
        if [h.shape for h in leaves(zeros)] == [h.shape for h in leaves(start)]:
            got = results(mixer, mixer, x, zeros)
            compare(f"{form}: zeros", got, results(mixer, mixer, x, start), FORM_ROUNDINGS)
        _row_by_row(f"{form}: a row of zeros", mixer, x, state)
    for options in (option_sets if pairs else few_option_sets)(make):
        mixer = _moved(build(make, **options))
        _reached(f"{options}", mixer)
        x, state = signal(BATCH, 3, WIDTH), busy_state(mixer)
        _row_by_row(f"{options}: a row of zeros", mixer, x, state)
    narrow = build(make, dtype=torch.float32)
    x = 30 * signal(BATCH, TIME, WIDTH, dtype=torch.float32)  # keys far from 0
    _row_by_row("float32: a row of zeros", narrow, x, busy_state(narrow))


@torch.no_grad()
def _moved(mixer: Mixer) -> Mixer:
    """With other numbers where parameters are zeros at first, as learned starts are."""
    for i, parameter in enumerate(mixer.parameters()):
        if not parameter.any():
            parameter.copy_(0.1 * signal(*parameter.shape, seed=i))
    return mixer.eval()


def _reached(what: str, mixer: Mixer) -> None:
    """Check that each parameter that asks for a gradient has a part in the outputs.

    The gradient may still be zero, as of a step size whose range an option closes; that of a
    learned start may not.
    """
    named = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
    if not named:
        return
    y, _ = mixer(signal(BATCH, TIME, WIDTH))
    learned = [m.learned for m in mixer.modules() if isinstance(m, Mixer)]
    starts = {name for start in learned if start is not None for name in start.names}
    weights = signal(*y.shape, seed=4)
    grads = torch.autograd.grad((y * weights).sum(), list(named.values()), allow_unused=True)
    for name, grad in zip(named, grads, strict=True):
        moves = grad is not None and (name.rpartition(".")[2] not in starts or bool(grad.any()))
        check_true(f"{what}: {name} has no gradient", moves)


def _row_by_row(what: str, mixer: Mixer, x: Tensor, state: State) -> None:
    """One row of zeros is a new sequence, and the others go on."""

    def masked(h: Tensor) -> Tensor:
        cleared = torch.arange(len(h)).view(-1, *[1] * (h.ndim - 1)) == CLEARED_ROW
        return h * (1 - cleared.to(h.dtype))

    def weights(y: Tensor, mixer: Mixer = mixer) -> dict[str, Tensor]:
        named = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
        if not named:
            return {}
        grads = torch.autograd.grad(y.square().sum(), list(named.values()), allow_unused=True)
        return {n: g for n, g in zip(named, grads, strict=True) if g is not None}

    alone = x[CLEARED_ROW : CLEARED_ROW + 1]
    expected, next_state = mixer(alone)
    y, last = mixer(x, map_state(masked, detached(state)))
    check_close(what, y[CLEARED_ROW : CLEARED_ROW + 1], expected, roundings=FORM_ROUNDINGS)
    other_rows = [i for i in range(BATCH) if i != CLEARED_ROW]
    unmasked = mixer(x, state)[0]
    check_close(
        f"{what}: the others", y[other_rows], unmasked[other_rows], roundings=FORM_ROUNDINGS
    )
    continuation = signal(BATCH, TIME, WIDTH, dtype=x.dtype, seed=3)
    got = mixer(continuation, last)[0][CLEARED_ROW : CLEARED_ROW + 1]
    expected_next = mixer(continuation[CLEARED_ROW : CLEARED_ROW + 1], next_state)[0]
    check_close(f"{what}: what follows", got, expected_next, roundings=FORM_ROUNDINGS)
    if x.dtype == torch.float32:  # its rounding, in sums of numbers that cancel, is no news
        return
    gradients, expected_gradients = weights(y[CLEARED_ROW : CLEARED_ROW + 1]), weights(expected)
    reached = {
        name: gradients.get(name, torch.zeros_like(g)) for name, g in expected_gradients.items()
    }

    def single() -> dict[str, Tensor]:
        layer = in_single(mixer)
        return weights(layer(to_single(alone))[0], layer)

    compare(f"{what}: gradients", reached, expected_gradients, FORM_ROUNDINGS, single)
