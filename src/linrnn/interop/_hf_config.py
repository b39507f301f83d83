"""The configuration of our models, in the form that transformers reads and writes."""

import dataclasses
from typing import Any, ClassVar

from torch import nn
from transformers import GenerationConfig, PreTrainedConfig

from linrnn import mixers
from linrnn._options.declared import dataclass_of
from linrnn._options.import_path import is_import_path
from linrnn._options.schema import cast, check_type
from linrnn.backbone import SequenceModel, model_options
from linrnn.backbone.pattern import check_stored, import_all, pattern, stored
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.interop._hf_files import AUTO_MAP, known_values

FORMAT = 1
"""Format of written folders; it rises when an older linrnn cannot read them."""

# one output a step, read forward; their name of the one embedding is another
_MODEL = model_options(("pool", "bidirectional", "tie_embeddings"), norm="layer", final_norm=True)
OPTIONS = tuple(option.name for option in _MODEL)
"""Options of `linrnn.SequenceModel` that have the same name here."""

_FIELDS: Any = dataclass_of("ModelOptions", "Options of the model.", _MODEL, frozen=False)


KEYS = (
    *("linrnn_format", "vocab_size", "mixer", "mixer_options", "block_options", *OPTIONS),
    *("origin", "tie_word_embeddings", "use_cache"),
    *("hidden_size", "num_hidden_layers", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("architectures", "return_dict", "output_hidden_states", "transformers_version"),
    *("id2label", "label2id", "problem_type"),
)
"""Keys read from a ``config.json``; other keys could name code, kernels or files."""
_OF_LIBRARY = (
    *("num_labels", "name_or_path", "gradient_checkpointing", "output_attentions"),
    *("torch_dtype", "attn_implementation", "experts_implementation"),
)
"""Keywords that ``transformers`` takes for every model besides the fields of its configuration."""


class LinrnnConfig(_FIELDS, PreTrainedConfig):  # type: ignore[misc]
    """Configuration of `LinrnnModel` and of those with heads; what ``config.json`` holds.

    The fields are the arguments of `linrnn.SequenceModel`, which always reads tokens and has one
    output a step. ``hidden_size`` and ``num_hidden_layers`` are other names of ``d_model`` and
    ``n_layers``.

    ``origin`` is the configuration of transformers that it was made from, by `from_pretrained` or
    `from_config`, with its ``model_type``.

    ``mixer`` may be what `linrnn.SequenceModel` takes, and becomes a text that a file can hold.

    Raises:
        UnknownNameError: no such mixer, or no such option.
        UntrustedError: a file names a mixer of a module that may not be imported.
        DataError: ``linrnn_format`` is that of a newer linrnn.
        ArgumentError: a field of the wrong type, or an empty vocabulary.

    Example:
        >>> LinrnnConfig(vocab_size=256, mixer="mingru", d_model=8, n_layers=2).hidden_size
        8
    """

    # transformers adds a parameter for every other keyword, which a check of the signature refuses
    __no_type_check__: ClassVar[bool] = True
    model_type: ClassVar[str] = "linrnn"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
    }

    linrnn_format: int = FORMAT
    vocab_size: int = 256
    mixer: Any = "lru"
    mixer_options: dict[str, Any] | None = None
    block_options: dict[str, Any] | None = None
    origin: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    auto_map: dict[str, str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        _refuse_unknown(kwargs)
        for name, hint in _own_types().items():
            check_type("LinrnnConfig", name, hint, cast(hint, getattr(self, name)))
        if self.linrnn_format > FORMAT:
            raise DataError(
                f"LinrnnConfig: the format must be at most {FORMAT}, got {self.linrnn_format}. "
                "Read the model with the version of linrnn that wrote it, or a newer one."
            )
        self.mixer, self.mixer_options = stored(self.mixer, self.mixer_options, self.d_model)
        for part in pattern(self.mixer):
            if not is_import_path(part) and part not in mixers.names():
                raise UnknownNameError("mixer", part, mixers.names())
        import_all(self.mixer)
        if self.vocab_size < 1:
            raise ArgumentError(
                f"LinrnnConfig: vocab_size must be an integer of at least 1, got {self.vocab_size}."
            )
        self.auto_map = self.auto_map or {}  # transformers looks into it without asking
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A configuration from what a file holds: of the known keys alone; see ``transformers``.

        Raises:
            UntrustedError: it names a mixer of a module that may not be imported.
        """
        values = known_values(config_dict, KEYS) | {"auto_map": AUTO_MAP}
        check_stored("LinrnnConfig", values.get("mixer", ""))
        return super().from_dict(values, **kwargs)

    @classmethod
    def register_for_auto_class(cls, *_: Any) -> None:
        """Nothing: the sources of linrnn are not copied into the folder of a model."""

    def options(self) -> dict[str, Any]:
        """Arguments of `linrnn.SequenceModel` besides the size of the vocabulary."""
        hints = {option.name: option.hint for option in _MODEL}  # lists of a file are tuples
        arguments = {name: cast(hint, getattr(self, name)) for name, hint in hints.items()}
        arguments = {"mixer": self.mixer, "mixer_options": self.mixer_options, **arguments}
        arguments |= {"block_options": self.block_options}
        return {**arguments, "tie_embeddings": self.tie_word_embeddings}

    def build(self, *, head: bool = True) -> SequenceModel:
        """The model, with fresh weights; without a head it returns what that would read.

        Raises:
            ArgumentError, UnknownNameError: an option that `linrnn.SequenceModel` does not take.
        """
        size = self.vocab_size
        model = SequenceModel(size, size, pool="none", encoder="tokens", **self.options())
        if not head:
            model.head, model.d_output = nn.Identity(), model.d_model  # type: ignore[assignment]
        return model


def _own_types() -> dict[str, Any]:
    """The annotations of our own fields, which `typing.get_type_hints` does not give.

    It gives none of a class that is marked with ``__no_type_check__``, as this one is.
    """
    own = {*OPTIONS, *LinrnnConfig.__annotations__}
    return {f.name: f.type for f in dataclasses.fields(LinrnnConfig) if f.name in own}


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Raise `UnknownNameError` for a keyword that neither a field nor ``transformers`` answers to.

    A name with an underscore in front is one that ``transformers`` keeps for itself.
    """
    of_generation = GenerationConfig._get_default_generation_params()
    of_transformers = {*_OF_LIBRARY, *of_generation, *LinrnnConfig.attribute_map}
    for name in kwargs:
        if name not in of_transformers and not name.startswith("_"):
            fields = (f.name for f in dataclasses.fields(LinrnnConfig))
            raise UnknownNameError("option of LinrnnConfig", name, {*fields, *of_transformers})
