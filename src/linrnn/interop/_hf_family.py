"""The description of a family of transformers' models, to convert to ours and back."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from linrnn.backbone.pattern import pattern
from linrnn.errors import ArgumentError
from linrnn.interop._hf_config import OPTIONS, LinrnnConfig
from linrnn.interop._hf_layouts import SPECIAL, load_peer, special_tokens
from linrnn.interop._hf_model import LinrnnForCausalLM
from linrnn.interop._hf_weights import Weight, copy_weights

_USUAL_KEYS = (
    *("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"),
    "head_dim",  # read by attention whether or not their class has a field for it
)


@runtime_checkable
class FamilyLike(Protocol):
    """How `from_pretrained` and `to_pretrained` see a family."""

    def read(self, where: str, model: Any) -> LinrnnForCausalLM:
        """A model of theirs, or the folder of one, as a model of ours."""

    def write(self, where: str, model: LinrnnForCausalLM, config: Any) -> PreTrainedModel:
        """A model of ours as one of theirs with that configuration; None: find it out."""


class Converters(NamedTuple):
    """A family with two special functions, the inverse of which finds the configuration."""

    read_model: Callable[[Any], LinrnnForCausalLM]
    write_model: Callable[[LinrnnForCausalLM], PreTrainedModel]

    def read(self, where: str, model: Any) -> LinrnnForCausalLM:
        """See `FamilyLike`."""
        return self.read_model(model)

    def write(self, where: str, model: LinrnnForCausalLM, config: Any) -> PreTrainedModel:
        """See `FamilyLike`."""
        return self.write_model(model)


class Family(NamedTuple):
    """A family by what is particular to it."""

    peer: type[PreTrainedModel]
    """The class of its language models."""
    stack: Callable[[Any], dict[str, Any]]
    """Fields of `LinrnnConfig` besides those of `_shared`, from a configuration of theirs."""
    weights: Callable[[Any], Iterable[Weight]]
    """All weights, from a configuration of theirs."""
    check: Callable[[str, Any], None]
    """Raises `DataError` for a configuration of theirs that we have no counterpart of."""
    more_keys: Sequence[str] = ()
    """Read of their ``config.json``, besides the fields that their configuration's class has."""
    derived: Sequence[str] = ()
    """Ends of the names of tensors of theirs that follow from the configuration."""

    def keys(self) -> tuple[str, ...]:
        """The keys read from ``config.json``: none could name code or files."""
        fields = vars(self.peer.config_class).get("__annotations__", {})
        return (*fields, *_USUAL_KEYS, *SPECIAL, "tie_word_embeddings", *self.more_keys)

    def config(self, theirs: PreTrainedConfig) -> LinrnnConfig:
        """The configuration of our model."""
        fields = {**_shared(theirs), **self.stack(theirs), **special_tokens(theirs)}
        values = theirs.to_dict()
        origin = {key: values[key] for key in ("model_type", *self.keys()) if key in values}
        return LinrnnConfig(**fields, origin=origin)

    def read(self, where: str, model: Any) -> LinrnnForCausalLM:
        """See `FamilyLike`."""
        peer = load_peer(where, model, self.peer, self.keys(), self.check)
        ours = LinrnnForCausalLM(self.config(peer.config))
        ours.to(peer.device, peer.dtype)
        weights = self.weights(peer.config)
        copy_weights(where, weights, ours.model.state_dict(), self._stored(peer))
        ours.generation_config = peer.generation_config
        ours.eval()
        return ours

    def write(self, where: str, model: LinrnnForCausalLM, config: Any) -> PreTrainedModel:
        """See `FamilyLike`."""
        if config is None:
            values = {k: v for k, v in (model.config.origin or {}).items() if k != "model_type"}
            config = self.peer.config_class.from_dict(values)
        self.check(where, config)
        _check_same(where, model.config, self.config(config))
        for name, value in special_tokens(model.config).items():
            setattr(config, name, value)
        peer = self.peer(config).to(model.device, model.dtype)
        weights = self.weights(config)
        copy_weights(where, weights, model.model.state_dict(), self._stored(peer), back=True)
        peer.generation_config = model.generation_config
        return peer.eval()

    def _stored(self, peer: PreTrainedModel) -> dict[str, Tensor]:
        """The tensors of a model of theirs that are weights."""
        tensors = peer.state_dict()
        return {n: x for n, x in tensors.items() if n.rpartition(".")[2] not in self.derived}


def _shared(theirs: Any) -> dict[str, Any]:
    """Options common to all: a stack between an embedding and a head without a bias."""
    return {
        "vocab_size": theirs.vocab_size,
        "d_model": theirs.hidden_size,
        "n_layers": theirs.num_hidden_layers,
        "norm": "rms",
        "norm_eps": getattr(theirs, "rms_norm_eps", None),
        "final_norm": True,
        "head_bias": False,
        "tie_word_embeddings": bool(theirs.tie_word_embeddings),
    }


def _check_same(where: str, ours: LinrnnConfig, expected: LinrnnConfig) -> None:
    """Raise unless our model is the stack that their configuration describes."""
    names = (*OPTIONS, "mixer_options", "block_options", "vocab_size", "tie_word_embeddings")
    pairs = {name: (getattr(ours, name), getattr(expected, name)) for name in names}
    del pairs["block"]
    depth = ours.n_layers
    both = ours, expected
    got, rule = (_layers(pattern(c.mixer), depth) for c in both)
    pairs["mixer"] = got, rule
    got, rule = (_layers(c.block_pattern or (c.block,), depth) for c in both)
    pairs["block_pattern"] = got, rule
    for name, (got, rule) in pairs.items():
        if _plain(got) != _plain(rule):
            raise ArgumentError(
                f"{where}: {name} must be {rule!r} for a model of this configuration, got {got!r}. "
                "Pass the configuration of transformers that yours has the sizes of."
            )


def _layers(kinds: Sequence[Any], n_layers: int) -> list[Any]:
    """The kind of each layer of a pattern."""
    return [kinds[i % len(kinds)] for i in range(n_layers)]


def _plain(value: Any) -> Any:
    """A value with lists for tuples, as files have them, and None for what is empty."""
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()} or None
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value] or None
    return value
