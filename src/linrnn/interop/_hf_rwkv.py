"""RWKV-4 to 7: checkpoints in and out, of transformers' layout and of their author's."""

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import RwkvForCausalLM

from linrnn.errors import ArgumentError, DataError, DTypeError, check_in
from linrnn.interop._hf_config import LinrnnConfig
from linrnn.interop._hf_files import Files, OneFile, read_config
from linrnn.interop._hf_layouts import LAYER_EPS, SPECIAL, require_stack, weights_to_export
from linrnn.interop._hf_load import check_numbers, configured, files_of, generation_of, weights_of
from linrnn.interop._hf_model import LinrnnForCausalLM
from linrnn.interop._hf_rwkv4 import from_rwkv4
from linrnn.interop._hf_rwkv_names import by_author, by_fla, entries, version_of

_TYPES = {"rwkv": 4, "rwkv5": 5, "rwkv6": 6, "rwkv7": 7, "rwkv7_fla": 7}
_HEAD_EPS = 64e-5
#: Of RWKV-7, our names of the ranks, the author's letter and the name in a configuration.
_RANKS = {
    "decay_rank": ("w", "decay_low_rank_dim"),
    "rate_rank": ("a", "a_low_rank_dim"),
    "gate_rank": ("g", "gate_low_rank_dim"),
}
# what a folder may say about its tensors, which say it themselves
_SAID = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "attention_hidden_size", "head_size"),
    *("intermediate_size", "layer_norm_epsilon", "head_size_divisor", "tie_word_embeddings"),
    # of RWKV-7
    *("head_dim", "num_heads", "decay_low_rank_dim", "a_low_rank_dim", "gate_low_rank_dim"),
    *("v_low_rank_dim", "norm_eps", "norm_first", "norm_bias", "hidden_act", "attn"),
)
_MAY_BE_UNSAID = (
    *("attention_hidden_size", "intermediate_size", "head_dim", "num_heads"),
    *("decay_low_rank_dim", "a_low_rank_dim", "gate_low_rank_dim", "v_low_rank_dim"),
)
_PICKLES = (".pth", ".pt", ".bin")
_BLOCK = re.compile(r"blocks\.(\d+)\.", re.ASCII)


def from_rwkv(model: RwkvForCausalLM | str | os.PathLike[str]) -> LinrnnForCausalLM:
    """RWKV-4, 5, 6 or 7 as a model of ours, with equal logits.

    Args:
        model: a ``RwkvForCausalLM`` of ``transformers``, which is RWKV-4; a folder or a name on the
            hub whose ``config.json`` is of the type ``rwkv``, ``rwkv5``, ``rwkv6`` or ``rwkv7``; or
            a file of safetensors with tensors of their author's naming, ``blocks.0.att.key.weight``
            or of transformers', ``rwkv.blocks.0.attention.key.weight``, or of RWKV-7 of
            flash-linear-attention's, ``model.layers.0.attn.k_proj.weight``. Weights in safetensors
            only.

    Returns:
        A copy, in evaluation mode, with the mixer ``rwkv4``, ``rwkv5`` or ``rwkv6`` in blocks with
        ``channel_mix``, or ``rwkv7`` in blocks with ``relu_mix``.

    Raises:
        DataError: no such model, one that we have no counterpart of, such as RWKV-7 with embeddings
            in its channel mixing, weights of other shapes than their model's, not finite or not
            real.
        DTypeError: something else than a model or its place.

    Reference:
        Peng et al. 2023, arXiv:2305.13048, 2024, arXiv:2404.05892, and 2025, arXiv:2503.14456; of
        RWKV-5 what its author calls 5.2. Other programs halve the activations every few layers,
        which guards float16.
    """
    if isinstance(model, RwkvForCausalLM):
        return from_rwkv4(model)
    if not isinstance(model, str | os.PathLike):
        raise DTypeError(
            "from_rwkv: model must be a RwkvForCausalLM, a folder, a name on the hub, or a file of "
            f"safetensors, got {type(model).__name__}."
        )
    files, said = _place(model), {}
    if not isinstance(files, OneFile):
        said = read_config(files, _TYPES, ("model_type", *_SAID, *SPECIAL))
        if said["model_type"] == "rwkv":
            return from_rwkv4(model)
    weights = by_author(weights_of(files, said))
    config = _config(files, weights, said)
    with torch.device("meta"):  # to compare with before anything is made
        ours = configured(files, lambda: LinrnnForCausalLM(config))
    values = _values(files, ours.model.state_dict(), weights, config)
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in weights.values()))
    our_weights = {name: x.to(dtype, copy=True).contiguous() for name, x in values.items()}
    ours.model.load_state_dict(our_weights, assign=True)
    check_numbers(files, our_weights, ours.model)
    ours.name_or_path = str(files)
    if (how := generation_of(files)) is not None:
        ours.generation_config = how
    return cast(LinrnnForCausalLM, ours.eval())


def to_rwkv_weights(
    model: LinrnnForCausalLM, *, names: Literal["author", "fla"] = "author"
) -> dict[str, Tensor]:
    """The weights of RWKV-4 to 7 by the names of their author, which ``from_rwkv`` reads.

    Written by `torch.save` the package ``rwkv`` reads them, by `safetensors.torch.save_file` many
    programs do.

    Args:
        model: with the mixer ``rwkv4``, ``rwkv5``, ``rwkv6`` or ``rwkv7`` and the block structure
            of RWKV.
        names: of RWKV-7 also those of flash-linear-attention, ``fla``.

    Returns:
        Copies: ``emb.weight``, ``blocks.0.att.key.weight`` and so on; with ``fla``
        ``model.embeddings.weight``, ``model.layers.0.attn.k_proj.weight``.

    Raises:
        ArgumentError: a model that RWKV's layout cannot express.
        UnknownNameError: other names.
    """
    check_in("to_rwkv_weights", "names", names, ("author", "fla"))
    where, ours, layer = "to_rwkv_weights", model.config, cast("Any", model.model.mixers[0])
    version = {f"rwkv{v}": v for v in _TYPES.values()}.get(ours.mixer)
    if version is None:
        raise ArgumentError(
            f"{where}: mixer must be 'rwkv4', 'rwkv5', 'rwkv6' or 'rwkv7' to be converted, got "
            f"{ours.mixer!r}."
        )
    block = "relu_mix" if version == 7 else "channel_mix"
    require_stack(where, ours, norm="layer", block=block, encoder_norm=True)
    epsilons = {"norm_eps": (ours.norm_eps, LAYER_EPS)}
    if version > 4:
        head_eps = layer.d_head * LAYER_EPS if names == "fla" else _HEAD_EPS
        epsilons["the mixer's norm_eps"] = (layer.norm_eps, head_eps)
    for name, (eps, required) in epsilons.items():
        if eps not in (None, required):
            raise ArgumentError(f"{where}: {name} must be {required} to be converted, got {eps}.")
    if version == 4 and not layer.token_shift:
        raise ArgumentError(f"{where}: token_shift must be True, got False.")
    if version == 7 and not layer.value_rank and ours.n_layers > 1:
        raise ArgumentError(f"{where}: value_rank must be at least 1 to be converted, got 0.")
    if version != 7 and names == "fla":
        raise ArgumentError(f"{where}: names must be 'author' but for rwkv7, got 'fla'.")
    weights = weights_to_export(where, model)
    author = {
        name: x.detach().clone(memory_format=torch.contiguous_format)
        for our_name, entry in entries(version, ours.n_layers).items()
        for name, x in zip(entry.theirs, entry.write(weights[our_name]), strict=True)
    }
    return by_fla(author) if names == "fla" else author


def _place(path: str | os.PathLike[str]) -> Files:
    """One file, or a folder, or a name on the hub."""
    file = Path(path).expanduser()
    if file.suffix in _PICKLES:
        raise DataError(
            f"from_rwkv: {path}: the file must be safetensors, got a pickle, which can run code. "
            "If you trust it: safetensors.torch.save_file(torch.load(path, weights_only=True), "
            "'model.safetensors')."
        )
    if file.suffix == ".safetensors" or file.is_file():
        return OneFile("from_rwkv", file)
    return files_of("from_rwkv", path, {})


def _config(files: Files, weights: Mapping[str, Tensor], said: Mapping[str, Any]) -> LinrnnConfig:
    """The model that such tensors are the weights of, if all are there and no other."""
    version = version_of([*weights])
    if version is None or version != _TYPES.get(said.get("model_type", ""), version):
        raise DataError(
            f"from_rwkv: {files}: the weights must be those of RWKV-4, 5.2, 6 or 7, as the "
            f"configuration beside them says, got {len(weights):,} tensors"
            f"{f', such as {min(weights)}' if weights else ''}."
        )
    layers = {match[1] for name in weights if (match := _BLOCK.match(name))}
    expected = {n for entry in entries(version, len(layers)).values() for n in entry.theirs}
    for kind, names in (
        ("missing", expected - weights.keys()),
        ("more", weights.keys() - expected),
    ):
        if names:
            raise DataError(
                f"from_rwkv: {files}: the weights must be those of RWKV-{version}, got "
                f"{len(names)} {kind}, such as {min(names)}."
            )
    sizes = _sizes(files, weights, version) | {"num_hidden_layers": len(layers)}
    for name, value in said.items():
        unsaid = value is None and name in _MAY_BE_UNSAID
        if name in sizes and value != sizes[name] and not unsaid:
            raise DataError(
                f"from_rwkv: {files}/config.json: {name} must be {sizes[name]} for these weights, "
                f"got {value!r:.40}."
            )
    derived = configured(files, lambda: _config_of(version, sizes, said))
    return cast(LinrnnConfig, derived)


def _sizes(files: Files, weights: Mapping[str, Tensor], version: int) -> dict[str, Any]:
    """The sizes of the model, from the shapes of its tensors and what all versions share."""

    def shape(name: str) -> tuple[int, int]:
        x = weights[name]
        if x.ndim != 2:
            raise DataError(
                f"from_rwkv: {files}: {name} must have two axes, got shape {tuple(x.shape)}."
            )
        return x.shape[0], x.shape[1]

    vocab_size, hidden_size = shape("emb.weight")
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    sizes["attention_hidden_size"] = shape("blocks.0.att.key.weight")[0]
    sizes["intermediate_size"] = shape("blocks.0.ffn.key.weight")[0]
    if version > 4:
        of_heads = "blocks.0.att.r_k" if version == 7 else "blocks.0.att.time_faaaa"
        sizes["n_heads"], sizes["head_size"] = shape(of_heads)
    if version == 6:
        sizes["mix_rank"] = shape("blocks.0.att.time_maa_w1")[1] // 5
        sizes["decay_rank"] = shape("blocks.0.att.time_decay_w1")[1]
    if version == 7:
        sizes |= {rank: shape(f"blocks.0.att.{i}1")[1] for rank, (i, _) in _RANKS.items()}
        if "blocks.1.att.v1" in weights:
            sizes["value_rank"] = shape("blocks.1.att.v1")[1]
        ranks = {**_RANKS, "value_rank": ("v", "v_low_rank_dim")}
        sizes |= {theirs: sizes[rank] for rank, (_, theirs) in ranks.items() if rank in sizes}
        sizes |= {"num_heads": sizes["n_heads"], "head_dim": sizes["head_size"]}
        sizes |= {"norm_first": True, "norm_bias": True, "hidden_act": "sqrelu", "attn": None}
        sizes["norm_eps"] = LAYER_EPS
    fixed = {"layer_norm_epsilon": LAYER_EPS, "head_size_divisor": 8, "tie_word_embeddings": False}
    return sizes | fixed


def _config_of(version: int, sizes: Mapping[str, Any], said: Mapping[str, Any]) -> LinrnnConfig:
    options: dict[str, Any] = {"init": "published"}
    if version == 4:
        options["d_state"] = sizes["attention_hidden_size"]
    else:
        options |= {"n_heads": sizes["n_heads"], "d_head": sizes["head_size"]}
    ranks = ("mix_rank", "decay_rank", "rate_rank", "gate_rank", "value_rank")
    options |= {name: sizes[name] for name in ranks if name in sizes}
    if "norm_eps" in said:  # of flash-linear-attention, which takes the size of the heads times it
        options["norm_eps"] = sizes["head_size"] * said["norm_eps"]
    return LinrnnConfig(
        vocab_size=sizes["vocab_size"],
        mixer=f"rwkv{version}",
        mixer_options=options,
        d_model=sizes["hidden_size"],
        n_layers=sizes["num_hidden_layers"],
        norm="layer",
        block="relu_mix" if version == 7 else "channel_mix",
        d_ffn=sizes["intermediate_size"],
        encoder_norm=True,
        final_norm=True,
        head_bias=False,
        **{name: said.get(name) for name in SPECIAL},
    )


def _values(
    files: Files,
    templates: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    config: LinrnnConfig,
) -> dict[str, Tensor]:
    """Our tensors, once theirs are real numbers in the shapes that they must have."""
    values = {}
    for name, entry in entries(int(config.mixer[-1]), config.n_layers).items():
        their_tensors = []
        for theirs, like in zip(entry.theirs, entry.write(templates[name]), strict=True):
            x = weights[theirs]
            if x.squeeze().shape != like.squeeze().shape:
                raise DataError(
                    f"from_rwkv: {files}: {theirs} must have shape {tuple(like.shape)}, got "
                    f"{tuple(x.shape)}."
                )
            if not x.is_floating_point():
                raise DataError(
                    f"from_rwkv: {files}: weights must be real numbers, got {theirs} of {x.dtype}."
                )
            their_tensors.append(x.reshape(like.shape))
        values[name] = entry.read(*their_tensors)
    return values
