"""Stable-Baselines3: policies with memory for ``RecurrentPPO`` of sb3-contrib, of any mixer.

It needs the extra ``linrnn[rl]``. The page "Agents with memory" says how to use it.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.backbone.pattern import MixerLike
from linrnn.errors import MissingExtraError
from linrnn.interop._agents import Memory

try:
    from gymnasium import spaces
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
except ImportError as error:
    raise MissingExtraError("linrnn.interop.sb3", "sb3-contrib", "rl") from error

__all__ = ["RNNPolicy"]


def __dir__() -> list[str]:
    return sorted(__all__)


_LEAST_PIXELS = 36  # a side, what the kernels and strides of NatureCNN need


class RNNPolicy(RecurrentActorCriticPolicy):  # type: ignore[misc]
    """An actor and a critic with a memory of any mixer, for ``RecurrentPPO`` of sb3-contrib.

    It is what ``MlpLstmPolicy``, ``CnnLstmPolicy`` and ``MultiInputLstmPolicy`` are, with a stack
    of mixers instead of each LSTM. A minibatch is read in one pass, which begins anew where an
    episode does. The ``(h, c)`` that ``RecurrentPPO`` stores are the halves of the state, bit for
    bit. ``save``, ``load``, ``predict`` and ``evaluate_policy`` are those of the library.

    Args:
        observation_space, action_space, lr_schedule: given by ``RecurrentPPO``.
        mixer, mixer_options: as of `linrnn.SequenceModel`: a name, a class, a pattern of these.
        residual: layers are the blocks of `linrnn.SequenceModel`, with layer norms and skips;
            else those of `linrnn.RNN`.
        lstm_hidden_size, n_lstm_layers: channels out, and layers.
        shared_lstm, enable_critic_lstm: as of the policies there. The critic has a separate
            memory, or with ``shared_lstm=True, enable_critic_lstm=False`` that of the actor, which
            it does not train; with both False it has none.
        features_extractor_class: what makes features of observations. Default: by their space,
            ``CombinedExtractor`` for dicts, ``NatureCNN`` for images of at least 36 pixels a side,
            else ``FlattenExtractor``.
        **options: further ones of ``RecurrentActorCriticPolicy``, such as ``net_arch``.

    Raises:
        MissingExtraError: on import, where the packages are not installed.
        ArgumentError: the state of a mixer grows with what was read.
        UnknownNameError: an unknown mixer, or option of it.

    Example:
        >>> from sb3_contrib import RecurrentPPO
        >>> from stable_baselines3.common.logger import Logger
        >>> options = {"mixer": "mingru", "lstm_hidden_size": 32}
        >>> model = RecurrentPPO(RNNPolicy, "CartPole-v1", policy_kwargs=options, n_steps=64)
        >>> model.set_logger(Logger(folder=None, output_formats=[]))  # or it makes a folder
        >>> _ = model.learn(128)
        >>> action, state = model.predict(model.observation_space.sample())
    """

    lstm_critic: Any

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        lr_schedule: Any,
        *,
        mixer: MixerLike = "mingru",
        mixer_options: Mapping[str, Any] | None = None,
        residual: bool = False,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        features_extractor_class: Any = None,
        **options: Any,
    ) -> None:
        layers: Any = {"mixer_options": mixer_options, "residual": residual}
        sizes = {"lstm_hidden_size": lstm_hidden_size, "n_lstm_layers": n_lstm_layers}
        parts = {"shared_lstm": shared_lstm, "enable_critic_lstm": enable_critic_lstm}
        extractor = features_extractor_class or _extractor(observation_space)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            features_extractor_class=extractor,
            **sizes,
            **parts,
            **options,
        )
        self._own = {"mixer": mixer, **layers, **sizes, **parts}
        size = self.features_dim, lstm_hidden_size, n_lstm_layers
        self.lstm_actor = _sized(Memory("RNNPolicy", mixer, *size, **layers))
        if self.lstm_critic is not None:  # of an instance a copy, or both would train one
            self.lstm_critic = _sized(Memory("RNNPolicy", deepcopy(mixer), *size, **layers))
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        # that of the parent has the parameters of its LSTMs
        self.optimizer = self.optimizer_class(
            self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._own}

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One pass over (sequences * time) steps, of ``lstm_states`` (1, sequences, numbers)."""
        state = torch.cat(lstm_states, -1)[0].float()  # the first zeros are of the default dtype
        x = features.unflatten(0, (len(state), -1))  # (sequences, time, channels)
        start = episode_starts.reshape(x.shape[:2]) > 0
        y, state = lstm(x, state[:, : lstm.numbers], start)
        h, c = nn.functional.pad(state, (0, state.shape[1] % 2)).chunk(2, 1)
        return y.flatten(0, 1), (h[None], c[None])


def _sized(memory: Any) -> Any:
    """A memory with the sizes that ``RecurrentPPO`` asks of an LSTM, which make its buffer."""
    half = -(-memory.numbers // 2)  # numbers of h, and of c
    memory.num_layers, memory.hidden_size = 1, half
    return memory


def _extractor(space: Any) -> type[nn.Module]:
    """The extractor of features that the library's policies use for such observations."""
    extractor: type[nn.Module] = FlattenExtractor
    if isinstance(space, spaces.Dict):
        extractor = CombinedExtractor
    elif is_image_space(space) and min(space.shape[-2:]) >= _LEAST_PIXELS:
        extractor = NatureCNN
    return extractor
