"""TorchRL: a module with memory for tensordicts, of any mixer, as its LSTMModule and GRUModule are.

It needs the extra ``linrnn[rl]``. The page "Agents with memory" says how to use it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linrnn.backbone.pattern import MixerLike
from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.interop._agents import Memory

try:
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
        ArgumentError: the state of a mixer grows with what was read; or, when called, there is no
            state or no ``is_init``, without which an agent would have no memory.
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
        options: Any = {"mixer_options": mixer_options, "residual": residual}
        self.memory = Memory("RNNModule", mixer, input_size, hidden_size, num_layers, **options)
        self.in_keys = [unravel_key(in_key), unravel_key(state_key), "is_init"]
        self.out_keys = [unravel_key(out_key), unravel_key(("next", state_key))]
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
        x, state, start = (self._get(tensordict, key) for key in self.in_keys)
        batch = tensordict.shape
        if self.recurrent_mode and not batch:
            raise ArgumentError(
                "RNNModule: the tensordict must have an axis of time in recurrent mode, got none. "
                "Call it under set_recurrent_mode(False) for a step."
            )
        time = batch[-1] if self.recurrent_mode else 1
        x, state = x.reshape(-1, time, x.shape[-1]), state.reshape(-1, time, state.shape[-1])
        start = start.reshape(-1, time)
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
