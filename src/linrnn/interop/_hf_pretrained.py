"""One way in and one way out for the checkpoints of all families of transformers."""

import importlib
import os
from typing import cast

from transformers import PreTrainedConfig, PreTrainedModel

from linrnn._options.catalogue import stems
from linrnn.errors import ArgumentError, DataError, DTypeError, UnknownNameError
from linrnn.interop import _hf_families
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_family import Family, FamilyLike
from linrnn.interop._hf_files import read_config
from linrnn.interop._hf_load import files_of
from linrnn.interop._hf_model import LinrnnForCausalLM


def families() -> list[str]:
    """The families of `from_pretrained`, as ``model_type`` of a configuration names them.

    Example:
        >>> "mamba2" in families()
        True
    """
    return stems(_hf_families.__name__)


def from_pretrained(model: PreTrainedModel | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """A language model of ``transformers`` as a model of ours, with equal logits.

    Args:
        model: one of a family of `families`, the folder of one, or its name on the hub; weights in
            safetensors only.

    Returns:
        A copy, in evaluation mode; ``.model`` is the `linrnn.SequenceModel` in it.

    Raises:
        DataError: a folder that holds no model of these families, one that we have no counterpart
            of, or weights that are not all of its layout and no others.
        DTypeError: something else.

    Example:
        >>> import torch
        >>> from transformers import BambaConfig, BambaForCausalLM
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 12}
        >>> sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "mamba_n_heads": 4}
        >>> theirs = BambaForCausalLM(BambaConfig(vocab_size=9, mamba_d_state=4, **sizes))
        >>> from_pretrained(theirs).model(torch.tensor([[1, 2]]))[0].shape
        torch.Size([1, 2, 9])
    """
    where = "from_pretrained"
    if isinstance(model, PreTrainedModel):
        kind = model.config.model_type
        if kind not in families():
            raise DataError(
                f"{where}: model must be of one of the families {', '.join(families())}, got "
                f"{kind!r}."
            )
    elif isinstance(model, str | os.PathLike):
        types = (*families(), LinrnnConfig.model_type)
        kind = read_config(files_of(where, model, {}), types, ("model_type",))["model_type"]
        if kind == LinrnnConfig.model_type:
            return cast(LinrnnForCausalLM, LinrnnForCausalLM.from_pretrained(model).eval())
    else:
        raise DTypeError(
            f"{where}: model must be a model of transformers, or the folder of one, got "
            f"{type(model).__name__}."
        )
    ours = _family(kind).read(where, model)
    ours.config.origin = ours.config.origin or {"model_type": kind}
    return ours


def from_config(config: PreTrainedConfig) -> LinrnnConfig:
    """The configuration of a model of ours that is like one of ``transformers``, to train it anew.

    Args:
        config: of one of the families that `to_pretrained` takes a configuration for.

    Raises:
        DataError: a model that we have no counterpart of.
    """
    family = _family(getattr(config, "model_type", type(config).__name__))
    if not isinstance(family, Family):
        raise DataError(
            f"from_config: config must be of a family with parts of several kinds, got "
            f"{config.model_type!r}, which has special functions."
        )
    family.check("from_config", config)
    return family.config(config)


def to_pretrained(
    model: LinrnnForCausalLM, config: PreTrainedConfig | None = None
) -> PreTrainedModel:
    """The inverse of `from_pretrained`: a model of ``transformers`` with equal logits.

    Args:
        model: a stack that one of the families has.
        config: the configuration of theirs that it is. Default: that which it was made from, by
            `from_pretrained` or `from_config`.

    Raises:
        ArgumentError: a model that does not suit the configuration, or one without.
    """
    where = "to_pretrained"
    if not isinstance(model, LinrnnForCausalLM):
        raise DTypeError(f"{where}: model must be a LinrnnForCausalLM, got {type(model).__name__}.")
    origin = model.config.origin if config is None else {"model_type": config.model_type}
    if origin is None:
        raise ArgumentError(
            f"{where}: config must be a configuration of transformers for a model that was not "
            "made from one, got None."
        )
    return _family(origin["model_type"]).write(where, model, config)


def _family(kind: str) -> FamilyLike:
    """The family of a ``model_type``; its file is imported now."""
    if kind not in families():
        raise UnknownNameError("family of transformers", kind, families())
    module = importlib.import_module(f"{_hf_families.__name__}.{kind}")
    return cast(FamilyLike, module.FAMILY)
