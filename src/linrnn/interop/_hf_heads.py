"""Our stack without a head, and with heads that classify, as models of transformers."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)

from linrnn.interop._hf_base import LinrnnPreTrainedModel
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_labels import checked_labels, in_range
from linrnn.interop._hf_packing import refuse_documents
from linrnn.nn.linear import Linear
from linrnn.typing import Float, Integer


class LinrnnModel(LinrnnPreTrainedModel):
    """A stack without a head: features of each token, as ``AutoModel`` gives them.

    It reads as `LinrnnForCausalLM` does, and from the same folders; their head is left out.

    Args:
        config: `LinrnnConfig`.

    Raises:
        ArgumentError, UnknownNameError: an option that `linrnn.SequenceModel` does not take.

    Example:
        >>> config = LinrnnConfig(vocab_size=5, mixer="mingru", d_model=4, n_layers=1)
        >>> LinrnnModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, config: LinrnnConfig) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: Integer[Tensor, "batch time"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Float[Tensor, "batch time d_model"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        reset: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Read tokens after what the cache holds.

        Args:
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache: see
                `LinrnnForCausalLM.forward`, as for the others.
            output_hidden_states: return what goes into each layer as well.
            return_dict: False returns a tuple.
            position_ids, seq_idx, reset, **kwargs: where documents begin, as for
                `LinrnnForCausalLM.forward`.

        Returns:
            ``last_hidden_state`` (batch, time, d_model), after the last norm and 0 at padding,
            ``past_key_values`` and ``hidden_states``.

        Raises:
            ArgumentError, ShapeError, DTypeError, UnknownNameError: see
                `LinrnnForCausalLM.forward`.
        """
        packing, _ = self._sorted(kwargs, position_ids, seq_idx, reset)
        reading, cache = self._read(
            *(input_ids, inputs_embeds, attention_mask, past_key_values, packing),
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        return self._returned(
            BaseModelOutputWithPast(reading.z, cache, reading.hidden), return_dict
        )


class LinrnnForSequenceClassification(LinrnnPreTrainedModel):
    """A stack with a linear read-out of the last token of each row that is no padding.

    Equation::

        logits = W z_t,   t the last step of the row with attention_mask 1

    A row is one document; one that holds several is refused. Without a mask padding is everything
    behind the last id that is not ``config.pad_token_id``; the id one beyond the vocabulary is
    padding everywhere. For ``inputs_embeds`` without a mask t is the last step. A row of only
    padding has logits of 0.

    Args:
        config: `LinrnnConfig`, with ``num_labels``.

    Example:
        >>> config = LinrnnConfig(vocab_size=5, mixer="mingru", d_model=4, n_layers=1, num_labels=3)
        >>> LinrnnForSequenceClassification(config)(torch.tensor([[1, 2], [3, 4]])).logits.shape
        torch.Size([2, 3])
    """

    _of_loss: ClassVar[tuple[str, ...]] = ("num_items_in_batch", "ignore_index")

    def __init__(self, config: LinrnnConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.score = Linear(config.d_model, config.num_labels, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Integer[Tensor, "batch time"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Float[Tensor, "batch time d_model"] | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        reset: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast | tuple[Any, ...]:
        """Classify each row: see `LinrnnForCausalLM.forward` for what is not said here.

        Args:
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache: what to read.
            labels: (batch,) integers, for the cross entropy; (batch, num_labels) real, for the
                binary one of each label; real, for the squared error. ``config.problem_type`` says
                which; where it is None, ``num_labels == 1`` and the dtype do, the first time.
            output_hidden_states: return what goes into each layer as well.
            return_dict: False returns a tuple.
            position_ids, seq_idx, reset, **kwargs: where documents begin, as for
                `LinrnnForCausalLM.forward`; ``num_items_in_batch`` is the number of labels of all
                the batches that the loss is a mean over, ``ignore_index`` that of what does not
                count.

        Returns:
            ``loss`` if there are labels, ``logits`` (batch, num_labels), ``past_key_values`` and
            ``hidden_states``.

        Raises:
            ArgumentError, ShapeError, DTypeError, UnknownNameError: see
                `LinrnnForCausalLM.forward`.
        """
        packing, loss_options = self._sorted(kwargs, position_ids, seq_idx, reset)
        reading, cache = self._read(
            *(input_ids, inputs_embeds, attention_mask, past_key_values, packing),
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        refuse_documents(reading.reset, reading.valid, type(self).__name__)
        ends = self._ends(reading.z, reading.valid, input_ids if attention_mask is None else None)
        logits = self.score(reading.z[torch.arange(len(ends), device=ends.device), ends])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels, pooled_logits=logits, config=self.config, **loss_options
            )
            count = loss_options.get("num_items_in_batch")
            if count is not None and self.config.problem_type != "single_label_classification":
                loss = loss * (labels.numel() / count)  # theirs is the mean of this batch there
        output = SequenceClassifierOutputWithPast(loss, logits, cache, reading.hidden)
        return self._returned(output, return_dict)

    def _ends(self, z: Tensor, valid: Tensor | None, ids: Tensor | None) -> Tensor:
        """The step of each row that is read out."""
        batch, time = z.shape[:2]
        real = z.new_ones(batch, time, dtype=torch.bool) if valid is None else valid
        if ids is not None and self.config.pad_token_id is not None:
            real = real & (ids != self.config.pad_token_id)
        return (real * torch.arange(1, time + 1, device=z.device)).argmax(1)


class LinrnnForTokenClassification(LinrnnPreTrainedModel):
    """A stack with a linear read-out of each token, which has read it and those before it.

    Equation::

        logits_t = W drop(z_t) + b,   0 at padding

    with the dropout of the configuration.

    Args:
        config: `LinrnnConfig`, with ``num_labels``.

    Example:
        >>> config = LinrnnConfig(vocab_size=5, mixer="mingru", d_model=4, n_layers=1, num_labels=3)
        >>> LinrnnForTokenClassification(config)(torch.tensor([[1, 2], [3, 4]])).logits.shape
        torch.Size([2, 2, 3])
    """

    _of_loss: ClassVar[tuple[str, ...]] = ("num_items_in_batch", "ignore_index")

    def __init__(self, config: LinrnnConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = nn.Dropout(config.dropout)
        self.score = Linear(config.d_model, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Integer[Tensor, "batch time"] | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Float[Tensor, "batch time d_model"] | None = None,
        labels: Integer[Tensor, "batch time"] | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        reset: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput | tuple[Any, ...]:
        """Classify each token: see `LinrnnForCausalLM.forward` for what is not said here.

        Args:
            input_ids, attention_mask, inputs_embeds: what to read.
            labels: (batch, time); -100 and padding do not count.
            output_hidden_states: return what goes into each layer as well.
            return_dict: False returns a tuple.
            position_ids, seq_idx, reset, **kwargs: where documents begin, as for
                `LinrnnForCausalLM.forward`; ``num_items_in_batch`` is the number of labels of all
                the batches that the loss is a mean over, ``ignore_index`` that of what does not
                count.

        Returns:
            ``loss`` if there are labels, ``logits`` (batch, time, num_labels) and
            ``hidden_states``.

        Raises:
            ArgumentError, ShapeError, DTypeError, UnknownNameError: see
                `LinrnnForCausalLM.forward`.
        """
        packing, loss_options = self._sorted(kwargs, position_ids, seq_idx, reset)
        reading, _ = self._read(
            *(input_ids, inputs_embeds, attention_mask, None, packing),
            use_cache=False,
            output_hidden_states=output_hidden_states,
        )
        logits = self.score(self.dropout(reading.z))
        if reading.valid is not None:
            logits = logits.masked_fill(~reading.valid[..., None], 0)
        loss = None
        checked = checked_labels("labels", labels, *logits.shape[:2])
        if checked is not None:
            if reading.valid is not None:
                ignored = loss_options.get("ignore_index", -100)
                checked = checked.masked_fill(~reading.valid.to(checked.device), ignored)
            with in_range(self.num_labels):
                loss = self.loss_function(logits, checked, self.config, **loss_options)
        return self._returned(TokenClassifierOutput(loss, logits, reading.hidden), return_dict)
