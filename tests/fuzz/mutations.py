"""Strategies that damage what is valid: bytes, lines of text, trees of JSON."""

import copy
import json
import re
import struct
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

NUMBERS = (0, 1, -1, 2, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64)

#: What a cell of a table or a word of a header may become.
WORDS = (
    *("", " ", "nan", "NaN", "inf", "-inf", "-0", "0", "-0.0", "1e999", "1e39", "-1e39", "1e-46"),
    *("1_0", "0x10", "1,5", "٣", "²", "½", "∞", "1" * 400, "1" * 200_000, "9" * 20, "None", "true"),
    *('"', '""', "'", "\0", "\ufeff", "\ud7ff", "\U0010ffff", "\u2028", "\x85", "\x1c", "a b", "?"),
    *(
        ":",
        ",",
        ";",
        "\t",
        "@data",
        "#",
        "[",
        "]",
        "(",
        ")",
        "{}",
        "../x",
        "/etc/hosts",
        "%s",
        "\\",
    ),
)

#: What a value of JSON may become.
VALUES = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        -(2**31),
        2**63,
        10**7,
        10**12,
        10**30,
        10**400,
        0.5,
        -0.0,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e308,
        -1e308,
        1e-320,
    ),
    *("", "lru", "nan", "\0", "\ud800", "é", "a" * 300, "../x", "/etc/hosts"),
    *([], {}, [[]], [None], {"": None}, [0] * 300, [[0, 1], [2]], {"list": 1}, {"tensor": "t9"}),
)


@st.composite
def damaged(draw: Any, data: bytes, *, most: int = 3) -> bytes:
    """The bytes with up to ``most`` places changed."""
    for _ in range(draw(st.integers(0, most))):
        data = _damage(draw, data)
    return data


def _damage(draw: Any, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    span = draw(st.sampled_from((1, 1, 2, 4, 8, 16, 64, 512)))
    kind = draw(st.integers(0, 8))
    head, part, tail = data[:at], data[at : at + span], data[at + span :]
    if kind == 0:  # cut
        return head
    if kind == 1:
        return head + tail
    if kind == 2:
        return head + part + part + tail
    if kind == 3:
        return head + bytes(len(part)) + tail
    if kind == 4:
        return head + draw(st.binary(max_size=16)) + part + tail
    if kind in (5, 6):  # a number of the file
        code = draw(st.sampled_from(("<H", ">H", "<I", ">I", "<Q", ">Q")))
        number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * struct.calcsize(code))
        return head + struct.pack(code, number) + data[at + struct.calcsize(code) :]
    if kind == 7 and part:
        return head + bytes([part[0] ^ 1 << draw(st.integers(0, 7))]) + part[1:] + tail
    return head + b"\xff" * len(part) + tail


def spoilt(*samples: bytes, most: int = 3) -> SearchStrategy[bytes]:
    """Arbitrary bytes now and then, mostly one of the samples with some places changed."""
    changed = st.sampled_from(samples).flatmap(lambda data: damaged(data, most=most))
    return st.one_of(changed, changed, changed, st.binary(max_size=300))


@st.composite
def texts(draw: Any, *samples: str, separators: str = r",;:\s") -> bytes:
    """A text file of which cells, lines or the encoding were changed."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 4))):
        text = _edit(draw, text, separators)
    return _encode(draw, text)


def _edit(draw: Any, text: str, separators: str) -> str:
    kind = draw(st.integers(0, 6))
    if kind <= 2:  # a cell
        cells = [*re.finditer(rf"(?<![^{separators}])[^{separators}]*", text)]
        cell = draw(st.sampled_from(cells)) if cells else re.match("", text)
        return text[: cell.start()] + draw(st.sampled_from(WORDS)) + text[cell.end() :]
    lines = text.split("\n")
    at = draw(st.integers(0, len(lines) - 1))
    if kind == 3:
        del lines[at]
    elif kind == 4:
        lines.insert(draw(st.integers(0, len(lines))), lines[at])
    elif kind == 5:
        lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    else:
        lines.insert(at, draw(st.sampled_from(WORDS)))
    return "\n".join(lines)


def _encode(draw: Any, text: str) -> bytes:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return text.encode("utf-16")
    if kind == 1:
        return text.encode("latin-1", "replace")
    if kind == 2:
        return b"\xef\xbb\xbf" + text.encode()
    if kind == 3:
        return text.replace("\n", "\r\n").encode()
    if kind == 4:
        return draw(damaged(text.encode()))
    if kind == 5:
        return draw(st.binary(max_size=100))
    return text.encode()


@st.composite
def trees(draw: Any, *samples: Any, least: int = 0) -> Any:
    """A value of JSON of which fields were changed, removed or added, at least so many."""
    tree = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(least, 3))):
        tree = _change(draw, tree)
    return tree


def _change(draw: Any, tree: Any) -> Any:
    """Go down to some node and change it."""
    keys = (
        list(tree)
        if isinstance(tree, dict)
        else list(range(len(tree)))
        if isinstance(tree, list)
        else []
    )
    kind = draw(st.integers(0, 9))
    if not keys or kind == 0:
        return copy.deepcopy(draw(st.sampled_from(VALUES)))
    key = draw(st.sampled_from(keys))
    if kind == 1:
        del tree[key]
    elif kind == 2 and isinstance(tree, dict):
        name = draw(st.sampled_from(("", "x", "format", "sha256", "\ud800")))
        tree[name] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    elif kind == 3 and isinstance(tree, list):
        tree.append(copy.deepcopy(tree[key]))
    else:
        tree[key] = _change(draw, tree[key])
    return tree


@st.composite
def json_files(draw: Any, *samples: Any, seal: Any = None) -> bytes:
    """A file of JSON with changed fields; ``seal`` puts a true checksum into what was changed."""
    tree = draw(trees(*samples))
    kind = draw(st.integers(0, 9))
    if seal is not None and kind < 8:
        tree = seal(tree)
    text = json.dumps(tree, indent=draw(st.sampled_from((None, 2))))
    if kind == 9:
        return _encode(draw, _edit(draw, text, r",:\s"))
    return text.encode()
