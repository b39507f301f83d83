"""The base of all our models of transformers: files, embeddings, and how they read."""

import os
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from linrnn.backbone import SequenceModel
from linrnn.backbone.pattern import import_all
from linrnn.errors import ArgumentError, DTypeError, check_positive_int, check_shape
from linrnn.interop._hf_cache import LinrnnCache
from linrnn.interop._hf_config import KEYS, LinrnnConfig
from linrnn.interop._hf_files import AUTO_MAP, read_config, write_code
from linrnn.interop._hf_load import (
    check_numbers,
    check_weights,
    configured,
    files_of,
    load,
    weights_of,
)
from linrnn.interop._hf_offload import fetch_whole_blocks, offloaded
from linrnn.interop._hf_packing import Packing, document_starts, sort_keywords
from linrnn.interop._hf_padding import WHERE
from linrnn.interop._hf_reading import Around, Reading, checkpointed, embedded, read

HEADS = ("model.head.", "score.")
"""How the names of weights begin that not all of our classes have."""


class LinrnnPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """A `linrnn.SequenceModel` as a model of ``transformers``; see the classes derived from it."""

    config_class: ClassVar[type[LinrnnConfig]] = LinrnnConfig
    config: LinrnnConfig
    model: SequenceModel
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    _of_loss: ClassVar[tuple[str, ...]] = ()
    """Keywords of a call that its loss takes."""

    def __init__(self, config: LinrnnConfig, *, head: bool = False) -> None:
        super().__init__(config)
        self.model = config.build(head=head)
        self.gradient_checkpointing, self._checkpoint_every = False, 1
        self._kind = {**config.options(), "vocab_size": config.vocab_size}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load what ``save_pretrained`` wrote: see ``transformers``; safetensors only.

        Only the known keys of the configurations and the weights are read, so no
        code, kernel, adapter or way to unpack weights that they name is ever looked for. A head
        that the class they were saved from has not begins anew, and so does one of another size
        with ``ignore_mismatched_sizes=True``. A mixer of
        yours, which they name by its import path, must have been imported, or be named in
        ``LINRNN_TRUST``, or come with ``trust_remote_code=True``.

        Raises:
            UntrustedError: they name a mixer of a module that may not be imported.
            DataError: a folder that holds no model of linrnn, one of a newer linrnn, or weights
                that do not fit the configuration, are not finite or not real.
        """
        path, read = pretrained_model_name_or_path, super().from_pretrained
        if not isinstance(path, str | os.PathLike):
            return read(path, *args, **kwargs)
        with_info, config = kwargs.pop("output_loading_info", False), kwargs.pop("config", None)
        trust = kwargs.get("trust_remote_code") is True
        files = files_of(cls.__name__, path, kwargs)
        has_config = isinstance(config, LinrnnConfig)
        values = config.to_dict() if has_config else None
        if values is None:
            of = files if config is None else files_of(cls.__name__, config, dict(kwargs))
            values = read_config(of, cls.config_class.model_type, KEYS)
            if trust:
                import_all(values.get("mixer", ""))
        sizes = {} if kwargs.get("ignore_mismatched_sizes") else values
        weights = weights_of(files, sizes, kwargs.pop("variant", None))
        if not has_config:
            config, kwargs = configured(
                files, lambda: LinrnnConfig.from_dict(values, return_unused_kwargs=True, **kwargs)
            )
        model, info = load(files, config, weights, read, *args, **kwargs)
        fresh = model._draw_heads(info, values.get("architectures"))
        if not with_info:  # first, for weights that are missing are any numbers
            check_weights(files, info, fresh)
        check_numbers(files, weights, model)
        if offloaded(model):
            fetch_whole_blocks(model)
        return (model, info) if with_info else model

    def _draw_heads(self, info: dict[str, Any], saved_as: Any) -> tuple[str, ...]:
        """Draw heads that were not there, or of other sizes; the names of what may be otherwise."""
        of_another_class = isinstance(saved_as, list) and type(self).__name__ not in saved_as
        resized = {key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]}
        fresh: list[str] = []
        for head in HEADS:
            names = {n for n in resized | set(info["missing_keys"]) if n.startswith(head)}
            if of_another_class or names & resized:
                fresh.append(head)
                if names:
                    _draw(self.get_submodule(head[:-1]), {n.removeprefix(head) for n in names})
        return tuple(fresh)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write a folder: see ``transformers``; safetensors only.

        Beside configuration and weights lies a file of one import statement,
        ``modeling_linrnn.py``: programs that do not import linrnn, such as ``lm_eval``, find it if
        told ``trust_remote_code=True``.
        """
        self.config.auto_map = AUTO_MAP
        super().save_pretrained(save_directory, *args, **kwargs)
        write_code(save_directory)

    @classmethod
    def register_for_auto_class(cls, *_: Any) -> None:
        """Nothing: the sources of linrnn are not copied into the folder of a model."""

    @classmethod
    def get_init_context(cls, *args: Any, **kwargs: Any) -> list[Any]:
        """Build with real tensors: some mixers compute with their initial values."""
        contexts = super().get_init_context(*args, **kwargs)
        return [c for c in contexts if not (isinstance(c, torch.device) and c.type == "meta")]

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: every layer has drawn its weights when it was made."""

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.model.encoder

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace it."""
        self.model.encoder, self.model.d_input = value, value.num_embeddings
        self._kind = {**self._kind, "vocab_size": value.num_embeddings}

    @property
    def device(self) -> torch.device:
        """Where the embedding of tokens lies; found without a walk over all modules."""
        return cast(Tensor, self.model.encoder.weight).device

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1
    ) -> None:
        check_positive_int(WHERE, every_n_layers=every_n_layers)
        self.gradient_checkpointing, self._checkpoint_every = enable, every_n_layers
        self._gradient_checkpointing_func = gradient_checkpointing_func

    def _around(self) -> Around | None:
        if not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return None
        return checkpointed(self._gradient_checkpointing_func, self._checkpoint_every)

    def _read(
        self,
        ids: Any,
        embeddings: Any,
        mask: Tensor | None,
        past: Any,
        packing: Packing,
        *,
        use_cache: bool | None,
        output_hidden_states: bool | None,
    ) -> tuple[Reading, LinrnnCache | None]:
        """Read after what the cache holds, which has read this too afterwards if it is kept."""
        if self.config.output_attentions:
            raise ArgumentError(f"{WHERE}: output_attentions must be left out, got True.")
        cache = self._checked_cache(past)
        x, valid = embedded(self.model, ids, embeddings, mask, self.config.vocab_size, cache.length)
        rows = None if cache.begun is None else len(cache.begun)
        check_shape(WHERE, "input_ids", x.shape[:2], {"batch": rows, "time": None})
        reset = document_starts(packing, x, valid, cache.begun)
        around = self._around()
        if (pending := cache.take_pending()) is not None:
            done = read(self.model, *pending, cache, around=around)
            cache.advance(done.state, *pending)
            cache.remember()
        hidden = self._shows(output_hidden_states)
        reading = read(self.model, x, valid, reset, cache, hidden=hidden, around=around)
        if self._keeps(use_cache):
            cache.advance(reading.state, x, valid, reset)
            cache.options = cache.options or self._kind
            return reading, cache
        return reading, None

    def _sorted(
        self, kwargs: dict[str, Any], position_ids: Any, seq_idx: Any, reset: Any
    ) -> tuple[Packing, dict[str, Any]]:
        """The starts of documents, and the keywords of the loss; an error for any other keyword."""
        return sort_keywords(
            *(type(self), kwargs, self._of_loss),
            position_ids=position_ids,
            seq_idx=seq_idx,
            reset=reset,
        )

    def _keeps(self, use_cache: bool | None) -> bool:
        return bool(self.config.use_cache and not self.training if use_cache is None else use_cache)

    def _shows(self, hidden: bool | None) -> bool:
        return bool(self.config.output_hidden_states if hidden is None else hidden)

    def _checked_cache(self, cache: Any) -> LinrnnCache:
        """The caller's cache, or an empty one."""
        if cache is None:
            return LinrnnCache()
        if not isinstance(cache, LinrnnCache):
            raise DTypeError(
                f"{WHERE}: past_key_values must be a LinrnnCache, got "
                f"{type(cache).__name__}. Pass what this model returned, or None."
            )
        if cache.options is not self._kind and cache.options not in (None, self._kind):
            theirs = cache.options or {}
            option = next(k for k in (*self._kind, *theirs) if self._kind.get(k) != theirs.get(k))
            raise ArgumentError(
                f"{WHERE}: past_key_values must be of this model, whose {option} is "
                f"{self._kind.get(option)!r}, got those of one whose {option} is "
                f"{theirs.get(option)!r}. Begin with None."
            )
        return cache

    def _returned(self, output: Any, return_dict: bool | None) -> Any:
        wants = self.config.return_dict if return_dict is None else return_dict
        return output if wants else output.to_tuple()


@torch.no_grad()
def _draw(head: nn.Module, names: set[str]) -> None:
    """Draw parameters of a linear layer anew; the others may be those of the embedding as well."""
    copies = {n: p.clone() for n, p in head.named_parameters() if n not in names}
    cast(nn.Linear, head).reset_parameters()
    for name, value in copies.items():
        head.get_parameter(name).copy_(value)
