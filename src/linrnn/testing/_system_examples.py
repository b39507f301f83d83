"""Systems of one input and one output, diagonal and diagonal plus low rank: calls, and steps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linrnn.ops.conv import dplr, siso
from linrnn.testing._calls import ONE_WAY, UNCUT, Call, Draw

_MODES = 3


def _double(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _state(u: Tensor, state: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """The state, zeros where there is none; complex as ``like``, in the precision of ``u``."""
    if state is None:
        state = u.new_zeros(u.shape[0], *shape)
    if state.is_complex() or not like.is_complex():
        return state
    return torch.complex(state, torch.zeros_like(state))


def _siso(convolve: bool, draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        h = x["a"] * h + x["b"] * x["u"][..., None]
        return (x["c"] * h).sum(-1).real + x["d"] * x["u"], h

    def run(
        u: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **inputs: Tensor,
    ) -> Any:
        a, b, c = (_double(inputs[n]) for n in "abc")
        h = _state(u, initial_state, a, *c.shape)
        system = [a, b, c, inputs["d"]]
        return siso.convolve(system, u, h) if convolve else siso.scan(system, u, h, reset)

    channels = draw.channels
    for kind, rows, is_complex in (
        ("complex", channels, True),
        ("real", channels, False),
        ("shared", 1, True),
    ):
        turn = draw(rows, _MODES)
        size = torch.sigmoid(draw(rows, _MODES))
        a = torch.polar(size, turn) if is_complex else size * turn.sign()
        arguments = {
            "a": a,
            "b": draw(rows, _MODES, is_complex=is_complex),
            "c": draw(channels, _MODES, is_complex=is_complex),
            "d": draw(channels),
            "u": draw.steps(channels),
        }
        call = Call(kind, run, arguments, ("u",), (channels, _MODES), step, roundings=64)
        yield call._replace(half=False, lacks=UNCUT if convolve else ONE_WAY)


def _dplr(convolve: bool, draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        lam, P, b = (_pairs(x[n]) for n in ("lam", "P", "b"))
        half = x["dt"][:, None, None] / 2
        A = torch.diag_embed(lam) - P.mT @ P.conj()
        eye = torch.eye(lam.shape[-1]).to(A)
        inverse = torch.linalg.inv(eye - half * A)
        pushed = 2 * half[..., 0] * b * x["u"][..., None]
        moved = (eye + half * A) @ _pairs(h.to(A.dtype))[..., None]
        h = (inverse @ (moved + pushed[..., None]))[..., 0][..., : h.shape[-1]]
        return (x["c"] * h).sum(-1).real + x["d"] * x["u"], h

    def run(
        u: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **inputs: Tensor,
    ) -> Any:
        system = [*(_double(inputs[n]) for n in ("lam", "P", "b", "c", "dt")), inputs["d"]]
        h = _state(u, initial_state, system[0], *system[0].shape)
        return dplr.convolve(system, u, h) if convolve else dplr.scan(system, u, h, reset)

    channels = draw.channels
    for rank in (1, 2):
        arguments = {
            "lam": torch.complex(-draw(channels, _MODES).exp(), draw(channels, _MODES)),
            "P": draw(channels, rank, _MODES, is_complex=True) / 2,
            "b": draw(channels, _MODES, is_complex=True),
            "c": draw(channels, _MODES, is_complex=True),
            "dt": draw(channels).exp() / 4,
            "d": draw(channels),
            "u": draw.steps(channels),
        }
        call = Call(f"rank {rank}", run, arguments, ("u",), (channels, _MODES), step)
        yield call._replace(roundings=128, half=False, lacks=UNCUT if convolve else ONE_WAY)


def _pairs(x: Tensor) -> Tensor:
    """Both of each conjugate pair."""
    return torch.cat([x, x.conj()], -1)


def _states(draw: Draw) -> Iterator[Call]:
    def step(x: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor]:
        read = 2 * (x["q"] * h[..., None, :]).sum(-1, keepdim=True).real
        h = x["a"] * h - (x["p"] * read).sum(-2) + x["b"] * x["u"][..., None]
        return h.flatten(1), h

    def run(
        u: Tensor,
        initial_state: Any = None,
        reset: Any = None,
        backend: Any = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        transition = [inputs[n] for n in "abpq"]
        h = _state(u, initial_state, transition[0], *transition[0].shape[2:])
        y, last = dplr.states(transition, u, h, reset)
        return y.flatten(2), last

    channels = draw.channels
    arguments = {n: draw.steps(channels, _MODES, is_complex=True) / 2 for n in "ab"}
    arguments |= {n: draw.steps(channels, 2, _MODES, is_complex=True) / 4 for n in "pq"}
    arguments["u"] = draw.steps(channels)
    call = Call("varying", run, arguments, (*"abpq", "u"), (channels, _MODES), step)
    yield call._replace(roundings=32, half=False, outputs=_MODES, lacks=ONE_WAY)


CALLS: dict[str, Callable[[Draw], Iterator[Call]]] = {
    "siso_scan": partial(_siso, False),
    "siso_convolve": partial(_siso, True),
    "dplr_scan": partial(_dplr, False),
    "dplr_convolve": partial(_dplr, True),
    "dplr_states": _states,
}
