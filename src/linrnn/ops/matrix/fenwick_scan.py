"""`fenwick_scan`: log-linear attention, a matrix memory for every scale of the past."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, DTypeError, ShapeError, check_shape
from linrnn.ops.matrix._fenwick._op import fenwick
from linrnn.typing import CuSeqlens, Float, Integer, ResetMask

_INTEGERS = (torch.int32, torch.int64)


def fenwick_scan(
    q: Float[Tensor, "batch time key_heads d_key"],
    k: Float[Tensor, "batch time key_heads d_key"],
    v: Float[Tensor, "batch time heads d_value"],
    g: Float[Tensor, "..."] | None,
    level_scales: Float[Tensor, "batch time heads levels"],
    initial_state: Float[Tensor, "seqs heads levels d_key d_value"] | None = None,
    position: Integer[Tensor, " seqs"] | None = None,
    *,
    beta: Float[Tensor, "batch time heads"] | None = None,
    scale: float = 1.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
) -> tuple[
    Float[Tensor, "batch time heads d_value"],
    Float[Tensor, "seqs heads levels d_key d_value"],
    Integer[Tensor, " seqs"],
]:
    r"""Read the past by memories of its parts, the older the longer: log-linear attention.

    Equation, in every head, of a step at position t of its sequence::

        S_t^l = sum over the steps j of level l of (what is kept until t of) k_j v_j^T
        o_t = scale sum_l level_scales_t^l q_t^T S_t^l

    The level of step j as step t sees it is 0 for j = t, else the number of binary digits of
    ``t xor j``, and the last level for all that are older: the levels of a Fenwick tree. All of
    them decay alike, as in `outer_scan`, and with ``beta`` are corrected alike, as in `delta_scan`.
    With equal scales it is one or the other.

    Args:
        q, k, v: queries, keys and values; heads is a multiple of key_heads, as in `outer_scan`.
        g: logarithms of decays, at most 0, (batch, time, heads) or (batch, time, heads, d_key), or
            None.
        level_scales: the weight of each level. With n levels, the last holds everything before
            the current block of 2^(n-2) steps, and the others what lies in it.
        initial_state: all levels before the first step, (seqs, heads, levels, d_key, d_value);
            None is zeros. A level that holds nothing at its position is not read.
        position: steps that each sequence has read before, (seqs,); None is 0.
        beta: rates of the delta rule (batch, time, heads); None writes without correcting.
        scale: of the queries.
        reset: boolean (batch, time); True clears all levels before that step, which is then at
            position 0.
        cu_seqlens, reverse: as in `linear_scan`; backward, positions count from the end.

    Returns:
        ``(o, final_state, position)``: outputs (batch, time, heads, d_value) in the dtype of q, k
        and v, the last levels, at least float32, and how many steps each sequence has read.
        Rows at one position without resets and decays by channel take O(time log(time)) operations
        in large products; all others are one scan for each level. Positions on a GPU
        are not looked at: there, rows are at one position if ``position`` is None.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: a scale that is no number, an initial state without a position, or
            ``cu_seqlens`` that do not rise from 0 to ``time``.

    Example:
        >>> one, scales = torch.ones(1, 4, 1, 1), torch.tensor([1.0, 0.1, 0.01])
        >>> fenwick_scan(one, one, one, None, scales.expand(1, 4, 1, 3))[0].flatten()
        tensor([1.0000, 1.1000, 1.0200, 1.1200])

    Reference:
        Guo et al., "Log-Linear Attention", 2025, arXiv:2506.04761.
    """
    where = "fenwick_scan"
    check_flags(where, reverse=reverse)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise ArgumentError(f"{where}: scale must be a number, got {scale!r:.60}.")
    required: dict[str, Any] = {"q": q, "k": k, "v": v, "level_scales": level_scales}
    optional = {"g": g, "beta": beta, "initial_state": initial_state}
    check_numbers(where, required, real=True, **optional)
    tensors = required | {name: x for name, x in optional.items() if x is not None}
    _check_shapes(where, tensors, position, reset, cu_seqlens)
    stored = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    compute = accumulator_dtype(stored)
    cast = {name: x.to(compute) for name, x in tensors.items()}
    position = None if position is None else position.long()
    steps: Any = [
        cast["q"] if scale == 1 else cast["q"] * scale,
        *(cast.get(n) for n in ("k", "v", "g", "beta", "level_scales")),
    ]
    state = cast.get("initial_state")
    if reverse:
        steps = [None if x is None else x.flip(1) for x in steps]
        reset = None if reset is None else reset.flip(1)
        if cu_seqlens is not None:  # the last sequence comes first
            cu_seqlens = q.shape[1] - cu_seqlens.long().flip(0)
            state, position = (None if x is None else x.flip(0) for x in (state, position))
    with without_autocast(q.device):
        arguments: Any = (*steps, state, position, reset, cu_seqlens)
        o, final, last = fenwick(*arguments)
    if reverse:
        o = o.flip(1)
        if cu_seqlens is not None:
            final, last = final.flip(0), last.flip(0)
    return o.to(stored), final, last


def _check_shapes(
    where: str,
    tensors: dict[str, Tensor],
    position: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    q, v = tensors["q"], tensors["v"]
    check_shape(where, "q", q.shape, dict.fromkeys(("batch", "time", "key_heads", "d_key")))
    batch, time, key_heads, d_key = q.shape
    steps = {"batch": batch, "time": time}
    check_shape(where, "k", tensors["k"].shape, {**steps, "key_heads": key_heads, "d_key": d_key})
    check_shape(where, "v", v.shape, {**steps, "heads": None, "d_value": None})
    heads, d_value = v.shape[2:]
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ShapeError(
            f"{where}: the heads of v must be a multiple of those of q and k, which they share, "
            f"got {heads} and {key_heads}."
        )
    of_heads = {**steps, "heads": heads}
    scales = tensors["level_scales"]
    check_shape(where, "level_scales", scales.shape, {**of_heads, "levels": None})
    levels = scales.shape[3]
    if not 1 <= levels <= 62:
        raise ShapeError(f"{where}: level_scales must have 1 to 62 levels, got {levels}.")
    seqs = check_packed(where, "q", q, cu_seqlens)
    rows = {"batch" if cu_seqlens is None else "sequences": seqs}
    memory = {**rows, "heads": heads, "levels": levels, "d_key": d_key, "d_value": d_value}
    if "g" in tensors:
        by_channel = {"d_key": d_key} if tensors["g"].ndim == 4 else {}
        check_shape(where, "g", tensors["g"].shape, {**of_heads, **by_channel})
    if "beta" in tensors:
        check_shape(where, "beta", tensors["beta"].shape, of_heads)
    if "initial_state" in tensors:
        check_shape(where, "initial_state", tensors["initial_state"].shape, memory)
        if position is None:
            raise ArgumentError(
                f"{where}: position must be given with initial_state, got None. "
                "Pass the one returned with that state."
            )
    if position is not None:
        if not isinstance(position, Tensor) or position.dtype not in _INTEGERS:
            raise DTypeError(f"{where}: position must be integers, got {position!r:.60}.")
        check_shape(where, "position", position.shape, rows)
    check_reset(where, reset, batch, time)
    check_device(where, "q", q.device, reset=reset, position=position, **tensors)
