"""Completions and chat: what the library writes alone, whole or piece by piece."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from linrnn.generation import generate_text
from linrnn.serve import Limits, openai
from linrnn.serve.metrics import Metrics
from linrnn.serve.writer import Writer

pytestmark = pytest.mark.unchecked


def alone(runs, prompt, count, **options):
    run = runs["text"]
    return "".join(generate_text(run.model, run.task.tokenizer, prompt, count, **options))


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_completion_is_what_the_library_writes(client, runs):
    with client() as ask:
        body = {"model": "text", "prompt": "the cat", "max_tokens": 20, "seed": 3}
        answer = ask.post("/v1/completions", json=body).json()
        assert answer["object"] == "text_completion"
        (choice,) = answer["choices"]
        assert choice["text"] == alone(runs, "the cat", 20, seed=3)
        assert choice["finish_reason"] == "length"
        assert answer["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": 20,
            "total_tokens": 27,
        }
        ids = {**body, "prompt": list(b"the cat")}
        assert ask.post("/v1/completions", json=ids).json()["choices"] == answer["choices"]


def test_pieces_are_the_whole(client, runs):
    with client() as ask:
        body = {"prompt": "the", "max_tokens": 12, "seed": 1, "temperature": 0.7, "stream": True}
        body["stream_options"] = {"include_usage": True}
        response = ask.post("/v1/completions", json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        *parts, usage = events(response)
        text = "".join(part["choices"][0]["text"] for part in parts)
        assert text == alone(runs, "the", 12, seed=1, temperature=0.7)
        reasons = [part["choices"][0]["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + ["length"]
        assert usage["usage"]["completion_tokens"] == 12


def test_a_stop_text_ends_it_and_is_not_shown(client, runs):
    whole = alone(runs, "the cat", 60, temperature=0)
    stop = whole[5:8]
    with client() as ask:
        body = {"prompt": "the cat", "max_tokens": 60, "temperature": 0, "stop": stop}
        (choice,) = ask.post("/v1/completions", json=body).json()["choices"]
        assert choice["text"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_several_texts_are_those_of_one_after_the_other(client, runs):
    with client() as ask:
        body = {"prompt": ["the cat", "and"], "n": 2, "max_tokens": 9, "seed": 5, "top_k": 9}
        choices = ask.post("/v1/completions", json=body).json()["choices"]
    prompts = ("the cat", "the cat", "and", "and")
    for i, (prompt, choice) in enumerate(zip(prompts, choices, strict=True)):
        assert choice["index"] == i
        assert choice["text"] == alone(runs, prompt, 9, seed=5 + i, top_k=9)


def test_texts_that_begin_and_end_at_any_time_do_not_disturb_one_another(client, runs):
    def one(i):
        body = {"prompt": "the cat sat"[: 3 + i % 7], "max_tokens": 3 + 5 * (i % 5), "seed": i}
        answer = ask.post("/v1/completions", json=body).json()
        text = alone(runs, body["prompt"], body["max_tokens"], seed=i)
        return answer["choices"][0]["text"] == text

    with client(limits=Limits(rows=3)) as ask, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(one, range(24)))


def test_chat_is_a_completion_of_its_messages(client, runs):
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "the cat?"},
    ]
    prompt = "system: Be short.\nuser: the cat?\nassistant:"
    with client() as ask:
        body = {"messages": messages, "max_tokens": 10, "seed": 2}
        answer = ask.post("/v1/chat/completions", json=body).json()
        assert answer["object"] == "chat.completion"
        message = answer["choices"][0]["message"]
        assert message == {"role": "assistant", "content": alone(runs, prompt, 10, seed=2)}
        parts = events(ask.post("/v1/chat/completions", json={**body, "stream": True}))
        text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
        assert text == message["content"]


WRONG = {
    "no model": ({"model": "other"}, 404, "model must be a language model of text, got 'other'"),
    "temperature": ({"temperature": -1}, 400, "temperature must be at least 0"),
    "tokens": ({"max_tokens": 99_999}, 400, "max_tokens must be an integer from 0 to 4,096"),
    "choices": ({"n": 100}, 400, "n must be an integer from 1 to 64"),
    "no choice": ({"n": 0}, 400, "n must be an integer from 1 to 64"),
    "prompt": ({"prompt": 3}, 400, "prompt must be a text, token ids, or a list"),
    "ids": ({"prompt": [1, 256]}, 400, "tokens must be between 0 and 255, got 256 at position 1"),
    "stop": ({"stop": [""]}, 400, "stop must be a text, or a list"),
    "streamed": ({"stream": "no"}, 400, "stream must be true or false, got 'no'"),
    "usage": ({"stream_options": {"include_usage": 1}}, 400, "include_usage must be true or fals"),
    "unknown": ({"colour": 1}, 400, "fields must be of .*, got 'colour'"),
    "unsupported": ({"presence_penalty": 1.0}, 400, "presence_penalty must be left out"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_says_so(client, case):
    fields, status, text = WRONG[case]
    with client() as ask:
        response = ask.post("/v1/completions", json={"prompt": "the", "max_tokens": 2, **fields})
        assert response.status_code == status
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        with pytest.raises(ValueError, match=text):
            raise ValueError(error["message"])
        fine = ask.post("/v1/completions", json={"prompt": "the", "max_tokens": 2})
        assert fine.status_code == 200


def test_wrong_messages_say_so(client):
    with client() as ask:
        for messages in (None, [], [{"role": "cat", "content": "x"}], [{"role": "user"}], ["x"]):
            response = ask.post("/v1/chat/completions", json={"messages": messages})
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith("chat: ")


def test_a_text_that_takes_too_long_ends(client):
    with client(limits=Limits(seconds=0.05, new_tokens=10**9)) as ask:
        body = {"prompt": "the", "max_tokens": 10**9}
        response = ask.post("/v1/completions", json=body)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        last = ask.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        assert ask.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_stream_that_nobody_reads_any_more_ends(runs):
    writer, form = Writer("text", runs["text"], Limits(), Metrics()), openai.COMPLETION

    async def leave():
        texts = openai.orders(form, {"max_tokens": 4000}, ["the"], writer, Limits())
        events = openai.stream(form, texts, writer, usage=False)
        await anext(events)
        await events.aclose()
        return texts[0]

    text = asyncio.run(leave())
    assert text.future.result(timeout=30) == "cancelled"
    assert text.made < 4000
    writer.worker.close()
