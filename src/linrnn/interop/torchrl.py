"""TorchRL: a module with memory for tensordicts, of any mixer, as its LSTMModule and GRUModule are.

It needs the extra ``linrnn[rl]``. The page "Agents with memory" says how to use it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linrnn.backbone.pattern import MixerLike
from linrnn.compute.arguments import check_flags, check_tensor
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    MissingExtraError,
    ShapeError,
    check_positive_int,
)
from linrnn.interop._agents import Memory
from linrnn.nn.parameters import working_dtype

try:
    from tensordict import is_tensor_collection
    from tensordict.nn import TensorDictModuleBase
    from tensordict.utils import unravel_key
    from torchrl.data import Unbounded
    from torchrl.envs import TensorDictPrimer
    from torchrl.modules import recurrent_mode
except ImportError as error:
    raise MissingExtraError("linrnn.interop.torchrl", "torchrl", "rl") from error

__all__ = ["RNNModule"]


def __dir__() -> list[str]:
    return sorted(__all__)


_FIX = {
    "is_init": "Append torchrl.envs.InitTracker() to the environment.",
    "state": "Append module.make_tensordict_primer() to the environment.",
}


_REMADE = "Make the primer anew after a change of the module's dtype."


def _keys(**named: Any) -> dict[str, Any]:
    """The keys of entries by the names of their arguments, all different.

    Raises:
        ArgumentTypeError: one is neither a string nor a tuple of strings.
        ArgumentError: one is empty, or two are the same.
    """
    keys: dict[str, Any] = {}
    for name, key in named.items():
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, str) for part in parts):
            raise ArgumentTypeError(
                f"RNNModule: {name} must be a string or a tuple of strings, got {key!r:.60}."
            )
        if not parts or "" in parts:
            raise ArgumentError(f"RNNModule: {name} must not be empty, got {key!r:.60}.")
        keys[name] = unravel_key(key)
    entries = {"the entry of starts": "is_init", **keys}
    entries["the entry of the next state"] = unravel_key(("next", keys["state_key"]))
    for name in ("state_key", "in_key", "out_key"):
        others = [n for n, key in entries.items() if n != name and key == entries[name]]
        others = [n for n in others if {n, name} != {"in_key", "out_key"}]  # written over
        if others:
            raise ArgumentError(
                f"RNNModule: {name} must differ from {others[0]}, got {keys[name]!r} for both."
            )
    return keys


class RNNModule(TensorDictModuleBase):  # type: ignore[misc]
    """A stack of mixers that reads tensordicts, and carries its state in them.

    It stands where ``LSTMModule`` or ``GRUModule`` of TorchRL do. Alone it reads a step, and begins
    anew where ``is_init`` says so. Under ``set_recurrent_mode(True)``, as in losses, the last axis
    of the batch is time, and all of it is read in one pass. Then a row begins from the state stored
    with its first step. A later step with ``is_init`` begins from the state stored with it, too: of
    a new episode that is zeros, of a slice of a replay buffer what the rollout had.

    The state is one row of numbers, bit for bit (float32; a counter or a number of float64 has two
    of them), so do not cast it. ``("next", state_key)`` is written for each step alone, and in
    recurrent mode for the last step; before it stays what the rollout stored, or zeros.

    Args:
        mixer, mixer_options: as of `linrnn.SequenceModel`: a name, a class, a pattern of these.
        input_size, hidden_size: channels in, and channels of the layers and out.
        num_layers: layers.
        residual: layers are the blocks of `linrnn.SequenceModel`, with layer norms and skips;
            else those of `linrnn.RNN`.
        in_key, out_key: of the input and of the output.
        state_key: of the state; an actor and a critic with memories of their own need two.
        default_recurrent_mode: the mode where ``set_recurrent_mode`` says nothing.

    Raises:
        MissingExtraError: on import, where the packages are not installed.
        ArgumentError: the state of a mixer grows with what was read; a key is empty, or that of
            another entry; or, when called, there is no state or no ``is_init``, without which an
            agent would have no memory.
        ShapeError, DTypeError: when called, an entry of another shape or dtype.
        UnknownNameError: an unknown mixer, or option of it.

    Example:
        >>> from torchrl.envs import GymEnv, InitTracker, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
        >>> memory = RNNModule("mingru", 4, 32)
        >>> env = env.append_transform(memory.make_tensordict_primer())
        >>> memory(env.reset())["embed"].shape
        torch.Size([32])
    """

    def __init__(
        self,
        mixer: MixerLike,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        mixer_options: Mapping[str, Any] | None = None,
        residual: bool = False,
        in_key: Any = "observation",
        out_key: Any = "embed",
        state_key: Any = "recurrent_state",
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        flags = {"residual": residual, "default_recurrent_mode": default_recurrent_mode}
        check_flags("RNNModule", **flags)
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        check_positive_int("RNNModule", **sizes)
        keys = _keys(in_key=in_key, state_key=state_key, out_key=out_key)
        options: Any = {"mixer_options": mixer_options, "residual": residual}
        self.memory = Memory("RNNModule", mixer, input_size, hidden_size, num_layers, **options)
        self.in_keys = [keys["in_key"], keys["state_key"], "is_init"]
        self.out_keys = [keys["out_key"], unravel_key(("next", keys["state_key"]))]
        self._default_recurrent_mode = default_recurrent_mode

    @property
    def recurrent_mode(self) -> bool:
        """Whether the last axis of the batch is read as time."""
        mode = recurrent_mode()
        return self._default_recurrent_mode if mode is None else bool(mode)

    def make_tensordict_primer(self) -> Any:
        """The transform by which an environment carries the state from step to step."""
        spec = Unbounded(shape=(self.memory.numbers,), dtype=torch.float32)
        return TensorDictPrimer({self.in_keys[1]: spec}, expand_specs=True)

    def forward(self, tensordict: Any) -> Any:
        """Read a step, or all steps, and write the output and the next state."""
        if not is_tensor_collection(tensordict):
            raise ArgumentTypeError(
                f"RNNModule: the input must be a tensordict, got {type(tensordict).__name__}. "
                "Make one with tensordict.TensorDict."
            )
        batch = tensordict.shape
        if self.recurrent_mode and not (batch and batch[-1]):
            raise ArgumentError(
                "RNNModule: the tensordict must have an axis of time, of at least one step, in "
                f"recurrent mode, got batch size {tuple(batch)}. "
                "Call it under set_recurrent_mode(False) for a step."
            )
        x, state, start = (self._get(tensordict, key) for key in self.in_keys)
        self._check(batch, x, state, start)
        rows, time = batch.numel(), 1
        if self.recurrent_mode:
            rows, time = batch[:-1].numel(), batch[-1]
        x, state = x.reshape(rows, time, x.shape[-1]), state.reshape(rows, time, state.shape[-1])
        start = start.reshape(rows, time)
        if self.recurrent_mode:
            y, last = self._read(x, state, start)
            stored = tensordict.get(self.out_keys[1], None)
            after = torch.zeros_like(state) if stored is None else stored.reshape(state.shape)
            after = torch.cat([after[:, :-1], last[:, None]], 1)
        else:
            y, after = self.memory(x, state[:, 0], start)
        tensordict.set(self.out_keys[0], y.reshape(*batch, y.shape[-1]))
        tensordict.set(self.out_keys[1], after.reshape(*batch, after.shape[-1]))
        return tensordict

    def _get(self, tensordict: Any, key: Any) -> Tensor:
        value: Tensor | None = tensordict.get(key, None)
        if value is None:
            which = {"is_init": "is_init", self.in_keys[1]: "state"}.get(key)
            fix = _FIX[which] if which else "See in_key."
            raise ArgumentError(
                f"RNNModule: the tensordict must have an entry {key!r}, got none. {fix}"
            )
        return value

    def _check(self, batch: torch.Size, x: Tensor, state: Tensor, start: Tensor) -> None:
        """Raise unless each entry has a row for each element of the batch, of its dtype."""
        names = [f"the entry {key!r}" for key in self.in_keys]
        for name, entry in zip(names, (x, state, start), strict=True):
            check_tensor("RNNModule", name, entry)
        of_x = (names[0], x, "input_size", self.memory.input_size, "See input_size.")
        of_state = (names[1], state, "numbers", self.memory.numbers, _REMADE)
        for name, entry, axis, size, fix in (of_x, of_state):
            if entry.shape != (*batch, size):
                shape = f"({', '.join(map(str, (*batch, f'{axis}={size}')))})"
                raise ShapeError(
                    f"RNNModule: {name} must have shape {shape}, got {tuple(entry.shape)}. {fix}"
                )
        dtype = working_dtype(self.memory)
        cast = x.is_floating_point() and torch.is_autocast_enabled(x.device.type)
        if x.dtype != dtype and not cast:
            raise DTypeError(
                f"RNNModule: {names[0]} must be {dtype} like the parameters, got {x.dtype}. "
                f"Append torchrl.envs.DTypeCastTransform({x.dtype}, {dtype}) to the environment."
            )
        if state.dtype != torch.float32:
            raise DTypeError(
                f"RNNModule: {names[1]} must be torch.float32, whose bits are those of the state, "
                f"got {state.dtype}. Do not cast it."
            )
        if start.dtype != torch.bool:
            raise DTypeError(
                f"RNNModule: {names[2]} must be boolean, got {start.dtype}. {_FIX['is_init']}"
            )
        if start.shape not in (batch, (*batch, 1)):
            raise ShapeError(
                f"RNNModule: {names[2]} must have shape {(*batch, 1)}, got {tuple(start.shape)}. "
                f"{_FIX['is_init']}"
            )

    def _read(self, x: Tensor, state: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of steps, each piece from the state stored with its first one."""
        rows, time = start.shape
        begins = torch.zeros_like(start)
        begins[:, 0] = True  # from what is stored, whatever it is: of a new episode that is zeros
        cut = begins | (start & (state.view(torch.int32) != 0).any(-1))
        start = start & ~cut
        if not cut[:, 1:].any():
            return self.memory(x, state[:, 0], start)  # type: ignore[no-any-return]
        first = cut.flatten().nonzero()[:, 0]
        ends = torch.cat([first[1:], first.new_tensor([rows * time])])
        lengths = (ends - first).tolist()
        pieces = [
            pad_sequence(z.flatten(0, 1).split(lengths), batch_first=True) for z in (x, start)
        ]
        y, last = self.memory(pieces[0], state.flatten(0, 1)[first], pieces[1])
        y = torch.cat([piece[:n] for piece, n in zip(y, lengths, strict=True)])
        # of a piece with padding behind it the state is not that of its last step
        whole = torch.tensor([n == max(lengths) for n in lengths], device=x.device)
        of_row = (ends % time == 0).nonzero()[:, 0]
        last = last.where(whole[:, None], 0)[of_row]
        return y.unflatten(0, (rows, time)), last
