"""The one backbone: the residual stack of the LRU paper's Figure 1 around any mixer."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from linrnn import mixers
from linrnn.errors import ArgumentError, DTypeError, check_in, check_positive_int, check_shape
from linrnn.mixers._base import Mixer
from linrnn.nn import GLU, Pool, make_norm
from linrnn.typing import Float, Inexact, Integer, ResetMask, Sequence, State, Token


class Block(nn.Module):
    """Residual block: norm, mixer, GELU, dropout, GLU, dropout, skip.

    Equation::

        pre-norm:   y = x + drop(GLU(drop(GELU(mixer(norm(x))))))
        post-norm:  y = norm(x + drop(GLU(drop(GELU(mixer(x))))))
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        norm: str = "batch",
        prenorm: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = make_norm(norm, mixer.d_model, device=device, dtype=dtype)
        self.glu = GLU(mixer.d_model, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.prenorm = prenorm

    def forward(
        self, x: Sequence, state: State | None = None, *, reset: ResetMask | None = None
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`."""
        z, state = self.mixer(self.norm(x) if self.prenorm else x, state, reset=reset)
        return self._after(x, z), state

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step."""
        z_t, state = self.mixer.step(self.norm(x_t) if self.prenorm else x_t, state)
        return self._after(x_t, z_t), state

    def _after(self, x: Tensor, z: Tensor) -> Tensor:
        z = self.dropout(nn.functional.gelu(z))
        x = x + self.dropout(self.glu(z))
        return x if self.prenorm else cast(Tensor, self.norm(x))


class SequenceModel(nn.Module):
    r"""Encoder, a stack of residual blocks around one kind of mixer, pooling, linear head.

    Equation::

        x = encoder(input);   x = block_i(x) for each layer;   y = head(pool(x))

    Args:
        d_input: channels of a real input, or the vocabulary size when ``encoder="tokens"``.
        d_output: outputs of the head: classes, regression targets, or vocabulary.
        mixer: a name from `linrnn.mixers.names`.
        mixer_options: keyword arguments of that mixer besides ``d_model``.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        norm: ``batch``, ``layer``, ``rms`` or ``none``.
        prenorm: normalise before the mixer (True) or after the skip (False).
        dropout: probability, after GELU and after the GLU.
        pool: ``mean`` or ``last`` over time for one output a sequence, ``none`` for one a step.
        encoder: ``linear`` for real inputs (batch, time, d_input), ``tokens`` for integer ones
            (batch, time).
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: an unknown mixer, option of the mixer, norm, pool or encoder.
        ArgumentError: a size below 1, a probability outside [0, 1).
        ShapeError, DTypeError: an input that does not fit.

    Example:
        >>> model = SequenceModel(1, 10, mixer="lru", d_model=16, n_layers=2)
        >>> y, state = model(torch.randn(3, 50, 1))
        >>> y.shape
        torch.Size([3, 10])

    Reference:
        Orvieto et al. 2023, arXiv:2303.06349, Figure 1.
    """

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        mixer: str = "lru",
        mixer_options: Mapping[str, Any] | None = None,
        d_model: int = 64,
        n_layers: int = 4,
        norm: Literal["batch", "layer", "rms", "none"] = "batch",
        prenorm: bool = True,
        dropout: float = 0.0,
        pool: Literal["mean", "last", "none"] = "mean",
        encoder: Literal["linear", "tokens"] = "linear",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "SequenceModel"
        check_positive_int(
            where, d_input=d_input, d_output=d_output, d_model=d_model, n_layers=n_layers
        )
        check_in(where, "encoder", encoder, ("linear", "tokens"))
        if not 0 <= dropout < 1:
            raise ArgumentError(f"{where}: dropout must be in [0, 1), got {dropout}.")
        self.d_input, self.d_output, self.d_model = d_input, d_output, d_model
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder: nn.Module
        if encoder == "tokens":
            self.encoder = nn.Embedding(d_input, d_model, **factory)
        else:
            self.encoder = nn.Linear(d_input, d_model, **factory)
        self.blocks = nn.ModuleList(
            Block(
                mixers.build(mixer, d_model, mixer_options, **factory),
                norm=norm,
                prenorm=prenorm,
                dropout=dropout,
                **factory,
            )
            for _ in range(n_layers)
        )
        self.pool = Pool(pool)
        self.head = nn.Linear(d_model, d_output, **factory)

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of every layer, first to last."""
        return [cast(Mixer, block.mixer) for block in self.blocks]

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, State]:
        """The state before the first step: one tree a layer, and what the pooling has summed."""
        weight = self.head.weight
        device, real = device or weight.device, dtype or weight.dtype
        return {
            "layers": [m.init_state(batch_size, device=device, dtype=dtype) for m in self.mixers],
            "pool": cast(
                State, self.pool.init_state(batch_size, self.d_model, device=device, dtype=real)
            ),
        }

    def forward(
        self,
        x: Float[Tensor, "batch time d_input"] | Integer[Tensor, "batch time"],
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        lengths: Integer[Tensor, " batch"] | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_output"], dict[str, State]]:
        """Read a whole sequence.

        Args:
            x: (batch, time, d_input) real, or (batch, time) token ids.
            state: what an earlier call returned; None starts anew.
            reset: boolean (batch, time); True starts a new sequence at that step.
            lengths: valid steps of each row when rows are padded at their end; the pooling
                ignores the rest. The returned state has read the padding too.

        Returns:
            ``(y, state)``: y is (batch, d_output), or (batch, time, d_output) for pool "none".
        """
        self._check(x, time=True)
        state = self.init_state(len(x), device=x.device) if state is None else state
        layers, pool = _split(state, len(self.blocks))
        z, new = self.encoder(x), []
        for block, before in zip(self.blocks, layers, strict=True):
            z, after = block(z, before, reset=reset)
            new.append(after)
        z, pool = self.pool(z, pool, reset=reset, lengths=lengths)
        return self.head(z), {"layers": new, "pool": cast(State, pool)}

    def step(
        self, x_t: Float[Tensor, "batch d_input"] | Integer[Tensor, " batch"], state: State
    ) -> tuple[Inexact[Tensor, "batch d_output"], dict[str, State]]:
        """Read one time step; with pooling, the output is for everything read so far."""
        self._check(x_t, time=False)
        layers, pool = _split(state, len(self.blocks))
        z, new = self.encoder(x_t), []
        for block, before in zip(self.blocks, layers, strict=True):
            z, after = cast(Block, block).step(z, before)
            new.append(after)
        pooled, pool = self.pool(z[:, None], pool)
        z = pooled[:, 0] if self.pool.kind == "none" else pooled
        return self.head(z), {"layers": new, "pool": cast(State, pool)}

    def _check(self, x: Tensor, *, time: bool) -> None:
        axes: dict[str, int | None] = {"batch": None, "time": None, "d_input": self.d_input}
        if not time:
            del axes["time"]
        if isinstance(self.encoder, nn.Embedding):
            del axes["d_input"]
            if x.is_floating_point() or x.is_complex():
                raise DTypeError(f"SequenceModel: x must be integer token ids, got {x.dtype}.")
        check_shape("SequenceModel", "x" if time else "x_t", x.shape, axes)


def _split(state: State, n_layers: int) -> tuple[list[State], dict[str, Tensor]]:
    if not (isinstance(state, dict) and {"layers", "pool"} <= set(state)):
        raise DTypeError(
            "SequenceModel: state must be what this model returned "
            f"({{'layers': ..., 'pool': ...}}), got {type(state).__name__}."
        )
    layers = list(cast(list[State], state["layers"]))
    if len(layers) != n_layers:
        raise ArgumentError(
            f"SequenceModel: state must hold {n_layers} layers like the model, got {len(layers)}."
        )
    return layers, cast(dict[str, Tensor], state["pool"])
