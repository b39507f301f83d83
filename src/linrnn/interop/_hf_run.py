"""A run of a language model as a model and a tokenizer of transformers."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from linrnn import train
from linrnn.errors import RunFolderError
from linrnn.interop._hf_config import OPTIONS, LinrnnConfig
from linrnn.interop._hf_model import LinrnnForCausalLM
from linrnn.interop._hf_tokenizer import to_tokenizer
from linrnn.tasks import TextTask


def from_run(run: Path | str) -> tuple[LinrnnForCausalLM, PreTrainedTokenizerFast]:
    """The best weights of a run of a task of text, such as ``lm`` or ``ptb``, and its tokenizer.

    Args:
        run: the run folder.

    Returns:
        The model in evaluation mode, and the tokenizer. Save both into one folder with
        ``save_pretrained``, and programs that take a folder, such as ``lm_eval --model hf``, will
        take that.

    Raises:
        RunFolderError: no run folder, one of another task, of a bidirectional model, without
            weights yet, damaged, or of a newer linrnn.

    Example:
        model, tokenizer = from_run("runs/lm-mingru-1")
        model.save_pretrained("shakespeare")
        tokenizer.save_pretrained("shakespeare")
    """
    model, task, config = train.load_model(run)
    if not isinstance(task, TextTask) or config.model.bidirectional:
        raise RunFolderError(
            f"{run}: the run must be of a task of text and read forward alone, got the task "
            f"{config.task}{' read in both directions' if config.model.bidirectional else ''}."
        )
    size = task.tokenizer.vocabulary_size
    parts = config.model
    ours = LinrnnForCausalLM(
        LinrnnConfig(
            vocab_size=size,
            mixer=config.mixer,
            mixer_options=config.mixer_options,
            **{name: getattr(parts, name) for name in OPTIONS},
            tie_word_embeddings=parts.tie_embeddings,
        )
    )
    ours.to(model.head.weight.dtype)
    ours.model.load_state_dict(model.state_dict())
    tokenizer = to_tokenizer(task.tokenizer)
    if ours.generation_config is not None:
        ours.generation_config.pad_token_id = tokenizer.pad_token_id
    return ours.eval(), tokenizer
