"""Generalised teacher forcing."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from linrnn.backbone import SequenceModel
from linrnn.block import Block
from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch
from linrnn.mixers import CellRNN, Mixer
from linrnn.nn.linear import plain_linear
from linrnn.typing import State

_NEEDS = (
    "--model.n-layers 1 --model.block bare --model.norm none --model.no-skip "
    "--model.dropout 0 --model.pool none"
)


class GTF(Learner):
    r"""Generalised teacher forcing: gradients through a run that is pulled towards the data.

    For models of chaotic systems, whose gradients through time explode however they are trained: a
    free run is only pulled towards the observations as far as its gradients need. The targets are
    the next observations, the model one recurrent layer whose state z is read out linearly, as of
    the mixer `plrnn`. Except at the beginning of a sequence it reads what it answers itself.

    Gradients go through the whole run, back from each answer: along the states z_t and w_t, by z_t
    and by y_t in d_t, and through the answers that are read again, to F, the encoder, G and c.
    Constants are the observations x_t, and P and alpha, though these are computed from the weights.

    Equation::

        y_t = G z_t + c,   d_t = z_t + P (x_{t+1} - y_t),   w_t = (1 - alpha) z_t + alpha d_t
        z_{t+1} = F(w_t, G w_t + c)

    with P the pseudo-inverse of G, x_{t+1} the target of step t, d the nearest state that is
    observed as that, and F a step of the layer, behind the encoder. With J_t the Jacobian of
    ``z -> F(z, G z + c)``, each step multiplies gradients by J_t (1 - alpha P G), which is
    (1 - alpha) J_t where no state is hidden: where there are as many observations as channels of
    the state. Then, with sigma the largest singular value of all J_t::

        alpha* = max(0, 1 - 1 / sigma)

    is the least alpha with which no gradient can grow. What no observation sees is not pulled, and
    may still grow. 1 is teacher forcing, 0 a free run; a model that answers right is not pulled at
    all, and does the same where it reads its input as other models do.

    Args:
        schedule: optimal takes alpha* of each batch; annealed goes from ``alpha`` towards it,
            ``alpha <- decay alpha + (1 - decay) alpha*`` with each batch; fixed stays at ``alpha``.
        alpha: in [0, 1].
        decay: of the annealed schedule, in [0, 1).
        points: observations of a batch, at whose smallest states the Jacobians of alpha* are taken.

    Raises:
        ArgumentError: an option outside its range; another model, or one that does not answer
            with what it reads; targets that are not the next observations; rows of unequal length.

    Example:
        >>> from linrnn import learn
        >>> learn.build("gtf", {"schedule": "fixed", "alpha": 0.2}).alpha
        0.2

    Reference:
        Hess et al. 2023, Generalized teacher forcing for learning chaotic dynamics,
        arXiv:2306.04406. Sigma is of single steps here, which bounds every product of them, and not
        the mean growth of products.
    """

    def __init__(
        self,
        *,
        schedule: Literal["optimal", "annealed", "fixed"] = "optimal",
        alpha: float = 1.0,
        decay: float = 0.99,
        points: int = 64,
    ) -> None:
        check_in("GTF", "schedule", schedule, ("optimal", "annealed", "fixed"))
        check_positive_int("GTF", points=points)
        if not 0 <= alpha <= 1:
            raise ArgumentError(f"GTF: alpha must be in [0, 1], got {alpha}.")
        if not 0 <= decay < 1:
            raise ArgumentError(f"GTF: decay must be in [0, 1), got {decay}.")
        self.schedule, self.alpha, self.decay, self.points = schedule, alpha, decay, points
        self.now: Tensor | None = None

    def check(self, model: nn.Module) -> None:
        """Raise unless the model is one layer whose state is read out linearly."""
        wrong = _misfit(model)
        if wrong:
            raise ArgumentError(
                "GTF: the model must be one recurrent layer whose state the head reads, with "
                f"as many outputs as inputs, got {wrong}. Use the mixer plrnn with {_NEEDS}."
            )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """A forced run, step by step, and one pass backward."""
        assert isinstance(model, SequenceModel)
        _check_next(batch)
        run = _Run(model)
        alpha = self._alpha(run, batch.x)
        previous_state: Any = model.init_state(len(batch.x)) if carried is None else carried
        start: Any = model.mixers[0].init_state(len(batch.x), device=batch.x.device)
        z, fresh, answers = previous_state["layers"][0], carried is None, []
        for t, x_t in enumerate(batch.x.unbind(1)):
            u = x_t
            if t or not fresh:
                z = z + alpha * run.missing(x_t - run.read_out(z))
                u = run.read_out(z)
            if batch.reset is not None:
                begins = batch.reset[:, t, None]
                z, u = torch.where(begins, start, z), torch.where(begins, x_t, u)
            y, z = run.step(u, z)
            answers.append(y)
        y = torch.stack(answers, 1)  # (batch, time, d_output)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        return Step(loss.detach(), y.detach(), {**previous_state, "layers": [z.detach()]})

    def _alpha(self, run: "_Run", x: Tensor) -> Tensor | float:
        """Compute alpha for this batch; the annealed schedule remembers its own."""
        if self.schedule == "fixed":
            return self.alpha
        best = optimal(run, x, self.points)
        if self.schedule == "optimal":
            return best
        previous_alpha = self.alpha if self.now is None else self.now.to(best)
        self.now = self.decay * previous_alpha + (1 - self.decay) * best
        return self.now

    def state_dict(self) -> dict[str, Tensor]:
        """The annealed alpha."""
        return {} if self.now is None else {"alpha": self.now}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the alpha that `state_dict` gave."""
        if not state:
            self.now = None
            return
        now = state.get("alpha")
        if len(state) > 1 or now is None or now.ndim or not 0 <= float(now) <= 1:
            raise ArgumentError(
                f"GTF: the learner's state must be an alpha in [0, 1], got {sorted(state)}. Is it "
                "that of another learner?"
            )
        self.now = now


class _Run:
    """The parts of a model that `_misfit` lets through, as functions of the state."""

    def __init__(self, model: SequenceModel) -> None:
        self.mixer, self.head = cast(CellRNN, model.mixers[0]), model.head
        self.encoder: Callable[[Tensor], Tensor] = model.encoder
        self.out_proj: Callable[[Tensor], Tensor] = self.mixer.out_proj
        with torch.no_grad(), torch.autocast(model.head.weight.device.type, enabled=False):
            probe_states = model.head.weight.new_zeros(1 + self.mixer.d_state, self.mixer.d_state)
            probe_states[1:].fill_diagonal_(1.0)
            observations = self.read_out(probe_states).double()
        self.back = torch.linalg.pinv((observations[1:] - observations[0]).T)

    def read_out(self, z: Tensor) -> Tensor:
        """Observations (rows, d_output) of states (rows, d_state)."""
        y: Tensor = self.head(self.out_proj(z.to(self.head.weight.dtype)))
        return y

    def missing(self, error: Tensor) -> Tensor:
        """The smallest change of a state that changes what is observed by so much."""
        change: Tensor = error.to(self.head.weight.dtype) @ self.back.T.to(self.head.weight.dtype)
        return change

    def step(self, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """``(y, z)`` after input u."""
        out, next_state = self.mixer.step(self.encoder(u), z)
        y: Tensor = self.head(out)
        return y, next_state  # type: ignore[return-value]

    def jacobians(self, z: Tensor) -> Tensor:
        """Differentiate ``z -> F(z, G z + c)`` at rows z: (rows, d_state, d_state)."""
        rows, N = z.shape
        copies = z.detach().repeat_interleave(N, 0).requires_grad_()
        with torch.enable_grad():
            _, next_states = self.step(self.read_out(copies), copies)
            diagonal = next_states.view(rows, N, N).diagonal(dim1=1, dim2=2)  # (rows, N)
            (J,) = torch.autograd.grad(diagonal.sum(), copies)
        return J.view(rows, N, N)


def optimal(run: _Run, x: Tensor, points: int) -> Tensor:
    """alpha*, of Jacobians at the states of some of the observations x (batch, time, d_input)."""
    observed = x.flatten(0, 1)  # (batch * time, d_input)
    observed = observed[observed.isfinite().all(1)]
    if not len(observed):
        return x.new_ones(())
    observed = observed[:: max(1, len(observed) // points)][:points]
    with torch.no_grad():
        zero_states = observed.new_zeros(len(observed), run.mixer.d_state)
        states = run.missing(observed - run.read_out(zero_states))
    sizes: Tensor = torch.linalg.svdvals(run.jacobians(states).double())[:, 0]
    return (1 - 1 / sizes.max().clamp_min(1.0)).to(x.dtype)


class _Fault(NamedTuple):
    there: bool
    what: str


def _misfit(model: nn.Module) -> str | None:
    """Name what of a model is other than `GTF` needs, or None."""
    if not isinstance(model, SequenceModel):
        return f"a {type(model).__name__}"
    mixers = [part for part in model.modules() if isinstance(part, Mixer)]
    mixer, block = mixers[0], cast(Block, model.blocks[0])
    several = len(model.blocks) != 1 or bool(model.between)
    if several or len(mixers) != 1 or not isinstance(mixer, CellRNN):
        return f"{len(model.blocks)} layers of {type(mixer).__name__}"
    norms = (model.encoder_norm, model.final_norm, block.get_submodule("norm"))
    faults = (
        _Fault(not isinstance(mixer.init_state(1), Tensor), "a state of several parts"),
        _Fault(block.kind != "bare" or len(block._parts) > 1, f"the block {block.kind}"),
        _Fault(bool(block.skip), "a skip connection"),
        _Fault(any(type(n) not in (type(None), nn.Identity) for n in norms), "a norm"),
        _Fault(block.dropout.p > 0, f"dropout {block.dropout.p}"),
        _Fault(model.pool.kind != "none", f"pool {model.pool.kind}"),
        _Fault(not plain_linear(model.encoder), "tokens"),
        _Fault(not plain_linear(model.head), f"a {type(model.head).__name__}"),
        _Fault(model.encoder_scale != 1, f"encoder_scale {model.encoder_scale}"),
        _Fault(model.d_input != model.d_output, f"{model.d_input} and {model.d_output} numbers"),
    )
    return next((fault.what for fault in faults if fault.there), None)


def _check_next(batch: Batch) -> None:
    """Raise unless the target of a step is what is read at the next."""
    x, target = batch.x[:, 1:], batch.target
    if batch.lengths is not None or batch.dt is not None:
        raise ArgumentError(
            "GTF: rows must be of equal length and steps even, got lengths or times. Use bptt."
        )
    labels = target[:, :-1] if target.shape == batch.x.shape else None
    if labels is None or not bool(((labels == x) | ~x.isfinite() | ~labels.isfinite()).all()):
        raise ArgumentError(
            "GTF: the target of a step must be the input of the next, got other numbers. Ask for "
            "one step ahead, as --task.ahead 1 of mackey_glass."
        )
