"""Let a trained model continue a text, or a sound."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn._process.signals import interrupt, stop_signals
from linrnn.cli._line.output import MANNER, answer, row
from linrnn.cli._line.parser import Parser


def main(argv: Sequence[str]) -> int:
    """Print the new text as it is made, for each prompt, or write the new sound."""
    args = parser().parse_args(argv)
    from linrnn.errors import ArgumentError
    from linrnn.train import load_model

    model, task, config = load_model(args.run)
    if args.weights is not None:
        from linrnn.quantization import KINDS, quantize

        model = quantize(model, KINDS[args.weights])
    if hasattr(task, "coding"):
        from linrnn.cli._verbs.generate_sound import write_sound

        return write_sound(model, task, args, _options(args))
    if args.wav is not None:
        raise ArgumentError(
            f"generate: --wav must come with a model of sound, got one of the task {config.task}. "
            "Train one with: linrnn train sound"
        )
    args.max_new_tokens = 200 if args.max_new_tokens is None else args.max_new_tokens
    tokenizer = task.tokenizer
    if tokenizer is None:
        raise ArgumentError(
            f"generate: RUN must be of a language model, got one of the task {config.task}. "
            "Train one with: linrnn train lm --data FILE"
        )
    if len(args.prompt or ()) > 1:
        return _several(model, tokenizer, args)
    return _one(model, tokenizer, args)


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser(
        "generate",
        __doc__,
        wrap=True,
        epilog="The new text goes to standard output, without the prompt. Without a prompt and a "
        "state the text begins after a newline. A model of sound takes a .wav as its prompt and "
        "writes a .wav. Without a prompt the sound begins after silence.",
    )
    add = parser.add
    add("run", type=Path, metavar="RUN", help=_RUN, kind="folder")
    add("--prompt", action="append", metavar="TEXT", help=_PROMPT)
    add("--max-new-tokens", type=int, default=None, metavar="N", help=_MAX_NEW_TOKENS_HELP)
    add("--wav", type=Path, default=None, metavar="FILE", help=_WAV, kind="file")
    add("--temperature", type=float, default=1.0, metavar="X", help=_TEMPERATURE)
    add("--top-k", type=int, default=0, metavar="K", help=_TOP_K)
    add("--top-p", type=float, default=1.0, metavar="P", help=_TOP_P)
    add("--seed", type=int, default=None, metavar="N", help="seed, to repeat a text (a new one)")
    add("--stop", action="append", default=[], metavar="TEXT", help=_STOP)
    add("--state", type=Path, default=None, metavar="FILE", help=_STATE, kind="file")
    add("--weights", choices=["int8", "int4"], help=_WEIGHTS)
    return parser


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "seed")
    return {name: getattr(args, name) for name in names}


def _one(model: Any, tokenizer: Any, args: argparse.Namespace) -> int:
    """Stream to the terminal; the state goes on where the file left it."""
    from linrnn.generation import TokenStream, generate_text

    stream = TokenStream(model)
    if args.state is not None and args.state.exists():
        stream.load(args.state)
    prompt = (args.prompt or [""])[0]
    if not prompt and stream.last is None:
        prompt = "\n"
    pieces = generate_text(
        stream, tokenizer, prompt, args.max_new_tokens, stop=args.stop, **_options(args)
    )
    said: list[str] = []
    try:
        with stop_signals(interrupt):
            for piece in pieces:
                row(piece)
                said += [piece] if MANNER.json else []
            if sys.stdout.isatty():
                row("\n")
    except KeyboardInterrupt:  # the state has read this text, so whoever goes on needs it
        answer(lambda: _texts([prompt], ["".join(said)]))
        raise
    finally:
        if args.state is not None:
            stream.save(args.state)
    answer(lambda: _texts([prompt], ["".join(said)]))
    return 0


def _several(model: Any, tokenizer: Any, args: argparse.Namespace) -> int:
    """Continue all prompts together, then print each text under a line that names its prompt."""
    from linrnn.errors import ArgumentError
    from linrnn.generation import generate_texts

    if args.state is not None:
        raise ArgumentError(
            f"generate: --state must come with one prompt, got {len(args.prompt)}. "
            "Run the command once for each."
        )
    prompts = [prompt or "\n" for prompt in args.prompt]
    texts = generate_texts(
        model, tokenizer, prompts, args.max_new_tokens, stop=args.stop, **_options(args)
    )
    for prompt, text in zip(prompts, texts, strict=True):
        row(f"--- {prompt!r}\n{text}\n")
    answer(lambda: _texts(prompts, texts))
    return 0


def _texts(prompts: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """The answer for a program."""
    pairs = zip(prompts, texts, strict=True)
    return {"texts": [{"prompt": prompt, "text": text} for prompt, text in pairs]}


_RUN = "the run folder of a language model, or of a model of sound"
_PROMPT = "text to continue; may be repeated: a batch"
_MAX_NEW_TOKENS_HELP = "stop after N tokens (200; for sound one second)"
_WAV = "for a model of sound: the file to write (generated.wav)"
_TEMPERATURE = "at least 0; below 1 favours likely tokens, 0 takes the likeliest (1)"
_TOP_K = "draw from the K likeliest tokens; 0: all (0)"
_TOP_P = "draw from the fewest tokens with total probability P, in (0, 1] (1)"
_STOP = "end before this text; may be repeated"
_WEIGHTS = "store the weights of linear layers in 8 or 4 bits, which is faster on a CPU"
_STATE = "continue from the state in FILE if it exists; save the new state there"
