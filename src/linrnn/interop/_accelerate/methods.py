"""Methods of transformers that are the recurrence themselves."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype, previous_state
from linrnn.interop._accelerate.theirs import Function, Theirs, standing_for
from linrnn.ops import linear_scan, outer_scan


def recurrent_gemma(theirs: Theirs) -> Function:
    """``RecurrentGemmaRglru._rnn_scan``: (batch, time, channels), a state in float32."""

    def _rnn_scan(
        self: Any,
        hidden_states: Tensor,
        recurrent_gate: Tensor,
        reset: Tensor,
        recurrent_states: Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        x = hidden_states
        if x.shape[1] == 1 or theirs.computes(x):  # a step of theirs is two operators
            answer: tuple[Tensor, Tensor] = theirs.function(
                self, x, recurrent_gate, reset, recurrent_states, acc_dtype
            )
            return answer
        dtype = torch.promote_types(acc_dtype, x.dtype)
        decay = (recurrent_gate * ~reset).to(dtype)
        y, last = linear_scan(decay, x.to(dtype), recurrent_states)
        return y.to(x.dtype), last

    return standing_for(theirs, _rnn_scan)


def xlstm(theirs: Theirs) -> Function:
    """``xLSTMBackend.forward``: (batch, heads, time, width), states C, n and m."""

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        igate: Tensor,
        fgate: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
    ) -> Any:
        states = (c_initial, n_initial, m_initial)
        mode = self.config.mode if mode is None else mode
        if return_last_states is None:
            return_last_states = self.config.return_last_states
        padded = mode == "train_with_padding" and return_last_states  # an error of theirs
        # a step of ours takes 1.04 of the time of theirs
        if query.shape[2] == 1 or padded or theirs.computes(query) or _partial(states):
            inputs = (query, key, value, igate, fgate)
            return theirs.function(self, *inputs, *states, return_last_states, mode)
        gates = (igate.transpose(1, 2), fgate.transpose(1, 2))  # (B, T, H)
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # (B, T, H, N)
        h, last = _mlstm(q, k, v, *gates, states, self.config.eps)
        h = h.to(query.dtype).transpose(1, 2)  # (B, H, T, N)
        return (h, last) if return_last_states or "inference" in mode else h

    return standing_for(theirs, forward)


def _partial(states: tuple[Tensor | None, ...]) -> bool:
    return len({state is None for state in states}) == 2


def _mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    states: tuple[Tensor | None, Tensor | None, Tensor | None],
    eps: float,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The mLSTM: a matrix and a normaliser, both divided by exp(m), which is a running maximum.

    Neither has a gradient to m, so it is a constant, and rounding in it cancels.
    """
    dtype = accumulator_dtype(q.dtype)
    q, k, v, i, log_f = (x.to(dtype) for x in (q, k, v, i, F.logsigmoid(f.to(dtype))))
    start, memory = _start(states, i)
    passed = log_f.detach().double().cumsum(1)  # in float32 it would lose what a step decays
    highest = (i.detach() - passed).cummax(1).values
    m = (passed + torch.maximum(highest, start.unsqueeze(1))).to(dtype)
    g = log_f + (previous_state(m, start) - m)
    keys = k * torch.exp(i - m).unsqueeze(-1)
    o, last = outer_scan(q, keys, v, g, memory, normalizer=True, scale=q.shape[-1] ** -0.5)
    divisor = torch.maximum(o[..., -1].abs(), torch.exp(-m)) + eps
    h = o[..., :-1] / divisor.unsqueeze(-1)
    return h, (last[..., :-1].contiguous(), last[..., -1].contiguous(), m[:, -1].unsqueeze(-1))


def _start(
    states: tuple[Tensor | None, Tensor | None, Tensor | None], like: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The running maximum (batch, heads), and memory and normaliser side by side."""
    C, n, m = states
    if C is None or n is None or m is None:
        return like.new_zeros(like.shape[0], like.shape[2]), None
    memory = torch.cat([C, n.unsqueeze(-1)], -1).to(like.dtype)
    return m.squeeze(-1).to(like.dtype), memory
