"""Our language models as transformers' own."""

import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from linrnn._pattern import import_all
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, DTypeError, check_shape
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
from linrnn.interop._hf_padding import read_rows, split_padding
from linrnn.nn import CappedLinear
from linrnn.typing import Bool, Float, Integer, State

_UNSUPPORTED = ("inputs_embeds", "output_hidden_states", "output_attentions")


class LinrnnForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `linrnn.SequenceModel` that predicts the next token, as a model of ``transformers``.

    ``generate``, ``Trainer``, ``pipeline("text-generation")``, ``save_pretrained`` and
    ``from_pretrained`` are those of the library, and after ``import linrnn.interop.hf`` so are
    ``AutoConfig`` and ``AutoModelForCausalLM``. The cache is the state, `LinrnnCache`: what it
    holds after any number of tokens has one size, and to go on from it gives what one pass gives.

    Padding, wherever ``attention_mask`` is 0, is not read: every row gets what it gets alone. The
    id ``config.vocab_size``, one beyond the vocabulary, is padding too where no mask is given, and
    is what our tokenizers pad with. The outputs at padding are 0, which says that every token
    is equally likely. Rows that ``generate`` has ended go on reading token 0.

    Args:
        config: `LinrnnConfig`.

    Raises:
        ArgumentError, UnknownNameError: an option that `linrnn.SequenceModel` does not take.

    Example:
        >>> config = LinrnnConfig(vocab_size=5, mixer="mingru", d_model=4, n_layers=1)
        >>> model = LinrnnForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False).shape
        torch.Size([1, 5])
    """

    config_class: ClassVar[type[LinrnnConfig]] = LinrnnConfig
    config: LinrnnConfig
    model: SequenceModel
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.head.weight": "model.encoder.weight"}

    def __init__(self, config: LinrnnConfig) -> None:
        super().__init__(config)
        self.model = config.build()
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load what ``save_pretrained`` wrote: see ``transformers``; safetensors only.

        Of the files alone the known keys of the configurations and the weights are read, so no
        code, kernel, adapter or way to unpack weights that they name is ever looked for. A mixer of
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
        files = files_of("LinrnnForCausalLM", path, kwargs)
        given = isinstance(config, LinrnnConfig)
        values = config.to_dict() if given else None
        if values is None:
            of = files if config is None else files_of("LinrnnForCausalLM", config, dict(kwargs))
            values = read_config(of, cls.config_class.model_type, KEYS)
            if trust:
                import_all(values.get("mixer", ""))
        sizes = {} if kwargs.get("ignore_mismatched_sizes") else values
        weights = weights_of(files, sizes, kwargs.pop("variant", None))
        if not given:
            config, kwargs = configured(
                files, lambda: LinrnnConfig.from_dict(values, return_unused_kwargs=True, **kwargs)
            )
        model, info = load(files, config, weights, read, *args, **kwargs)
        check_numbers(files, weights, model)
        if with_info:
            return model, info
        check_weights(files, info)
        return model

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

    def get_output_embeddings(self) -> nn.Linear:
        """The head."""
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace it; one that bounds its outputs by one that does."""
        head = self.model.head
        if isinstance(head, CappedLinear) and not isinstance(new_embeddings, CappedLinear):
            new_embeddings = CappedLinear.of(new_embeddings, head.cap)
        self.model.head, self.model.d_output = new_embeddings, new_embeddings.out_features

    def forward(
        self,
        input_ids: Integer[Tensor, "batch time"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Integer[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Read tokens after what the cache holds.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), or with the columns read before; 0 is padding.
            past_key_values: a `LinrnnCache`, which has read these tokens too afterwards.
            labels: (batch, time), the tokens themselves: they are shifted here; -100 and padding
                do not count.
            use_cache: return the cache. Default: as the configuration says, not in training.
            logits_to_keep: compute the logits of that many last tokens only; 0: of all. Or the
                positions, as a tensor.
            return_dict: False returns a tuple.
            **kwargs: of the loss, such as ``num_items_in_batch``.

        Returns:
            ``loss`` (nats per token) if there are labels, ``logits`` (batch, time, vocabulary) and
            ``past_key_values``.

        Raises:
            ArgumentError: no tokens, one outside the vocabulary, the cache of another model, or
                something this model has not: embeddings as input, hidden states as output.
            ShapeError, DTypeError: an argument that does not fit.
        """
        ids = _checked_ids(input_ids, kwargs)
        cache = self._own(past_key_values)
        mask = attention_mask
        ids, valid = split_padding(ids, mask, self.config.vocab_size, cache.length)
        logits, state = self._logits(ids, valid, cache, 0 if labels is not None else logits_to_keep)
        loss = None
        if labels is not None:
            labels = labels.masked_fill(labels == self.config.vocab_size, -100)
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
            logits = _keep(logits, logits_to_keep)
        keep = self.config.use_cache and not self.training if use_cache is None else use_cache
        if keep:
            self._advance(cache, state, ids, valid)
        output = CausalLMOutputWithPast(loss, logits, cache if keep else None)
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def _logits(
        self, ids: Tensor, valid: Tensor | None, cache: LinrnnCache, keep: int | Tensor
    ) -> tuple[Tensor, State]:
        before, begun = cache.state, cache.begun
        if begun is None:
            begun = ids.new_zeros(len(ids), dtype=torch.bool)
        axes = {"batch": len(begun), "time": None}
        check_shape("LinrnnForCausalLM", "input_ids", ids.shape, axes)
        one = ids.shape[1] == 1 and valid is None and not torch.is_grad_enabled()
        if one and before is not None and bool(begun.all()):
            y, stepped = self.model.step(ids[:, 0], before)
            return y[:, None], stepped

        def read(ids: Tensor, state: State | None, reset: Tensor | None) -> tuple[Tensor, State]:
            return self.model.features(ids, state, reset=reset)

        grows = any("constant_memory" in mixer.declared for mixer in self.model.mixers)
        z, after = read_rows(read, ids, valid, before, begun, grows)
        logits = self.model.head(_keep(z, keep))
        if valid is not None:
            logits = logits.masked_fill(~_keep(valid[..., None], keep), 0)
        return logits, after

    def _own(self, cache: Any) -> LinrnnCache:
        """The caller's cache, or an empty one."""
        if cache is None:
            return LinrnnCache()
        if not isinstance(cache, LinrnnCache):
            raise DTypeError(
                "LinrnnForCausalLM: past_key_values must be a LinrnnCache, got "
                f"{type(cache).__name__}. Pass what this model returned, or None."
            )
        if cache.options not in (None, self._kind()):
            theirs = cache.options or {}
            raise ArgumentError(
                "LinrnnForCausalLM: past_key_values must be of this model, "
                f"{self.config.n_layers} x {self.config.mixer}, got those of another, "
                f"{theirs.get('n_layers')} x {theirs.get('mixer')}. Begin with None."
            )
        return cache

    def _kind(self) -> dict[str, Any]:
        return {**self.config.options(), "vocab_size": self.config.vocab_size}

    def _advance(self, cache: LinrnnCache, state: State, ids: Tensor, valid: Tensor | None) -> None:
        read = ids.new_ones(len(ids), dtype=torch.bool) if valid is None else valid.any(1)
        cache.begun = read if cache.begun is None else cache.begun | read
        cache.state, cache.length = state, cache.length + ids.shape[1]
        cache.options = cache.options or self._kind()

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """What ``generate`` calls the model with.

        Raises:
            ArgumentError: the cache has read all of ``input_ids``.
        """
        if next_sequence_length is not None and next_sequence_length < 1:
            raise ArgumentError(
                "generate: input_ids must be the whole text, what past_key_values has read and at "
                f"least one token more, got {input_ids.shape[1]} tokens."
            )
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, **kwargs
        )
        return inputs

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if generation_config.cache_implementation is not None:
            raise ArgumentError(
                "generate: cache_implementation must be None, for the state has one size anyway, "
                f"got {generation_config.cache_implementation!r}."
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = LinrnnCache()


def _checked_ids(ids: Tensor | None, others: dict[str, Any]) -> Tensor:
    for name in _UNSUPPORTED:
        value = others.pop(name, None)
        if value is not None and value is not False:
            raise ArgumentError(f"LinrnnForCausalLM: {name} must be left out, got a value.")
    if not isinstance(ids, Tensor):
        raise DTypeError(
            f"LinrnnForCausalLM: input_ids must be a tensor of token ids, got {type(ids).__name__}."
        )
    check_shape("LinrnnForCausalLM", "input_ids", ids.shape, {"batch": None, "time": None})
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.is_complex():
        raise DTypeError(f"LinrnnForCausalLM: input_ids must be integers, got {ids.dtype}.")
    if not ids.numel():
        raise ArgumentError(
            f"LinrnnForCausalLM: input_ids must hold a token, got shape {tuple(ids.shape)}."
        )
    return ids.long()


def _keep(
    x: Float[Tensor, "batch time channels"] | Bool[Tensor, "batch time channels"],
    positions: int | Tensor,
) -> Tensor:
    """The last steps, or those at some positions."""
    if isinstance(positions, Tensor):
        return x[:, positions]
    return x[:, -positions:] if positions else x
