"""A command started with closed, full or broken streams, and with bytes that are no text."""

import io
import os
import subprocess
import sys

import pytest

from linrnn import cli

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes the streams"),
]


def shell(line, **options):
    """Run a line of shell in which ``linrnn`` is the command."""
    line = line.replace("linrnn", f"{sys.executable} -m linrnn", 1)
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, timeout=120, check=False, **options
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("linrnn list mixers >&-", 1, b"linrnn: standard output must be open, got a closed one."),
        ("linrnn list mixers >&- 2>&-", 1, b""),
        ("linrnn list mixers >&- 2>&- <&-", 1, b""),
        ("linrnn lisst 2>&-", 2, b""),
        ("linrnn list mixers <&-", 0, b""),
        ("linrnn --version >/dev/full", 1, b"got: 'No space left on device'"),
        ("linrnn list mixers >/dev/full 2>/dev/full", 1, b""),
        ("linrnn list mixers | head -1", 0, b""),
    ],
)
def test_streams_that_are_closed_or_full(line, code, said):
    done = shell(line)
    assert done.returncode == code
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.stderr.count(b"\n") <= 1


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path):
    """Libraries print to number 2: what they say must not land in a file of the user's."""
    code = (
        "import sys; from linrnn.cli._line.streams import standard_streams\n"
        f"with standard_streams(), open({str(tmp_path / 'x')!r}, 'w') as file:\n"
        "    print(file.fileno())"
    )
    line = f"{sys.executable} -c '{code.replace(chr(39), chr(34))}' 2>&- <&-"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)
    assert int(done.stdout) > 2


@pytest.mark.parametrize(
    "words",
    [
        ("show", b"\xff"),
        (b"\xff",),
        ("train", b"\xff"),
        ("train", "digits", "--recipe", b"\xff"),
        ("train", "digits", "--mixer", b"\xff"),
        ("train", "table", "--task.data", b"x\xff.csv"),
        ("train", "--resume", b"\xff"),
        ("eval", b"\xff"),
        ("predict", b"\xff", b"\xfe"),
        ("stream", b"\xff"),
        ("generate", b"\xff"),
        ("export", b"\xff", "x"),
        ("compare", "digits", "--mixers", b"\xff"),
        ("compare", "digits", "--mixers", b"lru:\xff=1"),
        ("reproduce", b"\xff"),
    ],
)
def test_arguments_that_are_no_utf8(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", how) for how in ("strict", "strict")]
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, stream)
    assert cli.main([os.fsdecode(word) for word in words]) in (1, 2)
    streams[1].flush()
    said = streams[1].buffer.getvalue().decode()
    assert said.startswith("linrnn: ")
    assert said.count("\n") == 1


def test_an_output_that_holds_ascii_alone():
    done = shell("linrnn show lru", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_bytes_on_standard_input_that_are_no_text(root):
    run = root / "tests" / "golden" / "language"
    done = shell(f"linrnn stream {run}", input=b"to be\n\xff\xfe\n")
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.startswith(b"linrnn: line 2")


def test_a_prompt_that_is_no_text(root, capsys):
    run = root / "tests" / "golden" / "language"
    assert cli.main(["generate", str(run), "--prompt", os.fsdecode(b"\xff")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("linrnn: prompt: text must hold characters of the vocabulary")
