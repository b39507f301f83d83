"""flash-linear-attention's functions by their names, on any device, and weights of its layers.

``from linrnn.interop.fla import chunk_gla`` takes the place of ``from fla.ops import chunk_gla``:
the same arguments, layouts and results. On a CPU this library computes, with gradients of any
order; on a GPU the package ``fla`` does where it is installed, and this library where it is not.

The names and arguments are those of the package ``fla-core`` 0.6; `signature` shows them. Several
names of one system, ``chunk_*``, ``fused_chunk_*``, ``fused_recurrent_*`` and ``parallel_*``, are
one computation here. Hints to kernels, such as ``chunk_size``, are taken and change nothing.

`linrnn.interop.accelerate("fla")` lets a program that imports ``fla`` run on a CPU.

`from_layer` makes a mixer of a layer's weights, and `to_layer` the weights of a mixer.

Reference:
    Yang and Zhang, "FLA: A Triton-Based Library for Hardware-Efficient Implementations of Linear
    Attention Mechanism", https://github.com/fla-org/flash-linear-attention, 0.6.0.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.interop import _fla_attention as attention
from linrnn.interop import _fla_ops as ops
from linrnn.interop import _fla_rules as rules
from linrnn.interop._fla_layers import from_layer, layer_names, to_layer

__all__ = ["from_layer", "layer_names", "names", "signature", "to_layer"]

Function = Callable[..., Any]

#: What computes each function of ``fla.ops``, with its arguments there.
_SIGNATURES: dict[Function, str] = {
    ops.linear_attention: """
        chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False,
            normalize=True, cu_seqlens=None)
        fused_chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False,
            normalize=True, cu_seqlens=None)
        fused_recurrent_linear_attn(q, k, v, scale=None, initial_state=None,
            output_final_state=False, reverse=False, normalize=False, cu_seqlens=None)
    """,
    ops.gla: """
        chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False,
            state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None)
        fused_chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False,
            state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None)
        fused_recurrent_gla(q, k, v, gk=None, gv=None, scale=None, initial_state=None,
            output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None)
    """,
    ops.simple_gla: """
        chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
            output_final_state=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
            chunk_size=None)
        fused_chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
            output_final_state=False, cu_seqlens=None)
        fused_recurrent_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None,
            output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None)
    """,
    ops.parallel_simple_gla: """
        parallel_simple_gla(q, k, v, g=None, scale=None, output_attentions=False, cu_seqlens=None,
            cu_seqlens_cpu=None)
    """,
    ops.retention: """
        chunk_retention(q, k, v, scale=None, initial_state=None, output_final_state=False,
            cu_seqlens=None, chunk_size=None)
        fused_chunk_retention(q, k, v, scale=None, initial_state=None, output_final_state=False,
            cu_seqlens=None)
        fused_recurrent_retention(q, k, v, scale=None, initial_state=None,
            output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None)
    """,
    ops.parallel_retention: """
        parallel_retention(q, k, v, scale=None, output_attentions=False, cu_seqlens=None)
    """,
    ops.lightning_attention: """
        chunk_lightning_attn(q, k, v, layer_idx, num_layers, scale=None, initial_state=None,
            output_final_state=False, cu_seqlens=None, chunk_size=None)
        fused_recurrent_lightning_attn(q, k, v, layer_idx, num_layers, scale=None,
            initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None)
    """,
    ops.based: """
        parallel_based(q, k, v, scale=None, use_norm=True)
        fused_chunk_based(q, k, v, scale=None, use_norm=True)
    """,
    ops.rwkv6: """
        chunk_rwkv6(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False,
            cu_seqlens=None, cu_seqlens_cpu=None)
        fused_recurrent_rwkv6(r, k, v, w, u, scale=None, initial_state=None,
            output_final_state=False, reverse=False, cu_seqlens=None)
    """,
    ops.rwkv7: """
        chunk_rwkv7(r, w, k, v, a, b, scale=1.0, initial_state=None, output_final_state=False,
            cu_seqlens=None, cu_seqlens_cpu=None, safe_gate=False, chunk_size=None,
            disable_recompute=False, cp_context=None, lower_bound=None)
        fused_recurrent_rwkv7(r, w, k, v, a, b, scale=None, initial_state=None,
            output_final_state=True, cu_seqlens=None)
    """,
    ops.low_rank: """
        chunk_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None,
            output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None, safe_gate=False,
            chunk_size=None, disable_recompute=False, cp_context=None, lower_bound=None)
        fused_recurrent_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None,
            output_final_state=False, reverse=False, cu_seqlens=None)
        chunk_iplr_delta_rule(q, k, v, a, b, scale=None, initial_state=None,
            output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None)
        fused_recurrent_iplr_delta_rule(q, k, v, a, b, scale=None, initial_state=None,
            output_final_state=False, cu_seqlens=None)
    """,
    ops.delta_rule: """
        chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None)
        fused_chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None,
            cu_seqlens_cpu=None)
        fused_recurrent_delta_rule(q, k, v, beta=None, scale=None, initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None)
    """,
    ops.gated_delta_rule: """
        chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=False,
            use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False,
            cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None,
            use_gate_in_kernel=False, A_log=None, dt_bias=None)
        fused_recurrent_gated_delta_rule(q, k, v, g=None, gk=None, gv=None, beta=None, scale=None,
            initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
            use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False,
            allow_neg_eigval=False, state_v_first=False, cu_seqlens=None)
    """,
    ops.kda: """
        chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
            use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False,
            lower_bound=None, disable_recompute=False, return_intermediate_states=False,
            state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None,
            use_graph=False, max_num_seqs=None, A_log=None, dt_bias=None)
        fused_recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None,
            initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
            use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
            lower_bound=None, state_v_first=False, cu_seqlens=None)
    """,
    ops.gdn2: """
        chunk_gdn2(q, k, v, g, b, w, scale=None, initial_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, cu_seqlens=None,
            cu_seqlens_cpu=None, safe_gate=False, lower_bound=None, disable_recompute=False,
            return_intermediate_states=False, state_v_first=False, cp_context=None, A_log=None,
            dt_bias=None)
        fused_recurrent_gdn2(q, k, v, g, b, w, A_log=None, dt_bias=None, scale=None,
            initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
            use_gate_in_kernel=False, lower_bound=None, state_v_first=False, cu_seqlens=None)
    """,
    ops.comba: """
        chunk_comba(q, k, v, p, g, beta=None, scale=None, initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None,
            cu_seqlens_cpu=None)
        fused_recurrent_comba(q, k, p, v, g, beta=None, scale=None, initial_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None)
    """,
    ops.gated_delta_product: """
        chunk_gated_delta_product(q, k, v, g, beta, num_householder, scale=None,
            initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
            cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None)
    """,
    ops.preconditioned_delta_rule: """
        chunk_precond_gated_delta_rule(q, k, v, g_atk, g, beta_atk, beta, scale=None,
            initial_state=None, initial_A_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=True, cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None,
            transpose_state_layout=False, x=1.5, eps=1e-06, log_atk_scale=None)
        chunk_precond_kda(q, k, v, g, g_atk, beta_atk, beta, scale=None, initial_state=None,
            initial_A_state=None, output_final_state=False, use_gate_in_kernel=False,
            safe_gate=False, lower_bound=None, cu_seqlens=None, cu_seqlens_cpu=None,
            chunk_indices=None, cp_context=None, transpose_state_layout=False, x=1.5, eps=1e-06,
            log_atk_scale=None, solve_tril_precision=None, disable_recompute=False,
            return_intermediate_states=False, A_log=None, dt_bias=None)
        fused_recurrent_precond_gated_delta_rule(q, k, v, g=None, gk=None, gv=None, beta=None,
            g_atk=None, beta_atk=None, scale=None, initial_state=None, initial_A_state=None,
            output_final_state=False, use_qk_l2norm_in_kernel=True, cu_seqlens=None,
            transpose_state_layout=False, x=1.5, eps=1e-06, log_atk_scale=None)
        fused_recurrent_precond_kda(q, k, v, g, g_atk, beta_atk, beta, A_log=None, dt_bias=None,
            scale=None, initial_state=None, initial_A_state=None, output_final_state=False,
            use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None,
            cu_seqlens=None, transpose_state_layout=False, x=1.5, eps=1e-06, log_atk_scale=None)
    """,
    rules.momentum_delta_rule: """
        chunk_momentum_delta_rule(q, k, v, log_alpha, log_mu, p=None, beta=None, eta=None,
            scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
            use_qk_l2norm_in_kernel=True, use_p_times_alpha=True, chunk_size=64)
        fused_recurrent_momentum_delta_rule(q, k, v, log_alpha, log_mu, p=None, beta=None,
            eta=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
            use_qk_l2norm_in_kernel=True, use_p_times_alpha=True)
    """,
    rules.gated_oja_rule: """
        chunk_gated_oja_rule(q, k, v, gv, beta, scale=None, initial_state=None,
            output_final_state=False, use_q_l2norm=False, use_k_l2norm=False, cu_seqlens=None,
            cu_seqlens_cpu=None)
        fused_recurrent_gated_oja_rule(q, k, v, gv=None, beta=None, scale=None,
            initial_state=None, output_final_state=False, use_q_l2norm=False, use_k_l2norm=False,
            cu_seqlens=None)
    """,
    attention.attention: """
        parallel_attn(q, k, v, g=None, scale=None, window_size=None, cu_seqlens=None,
            chunk_indices=None, sink_bias=None)
    """,
    attention.forgetting_attention: """
        parallel_forgetting_attn(q, k, v, g, scale=None, window_size=None, cu_seqlens=None)
    """,
    attention.stick_breaking: """
        parallel_stickbreaking_attn(q, k, v, scale=None, attend_current=False, cu_seqlens=None)
    """,
    attention.path_attention: """
        parallel_path_attn(q, k, v, w, beta, g=None, scale=None, cu_seqlens=None,
            use_cache=False)
    """,
    attention.rebased: """
        parallel_rebased(q, k, v, eps=1e-05, use_scale=True, use_normalize=True,
            return_both=False)
    """,
    rules.mesa_net: """
        chunk_mesa_net(q, k, v, g, beta, lamb, h_kk_init=None, h_kv_init=None,
            output_final_state=False, max_CG_iteration=30, use_qk_l2norm_in_kernel=False,
            cu_seqlens=None, cu_seqlens_cpu=None)
    """,
    rules.log_linear: """
        chunk_log_linear_attn(q, k, v, g, level_scales, initial_state=None,
            output_final_state=False, cu_seqlens=None, scale=1.0)
    """,
    ops.slots: """
        chunk_gsa(q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False,
            checkpoint_level=2, cu_seqlens=None, cu_seqlens_cpu=None)
        fused_recurrent_gsa(q, k, v, s, g=None, scale=None, initial_state=None,
            output_final_state=False, reverse=False, cu_seqlens=None)
        chunk_abc(q, k, v, s, initial_state=None, output_final_state=False)
    """,
    ops.hgrn: """
        chunk_hgrn(x, g, initial_state=None, output_final_state=False, cu_seqlens=None)
        fused_recurrent_hgrn(x, g, initial_state=None, output_final_state=False, cu_seqlens=None)
    """,
}
#: Options of their kernels, without influence on the numbers.
_HINTS = frozenset(
    (
        *("cu_seqlens_cpu", "chunk_size", "chunk_indices", "checkpoint_level", "use_graph"),
        *("disable_recompute", "max_num_seqs", "solve_tril_precision", "safe_gate"),
    )
)
#: What only their kernels do.
_REFUSED = ("cp_context", "return_intermediate_states", "output_attentions")
_SECOND_NAMES = {"gated_delta_rule": "gdn"}


def names() -> list[str]:
    """Every function there is.

    Example:
        >>> "chunk_gla" in names(), len(names()) > 40
        (True, True)
    """
    return sorted(_FUNCTIONS)


def signature(name: str) -> inspect.Signature:
    """The arguments of a function, in their order.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> signature("parallel_based")
        <Signature (q, k, v, scale=None, use_norm=True)>
    """
    if name not in _FUNCTIONS:
        raise UnknownNameError("function of fla", name, names())
    return inspect.signature(_FUNCTIONS[name])


def __getattr__(name: str) -> Function:
    """Look up a function of ``fla.ops``."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(
        f"linrnn.interop.fla: there is no function {name!r}; names() lists those there are"
    )


def __dir__() -> list[str]:
    return [*__all__, *_FUNCTIONS]


def _signatures(text: str) -> Iterator[tuple[str, inspect.Signature]]:
    """Read names and arguments, written as Python does."""
    for name, arguments in re.findall(r"(\w+)\(([^)]*)\)", text):
        described = ast.parse(f"lambda {' '.join(arguments.split())}: 0", mode="eval").body
        assert isinstance(described, ast.Lambda)
        args, defaults = described.args.args, described.args.defaults
        required: list[Any] = [inspect.Parameter.empty] * (len(args) - len(defaults))
        values = [*required, *map(ast.literal_eval, defaults)]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        pairs = zip(args, values, strict=True)
        yield name, inspect.Signature([inspect.Parameter(x.arg, kind, default=y) for x, y in pairs])


def _function(name: str, expected: inspect.Signature, computes: Function) -> Function:
    """A function of that name and signature."""

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = expected.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"{name}: the arguments must be {', '.join(expected.parameters)}, got a call that "
                f"does not fit: {error}. They are those of fla-core 0.6."
            ) from None
        bound.apply_defaults()
        theirs = _theirs(name, bound.arguments)
        if theirs is not None:
            return theirs(*args, **kwargs)
        return computes(**_computed_from(name, bound.arguments))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``{name}`` of ``fla.ops``. {computes.__doc__}"
    function.__signature__ = expected  # type: ignore[attr-defined]
    return function


def _theirs(name: str, arguments: Mapping[str, Any]) -> Function | None:
    """The package's own function, None where this library computes."""
    first = next(iter(arguments.values()))
    if not (isinstance(first, Tensor) and first.is_cuda) or not importlib.util.find_spec("fla"):
        return None
    system = re.sub("^(chunk|fused_chunk|fused_recurrent|parallel)_", "", name)
    for place in ("fla.ops", f"fla.ops.{system}"):  # some are in the folder of their system alone
        if importlib.util.find_spec(place):
            theirs: Function | None = getattr(importlib.import_module(place), name, None)
            if theirs is not None:
                return theirs
    return None


def _computed_from(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that change no number; `Call` for those that all functions have."""
    for option in _REFUSED:
        if arguments.get(option):
            raise ArgumentError(
                f"{name}: {option} must be left out, got {arguments[option]!r:.60}. "
                "Only fla's kernels have it."
            )
    values = {x: y for x, y in arguments.items() if x not in _HINTS and x not in _REFUSED}
    if "use_gate_in_kernel" not in values:  # it is the gate's, and a hint elsewhere
        values.pop("lower_bound", None)
    call = ops.Call(**{x: values.pop(x) for x in ops.Call._fields if x in values})
    return {**values, "call": call}


_FUNCTIONS: dict[str, Function] = {
    name: _function(name, expected, computes)
    for computes, text in _SIGNATURES.items()
    for name, expected in _signatures(text)
}
_FUNCTIONS |= {
    name.replace(long, short): function
    for long, short in _SECOND_NAMES.items()
    for name, function in _FUNCTIONS.items()
    if name in (f"chunk_{long}", f"fused_recurrent_{long}")
}
