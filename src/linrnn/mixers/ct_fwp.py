"""Continuous-time fast weight programmers."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, Heads, held_gain
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.ops.matrix.outer_scan import outer_scan
from linrnn.state_spec import Part, real

RULES = ("hebb", "oja", "delta")


class CTFWP(Mixer):
    r"""Continuous-time fast weights: a matrix memory that follows an ODE of a learning rule.

    Equation:
        "hebb"   W' = s v k^T                               W is d_value by d_key, in each head
        "oja"    W' = s v (k - W^T v)^T
        "delta"  W' = s (v - W k) k^T
        for a time dt_t from W_{t-1} to W_t, with x_t and so k, v, s held; then y_t = W_o W_t q_t
        q, k = softmax(W_q x_t + b_q), softmax(W_k x_t + b_k); v = tanh(W_v x_t + b_v);
        s = sigmoid(w x_t + b)
        What drives it held, each has an exact solution: with W = W_{t-1}, z = s dt_t and
        r(n) = (1 - exp(-z n)) / n
        W + z v k^T;   W + r(|v|^2) v (k - W^T v)^T;   W + r(|k|^2) (v - W k) k^T
        so no step is too long, and half of it twice is the same: the eigenvalues of "oja" and
        "delta" are in [0, 1], and "hebb" adds. dt is the time since the step before, 1 by default.
        Initially as `torch.nn.Linear`, W_0 = 0.

    Args:
        rule: "hebb", "oja" or "delta".
        n_heads: heads. Default: d_model / 16, or 1.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.

    Departures from the paper:
        Its control is any path of x and its solvers are numerical; here x is held between its
        steps, which needs none. Its other models, controlled by the derivative of x, need a smooth
        path. W_0 is 0 and not a write of the first input. The public code takes the softmax of
        k - W^T v and, by an option, the tanh of v - W k: then no solution is known. The layer norm
        in front and the feed-forward layers behind belong to the block; W_o has no bias.

    Example:
        >>> layer, dt = CTFWP(d_model=8, n_heads=2), torch.rand(2, 100)
        >>> y, state = layer(torch.randn(2, 100, 8), dt=dt)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]))

    Reference:
        Irie, Faccio and Schmidhuber, "Neural Differential Equations for Learning to Program Neural
        Nets Through Continuous Learning Rules", NeurIPS 2022, arXiv:2206.01649.
        Key: irie2022neural.
    """

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="delta", gate="input", memory="matrix")
    timed: ClassVar[bool] = True

    def __init__(
        self,
        d_model: int,
        *,
        rule: Literal["hebb", "oja", "delta"] = "delta",
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("CTFWP", "rule", rule, RULES)
        self.d_model, self.rule = d_model, rule
        self.n_heads = max(1, d_model // 16) if n_heads is None else n_heads
        check_positive_int("CTFWP", n_heads=self.n_heads)
        self.d_key = -(-d_model // self.n_heads) if d_key is None else d_key
        self.d_value = self.d_key if d_value is None else d_value
        check_positive_int("CTFWP", d_key=self.d_key, d_value=self.d_value)
        to: Any = {"device": device, "dtype": dtype}
        sizes = (self.d_key, self.d_key, self.d_value, 1)
        self.heads = Heads(d_model, self.n_heads, sizes, bias=True, **to)
        self.out = GatedOut(d_model, self.n_heads, self.d_value, norm="none", gate="none", **to)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        self.heads.reset_parameters()
        self.out.reset_parameters()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`: W transposed."""
        return real(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value)

    def _read(
        self, x: Tensor, state: Any, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Any]:
        q, k, v, s = (wide(z) for z in self.heads(x))  # (B, T, H, K or V or 1)
        q, k, v, z = q.softmax(-1), k.softmax(-1), v.tanh(), s.sigmoid()
        z = z if dt is None else z * dt[..., None, None].to(z.dtype)
        with without_autocast(x.device):
            if self.rule == "hebb":
                o, S = outer_scan(q, z * k, v, None, state, reset=reset)
            elif self.rule == "delta":
                # (B, T, H, V), (B, H, K, V)
                o, S = delta_scan(q, k, v, _rate(z, k).squeeze(-1), None, state, reset=reset)
            else:
                o, S = _oja(q, k, v, _rate(z, v), state, reset)
        return self.out(o, x), S


def _rate(z: Tensor, along: Tensor) -> Tensor:
    """``(1 - exp(-z n)) / n`` where n is the square of a length."""
    return z * held_gain(z * along.square().sum(-1, keepdim=True))


def _oja(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, S: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Oja's rule: what is written, and a sum of that.

    Seen from its values the memory follows the delta rule, with keys instead of values: that
    finds every ``W^T v`` in front of its step, and so what is written of k.
    """
    following = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], 1)
    stored, _ = delta_scan(following, v, k, rate.squeeze(-1), None, S.mT, reset=reset)
    first = (S @ v[:, 0, :, :, None]).squeeze(-1)
    stored = torch.cat([first[:, None], stored[:, :-1]], 1)
    if reset is not None:
        stored = torch.where(reset[..., None, None], 0, stored)
    return outer_scan(q, rate * (k - stored), v, None, S, reset=reset)
