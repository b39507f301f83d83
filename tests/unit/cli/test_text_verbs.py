"""The verbs generate, stream and export, on tiny trained models."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from linrnn.cli import main
from linrnn.cli._line.lines import BLOCK, Lines
from linrnn.cli._verbs.watch import Threshold
from linrnn.errors import ArgumentError
from linrnn.generation import TokenStream
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig, load_model, run

TEXT = "the cat sat on the mat\nand the dog sat on the log\n" * 40


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A run folder of a byte model."""
    return trained(tmp_path_factory.mktemp("lm"), "byte")


@pytest.fixture(scope="module")
def char_lm(tmp_path_factory):
    """A run folder of a character model."""
    return trained(tmp_path_factory.mktemp("lm"), "char")


def trained(folder, tokenizer):
    (folder / "text.txt").write_text(TEXT)
    os.environ["LINRNN_DATA"] = str(folder / "cache")
    try:
        config = Config(
            task="lm",
            mixer="lru",
            task_options=LMOptions(
                data=(str(folder / "text.txt"),), tokenizer=tokenizer, length=32
            ),
            model=ModelConfig(d_model=8, n_layers=1, norm="layer", pool="none"),
            train=TrainConfig(epochs=1, batch_size=8, threads=1),
        )
        run(config, out=folder / "run")
    finally:
        del os.environ["LINRNN_DATA"]
    return folder / "run"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run folder of a classifier of 64 numbers, one a step."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits") / "run"
    tiny = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]
    assert main(["train", "digits", *tiny, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def feed(monkeypatch, tmp_path):
    """Run ``linrnn stream`` on some bytes."""

    def stream(content, *arguments):
        (tmp_path / "stdin").write_bytes(content)
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            return main(["stream", *map(str, arguments)])

    return stream


def test_generate_prints_what_a_seed_repeats(lm, capsys):
    arguments = ["generate", str(lm), "--prompt", "the ", "--max-new-tokens", "30", "--seed", "1"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert first
    assert main(["generate", str(lm), "--max-new-tokens", "3"]) == 0  # begins after a newline


def test_generate_goes_on_from_a_state(lm, capsys, tmp_path):
    greedy = ["--temperature", "0"]
    assert main(["generate", str(lm), "--prompt", "the", "--max-new-tokens", "20", *greedy]) == 0
    whole = capsys.readouterr().out
    state = ["--state", str(tmp_path / "s"), *greedy]
    for part in (["--prompt", "the", "--max-new-tokens", "8"], ["--max-new-tokens", "12"]):
        assert main(["generate", str(lm), *part, *state]) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("form", ["words", "json"])
def test_generate_keeps_its_state_at_a_signal_and_says_what_it_has_read(
    char_lm, tmp_path, capsys, monkeypatch, number, form
):
    """Text that a state has read and nobody has seen would be lost."""
    draw, drawn = TokenStream.draw, []

    def stopping(stream, *arguments):
        if len(drawn) == 7:
            os.kill(os.getpid(), number)
        drawn.append(draw(stream, *arguments))
        return drawn[-1]

    monkeypatch.setattr(TokenStream, "draw", stopping)
    options = ["--prompt", "the", "--temperature", "0", "--state", str(tmp_path / "s")]
    options += ["--json"] if form == "json" else []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert main(["generate", str(char_lm), "--max-new-tokens", "900", *options]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.undo()
    out = capsys.readouterr().out
    text = json.loads(out)["texts"][0]["text"] if form == "json" else out
    stream = TokenStream(load_model(char_lm)[0])
    stream.load(tmp_path / "s")
    assert len(text) == len(drawn) == 7
    assert stream.steps == len("the") + 7


def test_generate_continues_several_prompts(lm, capsys):
    arguments = ["--max-new-tokens", "5", "--temperature", "0"]
    alone = []
    for prompt in ("the cat", "a", "\n"):
        main(["generate", str(lm), "--prompt", prompt, *arguments])
        alone.append(f"--- {prompt!r}\n{capsys.readouterr().out}\n")
    prompts = ["--prompt", "the cat", "--prompt", "a", "--prompt", ""]  # "" begins after a newline
    assert main(["generate", str(lm), *prompts, *arguments]) == 0
    assert capsys.readouterr().out == "".join(alone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature must be at least 0"),
        (["--top-p", "0"], "top_p must be in (0, 1], got 0"),
        (["--top-k", "-2"], "top_k must be an integer of at least 0, got -2"),
        (["--prompt", "a", "--prompt", "b", "--state", "x"], "--state must come with one prompt"),
    ],
)
def test_generate_names_what_is_wrong(lm, capsys, arguments, message):
    assert main(["generate", str(lm), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_generate_says_where_a_prompt_is_unknown(char_lm, capsys):
    assert main(["generate", str(char_lm), "--prompt", "the Zoo"]) == 1
    assert "'Z' (U+005A) at character 4" in capsys.readouterr().err


def test_verbs_of_text_need_a_language_model(digits, capsys):
    assert main(["generate", str(digits)]) == 2
    assert "must be of a language model, got one of the task digits" in capsys.readouterr().err
    assert main(["stream", str(digits), "--above", "3"]) == 2
    assert "must come with a language model" in capsys.readouterr().err


def test_a_state_of_another_model_is_refused(lm, char_lm, capsys, tmp_path, feed):
    state = tmp_path / "s"
    assert main(["generate", str(lm), "--max-new-tokens", "1", "--state", str(state)]) == 0
    before = state.read_bytes()
    assert main(["generate", str(char_lm), "--state", str(state)]) == 2
    assert feed(b"the\n", char_lm, "--state", state) == 2
    assert capsys.readouterr().err.count("must be of this model") == 2
    assert state.read_bytes() == before


def test_stream_prints_the_surprise_of_each_line(lm, capsysbinary, feed):
    content = b"the cat\n\xff\xfe\r\xfd odd\nno end"
    assert feed(content, lm) == 0
    out = capsysbinary.readouterr().out
    model, _, _ = load_model(lm)
    stream = TokenStream(model)
    expected = b""
    for line in (b"the cat\n", b"\xff\xfe\r\xfd odd\n", b"no end"):
        bits = float(stream.surprise(torch.tensor(list(line))).double().sum())
        expected += f"  {bits:9.1f} {bits / len(line):6.2f}  ".encode() + line
    assert out == expected + b"\n"


def test_stream_goes_on_where_it_stopped(lm, capsysbinary, feed, tmp_path):
    lines = TEXT.encode().splitlines(keepends=True)[:20]
    assert feed(b"".join(lines), lm) == 0
    whole = capsysbinary.readouterr().out
    for part in (lines[:7], [], lines[7:]):
        assert feed(b"".join(part), lm, "--state", tmp_path / "s") == 0
    assert capsysbinary.readouterr().out == whole


def test_stream_marks_unusual_lines(lm, capsysbinary, feed):
    content = b"the cat\n\x00\x01\x02 xyzzy \xff\n" * 20
    assert feed(content, lm) == 0
    every = capsysbinary.readouterr().out.splitlines()
    per_byte = [float(line.split()[1]) for line in every]
    bound = sorted(per_byte)[20] - 0.005  # the middle, and not where rounding would decide
    assert feed(content, lm, "--above", bound) == 0
    marks = [line.startswith(b"!") for line in capsysbinary.readouterr().out.splitlines()]
    assert marks == [value > bound for value in per_byte]
    assert 0 < sum(marks) < 40
    assert feed(content, lm, "--above", bound, "--only-flagged") == 0
    kept = capsysbinary.readouterr().out.splitlines()
    assert [line[1:] for line in kept] == [
        line[1:] for line, m in zip(every, marks, strict=True) if m
    ]


def test_the_threshold_is_a_bound_or_a_quantile():
    flag = Threshold(quantile=0.9)
    assert not any(flag(v) for v in [1.0] * 100)  # warming up, and a tie is not unusual
    assert flag(1.5)
    assert not flag(0.5)
    with pytest.raises(ArgumentError, match=r"must be in \(0, 1\), got 1"):
        Threshold(quantile=1.0)


def test_stream_names_the_line_that_cannot_be_read(char_lm, capsys, feed, tmp_path):
    content = b"the cat\nthe \xff\nthe dog\n"
    assert feed(content, char_lm, "--state", tmp_path / "s") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "line 2: " in err
    assert (tmp_path / "s").is_file()
    assert feed(content, char_lm, "--skip-invalid") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "line 2: " in err


def test_stream_answers_lines_of_numbers(digits, capsys, feed):
    rows = 16 * torch.rand(5, 3, 2)  # pixels, white is 16
    text = "".join(",".join(map(str, row.flatten().tolist())) + "\n" for row in rows)
    assert feed(text.encode() + b"\n", digits) == 0
    model, _, _ = load_model(digits)
    state, expected = None, ""
    for row in rows.flatten(1):
        with torch.no_grad():
            y, state = model(row[None, :, None] / 16, state)
        share = y[0].softmax(-1)
        expected += f"{int(share.argmax())}\t{float(share.max()):.4f}\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1 x", "line 2: the input must be numbers, got 'x'"),
        (b"nan", "line 2: the numbers must be finite"),
    ],
)
def test_stream_names_bad_numbers(digits, capsys, feed, line, message):
    assert feed(b"0.5\n" + line + b"\n0.5\n", digits) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert len(out.splitlines()) == 1


def test_stream_answers_at_once_and_keeps_its_state_at_a_signal(lm, tmp_path):
    command = [sys.executable, "-m", "linrnn", "stream", str(lm), "--state", str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in (b"the cat\n", b"sat\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith(line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    model, _, _ = load_model(lm)
    stream = TokenStream(model)
    stream.load(tmp_path / "s")
    assert stream.steps == len("the cat\nsat\n")


def test_lines_are_whole_and_memory_is_bounded():
    into, out = os.pipe()
    content = b"a\n\nb" + b"x" * (3 * BLOCK) + b"\nend"

    def write():
        with os.fdopen(out, "wb") as file:
            for part in (content[:3], content[3:]):
                file.write(part)
                file.flush()
                time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    with Lines(into) as lines:
        got = [line for block in lines for line in block]
    thread.join()
    os.close(into)
    assert b"".join(got) == content
    assert got[:2] == [b"a\n", b"\n"]
    assert max(map(len, got)) < 2 * BLOCK
    assert not lines.stopped


@pytest.mark.unchecked
def test_export_writes_a_file_that_knows_its_tokenizer(lm, capsys, tmp_path):
    pytest.importorskip("onnxscript")
    from linrnn.interop.onnx import metadata

    assert main(["export", str(lm), str(tmp_path / "a.onnx")]) == 0
    sizes = "takes token (batch), state.layers.0 (batch, 8, 2); gives y (batch, 256)"
    assert sizes in capsys.readouterr().out
    assert metadata(tmp_path / "a.onnx")["tokenizer"]["kind"] == "byte"


@pytest.mark.unchecked
def test_export_writes_a_file_that_reads_sequences(lm, capsys, tmp_path):
    pytest.importorskip("onnxscript")
    path = str(tmp_path / "a.onnx")
    assert main(["export", str(lm), path, "--sequence", "--opset", "18"]) == 0
    assert "takes token (batch, time), state" in capsys.readouterr().out
    assert main(["export", str(lm), path, "--opset", "99"]) == 2
    assert "opset must be in 18 to 23, got 99" in capsys.readouterr().err
    assert main(["export", str(lm), path, "--sequence", "--batch-size", "2"]) == 2
