"""Hugging Face ``transformers``: our language models as its own, and its checkpoints as ours.

Importing this module registers its models with ``AutoConfig``, ``AutoModel``,
``AutoModelForCausalLM``, ``AutoModelForSequenceClassification`` and
``AutoModelForTokenClassification``. It needs the extra ``linrnn[hf]``.
"""

from linrnn.interop._hf_library import transformers  # first: it says what to install

# isort: split
from linrnn.interop._hf_cache import LinrnnCache as LinrnnCache
from linrnn.interop._hf_config import LinrnnConfig as LinrnnConfig
from linrnn.interop._hf_heads import (
    LinrnnForSequenceClassification as LinrnnForSequenceClassification,
)
from linrnn.interop._hf_heads import LinrnnForTokenClassification as LinrnnForTokenClassification
from linrnn.interop._hf_heads import LinrnnModel as LinrnnModel
from linrnn.interop._hf_mamba import from_mamba as from_mamba
from linrnn.interop._hf_mamba import to_mamba as to_mamba
from linrnn.interop._hf_mamba2 import from_mamba2 as from_mamba2
from linrnn.interop._hf_mamba2 import to_mamba2 as to_mamba2
from linrnn.interop._hf_model import LinrnnForCausalLM as LinrnnForCausalLM
from linrnn.interop._hf_pretrained import families as families
from linrnn.interop._hf_pretrained import from_config as from_config
from linrnn.interop._hf_pretrained import from_pretrained as from_pretrained
from linrnn.interop._hf_pretrained import to_pretrained as to_pretrained
from linrnn.interop._hf_recurrent_gemma import from_recurrent_gemma as from_recurrent_gemma
from linrnn.interop._hf_recurrent_gemma import to_recurrent_gemma as to_recurrent_gemma
from linrnn.interop._hf_run import from_run as from_run
from linrnn.interop._hf_rwkv import from_rwkv as from_rwkv
from linrnn.interop._hf_rwkv import to_rwkv_weights as to_rwkv_weights
from linrnn.interop._hf_rwkv4 import to_rwkv as to_rwkv
from linrnn.interop._hf_tokenizer import to_tokenizer as to_tokenizer
from linrnn.interop._hf_xlstm import from_xlstm as from_xlstm
from linrnn.interop._hf_xlstm import to_xlstm as to_xlstm

__all__ = [
    "LinrnnCache",
    "LinrnnConfig",
    "LinrnnForCausalLM",
    "LinrnnForSequenceClassification",
    "LinrnnForTokenClassification",
    "LinrnnModel",
    "families",
    "from_config",
    "from_mamba",
    "from_mamba2",
    "from_pretrained",
    "from_recurrent_gemma",
    "from_run",
    "from_rwkv",
    "from_xlstm",
    "to_mamba",
    "to_mamba2",
    "to_pretrained",
    "to_recurrent_gemma",
    "to_rwkv",
    "to_rwkv_weights",
    "to_tokenizer",
    "to_xlstm",
]


def __dir__() -> list[str]:
    return sorted(__all__)


transformers.AutoConfig.register(LinrnnConfig.model_type, LinrnnConfig, exist_ok=True)
for _auto, _model in (
    (transformers.AutoModel, LinrnnModel),
    (transformers.AutoModelForCausalLM, LinrnnForCausalLM),
    (transformers.AutoModelForSequenceClassification, LinrnnForSequenceClassification),
    (transformers.AutoModelForTokenClassification, LinrnnForTokenClassification),
):
    _auto.register(LinrnnConfig, _model, exist_ok=True)
