"""DeltaNet: linear attention that corrects what its memory holds."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.delta import ConvDelta, check_rate, square_sizes
from linrnn.nn import GatedOut, Heads, dpfp, feature_map, sum_normalise
from linrnn.ops.matrix.delta_scan import delta_scan
from linrnn.state_spec import Part, real


class DeltaNet(ConvDelta):
    r"""DeltaNet: writes the difference between a value and what is stored under its key.

    Equation:
        S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T                 S is d_key by d_value
        o_t = S_t^T q_t / sqrt(d_key),   beta_t = beta_max sigmoid(w x_t)     in each head
        "l2"   q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), q and k then
               scaled to length 1; y = W_o (o / sqrt(mean(o^2) + norm_eps))     depthwise conv
               Or relu, elu + 1 or nothing instead of silu of q and k, and q and k divided by
               the sums of their absolute values
        "sum"  q, k = phi(W_q x), phi(W_k x), divided by their sums; v = W_v x;  y = W_o o
        phi is elu + 1, or DPFP of 2 nu d_key channels, `linrnn.nn.dpfp`.
        The eigenvalue along a key is 1 - beta |k|^2, in [0, 1], with beta_max = 2 in [-1, 1].
        Initially as `torch.nn.Linear` and `torch.nn.Conv1d`.

    Args:
        n_heads: heads. Default: d_model / 128, or 1.
        d_key, d_value: channels of a head's keys and of its values. Default: d_model / n_heads,
            rounded up; d_key.
        kind: "l2", the layer of 2024, or "sum", that of 2021, as above.
        beta_max: largest rate, above 0 and at most 2.
        beta: "learned" as above, or "largest": beta_t = beta_max; of "l2".
        gate: multiply what W_o maps by silu(W_g x); of "l2".
        qk_activation: of queries and keys behind the convolution, "silu", "relu", "elu" for
            elu + 1, or "identity"; of "l2".
        qk_norm: "l2" for length 1, or "sum" for sums of 1, as above; of "l2".
        d_conv: taps of the convolution, 1 sees only the current step, None is no convolution; of
            "l2".
        conv_bias: add a bias to the convolution; of "l2".
        norm_eps: of the norm of each head; of "l2".
        feature_map, nu: "elu" or "dpfp", and the shifts of the latter; of "sum".

    Departures from the paper:
        The norm of the heads has no weight: that of W_o is the same. Norm and feed-forward layer
        around it belong to the block.

    Example:
        >>> y, state = DeltaNet(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state["memory"].shape, state["conv"].shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))

    Reference:
        Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        NeurIPS 2024, arXiv:2406.06484, of Schlag, Irie and Schmidhuber, "Linear Transformers Are
        Secretly Fast Weight Programmers", ICML 2021, arXiv:2102.11174. Key: yang2024parallelizing.
    """

    reads_half: ClassVar[bool] = True
    choices = Choices(transition="delta", gate="input", memory="matrix", normaliser="norm")

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        kind: Literal["l2", "sum"] = "l2",
        beta_max: float = 1.0,
        beta: Literal["learned", "largest"] = "learned",
        gate: bool = False,
        qk_activation: Literal["silu", "relu", "elu", "identity"] = "silu",
        qk_norm: Literal["l2", "sum"] = "l2",
        d_conv: int | None = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
        feature_map: Literal["elu", "dpfp"] = "elu",
        nu: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        sizes = square_sizes("DeltaNet", d_model, n_heads, d_key, d_value)
        self.n_heads, self.d_key, self.d_value = sizes
        self.kind, self.beta_max, self.beta, self.gate = kind, beta_max, beta, gate
        self.d_conv, self.conv_bias = d_conv, conv_bias
        self.qk_activation, self.qk_norm = qk_activation, qk_norm
        self.norm_eps, self.feature_map, self.nu = norm_eps, feature_map, nu
        check_in("DeltaNet", "kind", kind, ("l2", "sum"))
        check_in("DeltaNet", "feature_map", feature_map, ("elu", "dpfp"))
        check_in("DeltaNet", "beta", beta, ("learned", "largest"))
        check_in("DeltaNet", "qk_activation", qk_activation, ("silu", "relu", "elu", "identity"))
        check_in("DeltaNet", "qk_norm", qk_norm, ("l2", "sum"))
        to: Any = {"device": device, "dtype": dtype}
        if kind == "l2":
            out = {"gate": "silu" if gate else "none", "eps": norm_eps}
            learned, silu = beta == "learned", qk_activation == "silu"
            self._make(self.n_heads, out, silu=silu, beta=learned, **to)
        else:
            self._make_plain(**to)
        self.reset_parameters()

    def _make_plain(self, **factory: Any) -> None:
        K, V = self.d_key, self.d_value
        check_positive_int("DeltaNet", d_key=K, d_value=V)
        check_rate("DeltaNet", self.beta_max)
        self.d_features = self._features(torch.zeros(K)).shape[-1]
        self.heads = Heads(self.d_model, self.n_heads, (K, K, V, 1), **factory)
        options: Any = {"norm": "none", "gate": "none"}
        self.out = GatedOut(self.d_model, self.n_heads, V, **options, **factory)

    def _features(self, z: Tensor) -> Tensor:
        return sum_normalise(
            feature_map("elu", z) if self.feature_map == "elu" else dpfp(z, self.nu)
        )

    def _activated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.qk_activation != "silu":  # which the convolution has applied to all three
            q, k = (feature_map(self.qk_activation, wide(z)) for z in (q, k))
            v = F.silu(v)
        if self.qk_norm == "l2":
            return super()._activated(q, k, v)
        q, k = (F.normalize(wide(z), p=1, dim=-1, eps=1e-6) for z in (q, k))
        return q, k, v

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        if self.kind == "l2":
            super().reset_parameters()
        else:
            self.heads.reset_parameters()
            self.out.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: S, and what the convolution of "l2" saw last."""
        if self.kind == "l2":
            return super().state_spec()
        sizes = {"n_heads": self.n_heads, "d_features": self.d_features, "d_value": self.d_value}
        return {"memory": real(**sizes)}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        if self.kind == "l2":
            return super()._read(x, state, reset)
        q, k, v, beta = (wide(z) for z in self.heads(x))
        q, k = self._features(q), self._features(k)
        # beta: (B, T, H)
        beta, scale = self.beta_max * beta.squeeze(-1).sigmoid(), self.d_key**-0.5
        with without_autocast(x.device):
            o, S = delta_scan(q, k, v, beta, None, state["memory"], scale=scale, reset=reset)
        return self.out(o, x), {"memory": S}
