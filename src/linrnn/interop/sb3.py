"""Stable-Baselines3: policies with memory for ``RecurrentPPO`` of sb3-contrib, of any mixer.

It needs the extra ``linrnn[rl]``. The page "Agents with memory" says how to use it.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.backbone.pattern import MixerLike
from linrnn.compute.arguments import check_flags
from linrnn.errors import (
    ArgumentError,
    DTypeError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    check_positive_int,
)
from linrnn.interop._agents import Memory
from linrnn.nn.parameters import working_dtype

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
        ArgumentError: the state of a mixer grows with what was read; an option outside its range;
            or observations that the library's extractors cannot read.
        ShapeError, DTypeError: when called, a state or starts of other streams, or weights of
            another dtype than at first.
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
        _check_options(sizes, {"residual": residual, **parts}, options.get("lstm_kwargs"))
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

    @property
    def features_dim(self) -> int:
        """Numbers in the features of an observation."""
        return self._features_dim

    @features_dim.setter
    def features_dim(self, width: Any) -> None:
        # of discrete observations the library has a number of NumPy, which a layer refuses
        self._features_dim = int(width)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """Actions of one observation or of a batch, and the state of its streams after them.

        Args:
            observation: one of ``observation_space``, or a batch.
            state: what the call before returned for the same streams; None to begin.
            episode_start: of each stream, whether an episode begins.
            deterministic: whether each action is the most probable one.

        Raises:
            ArgumentError: a batch without observations.
            NonFiniteError: an observation, or a state, that is NaN or infinite.
            ShapeError: a state, or starts, of other streams or of another policy.
        """
        parts = observation.values() if isinstance(observation, dict) else [observation]
        if any(0 in np.shape(part) for part in parts):
            raise ArgumentError("RNNPolicy: observation must have at least one row, got none.")
        _check_finite("observation", parts)
        if state is not None:
            self._check_state(state)
        return super().predict(observation, state, episode_start, deterministic)  # type: ignore[no-any-return]

    def _check_state(self, state: Any) -> None:
        width = self.lstm_hidden_state_shape[-1]
        pair = isinstance(state, (tuple, list)) and len(state) == 2
        shapes = [np.shape(part) for part in state] if pair else []
        if not pair or any(len(s) != 3 or (s[0], s[2]) != (1, width) for s in shapes):
            raise ShapeError(
                f"RNNPolicy: state must be a pair of arrays of shape (1, streams, {width}), got "
                f"{shapes or type(state).__name__}. Pass what predict returned, or None."
            )
        _check_finite("state", state)

    def _predict(
        self, observation: Any, lstm_states: Any, episode_starts: Any, deterministic: bool = False
    ) -> tuple[Tensor, Any]:
        parts = observation.values() if isinstance(observation, dict) else [observation]
        rows = len(next(iter(parts)))
        streams = [part.shape[1] for part in lstm_states]
        if streams != [rows, rows]:  # they would be read as steps of fewer streams
            raise ShapeError(
                f"RNNPolicy: state must have a row for each of {rows} observations, got "
                f"{streams[0]} and {streams[1]}. Pass what predict returned for them, or None."
            )
        if episode_starts.numel() != rows:
            raise ShapeError(
                f"RNNPolicy: episode_start must have a number for each of {rows} observations, got "
                f"shape {tuple(episode_starts.shape)}."
            )
        return super()._predict(observation, lstm_states, episode_starts, deterministic)  # type: ignore[no-any-return]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._own}

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One pass over (sequences * time) steps, of ``lstm_states`` (1, sequences, numbers)."""
        state = torch.cat(lstm_states, -1)[0].float()  # the first zeros are of the default dtype
        dtype = working_dtype(lstm)
        cast = torch.is_autocast_enabled(features.device.type)
        if lstm.numbers > state.shape[1] or not (features.dtype == dtype or cast):
            raise DTypeError(
                f"RNNPolicy: the parameters must be {features.dtype} like the features, as they "
                f"were made, got {dtype}. Convert them back."
            )
        x = features.unflatten(0, (len(state), -1))  # (sequences, time, channels)
        start = episode_starts.reshape(x.shape[:2]) > 0
        y, state = lstm(x, state[:, : lstm.numbers], start)
        h, c = nn.functional.pad(state, (0, state.shape[1] % 2)).chunk(2, 1)
        return y.flatten(0, 1), (h[None], c[None])


def _check_finite(name: str, parts: Iterable[Any]) -> None:
    """Raise `NonFiniteError` for numbers that no action follows from."""
    for part in map(np.asarray, parts):
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise NonFiniteError(
                f"RNNPolicy: {name} must be finite, got NaN or infinity. Replace it before it is "
                "read; the state before is as it was."
            )


def _sized(memory: Any) -> Any:
    """A memory with the sizes that ``RecurrentPPO`` asks of an LSTM, which make its buffer."""
    half = -(-memory.numbers // 2)  # numbers of h, and of c
    memory.num_layers, memory.hidden_size = 1, half
    return memory


def _check_options(sizes: Any, flags: Any, lstm_kwargs: Any) -> None:
    """Raise `ArgumentError` unless options are in their ranges, and the memories not two in one."""
    check_positive_int("RNNPolicy", **sizes)
    check_flags("RNNPolicy", **flags)
    if flags["shared_lstm"] and flags["enable_critic_lstm"]:
        raise ArgumentError(
            "RNNPolicy: enable_critic_lstm must be False with shared_lstm=True, got True. "
            "The critic has one memory or the other."
        )
    if lstm_kwargs:
        raise ArgumentError(
            f"RNNPolicy: lstm_kwargs must be None, for there is no LSTM, got {lstm_kwargs!r:.60}. "
            "Use mixer_options."
        )


def _check_space(name: str, space: Any, *, inside: bool) -> None:
    """Raise `ArgumentError` for observations that the library's extractors cannot read."""
    if not isinstance(space, spaces.Box):
        return
    fix = "Pass a features_extractor_class that reads them."
    if not space.shape or 0 in space.shape:
        raise ArgumentError(
            f"RNNPolicy: {name} must have an axis and no empty one, got shape {space.shape}. "
            "Use gymnasium.wrappers.ReshapeObservation."
        )
    if inside and is_image_space(space) and min(space.shape[-2:]) < _LEAST_PIXELS:
        raise ArgumentError(
            f"RNNPolicy: images in a dict must have at least {_LEAST_PIXELS} pixels a side, got "
            f"{name} of shape {space.shape}. {fix}"
        )


def _extractor(space: Any) -> type[nn.Module]:
    """The extractor of features that the library's policies use for such observations."""
    named = space.spaces if isinstance(space, spaces.Dict) else {"observation_space": space}
    for name, part in named.items():
        _check_space(name, part, inside=part is not space)
    extractor: type[nn.Module] = FlattenExtractor
    if isinstance(space, spaces.Dict):
        extractor = CombinedExtractor
    elif is_image_space(space) and min(space.shape[-2:]) >= _LEAST_PIXELS:
        extractor = NatureCNN
    return extractor
