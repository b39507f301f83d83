"""Which functions of transformers are replaced, and by what."""

from collections.abc import Callable
from typing import Any, NamedTuple

from linrnn.interop._accelerate import functions, methods, steps
from linrnn.interop._accelerate.theirs import Theirs

Make = Callable[[Theirs], Callable[..., Any]]


class Replacement(NamedTuple):
    """The replacement of a function; ``parameters`` are those expected of it."""

    op: str
    parameters: tuple[str, ...]
    make: Make


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


_DELTA = "query key value g beta {}initial_state output_final_state use_qk_l2norm_in_kernel kwargs"
_CHUNKED, _STEPS = words(_DELTA.format("chunk_size ")), words(_DELTA.format(""))
_STEP = words("state hidden_states dt A B C D dt_bias dt_softplus z kwargs")

#: Functions that a method calls by a name of its module.
FUNCTIONS = {
    "causal_conv1d_fn": Replacement(
        "causal_conv",
        words("hidden_states weight bias activation kwargs"),
        functions.convolution,
    ),
    "causal_conv1d_update": Replacement(
        "conv_update",
        words("hidden_states conv_state weight bias activation"),
        steps.convolution,
    ),
    "mamba_selective_scan": Replacement(
        "selective_scan",
        words(
            "hidden_states dt A B C D z delta_bias delta_softplus return_last_state use_mambapy "
            "use_associative_scan kwargs"
        ),
        functions.mamba,
    ),
    "mamba_selective_state_update": Replacement("selective_update", _STEP, steps.mamba),
    "mamba2_chunk_scan": Replacement(
        "outer_scan",
        words(
            "hidden_states dt A B C chunk_size D dt_bias initial_states dt_softplus dt_limit "
            "return_final_states kwargs"
        ),
        functions.mamba2,
    ),
    "mamba2_selective_state_update": Replacement("outer_update", _STEP, steps.mamba2),
    "torch_chunk_gated_delta_rule": Replacement("delta_scan", _CHUNKED, functions.delta_rule),
    "torch_recurrent_gated_delta_rule": Replacement("delta_update", _STEPS, steps.delta_rule),
    "chunk_kimi_delta_attention": Replacement("delta_scan", _CHUNKED, functions.delta_rule),
    "recurrent_kimi_delta_attention": Replacement("delta_update", _STEPS, steps.delta_rule),
    "rwkv_linear_attention": Replacement(
        "log_linear_scan and linear_scan",
        words("time_decay time_first key value state return_state"),
        functions.rwkv,
    ),
}

#: Methods that are the recurrence themselves, by module, class and name.
METHODS = {
    (
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma",
        "RecurrentGemmaRglru",
        "_rnn_scan",
    ): Replacement(
        "linear_scan",
        words("self hidden_states recurrent_gate reset recurrent_states acc_dtype"),
        methods.recurrent_gemma,
    ),
    (
        "transformers.models.xlstm.modeling_xlstm",
        "xLSTMBackend",
        "forward",
    ): Replacement(
        "outer_scan",
        words(
            "self query key value igate fgate c_initial n_initial m_initial return_last_states mode"
        ),
        methods.xlstm,
    ),
}

#: Folders of ``transformers.models`` that have any of them.
FAMILIES = words(
    "bailing_hybrid bamba falcon_h1 falcon_mamba glm5_next granitemoehybrid inkling inkling2 jamba "
    "kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe "
    "qwen3_next qwen4_exp recurrent_gemma rwkv xlstm zamba zamba2"
)
