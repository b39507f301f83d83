"""A model of transformers out of files, built by its own class from what was read and checked."""

from collections.abc import Callable, Mapping
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig

from linrnn._process.memory import available, within
from linrnn.compute.finite import first_bad
from linrnn.errors import DataError, LinrnnError
from linrnn.interop._hf_files import Files, ModelFolder, known_values

HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision")
"""Keywords that ``from_pretrained`` hands on to the client of the hub."""

_NEEDLESS = ("use_safetensors", "weights_only", "trust_remote_code", "disable_mmap", "proxies")

# how to decode and for how long: neither code to run nor other models to fetch
_GENERATION = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping"),
    *("do_sample", "num_beams", "num_return_sequences", "use_cache", "length_penalty"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "renormalize_logits", "remove_invalid_values"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "_from_model_config"),
)


_SPARE, _TIMES = 64 << 20, 8  # bytes beside the stored weights, and of each of theirs

# sizes that some tensor has, and of which there are tensors
_WIDTHS = (
    *("vocab_size", "hidden_size", "d_model", "intermediate_size", "attention_hidden_size"),
    *("state_size", "conv_kernel", "conv_width", "d_ffn", "embedding_dim"),
)
_DEPTHS = ("num_hidden_layers", "num_blocks", "n_layers")


def files_of(where: str, path: Any, options: dict[str, Any]) -> Files:
    """The files of a model; what says where they are is taken out of the options."""
    for name in _NEEDLESS:
        options.pop(name, None)
    hub = {name: options.pop(name) for name in HUB if name in options}
    return ModelFolder(where, path, options.pop("subfolder", None) or "", **hub)


def configured(files: Files, make: Callable[[], Any]) -> Any:
    """A configuration or a model that a class of transformers makes out of values.

    Raises:
        DataError: a value does not suit.
    """
    try:
        return make()
    except LinrnnError:
        raise
    except Exception as error:  # transformers checks with errors of many kinds
        words = " ".join(str(error).split())
        raise DataError(
            f"{files.where}: {files}: the configuration must suit its model, got: {words:.200}."
        ) from error


def weights_of(
    files: Files, sizes: Mapping[str, Any], variant: str | None = None
) -> dict[str, Tensor]:
    """The weights of a model, if there may be enough of them for its configuration.

    Args:
        files: that hold them.
        sizes: the configuration as it was read: nothing is built of it before.
        variant: see `Files.tensors`.

    Raises:
        DataError: a file is missing or damaged, or the model would be far larger.
    """
    try:
        weights = files.tensors(variant)
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(
            f"{files.where}: {files}: the model must be complete and in safetensors, got: {error}"
        ) from error
    largest = max((n for weight in weights.values() for n in weight.shape), default=0)
    bounds = dict.fromkeys(_WIDTHS, largest) | dict.fromkeys(_DEPTHS, len(weights))
    bounds["intermediate_size"] = 2 * largest  # some count the gate's channels as well
    for name, bound in bounds.items():
        value = sizes.get(name)
        if isinstance(value, int | float) and not value <= bound:
            raise DataError(
                f"{files.where}: {files}: {name} must be at most {bound:,} to suit the weights, "
                f"got {value!r:.40}."
            )
    return weights


def load(
    files: Files,
    config: PreTrainedConfig,
    weights: Mapping[str, Tensor],
    read: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model with these weights, and what its class says about loading it.

    Args:
        files: that they are from.
        config: of the model.
        weights: by name.
        read: ``from_pretrained`` of its class.
        *args: for the class.
        **options: of ``from_pretrained``.

    Raises:
        DataError: the configuration or the weights do not suit the model.
    """
    if options.get("generation_config") is None:
        options["generation_config"] = generation_of(files)
    options |= {"config": config, "state_dict": weights, "output_loading_info": True}
    stored = sum(x.numel() * x.element_size() for x in weights.values())
    limit = min(available(), _SPARE + _TIMES * stored)
    message = (
        f"{files.where}: {files}: the model must fit into {limit:,} bytes, for the size of its "
        "weights, got a configuration of a larger one."
    )

    def bounded() -> Any:
        with within(limit, DataError, message):
            return read(None, *args, **options)

    model, info = configured(files, bounded)
    model.name_or_path = model.config.name_or_path = str(files)
    return model, info


def check_weights(files: Files, info: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """Raise `DataError` unless every weight of a model was in its files, and no other.

    Args:
        files: that they are from.
        info: what the model's class says about loading it.
        but: how the names of others begin.
    """
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = (key if isinstance(key, str) else str(key[0]) for key in info.get(kind) or ())
        if names := sorted(name for name in keys if not name.startswith(but)):
            raise DataError(
                f"{files.where}: {files}: the weights must be those of the configuration beside "
                f"them, got {len(names)} {kind.replace('_', ' ')}, such as {names[0]}."
            )


def check_numbers(files: Files, stored: Mapping[str, Tensor], model: Any) -> None:
    """Raise `DataError` unless the weights of a model are finite, and were real where stored.

    PyTorch would turn integers and the real parts of complex numbers into weights without a word.
    """
    weights: dict[str, Tensor] = model.state_dict()
    for name, x in stored.items():
        if name in weights and weights[name].is_floating_point() and not x.is_floating_point():
            raise DataError(
                f"{files.where}: {files}: weights must be real numbers, got {name} of {x.dtype}."
            )
    # what was put off to a disk is looked at as it was stored
    loaded = {n: stored.get(n, x) if x.is_meta else x for n, x in weights.items()}
    if bad := first_bad((n, x) for n, x in loaded.items() if not x.is_meta):
        raise DataError(f"{files.where}: {files}: weights must be finite, got {bad}.")


def generation_of(files: Files) -> GenerationConfig | None:
    """How the model is to generate, if a file says so."""
    name = "generation_config.json"
    try:
        values = files.json(name)
        if not isinstance(values, dict):
            raise ValueError(f"{values!r:.40}, which is no table")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{files.where}: {files}/{name}: the file must be JSON, got: {error}."
        ) from error
    generation: GenerationConfig = configured(
        files, lambda: GenerationConfig(**known_values(values, _GENERATION))
    )
    return generation
