"""Language models that are part of another model, which reads images as well."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from linrnn.errors import DataError
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_files import known_values, read_config
from linrnn.interop._hf_layouts import peer_of
from linrnn.interop._hf_load import files_of
from linrnn.interop._hf_model import LinrnnForCausalLM

_INNER, _OUTER = "model.language_model.", "model."


class TextOf(NamedTuple):
    """A family of such models: what is not of the language model is left out."""

    family: Family
    """Family of the language model."""
    model_type: str
    """Type of the whole model."""

    def read(self, where: str, model: Any) -> LinrnnForCausalLM:
        """See `FamilyLike`."""
        if isinstance(model, PreTrainedModel):
            return self.family.read(where, self._text(model))
        files = files_of(where, model, {})
        table = read_config(files, self.model_type, ("text_config",)).get("text_config")
        if not isinstance(table, dict):
            raise DataError(
                f"{where}: {files}/config.json: text_config must be a table, got "
                f"{type(table).__name__}."
            )
        values = known_values(table, self.family.keys())
        peer = peer_of(files, self.family.peer, values, self.family.check)
        return self.family.read(where, peer)

    def write(self, where: str, model: LinrnnForCausalLM, config: Any) -> PreTrainedModel:
        """See `FamilyLike`: the language model alone."""
        return self.family.write(where, model, config.text_config)

    def _text(self, model: PreTrainedModel) -> PreTrainedModel:
        """The language model in another, with the same tensors."""
        weights: dict[str, Tensor] = {
            name.replace(_INNER, _OUTER, 1): x
            for name, x in model.state_dict().items()
            if name.startswith((_INNER, "lm_head."))
        }
        with torch.device("meta"):
            text = self.family.peer(model.config.text_config)
        text.load_state_dict(weights, assign=True)
        text.generation_config = model.generation_config
        return text
