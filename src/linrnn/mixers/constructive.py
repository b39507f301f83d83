"""A constructive network: columns that were added in stages, each above those before it."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.columns import Stage
from linrnn.nn.linear import Linear
from linrnn.state_spec import Part


class Constructive(Mixer):
    r"""Constructive columns: one-unit LSTMs added in stages; each reads the stages before.

    Equation:
        h^s_t = columns([x_t, h^1_t, ..., h^{s-1}_t])       h^s in R^{d_state / n_stages}
        y_t = W_out [h^1_t, ..., h^S_t] + b_out
        A column is an LSTM of one number, as of ``columnar``. What stages beyond ``grown`` give is
        taken as 0; at first all are grown. One stage is a columnar network, stages of one column
        a constructive one, others are combined.
        The learner ``constructive`` adds stages in training and freezes those before; any other
        trains them all. What of W_out reads stages that are not grown is 0 then, so whatever one
        of these begins with, no answer changes as it is added.

    Args:
        d_state: columns of all stages together. Default: d_model.
        n_stages: a divisor of d_state.

    Departures from the paper:
        Features are not normalised by running statistics: |h| < 1 as it is. All stages are read
        from the start, and their states with them, so that a state has one size; W_out leads to
        the width of the input.

    Example:
        >>> layer = Constructive(d_model=4, d_state=8, n_stages=2)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state[1]["h"].shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Javed, Shah, Sutton and White, "Scalable Real-Time Recurrent Learning Using
        Columnar-Constructive Networks", JMLR 24, 2023, arXiv:2302.05326. Key: javed2023scalable.
    """

    family: ClassVar[str] = "gated"
    choices = Choices(
        transition="diagonal", gate="state", memory="vector", steps="nonlinear", output="gated"
    )
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"

    grown: Tensor
    """How many stages there are as yet, an integer."""

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        n_stages: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        check_positive_int("Constructive", d_state=self.d_state, n_stages=n_stages)
        if self.d_state % n_stages:
            raise ArgumentError(
                f"Constructive: n_stages must be a divisor of d_state={self.d_state}, got "
                f"{n_stages}."
            )
        self.n_stages, size = n_stages, self.d_state // n_stages
        to: Any = {"device": device, "dtype": dtype}
        self.stages = nn.ModuleList(Stage(d_model + s * size, size, **to) for s in range(n_stages))
        self.out_proj = Linear(self.d_state, d_model, **to)
        self.register_buffer("grown", torch.tensor(n_stages, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for stage in self.stages:
            stage.reset_parameters()  # type: ignore[operator]
        self.out_proj.reset_parameters()
        self.grown.fill_(self.n_stages)

    @torch.no_grad()
    def grow(self, stages: int) -> None:
        """Grow to ``stages`` stages; outputs read no new one yet.

        Args:
            stages: 1 to n_stages.
        """
        self.grown.fill_(stages)
        self.out_proj.weight[:, stages * (self.d_state // self.n_stages) :] = 0

    def state_spec(self) -> list[dict[str, Part]]:
        """See `Mixer.state_spec`: of every stage."""
        return [stage.state_spec() for stage in self.stages]  # type: ignore[operator]

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        x = x.to(self.out_proj.weight.dtype)
        features, states = [x], []
        for s, stage in enumerate(self.stages):
            h, last = stage(torch.cat(features, -1), state[s], reset=reset)  # (B, T, units)
            features.append(torch.where(self.grown > s, h, 0))
            states.append(last)
        return self.out_proj(torch.cat(features[1:], -1)), states  # (B, T, d_model)
