"""Our language models as transformers' own."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from linrnn.errors import ArgumentError
from linrnn.interop._hf_base import LinrnnPreTrainedModel
from linrnn.interop._hf_cache import LinrnnCache
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_labels import checked_labels, in_range
from linrnn.interop._hf_offload import offloaded
from linrnn.interop._hf_packing import fit_to_text
from linrnn.nn import CappedLinear
from linrnn.typing import Bool, Float, Integer

#: Keywords of ``generate`` itself, which its loops hand on with those of the model.
_OF_GENERATE = ("tokenizer", "assistant_tokenizer")


class LinrnnForCausalLM(LinrnnPreTrainedModel, GenerationMixin):  # type: ignore[misc]
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

    _of_loss: ClassVar[tuple[str, ...]] = ("num_items_in_batch", "shift_labels", "ignore_index")
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.head.weight": "model.encoder.weight"}

    def __init__(self, config: LinrnnConfig) -> None:
        super().__init__(config, head=True)
        self.post_init()

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
        inputs_embeds: Float[Tensor, "batch time d_model"] | None = None,
        labels: Integer[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        reset: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Read tokens after what the cache holds.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), or with the columns read before; 0 is padding, 1 is read.
            past_key_values: a `LinrnnCache`, which has read these tokens too afterwards.
            inputs_embeds: (batch, time, d_model) instead of ``input_ids``: what
                ``get_input_embeddings()`` gives for tokens.
            labels: (batch, time), the tokens themselves: they are shifted here; -100 and padding
                do not count.
            use_cache: return the cache. Default: as the configuration says, not in training.
            output_hidden_states: return what goes into each layer, and what the head reads, each
                (batch, time, d_model). Default: as the configuration says.
            logits_to_keep: compute the logits of that many last tokens only; 0: of all. Or the
                positions, as a tensor.
            return_dict: False returns a tuple.
            position_ids: (batch, time), counted within each document: where they begin again, at 0
                or the lowest of the row, so does the state. The first token of a call goes on after
                the cache unless its position is 0.
            seq_idx: (batch, time), the number of the document that a token is of.
            reset: boolean (batch, time); True starts anew before that token.
            **kwargs: ``cu_seq_lens_q`` and ``cu_seq_lens_k``, (documents + 1,), where documents of
                the rows, one after the other, begin and end; ``max_length_q`` and ``max_length_k``,
                at least the length of the longest. For the loss: ``num_items_in_batch``, the number
                of labels of all the batches that it is a mean over; ``shift_labels``, labels that
                are shifted already; ``ignore_index`` instead of -100.

        Documents in one row are read as if each were alone. The label of a document's first token
        counts for the last of the one before unless it is -100, as the collators of
        ``transformers`` make it.

        Returns:
            ``loss`` (nats per token) if there are labels, ``logits`` (batch, time, vocabulary),
            ``past_key_values`` and ``hidden_states``, ``n_layers + 1`` of them.

        Raises:
            ArgumentError: no tokens, one outside the vocabulary, the cache of another model, two
                arguments that do not agree on where documents begin, or something this model has
                not, such as attentions.
            UnknownNameError: another keyword.
            ShapeError, DTypeError: an argument that does not fit.
        """
        packing, loss_options = self._sorted(kwargs, position_ids, seq_idx, reset)
        trained = labels is not None or loss_options.get("shift_labels") is not None
        is_step = not trained and inputs_embeds is None and not packing
        hidden = self._shows(output_hidden_states)
        if is_step and not hidden and self._keeps(use_cache) and not torch.is_grad_enabled():
            logits = self._step(input_ids, attention_mask, past_key_values)
            if logits is not None:
                output = CausalLMOutputWithPast(None, logits, past_key_values)
                return self._returned(output, return_dict)
        reading, cache = self._read(
            *(input_ids, inputs_embeds, attention_mask, past_key_values, packing),
            use_cache=use_cache,
            output_hidden_states=hidden,
        )
        keep = 0 if trained else logits_to_keep
        logits = self.model.head(_keep(reading.z, keep))
        if reading.valid is not None:
            logits = logits.masked_fill(~_keep(reading.valid[..., None], keep), 0)
        loss = None
        if trained:
            loss = self._loss(logits, labels, **loss_options)
            logits = _keep(logits, logits_to_keep)
        output = CausalLMOutputWithPast(loss, logits, cache, reading.hidden)
        return self._returned(output, return_dict)

    def _loss(
        self, logits: Tensor, labels: Tensor | None, *, ignore_index: int = -100, **options: Any
    ) -> Tensor:
        """Nats per token; labels that are padding do not count."""
        size, (batch, time) = self.config.vocab_size, logits.shape[:2]
        texts = {"labels": labels, "shift_labels": options.get("shift_labels")}
        labels, options["shift_labels"] = (
            x if x is None else x.masked_fill(x == size, ignore_index)
            for x in (checked_labels(name, x, batch, time) for name, x in texts.items())
        )
        with in_range(size):
            loss: Tensor = self.loss_function(
                logits, labels, size, ignore_index=ignore_index, **options
            )
        return loss

    def _step(self, ids: Any, mask: Tensor | None, cache: Any) -> Tensor | None:
        """Logits (batch, 1, vocabulary) of one token of every row, by `SequenceModel.step`.

        None where that is not the way: then nothing was read. It is what ``generate`` calls once a
        token, so numbers are looked at in Python, which is faster than a tensor for each question.
        """
        if type(cache) is not LinrnnCache or not cache.all_begun or cache.pending is not None:
            return None
        batch = cache.batch_size
        if not isinstance(ids, Tensor) or ids.shape != (batch, 1) or ids.dtype != torch.long:
            return None
        if cache.options is not self._kind or offloaded(self):
            return None
        tokens, size = ids[:, 0], self._kind["vocab_size"]
        values = tokens.tolist()
        if mask is not None:
            if tuple(mask.shape) not in ((batch, 1), (batch, cache.length + 1)):
                return None
            if any(value != 1 for value in mask[:, -1].tolist()):
                return None
            if size in values:  # rows that have ended
                tokens = tokens.masked_fill(tokens == size, 0)
        elif size in values:
            return None
        if min(values) < 0 or max(values) > size or cache.state is None:
            return None
        y, state = self.model.step(tokens, cache.state)
        cache.advance(state, self.model.encoder(ids) if cache.is_croppable else ids, None)
        return y[:, None]  # (batch, 1, vocabulary)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,  # by this name ``generate`` knows that we take them
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments with which ``generate`` calls the model.

        ``seq_idx`` and ``reset`` are those of the prompt; what is written after it is of its last
        document.

        Raises:
            ArgumentError: the cache has read all of ``input_ids``, or of ``inputs_embeds``.
        """
        if next_sequence_length is not None and next_sequence_length < 1:
            raise ArgumentError(
                "generate: input_ids must be the whole text, what past_key_values has read and at "
                f"least one token more, got {input_ids.shape[1]} tokens."
            )
        for name in _OF_GENERATE:
            kwargs.pop(name, None)
        past, first = kwargs.get("past_key_values"), kwargs.get("is_first_iteration")
        text = inputs_embeds if inputs_embeds is not None and first else input_ids
        for name in ("seq_idx", "reset"):
            if past is not None and len(past) and not first:
                kwargs[name] = None
            elif isinstance(value := kwargs.get(name), Tensor) and value.ndim == 2:
                kwargs[name] = fit_to_text(value, text.shape[1], next_sequence_length)
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return inputs

    def _prepare_position_ids_for_generation(self, *_: Any) -> None:
        """None: the model counts its steps itself, and rows go on after what they have read."""

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        kind = generation_config.cache_implementation
        grows = any("constant_memory" in mixer.declared for mixer in self.model.mixers)
        if kind not in (None, "dynamic", *(() if grows else ("static",))):
            raise ArgumentError(
                "generate: cache_implementation must be None, 'dynamic' or, where the state does "
                f"not grow, 'static', for there is one kind of it, got {kind!r}."
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = LinrnnCache()
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()


def _keep(
    x: Float[Tensor, "batch time channels"] | Bool[Tensor, "batch time channels"],
    positions: int | Tensor,
) -> Tensor:
    """The last steps, or those at some positions."""
    if isinstance(positions, Tensor):
        return x[:, positions]
    return x[:, -positions:] if positions else x
