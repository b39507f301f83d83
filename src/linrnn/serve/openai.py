"""Completions and chat, in the form of OpenAI's API."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from linrnn.errors import DataError, LinrnnError, show
from linrnn.generation import Sampling
from linrnn.serve.limits import Limits
from linrnn.serve.problems import RequestError, as_json, internal, json_bytes
from linrnn.serve.requests import check_fields, integer
from linrnn.serve.writer import Text, Writer

_BOTH: dict[str, Any] = {
    **dict.fromkeys(("model", "max_tokens", "max_completion_tokens", "temperature"), ...),
    **dict.fromkeys(("top_k", "top_p", "n", "stream", "stream_options", "stop", "seed"), ...),
    "user": ...,
    "metadata": ...,
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False, 0),
}
_COMPLETION = {**_BOTH, "prompt": ..., "echo": (False,), "best_of": (1,), "suffix": ("",)}
_CHAT = {
    **_BOTH,
    "messages": ...,
    "top_logprobs": (0,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
_ROLES = ("system", "developer", "user", "assistant")
_MOST_SEED = (1 << 62) - 1


@dataclass(frozen=True)
class Form:
    """The differences between completions and chat."""

    where: str
    kind: str
    chunk: str
    prefix: str
    whole: Callable[[str], dict[str, Any]]
    part: Callable[[str], dict[str, Any]]


COMPLETION = Form(
    "completions",
    "text_completion",
    "text_completion",
    "cmpl",
    lambda text: {"text": text},
    lambda text: {"text": text},
)
CHAT = Form(
    "chat",
    "chat.completion",
    "chat.completion.chunk",
    "chatcmpl",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text: {"delta": {"role": "assistant", "content": text}},
)


def completion_prompts(body: Mapping[str, Any]) -> list[Any]:
    """The prompts of a completion: texts, or token ids."""
    check_fields("completions", body, _COMPLETION)
    prompt = body.get("prompt", "")
    if isinstance(prompt, str) or _are_ids(prompt):
        return [prompt]
    several = isinstance(prompt, list) and bool(prompt)
    if several and (all(isinstance(p, str) for p in prompt) or all(map(_are_ids, prompt))):
        return list(prompt)
    raise RequestError(
        400,
        f"completions: prompt must be a text, token ids, or a list of several, got {show(prompt)}.",
    )


def _are_ids(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def chat_prompt(body: Mapping[str, Any]) -> str:
    r"""The messages as one text, a line each, and the beginning of the answer's.

    Example:
        >>> chat_prompt({"messages": [{"role": "user", "content": "Hello"}]})
        'user: Hello\nassistant:'
    """
    check_fields("chat", body, _CHAT)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, f"chat: messages must be a list of some, got {show(messages)}.")
    lines = []
    for message in messages:
        fits = isinstance(message, dict) and message.get("role") in _ROLES
        if not fits or not isinstance(message.get("content"), str):
            raise RequestError(
                400,
                f"chat: a message must have a role of {', '.join(_ROLES)} and a content that is a "
                f"text, got {show(message)}.",
            )
        lines.append(f"{message['role']}: {message['content']}\n")
    return "".join([*lines, "assistant:"])


def orders(
    form: Form, body: Mapping[str, Any], prompts: Sequence[Any], writer: Writer, limits: Limits
) -> list[Text]:
    """The texts that a request wants, of each prompt as many as it asks for.

    Raises:
        LinrnnError: a value is wrong, or a limit is passed.
    """
    where = form.where
    newer = "max_completion_tokens"
    name = "max_tokens" if body.get(newer) is None else newer
    count = integer(where, body, name, min(16 if form is COMPLETION else 256, limits.new_tokens),
                    limits.new_tokens)  # fmt: skip
    copies = integer(where, body, "n", 1, limits.choices, 1)
    if not 1 <= copies * len(prompts) <= limits.choices:
        raise RequestError(
            400, f"{where}: there must be 1 to {limits.choices} texts, got {copies * len(prompts)}."
        )
    seed = integer(where, body, "seed", None, _MOST_SEED)
    options = {k: body[k] for k in ("temperature", "top_k", "top_p") if body.get(k) is not None}
    sampling, stop = Sampling(**options), _stops(where, body.get("stop"))
    stop += ["\nuser:", "\nsystem:"] if form is CHAT else []
    deadline = time.monotonic() + limits.seconds
    texts: list[Text] = []
    for prompt in prompts:
        ids = _ids(where, prompt, writer, limits)
        for _ in range(copies):
            one = None if seed is None else seed + len(texts)
            texts.append(Text(ids, count, sampling, one, stop, deadline))
    return texts


def streamed(form: Form, body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the answer comes piece by piece, and whether its end says how many tokens it took."""
    stream, options = body.get("stream"), body.get("stream_options")
    options = {} if options is None else options
    if not isinstance(options, dict):
        raise RequestError(
            400, f"{form.where}: stream_options must be a table, got {show(options)}."
        )
    usage = options.get("include_usage")
    for name, flag in (("stream", stream), ("stream_options.include_usage", usage)):
        if flag is not None and not isinstance(flag, bool):
            raise RequestError(
                400, f"{form.where}: {name} must be true or false, got {show(flag)}."
            )
    return bool(stream), bool(usage)


def _stops(where: str, stop: Any) -> list[str]:
    listed = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(listed, list) or not all(isinstance(s, str) and s for s in listed):
        raise RequestError(
            400, f"{where}: stop must be a text, or a list of some, got {show(stop)}."
        )
    if len(listed) > 16:
        raise RequestError(400, f"{where}: stop must hold at most 16 texts, got {len(listed)}.")
    return list(listed)


def _ids(where: str, prompt: Any, writer: Writer, limits: Limits) -> list[int]:
    """A prompt as token ids; an empty one is a newline, as of ``linrnn generate``."""
    if isinstance(prompt, str):
        if len(prompt) > 16 * limits.prompt:  # a token holds 16 characters at most
            raise _long(where, f"{len(prompt):,} characters", limits)
        try:
            prompt = writer.tokenizer.encode(prompt or "\n", where="prompt").tolist()
        except DataError as error:
            raise RequestError(400, f"{where}: {error}") from error
    if len(prompt) > limits.prompt:
        raise _long(where, f"{len(prompt):,}", limits)
    size = writer.tokenizer.vocabulary_size
    bad = next((place for place, token in enumerate(prompt) if not 0 <= token < size), None)
    if bad is not None:
        raise RequestError(
            400,
            f"{where}: tokens must be between 0 and {size - 1}, got {show(prompt[bad])} at "
            f"position {bad}.",
        )
    return list(prompt)


def _long(where: str, got: str, limits: Limits) -> RequestError:
    return RequestError(
        413, f"{where}: a prompt must have at most {limits.prompt:,} tokens, got {got}."
    )


async def answer(form: Form, texts: Sequence[Text], writer: Writer) -> dict[str, Any]:
    """The whole answer, when all texts are written."""
    pieces: list[list[str]] = [[] for _ in texts]
    for text, into in zip(texts, pieces, strict=True):
        text.said = into.append
    try:
        futures = [asyncio.wrap_future(writer.worker.submit(text)) for text in texts]
        reasons = await asyncio.gather(*futures)
    except BaseException:
        cancel(texts)
        raise
    choices = [
        {"index": i, **form.whole("".join(into)), "finish_reason": reason, "logprobs": None}
        for i, (into, reason) in enumerate(zip(pieces, reasons, strict=True))
    ]
    return {**_head(form, form.kind, writer), "choices": choices, "usage": _usage(texts)}


async def stream(
    form: Form, texts: Sequence[Text], writer: Writer, *, usage: bool
) -> AsyncIterator[bytes]:
    """The answer as server-sent events, piece by piece."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Any]]()

    def put(i: int, value: Any) -> None:
        # a loop that has ended has nobody who reads; the other texts must not hear of it
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, (i, value))

    head = _head(form, form.chunk, writer)
    try:
        for i, text in enumerate(texts):
            text.said = lambda piece, i=i: put(i, piece)  # type: ignore[misc]
            writer.worker.submit(text).add_done_callback(lambda future, i=i: put(i, future))  # type: ignore[misc]
        remaining = len(texts)
        while remaining:
            i, value = await queue.get()
            if isinstance(value, str):
                yield _event({**head, "choices": [_choice(form, i, value, None)]})
                continue
            remaining -= 1
            error = value.exception()
            if error is not None:
                reported = error if isinstance(error, LinrnnError) else internal()
                yield _event({"error": as_json(reported)})
                return
            yield _event({**head, "choices": [_choice(form, i, "", value.result())]})
        if usage:
            yield _event({**head, "choices": [], "usage": _usage(texts)})
        yield b"data: [DONE]\n\n"
    finally:
        cancel(texts)


def cancel(texts: Sequence[Text]) -> None:
    """Let go of texts that nobody reads."""
    for text in texts:
        text.cancelled = True


def _choice(form: Form, index: int, piece: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, **form.part(piece), "finish_reason": reason, "logprobs": None}


def _head(form: Form, kind: str, writer: Writer) -> dict[str, Any]:
    name = f"{form.prefix}-{uuid.uuid4().hex}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": writer.name}


def _usage(texts: Sequence[Text]) -> dict[str, int]:
    prompt, answer = sum(len(text.prompt) for text in texts), sum(text.made for text in texts)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"
