"""A strategy for each format of files that linrnn reads: valid ones, damaged field by field."""

import functools
import gzip
import io
import json
import lzma
import struct
import tarfile
import wave
import zipfile
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mutations import damaged, trees

from linrnn import tokenizers
from linrnn._files.storage import checksum

CSV = (
    "a,b,label\n1,2,x\n3.5,-4e-3,y\n0,1,x\n",
    "1;2;3\n4;5;6\n",
    "0 1 2\n3 4 5\n",
    '"1","2",0\n3,4,1\n5,6,,\n',
    "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(12)),
)
TS = (
    "@problemName x\n@timeStamps false\n@univariate false\n@classLabel true a b\n@data\n"
    + "".join(f"{i},2,3:{i},5,6:{'ab'[i % 2]}\n" for i in range(11)),
    "# said before\n@targetlabel true\n@data\n1,2:0.5\n3,4,5:-1\n",
    "@timestamps true\n@classlabel false\n@data\n(0,1),(1,2)\n",
)
HISTORY = (
    "date,OT,HUFL\n" + "".join(f"2016-07-{i:02},{i * 0.5},{-i}\n" for i in range(1, 9)),
    "t,x\n0,1\n1,2\n",
)
PAIRS = ("0\ta\tb\tone text\tanother\n1.0\tc\td\tmore, of it\tand é\n", "0\ta\tb\t\t")
LISTOPS = ("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", "( [SM 1 2 ( [MED 3 4 ] ) ] )", "7")
METRICS = ("epoch,step,loss_train,loss_val,metric_val,lr,seconds\n1,10,0.5,0.4,0.3,0.001,1.5\n",)


def packed(content: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """A .gz of some content, now and then damaged itself."""
    whole = content.map(lambda data: gzip.compress(data, 1, mtime=0))
    return st.one_of(whole, whole, whole.flatmap(damaged))


def packed_xz(content: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """A .xz of some content, now and then damaged itself."""
    whole = content.map(lambda data: lzma.compress(data, preset=0))
    return st.one_of(whole, whole.flatmap(damaged))


DESCRIPTIONS = (
    *(
        "<f8",
        "<f4",
        "<f2",
        "<i8",
        "<u1",
        "|b1",
        ">f8",
        "<c16",
        "<U3",
        "<U0",
        "|S4",
        "<M8[D]",
        "<m8",
    ),
    *("|O", "<f3", "f", "", "<f8,<f8", "|V3", "<U999999999", "<i8" * 50),
    *([("a", "<f8")], [("a", "<f8", (3,))], [("", "|O")], ("<f8", (2, 2)), 7, None),
)
SIZES = (0, 1, 2, 3, 6, 12, -1, 2**31, 2**40, 2**62, 2**63, 2**70, True, 1.5, None, "3")


@st.composite
def npy(draw: Any) -> bytes:
    """An array of NumPy, or a header that claims to be one."""
    if draw(st.integers(0, 3)):
        shape = draw(st.lists(st.sampled_from((0, 1, 2, 3, 11)), max_size=3))
        kind = draw(
            st.sampled_from(("f8", "f4", "f2", "i8", "u1", "?", "c8", "U2", "M8[s]", ">f8"))
        )
        array = (np.arange(np.prod(shape, dtype=int)) % 5).reshape(shape).astype(kind)
        if array.dtype.kind == "f" and array.size and draw(st.integers(0, 4)) == 0:
            array.flat[0] = draw(st.sampled_from((np.nan, np.inf, -np.inf, 60000.0, 6e-8)))
        if draw(st.booleans()):
            array = np.asfortranarray(array)
        file = io.BytesIO()
        np.save(file, array)
        data = file.getvalue()
    else:
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
        header: Any = {"descr": draw(st.sampled_from(DESCRIPTIONS)), "fortran_order": False}
        header["shape"] = shape if draw(st.integers(0, 5)) else draw(st.sampled_from(SIZES))
        if draw(st.integers(0, 5)) == 0:
            header["fortran_order"] = draw(st.sampled_from((True, None, "x", 1)))
        if draw(st.integers(0, 5)) == 0:
            header.pop(draw(st.sampled_from(sorted(header))))
        text = repr(header).encode()
        if draw(st.integers(0, 3)) == 0:
            text = draw(damaged(text))
        text += b" " * draw(st.sampled_from((0, 1, 20, 9000))) + b"\n"
        version = draw(st.sampled_from((1, 1, 1, 2, 3, 0, 9, 255)))
        size = struct.pack("<H" if version == 1 else "<I", len(text) % 65536)
        body = bytes(draw(st.sampled_from((0, 1, 8, 24, 96))))
        data = b"\x93NUMPY" + bytes([version, 0]) + size + text + body
    return draw(damaged(data, most=1)) if draw(st.integers(0, 3)) == 0 else data


NAMES = ("x", "y", "lengths", "x_train", "y_train", "x_test", "y_test", "lengths_train", "z")


@st.composite
def npz(draw: Any) -> bytes:
    """A set of labelled sequences, with arrays that fit or do not, or archives damaged."""
    n, steps = draw(st.sampled_from((0, 1, 2, 11))), draw(st.sampled_from((0, 1, 3)))
    ends = draw(st.sampled_from((("",), ("_train",), ("_train", "_test"))))
    arrays: dict[str, bytes] = {}
    for end in ends:
        shape = (n, steps) if draw(st.booleans()) else (n, steps, draw(st.integers(0, 2)))
        arrays[f"x{end}"] = _saved(np.arange(np.prod(shape), dtype="f8").reshape(shape))
        kind = draw(st.sampled_from(("i8", "f8", "U3", "u1", "?")))
        arrays[f"y{end}"] = _saved((np.arange(n) % 2).astype(kind))
        if draw(st.booleans()):
            arrays[f"lengths{end}"] = _saved(np.full(n, max(1, steps), "i4"))
    for _ in range(draw(st.integers(0, 2))):
        arrays[draw(st.sampled_from(NAMES))] = draw(npy())
    file = io.BytesIO()
    method = draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)))
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in arrays.items():
            end = draw(st.sampled_from((".npy",) * 6 + ("", ".txt")))
            archive.writestr(zipfile.ZipInfo(f"{name}{end}"), data, method)
    data = file.getvalue()
    return draw(damaged(data)) if draw(st.integers(0, 2)) == 0 else data


@functools.lru_cache(maxsize=1000)
def _bytes_of(shape: tuple[int, ...], kind: str, data: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.frombuffer(data, kind).reshape(shape))
    return file.getvalue()


def _saved(array: np.ndarray) -> bytes:
    return _bytes_of(array.shape, array.dtype.str, array.tobytes())


def npz_of_images(shape: tuple[int, ...]) -> SearchStrategy[bytes]:
    """Images and classes in an .npz."""

    def made(arrays: dict[str, np.ndarray]) -> bytes:
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()

    images = st.sampled_from(
        [np.zeros((n, *shape), kind) for n in (0, 1, 2) for kind in ("u1", "f4")]
        + [np.zeros((2, 3), "u1"), np.zeros((), "u1")]
    )
    labels = st.sampled_from(
        [np.zeros(n, kind) for n in (0, 1, 2) for kind in ("u1", "i8", "f4")]
        + [np.array([0, 10]), np.array([-1, 3])]
    )
    fields = {"x_train": images, "y_train": labels}
    whole = st.fixed_dictionaries(fields, optional={"x_test": images}).map(made)
    return st.one_of(whole, whole.flatmap(damaged), npz())


@st.composite
def idx(draw: Any, axes: int) -> bytes:
    """An array of bytes in the format of MNIST."""
    sizes = draw(
        st.lists(st.sampled_from((0, 1, 2, 28, 2**31, 2**32 - 1)), min_size=axes, max_size=axes)
    )
    kind = draw(st.sampled_from((0x800 + axes,) * 6 + (0x801, 0x803, 0xD03, 0)))
    body = min(int(np.prod(sizes, dtype=float)), 3000)
    data = struct.pack(f">{axes + 1}I", kind, *sizes) + bytes(
        max(0, body + draw(st.sampled_from((0, 0, 0, -1, 1))))
    )
    return draw(damaged(data)) if draw(st.integers(0, 2)) == 0 else data


@st.composite
def wav(draw: Any) -> bytes:
    """A clip, of the kind wanted or of another, with a header that may lie."""
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(draw(st.sampled_from((1, 1, 1, 2))))
        clip.setsampwidth(draw(st.sampled_from((2, 2, 2, 1, 3))))
        clip.setframerate(draw(st.sampled_from((8000, 8000, 8000, 16000))))
        clip.writeframes(bytes(12 * draw(st.integers(0, 4))))
    return draw(damaged(file.getvalue()))


@st.composite
def tar(draw: Any, members: SearchStrategy[tuple[str, bytes]]) -> bytes:
    """An archive of some files, plain or with damage, links and sizes that lie."""
    file = io.BytesIO()
    form = draw(st.sampled_from((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)))
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in draw(st.lists(members, max_size=4)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if draw(st.integers(0, 7)) == 0:
                info.type = draw(
                    st.sampled_from((b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"x", b"Z"))
                )
                info.linkname = "/etc/hosts"
            archive.addfile(info, io.BytesIO(content))
    data = file.getvalue()
    return draw(damaged(data)) if draw(st.booleans()) else data


MEMBER_NAMES = ("a/b.txt", "x" * 60, "../up", "/abs", "é", "a", "aclImdb/train/pos/1_9.txt")
FILES = st.tuples(st.sampled_from(MEMBER_NAMES), st.binary(max_size=40))
REVIEWS = st.tuples(
    st.sampled_from(
        [
            f"aclImdb/{s}/{k}/{i}_7.txt"
            for s in ("train", "test")
            for k in ("pos", "neg")
            for i in (1, 2)
        ]
    ),
    st.binary(max_size=40),
)
CLIPS = st.tuples(
    st.sampled_from(
        [f"recordings/{d}_x_{n}.wav" for d in (0, 9) for n in (0, 5, 9)] + ["recordings/٣_x_٣.wav"]
    ),
    wav(),
)


@st.composite
def png(draw: Any, size: int) -> bytes:
    """A grey image, whole or not, of one kind of file or another."""
    whole = draw(st.sampled_from(_pngs(size)))
    return draw(damaged(whole)) if draw(st.integers(0, 3)) else whole


@functools.cache
def _pngs(size: int) -> list[bytes]:
    from PIL import Image

    found = []
    for side in (size, size + 1):
        for kind in ("PNG", "GIF", "BMP", "JPEG", "PPM", "TIFF", "WEBP", "ICO", "TGA"):
            file = io.BytesIO()
            Image.new("L", (side, side), 7).save(file, kind)
            found.append(file.getvalue())
    return found


LISTS = ("imgs/0 sample_0.png 0 1 x y\nimgs/0 sample_1.png 1 0\n" * 6,)


@functools.cache
def tokenizer_samples() -> tuple[Any, ...]:
    """The JSON of every kind of tokenizer."""
    bpe = tokenizers.LibraryTokenizer.train(["to be or not to be " * 3], 260)
    kinds = (tokenizers.ByteTokenizer(), tokenizers.CharTokenizer("abé"), bpe)
    ours = [json.loads(kind.to_json()) for kind in kinds]
    library = ours[-1]["tokenizer"]
    small = {**library, "model": {**library["model"], "vocab": {"a": 0, "b": 1}, "merges": []}}
    word = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    words = {**small, "model": word, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None}
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    return *ours, library, small, words, {**words, "model": unigram}


TENSORS = (
    {"0": torch.zeros(1, 2)},
    {"0": torch.zeros(1, 2, 2), "1": torch.ones(1, 3, dtype=torch.int64)},
    {"t0": torch.zeros(3), "t1": torch.zeros((), dtype=torch.bfloat16), "t2": torch.zeros(0, 4)},
)


KINDS = {torch.float32: "F32", torch.complex64: "C64", torch.int64: "I64", torch.bfloat16: "BF16"}


@st.composite
def safetensors_files(draw: Any, metadata: SearchStrategy[dict[str, str]], *tensors: Any) -> bytes:
    """Tensors and texts with a checksum that is true, then perhaps a header or bytes that lie."""
    stored, texts = draw(st.sampled_from(tensors or TENSORS)), draw(metadata)
    if draw(st.integers(0, 7)):
        texts = texts | {"sha256": checksum(stored, texts)}
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    data = b""
    for name, x in stored.items():
        part = x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        place = [len(data), len(data) + len(part)]
        header[name] = {"dtype": KINDS[x.dtype], "shape": list(x.shape), "data_offsets": place}
        data += part
    kind = draw(st.integers(0, 3))
    text = json.dumps(draw(trees(header)) if kind == 1 else header).encode()
    whole = struct.pack("<Q", len(text)) + text + data
    return draw(damaged(whole)) if kind == 0 else whole


def texts_of(key: str, trees_of_it: SearchStrategy[Any]) -> SearchStrategy[dict[str, str]]:
    """The metadata of a file: JSON under a name, whole, changed or no JSON at all."""
    whole = trees_of_it.map(json.dumps)
    broken = st.sampled_from(("", "[", "[" * 5000, '{"format": 1', "1" * 5000, "null", '"x"'))
    return st.one_of(
        *[whole.map(lambda text: {key: text})] * 4,
        broken.map(lambda text: {key: text}),
        st.just({}),
    )


STATE_HEADERS = (
    {"format": 1, "linrnn": "0.1.0"},
    {
        "format": 1,
        "steps": 3,
        "pending": [1],
        "model": {"name": "x", "parameters": 1, "weights": "a"},
    },
)
CHECKPOINTS = (
    {
        "dict": [
            ["step", 3],
            ["weights", {"tensor": "t0"}],
            [{"tuple": [1, 2]}, {"list": [{"tensor": "t1"}]}],
        ]
    },
    {"tuple": [1, None, "x", {"dict": []}]},
)
