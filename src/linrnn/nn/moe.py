"""A mixture of feed-forward networks: a router sends each step to a few of them."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.modes import eager
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError, check_in, check_positive, check_positive_int
from linrnn.nn.linear import Linear
from linrnn.nn.mlp import ACTIVATIONS, MLP, GatedMLP
from linrnn.nn.parameters import KeepsPrecision

GATED = ("silu", "gelu", "gelu_tanh")
ROUTERS = ("softmax", "sigmoid")


class MoE(KeepsPrecision):
    """A mixture of experts: each step is read by ``top_k`` of ``n_experts`` networks.

    Equation::

        p = softmax(W_r z),  or sigmoid(W_r z)           a number for each expert
        T = the top_k experts with the largest p + correction
        w_e = scale p_e / (eps + sum over T of p),       without normalise scale p_e
        y = sum over e in T of w_e expert_e(z) + shared(z)
        expert_e(z) = W3_e (act(W1_e z) * (W2_e z)),     with "relu2" W3_e max(W1_e z, 0)^2

    With ``n_groups`` neighbouring experts form that many groups, and T is chosen from
    ``top_groups`` of them alone: those with the largest sum of their two largest p + correction.
    With ``d_latent`` the experts read L z and give what is mapped back by M. ``shared`` is a
    network that reads every step, with ``shared_gate`` times sigmoid(w z).

    No step is dropped, however many an expert reads: steps are sorted by expert, and each has one
    product. In a compiled graph, whose shapes may not depend on numbers, every expert reads every
    step. A loss that balances the experts is not included.

    Initially each expert is as the MLP of a block, `GatedMLP` with ``init="small_inner"``; W_r is
    N(0, 0.4 / d_model), maps to and from the latent channels N(0, 1 / channels in), and the
    correction 0.

    Args:
        d_model: channels in and out.
        n_experts: networks.
        top_k: how many of them read a step.
        d_inner: hidden width of each. Default: ``8 d_model / 3``, rounded up.
        activation: of the gate: "silu", "gelu", or "gelu_tanh"; or "relu2" for one without a gate.
        router: "softmax" over all experts, or "sigmoid" of each by itself.
        normalise: divide the weights of a step by their sum.
        eps: see above.
        scale: factor of these weights.
        corrected: have a correction, which has no gradient: it changes the choice alone.
        n_groups, top_groups: see above. Default: one group.
        d_latent: channels that the experts read and write. Default: d_model, without maps.
        d_shared: hidden width of the shared network; 0 for none.
        shared_gate: gate what it gives.
        n_layers: depth of the stack it stands in.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        ArgumentError: a size below 1, more experts chosen than there are, or groups that do not
            divide them.
        UnknownNameError: another ``activation`` or ``router``.

    Example:
        >>> MoE(4, n_experts=3, top_k=2)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Reference:
        Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
        Layer", 2017, arXiv:1701.06538. Groups, the correction and the shared network are those of
        DeepSeek-V3 (2024, arXiv:2412.19437).
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("up", "gate_up", "down")
    single_precision: ClassVar[tuple[str, ...]] = ("correction",)

    correction: nn.Parameter | None
    shared: MLP | GatedMLP | None
    gate_up: nn.Parameter
    up: nn.Parameter

    def __init__(
        self,
        d_model: int,
        *,
        n_experts: int = 8,
        top_k: int = 2,
        d_inner: int | None = None,
        activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu",
        router: Literal["softmax", "sigmoid"] = "softmax",
        normalise: bool = True,
        eps: float = 1e-20,
        scale: float = 1.0,
        corrected: bool = False,
        n_groups: int = 1,
        top_groups: int = 1,
        d_latent: int | None = None,
        d_shared: int = 0,
        shared_gate: bool = False,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.n_experts, self.top_k = d_model, n_experts, top_k
        self.d_inner = -(-8 * d_model // 3) if d_inner is None else d_inner
        self.activation, self.router_kind = activation, router
        self.normalise, self.eps, self.scale = normalise, eps, scale
        self.n_groups, self.top_groups = n_groups, top_groups
        self.d_latent, self.d_shared, self.n_layers = d_latent, d_shared, n_layers
        self._check(router, shared_gate)
        to: Any = {"device": device, "dtype": dtype}
        width = d_model if d_latent is None else d_latent
        self.router = Linear(d_model, n_experts, bias=False, **to)
        correction = nn.Parameter(torch.zeros(n_experts, **to), requires_grad=False)
        self.register_parameter("correction", correction if corrected else None)
        first = (n_experts, (1 + self.is_gated) * self.d_inner, width)
        weights = nn.Parameter(torch.empty(first, **to))
        self.register_parameter("gate_up" if self.is_gated else "up", weights)
        self.down = nn.Parameter(torch.empty(n_experts, width, self.d_inner, **to))
        maps = ((d_model, width), (width, d_model)) if d_latent else (None, None)
        self.latent_in, self.latent_out = (
            None if sizes is None else Linear(*sizes, bias=False, **to) for sizes in maps
        )
        self.shared = self._shared(**to) if d_shared else None
        self.shared_gate = Linear(d_model, 1, bias=False, **to) if shared_gate else None
        self.reset_parameters()

    @property
    def is_gated(self) -> bool:
        """Whether an expert has a gate."""
        return self.activation in GATED

    def _shared(self, **to: Any) -> MLP | GatedMLP:
        sizes: Any = {"d_inner": self.d_shared, "bias": False, "activation": self.activation}
        if not self.is_gated:
            return MLP(self.d_model, **sizes, **to)
        sizes |= {"init": "small_inner", "n_layers": self.n_layers}
        return GatedMLP(self.d_model, **sizes, **to)

    def _check(self, router: str, shared_gate: bool) -> None:
        where = "MoE"
        names = ("d_model", "n_experts", "top_k", "d_inner", "n_groups", "top_groups", "n_layers")
        check_positive_int(where, **{name: getattr(self, name) for name in names})
        check_in(where, "activation", self.activation, (*GATED, "relu2"))
        check_in(where, "router", router, ROUTERS)
        check_positive(where, scale=self.scale, eps=self.eps)
        if self.d_latent is not None:
            check_positive_int(where, d_latent=self.d_latent)
        if self.d_shared:
            check_positive_int(where, d_shared=self.d_shared)
        elif shared_gate:
            raise ArgumentError(f"{where}: shared_gate must be False for d_shared=0, got True.")
        if self.n_experts % self.n_groups or self.top_groups > self.n_groups:
            raise ArgumentError(
                f"{where}: n_groups must divide n_experts={self.n_experts} and be at least "
                f"top_groups={self.top_groups}, got {self.n_groups}."
            )
        most = self.n_experts // self.n_groups * self.top_groups
        if self.top_k > most:
            raise ArgumentError(
                f"{where}: top_k must be at most {most}, the experts that there are to choose "
                f"from, got {self.top_k}."
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.normal_(self.router.weight, std=(0.4 / self.d_model) ** 0.5)
        first = self.gate_up if self.is_gated else self.up
        nn.init.normal_(first, std=(0.4 / first.shape[-1]) ** 0.5)
        nn.init.normal_(self.down, std=(4 / self.n_layers**2 / self.d_inner) ** 0.5)
        for linear in (self.latent_in, self.latent_out, self.shared_gate):
            if linear is not None:
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        if self.shared is not None:
            self.shared.reset_parameters()
        if self.correction is not None:
            self.correction.zero_()

    def forward(self, z: Tensor) -> Tensor:
        """Transform the last axis, whatever precedes it."""
        x = z.reshape(-1, self.d_model)  # (steps, d_model)
        index, weights = self.route(x)
        latent = x if self.latent_in is None else self.latent_in(x)
        read = self._sorted if eager(z) else self._dense
        y: Tensor = read(latent, index, weights.to(latent.dtype))
        if self.latent_out is not None:
            y = self.latent_out(y)
        if self.shared is not None:
            common = self.shared(x)
            gate = self.shared_gate
            y = y + (common if gate is None else gate(x).sigmoid() * common)
        return y.view(z.shape)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each step and their weights, both (steps, top_k), by falling choice.

        Args:
            x: (steps, d_model).
        """
        logits = wide(self.router(x))  # (steps, n_experts)
        p = logits.softmax(-1) if self.router_kind == "softmax" else logits.sigmoid()
        choice = p.detach() if self.correction is None else p.detach() + wide(self.correction)
        if self.n_groups > 1:
            choice = self._in_best_groups(choice)
        index = choice.topk(self.top_k, -1).indices
        weights = p.gather(-1, index)
        if self.normalise:
            # the small number keeps sigmoids that are all 0 from a division by it
            weights = weights / (weights.sum(-1, keepdim=True) + self.eps)
        return index, weights * self.scale

    def _in_best_groups(self, choice: Tensor) -> Tensor:
        """The scores of the choice, minus infinity outside of the best groups."""
        groups = choice.unflatten(-1, (self.n_groups, -1))  # (steps, groups, experts in it)
        of_group = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1)
        best = of_group.topk(self.top_groups, -1).indices
        outside = torch.ones_like(of_group, dtype=torch.bool).scatter(-1, best, False)
        masked: Tensor = groups.masked_fill(outside[..., None], -torch.inf)
        return masked.flatten(-2)

    def _sorted(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """The experts' sum (steps, channels): one product an expert, of the steps that are its."""
        order = index.flatten().argsort(stable=True)
        counts = torch.bincount(index.flatten(), minlength=self.n_experts).tolist()
        pieces = x[order // self.top_k].split(counts)
        experts = self._experts()
        # without any step the first reads none, for gradients of zeros
        reads = [
            self._expert(piece, *experts[e])
            for e, piece in enumerate(pieces)
            if len(piece) or (not len(x) and e == 0)
        ]
        rows = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        y = torch.cat(reads)[rows].view(-1, self.top_k, x.shape[-1])  # (steps, top_k, channels)
        total: Tensor = (weights[..., None] * y).sum(-2)
        return total

    def _dense(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """The same, with shapes that do not depend on the choice."""
        shares = weights.new_zeros(x.shape[0], self.n_experts).scatter(-1, index, weights)
        reads = [
            share[:, None] * self._expert(x, *expert)
            for share, expert in zip(shares.unbind(-1), self._experts(), strict=True)
        ]
        total: Tensor = torch.stack(reads).sum(0)
        return total

    def _experts(self) -> list[tuple[Tensor, Tensor]]:
        """Both matrices of each, as parts of one tensor, so that one gradient is made of each."""
        first = self.gate_up if self.is_gated else self.up
        return list(zip(first.unbind(), self.down.unbind(), strict=True))

    def _expert(self, x: Tensor, first: Tensor, down: Tensor) -> Tensor:
        h = F.linear(x, first)
        if self.is_gated:
            gate, up = h.chunk(2, -1)
            h = ACTIVATIONS[self.activation](gate) * up
        else:
            h = ACTIVATIONS[self.activation](h)
        y: Tensor = F.linear(h, down)
        return y
