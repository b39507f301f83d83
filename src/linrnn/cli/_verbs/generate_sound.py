"""New sound of a trained model, as a file to listen to."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linrnn import sound
from linrnn._process.signals import interrupt, stop_signals
from linrnn.cli._line.output import answer, row
from linrnn.errors import ArgumentError, show
from linrnn.generation import TokenStream, generate


def write_sound(model: Any, task: Any, args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Make samples one after the other, and write them as a .wav.

    Args:
        model: in evaluation mode.
        task: says what a code is, and the rate.
        args: of ``linrnn generate``.
        options: how a code is drawn.

    Raises:
        ArgumentError: options that are for text alone, several prompts, or one that is no
            file.
        DataError: the prompt is no .wav of that rate.
        StorageError: the file cannot be written.
    """
    prompts, path = args.prompt or [], args.wav or Path("generated.wav")
    if args.stop or len(prompts) > 1:
        raise ArgumentError(
            "generate: of a model of sound there must be at most one --prompt and no --stop, got "
            f"{len(prompts)} and {len(args.stop)}."
        )
    if prompts and Path(prompts[0]).suffix.lower() != ".wav" and not Path(prompts[0]).exists():
        raise ArgumentError(
            f"generate: of a model of sound --prompt must be a .wav file, got {show(prompts[0])}. "
            "It continues sound, and no text."
        )
    stream = TokenStream(model)
    if args.state is not None and args.state.exists():
        stream.load(args.state)
    prompt = task.read_codes(Path(prompts[0])).astype(np.int64) if prompts else np.zeros(0, int)
    if not len(prompt) and stream.last is None:
        prompt = np.array([sound.silence(task.coding)])
    count = task.rate if args.max_new_tokens is None else args.max_new_tokens
    codes: list[int] = []
    try:
        with stop_signals(interrupt):
            for code in generate(stream, prompt, count, **options):
                codes.append(code)
    except KeyboardInterrupt:  # the state has read these samples, so whoever goes on needs them
        if codes:
            _write(path, codes, task)
        raise
    finally:
        if args.state is not None:
            stream.save(args.state)
    _write(path, codes, task)
    return 0


def _write(path: Path, codes: Sequence[int], task: Any) -> None:
    """Write samples, and say so."""
    sound.write_wav(path, sound.decode(np.array(codes, int), task.coding), task.rate)
    seconds = len(codes) / task.rate
    row(f"{path}: {seconds:.3g} s of sound, {task.rate:,} samples a second\n")
    answer(lambda: {"file": path, "seconds": seconds, "rate": task.rate})
