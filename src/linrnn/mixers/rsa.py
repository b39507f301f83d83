"""RSA: attention whose heads mix in the filters that a linear recurrence is made of."""

from collections.abc import Mapping
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import Heads, empty_parameters, lecun_normal
from linrnn.nn.kv_cache import GROWS, cache_of, cache_spec, check_cache
from linrnn.nn.linear import Linear
from linrnn.ops import linear_scan
from linrnn.ops.attention import attend, in_sight, positions
from linrnn.state_spec import Part, complex_, real

_LETTERS = "rcsRCS"
_GROUPS = {"regular": "r", "cyclic": "cs", "dilated_regular": "R", "dilated_cyclic": "CS"}


class RSA(Mixer):
    r"""Self-attention with recurrence (RSA): softmax heads mixed with recurrence encodings.

    Equation:
        q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t               in R^{d_head} for each head
        p_ts = softmax over s <= t of q_t . k_s / sqrt(d_head)
        y_t = W_o concat over heads of sum_s ((1 - sigmoid(mu)) p_ts + sigmoid(mu) P_{t-s}) v_s
        P_n = lam^n                  "r", lam = tanh(eta)
        P_n = gamma^n cos(n theta)   "c", gamma = sigmoid(eta)
        P_n = gamma^n sin(n theta)   "s"
        of n >= 1, P_0 = 0; where the letter is a capital P_{dilation n} is this, and all others 0
        The second sum is a recurrence: h_t = a h_{t-1} + v_t and a h_{t-1}, its real or imaginary
        part, with a = lam or gamma e^{i theta}, of a capital h_{t-dilation}. Any x_t = A x_{t-1} +
        B u_t is B u_t and such sums of linear maps of u, one for a real eigenvalue of A and a "c"
        and an "s" for a pair.
        Initially weights are N(0, 1 / fan_in), mu -3, lam and gamma uniform on [0.3, 0.99], theta
        on [0, pi].

    Args:
        n_heads: heads. Default: one for each 64 channels, at least one.
        d_head: channels of a head. Default: d_model / n_heads, rounded up.
        encoding: a letter for each head, in turn. Those of one letter then stand side by side, in
            the order r, c, s, R, C, S.
        dilation: of capital letters, the steps from one entry to the next.
        window: steps that the softmax can see, the current one included. Default: all.

    Departures from the paper:
        The paper counts the heads of each kind; which head has which is of no matter. It has no
        start of lam, gamma and theta in print. The encodings of an encoder, in which |t - s| stands
        for t - s, are left out. ``window`` is an addition.

    Example:
        >>> y, state = RSA(d_model=8, n_heads=2, encoding="rc")(torch.randn(2, 100, 8))
        >>> y.shape, state["regular"].shape, state["cyclic"].dtype
        (torch.Size([2, 100, 8]), torch.Size([2, 1, 1, 4]), torch.complex64)

    Reference:
        Huang et al., "Encoding Recurrence into Transformers", ICLR 2023. Key: huang2023encoding.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("eta", "theta")

    family: ClassVar[str] = "attention"
    choices = Choices(
        transition="complex diagonal", gate="learned", memory="past", normaliser="softmax"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "quadratic"
    declared: ClassVar[Mapping[str, str]] = GROWS
    in_laws: ClassVar[Mapping[str, Any]] = {"n_heads": 3}  # one of each kind
    constant_state: ClassVar[tuple[str, ...]] = ("position",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("eta", "theta")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_head: int | None = None,
        encoding: str = "rcs",
        dilation: int = 2,
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.encoding, self.dilation = d_model, encoding, dilation
        self.n_heads = max(1, d_model // 64) if n_heads is None else n_heads
        check_positive_int("RSA", n_heads=self.n_heads, dilation=dilation)
        self.d_head = -(-d_model // self.n_heads) if d_head is None else d_head
        check_positive_int("RSA", d_head=self.d_head)
        if not encoding or set(encoding) - set(_LETTERS):
            raise ArgumentError(
                f"RSA: encoding must be of the letters {', '.join(_LETTERS)}, got {encoding!r:.60}."
            )
        self.window = window
        if window is not None:  # which bounds cost and state
            check_positive_int("RSA", window=window)
            self.declared, self.cost = {}, "parallel"  # type: ignore[misc]
        to: Any = {"device": device, "dtype": dtype}
        self.heads = Heads(d_model, self.n_heads, (self.d_head,) * 3, **to)
        self.o_proj = Linear(self.n_heads * self.d_head, d_model, bias=False, **to)
        empty = empty_parameters(device, dtype)
        self.mu, self.eta = empty(self.n_heads), empty(self.n_heads)
        cyclic = self._count("csCS")
        self.theta = empty(cyclic) if cyclic else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        lecun_normal(self.heads.proj, self.o_proj)
        nn.init.constant_(self.mu, -3.0)
        nn.init.uniform_(self.eta, 0.3, 0.99)
        for name, eta in zip(_GROUPS, self.eta.split(self._sizes()), strict=True):
            eta.copy_(eta.atanh() if name.endswith("regular") else eta.logit())
        if self.theta is not None:
            nn.init.uniform_(self.theta, 0.0, pi)

    def _count(self, letters: str) -> int:
        """How many heads have one of these."""
        size = len(self.encoding)
        places = [i for i, letter in enumerate(self.encoding) if letter in letters]
        return sum(max(0, -((i - self.n_heads) // size)) for i in places)

    def _sizes(self) -> list[int]:
        """The heads of each of `_GROUPS`."""
        return [self._count(letters) for letters in _GROUPS.values()]

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: sums of values, keys and values, the steps since a reset."""
        entry = {"n_heads": self.n_heads, "d_head": self.d_head}
        spec = cache_spec(self.window, entry, entry)
        for name, heads in zip(_GROUPS, self._sizes(), strict=True):
            part = real if name.endswith("regular") else complex_
            steps = self.dilation if name.startswith("dilated") else 1
            if heads:
                spec[name] = part(steps=steps, n_heads=heads, d_head=self.d_head)
        return spec

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        check_cache("RSA", state)
        position = positions(state["position"], x.shape[1], reset)
        q, k, v = (wide(part) for part in self.heads(x))
        # (B, S, H, K) each
        keys, values = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        last = cache_of(keys, values, position, reset, self.window)
        sight = position if self.window is None else position.clamp(max=self.window - 1)
        gate = wide(self.mu).sigmoid()[:, None]
        with without_autocast(x.device):
            o = attend("softmax", q, keys, values, sight, window=self.window, whole=False)
            r, sums = self._recurrences(v, state, position, reset)
        # (B, T, d_model)
        y = self.o_proj(((1 - gate) * o + gate * r).flatten(2).to(self.o_proj.weight.dtype))
        return y, {**last, **sums}

    def _recurrences(
        self, v: Tensor, state: Any, position: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The second sum of every head (B, T, H, K), and the states after it."""
        read, last, angle = [], {}, 0
        sizes = self._sizes()
        parts = zip(_GROUPS, wide(self.eta).split(sizes), v.split(sizes, 2), strict=True)
        for name, eta, values in parts:
            if name not in state:
                continue
            if self.theta is None or name.endswith("regular"):
                a = eta.tanh()
            else:
                a = torch.polar(eta.sigmoid(), wide(self.theta)[angle : angle + len(eta)])
                angle += len(eta)
            previous, last[name] = _sums(a[:, None], values, state[name], position, reset)
            r = a[:, None] * previous
            if r.is_complex():
                cosine = self._count(_GROUPS[name][0])
                r = torch.cat([r.real[:, :, :cosine], r.imag[:, :, cosine:]], 2)
            read.append(r)
        return torch.cat(read, 2), last


def _sums(
    a: Tensor, v: Tensor, state: Tensor, position: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``h_{t-n}`` of ``h_t = a h_{t-n} + v_t`` (B, T, H, K), and the last n of h, (B, n, H, K).

    The n sums that never meet are rows of one scan.
    """
    (batch, time), n = v.shape[:2], state.shape[1]
    fresh = None if reset is None else position < n
    rows, start, marks = v, state.flatten(0, 1), fresh  # start (B n, H, K)
    if n > 1:
        rows = _interleaved(v, n)
        marks = None if fresh is None else _interleaved(fresh, n)
    h, _ = linear_scan(a.expand(v.shape[2:]), rows, start, reset=marks)
    if n > 1:
        h = h.unflatten(0, (batch, n)).transpose(1, 2).flatten(1, 2)[:, :time]  # (B, T, H, K)
    every = torch.cat([state, h], 1)  # (B, n + T, H, K)
    previous, last = every[:, :time], every[:, time:]
    if fresh is None:
        return previous, last
    return torch.where(fresh[..., None, None], 0, previous), in_sight(last, position[:, -1])


def _interleaved(x: Tensor, n: int) -> Tensor:
    """Every n-th step of (B, T, ...) as a separate row, (B n, T / n, ...), zeros at the end."""
    padded: Tensor = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % n))
    rows: Tensor = padded.unflatten(1, (-1, n)).transpose(1, 2).flatten(0, 1)
    return rows
