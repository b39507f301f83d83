import json
from pathlib import Path

import numpy as np
import pytest

from linrnn import tokenizers
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DTypeError,
    MissingExtraError,
    UnknownNameError,
)

TEXT = "To be, or not to be — that is the question. " * 20 + "é ü\n\n日本語 🙂\n"


def made(kind):
    return tokenizers.make(kind, iter([TEXT.encode()]), 300)


each_kind = pytest.mark.parametrize("kind", tokenizers.KINDS)


@each_kind
def test_decode_gives_the_text_back(kind):
    tokenizer = made(kind)
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == tokenizer.dtype
    assert ids.max() < tokenizer.vocabulary_size
    assert tokenizer.decode(ids) == TEXT
    assert np.array_equal(ids, tokenizer.encode(TEXT.encode()))


@each_kind
def test_a_stream_says_the_same_as_decode(kind):
    tokenizer = made(kind)
    ids = tokenizer.encode(TEXT).tolist()
    stream = tokenizer.stream()
    pieces = [stream.feed(i) for i in ids]
    assert "".join(pieces) + stream.close() == TEXT
    assert "\ufffd" not in "".join(pieces)
    cut = tokenizer.encode("🙂").tolist()[:-1]
    assert [stream.feed(i) for i in cut] == [""] * len(cut)
    assert stream.close() == tokenizer.decode(cut)


def test_words_are_between_blanks_and_a_line_ends_with_a_token(tmp_path):
    tokenizer = tokenizers.WordTokenizer(["to", "be", "<unk>", "é"])
    text = " to be \n\n é to\tbe"
    assert tokenizer.encode(text).tolist() == [0, 1, 4, 4, 3, 0, 1]
    assert tokenizer.encode(text.encode()).tolist() == tokenizer.encode(text).tolist()
    assert tokenizer.encode("not to").tolist() == [2, 0]
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert decoded == " to be \n \n é to be"
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, tokenizer.encode(text).tolist())) == decoded
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    again = tokenizers.load(tmp_path / "tokenizer.json")
    assert again.to_json() == tokenizer.to_json()
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert tokenizers.WordTokenizer(["<eos>", "a"]).encode("a\n").tolist() == [1, 0]


@pytest.mark.unchecked
def test_words_outside_the_vocabulary_are_refused_where_it_has_no_unknown():
    tokenizer = tokenizers.WordTokenizer(["a"])
    with pytest.raises(DataError, match=r"f: text must hold words of .* got 'z' after byte 7\."):
        tokenizer.encode(b"a z", where="f", offset=7)
    for words in ([], ["a", "a"], ["a b"], [""]):
        with pytest.raises(ArgumentError, match="words must be different texts without blanks"):
            tokenizers.WordTokenizer(words)


def test_a_stream_of_bytes_that_are_no_text_is_decode_as_well():
    tokenizer = made("byte")
    ids = [0xFF] * 9 + list("é".encode()) + [0xC3]
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, ids)) + stream.close() == tokenizer.decode(ids)


@each_kind
def test_json_gives_an_equal_tokenizer(kind, tmp_path):
    tokenizer = made(kind)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    again = tokenizers.load(path)
    assert again.to_json() == tokenizer.to_json()
    assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))
    assert tokenizers.make(str(path), iter([])).vocabulary_size == tokenizer.vocabulary_size
    assert tokenizers.make(str(tmp_path), iter([])).kind == kind


def test_bpe_is_shorter_than_bytes_and_knows_any_text():
    tokenizer = made("bpe")
    assert tokenizer.vocabulary_size <= 300
    assert len(tokenizer.encode(TEXT)) < 0.6 * len(TEXT.encode())
    assert tokenizer.decode(tokenizer.encode("\x00ß→")) == "\x00ß→"
    assert made("bpe").to_json() == tokenizer.to_json()


def test_a_file_of_the_library_is_taken_as_it_is(tmp_path):
    inner = json.loads(made("bpe").to_json())["tokenizer"]
    path = tmp_path / "other.json"
    path.write_text(json.dumps(inner))
    assert np.array_equal(tokenizers.load(path).encode(TEXT), made("bpe").encode(TEXT))


def test_ids_are_as_small_as_the_vocabulary_allows():
    assert made("byte").dtype == np.uint8
    assert made("bpe").dtype == np.uint16
    assert tokenizers.CharTokenizer(map(chr, range(0xE000, 0xE000 + 70_000))).dtype == np.uint32


@pytest.mark.unchecked
def test_unknown_characters_are_named_with_their_place():
    tokenizer = tokenizers.CharTokenizer("abé")
    with pytest.raises(DataError, match=r"got 'x' \(U\+0078\) at character 2\. The tokenizer byte"):
        tokenizer.encode("aéxb")
    with pytest.raises(DataError, match=r"f: .*got 'x' \(U\+0078\) at byte 103\."):
        tokenizer.encode("aéxb".encode(), where="f", offset=100)
    with pytest.raises(DataError, match=r"got '\\u3042' \(U\+3042\) at character 0|got 'あ'"):
        tokenizer.encode("あ")


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_bytes_that_are_no_utf8_are_refused_with_their_place(kind):
    for call in (made(kind).encode, lambda text: tokenizers.make(kind, iter([text]))):
        with pytest.raises(DataError, match="valid UTF-8, got the byte 0xff at byte 3"):
            call(b"To \xff")
    assert made("byte").encode(b"\xff").tolist() == [255]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON, got: Expecting"),
        ("[" * 100_000, "must be JSON, got: "),
        ("[]", r"must be a JSON table, got '\[\]'"),
        ("{}", "must be of format 1 and a kind of byte, char, bpe, word, world, got format None"),
        ('{"format": 2, "kind": "byte"}', "got format 2 and kind 'byte'"),
        ('{"format": 1, "kind": "char"}', "must name its characters, got none"),
        ('{"format": 1, "kind": "char", "characters": [1]}', "must name its characters, got none"),
        ('{"format": 1, "kind": "word"}', "must list its words, got None"),
        ('{"format": 1, "kind": "word", "words": ["a", 1]}', r"must list its words, got \['a', 1"),
        (
            '{"format": 1, "kind": "word", "words": ["a b"]}',
            "words, got: .* without blanks, got 'a",
        ),
        ('{"format": 1, "kind": "word", "words": ["\\ud800"]}', "list its words, got: "),
        ('{"format": 1, "kind": "bpe"}', "JSON of the library tokenizers, got: "),
        ('{"model": {}}', "JSON of the library tokenizers, got: "),
    ],
)
def test_files_that_are_no_tokenizers(text, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        tokenizers.load(path)


@pytest.mark.unchecked
def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"must hold a tokenizer, got: .*No such file"):
        tokenizers.load(tmp_path / "none.json")
    (tmp_path / "large.json").write_text("{}" + " " * 100)
    monkeypatch.setattr(tokenizers, "MAX_FILE", 50)
    with pytest.raises(DataError, match="tokenizer, got: a file of 102 bytes, more than 50"):
        tokenizers.load(tmp_path / "large.json")


@pytest.mark.unchecked
def test_wrong_arguments():
    with pytest.raises(UnknownNameError, match=r"named 'bite'. Did you mean 'byte'"):
        tokenizers.make("bite", iter([]))
    with pytest.raises(ArgumentError, match="must hold at least one, got none"):
        tokenizers.make("char", iter([]))
    with pytest.raises(ArgumentError, match=r"least 257, .* and at most 1,048,576, got 9"):
        tokenizers.make("bpe", iter([b"text"]), 9)
    for kind, wrong in (("byte", 256), ("char", -1), ("bpe", 300)):
        with pytest.raises(ArgumentError, match=rf"ids must be in 0\.\.\d+, got {wrong}"):
            made(kind).decode([0, wrong])


@pytest.mark.unchecked
def test_the_library_is_asked_for_by_the_name_of_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'linrnn\[text\]'"):
        made("bpe")


def library_json(**changed):
    """A tokenizer of the library with one word, some parts changed."""
    parts = dict.fromkeys(("normalizer", "post_processor", "decoder", "truncation", "padding"))
    word = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    return json.dumps({**whole, **parts, "model": word, **changed})


HUGE = 2**32 - 2
MODELS = {
    "WordLevel": {"type": "WordLevel", "vocab": {"a": HUGE}, "unk_token": "a"},
    "BPE": {"type": "BPE", "vocab": {"a": HUGE}, "merges": []},
    "WordPiece": {
        **{"type": "WordPiece", "vocab": {"a": HUGE}, "unk_token": "a"},
        **{"continuing_subword_prefix": "#", "max_input_chars_per_word": 100},
    },
}


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", MODELS)
def test_ids_beyond_the_length_of_the_file_never_reach_the_library(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers._library, "_library", lambda: None)  # where one would take 16 GB
    text = library_json(model=MODELS[kind])
    ours = json.dumps({"format": 1, "kind": "bpe", "tokenizer": json.loads(text)})
    for written in (text, ours):
        (tmp_path / "x.json").write_text(written)
        with pytest.raises(DataError, match=r"x\.json: .*the id 4294967294 in a file of \d+ char"):
            tokenizers.load(tmp_path / "x.json")


@pytest.mark.unchecked
def test_ids_of_added_tokens_are_bounded_as_well():
    with pytest.raises(DataError, match="the id 1000000 in a file"):
        tokenizers.from_json(library_json(added_tokens=[{"id": 10**6, "content": "x"}]))
    with pytest.raises(DataError, match="the id -1 in a file"):
        tokenizers.from_json(library_json(added_tokens=[{"id": -1, "content": "x"}]))


def test_no_token_is_cut_off_or_added():
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    pad |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    for parts in ({"truncation": cut}, {"padding": pad}):
        tokenizer = tokenizers.from_json(library_json(**parts))
        assert tokenizer.encode("a b a b a").tolist() == [0, 1, 0, 1, 0]


@pytest.mark.unchecked
def test_text_of_half_surrogate_pairs():
    assert tokenizers.ByteTokenizer().encode("a\udcff").tolist() == [97, 255]
    for tokenizer in (tokenizers.ByteTokenizer(), made("char"), made("bpe")):
        with pytest.raises(DataError):
            tokenizer.encode("\ud800")


@pytest.mark.unchecked
def test_a_vocabulary_that_no_text_has_is_not_asked_for():
    for size in (10**12, 2**63 - 1):
        with pytest.raises(ArgumentError, match="and at most 1,048,576, got"):
            tokenizers.make("bpe", iter([b"text"]), size)


def world_file():
    package = pytest.importorskip("rwkv")
    return Path(package.__path__[0]) / "rwkv_vocab_v20230424.txt"


def test_world_gives_the_ids_of_the_package():
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

    path = world_file()
    theirs, ours = TRIE_TOKENIZER(str(path)), tokenizers.make(str(path), iter(()))
    assert (ours.kind, ours.vocabulary_size) == ("world", max(theirs.idx2token) + 1)
    drawn = np.random.default_rng(0)
    texts = ["", "The quick brown fox.\n\n  def f(x):\r\n\treturn x", "żółw 你好，世界 🐢 \x00\x85"]
    texts += ["".join(map(chr, drawn.integers(32, 0x3000, 500)))]
    for text in texts:
        ids = ours.encode(text).tolist()
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids) == text
        assert ours.encode(text.encode()).tolist() == ids
        stream = ours.stream()
        assert "".join(map(stream.feed, ids)) + stream.close() == text
    raw = bytes(drawn.integers(0, 256, 500, dtype=np.uint8))
    assert ours.encode(raw).tolist() == theirs.encodeBytes(raw)
    again = tokenizers.from_json(ours.to_json())
    assert again.to_json() == ours.to_json()
    assert again.encode(texts[2]).tolist() == theirs.encode(texts[2])
    assert ours.decode([0]) == ""


WORLD = {
    "no number": ("x 'a' 1", "be JSON"),
    "another size": ("1 'a' 1\n2 'é' 1", r"line 2 must be a new id.*got \"2 'é' 1\""),
    "an id twice": ("1 'a' 1\n1 'b' 1", "line 2 must be a new id"),
    "two texts": ("1 'a' 1\n2 'a', 'b' 2", "line 2 must be"),
    "an expression": ("1 'a' 1\n2 'a' + 'b' 2", "line 2: the file must hold a token"),
    "a token twice": ("1 'a' 1\n2 'a' 1", "1 different tokens among 2"),
    "a large id": ("9999999 'a' 1", "ids in 0..1,048,575, got id 9999999"),
    "an empty token": ("1 '' 0", "got id 1"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("fault", WORLD)
def test_other_vocabularies_are_refused(fault, tmp_path):
    text, message = WORLD[fault]
    (tmp_path / "vocab.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        tokenizers.make(str(tmp_path / "vocab.txt"), iter(()))


@pytest.mark.unchecked
def test_a_byte_that_no_token_begins_with_is_named():
    world = tokenizers.WorldTokenizer({5: b"a", 7: b"ab"})
    with pytest.raises(DataError, match="the byte 0x63 at byte 12"):
        world.encode("abc", offset=10)
    for tokens in (None, {"x": "a"}, {"1": "\u0105"}):
        with pytest.raises(DataError, match="name its tokens, by their ids"):
            tokenizers.from_json(json.dumps({"format": 1, "kind": "world", "tokens": tokens}))


@pytest.mark.unchecked
@each_kind
def test_what_is_no_text_and_what_are_no_ids_are_refused(kind):
    tokenizer = made(kind)
    for wrong in (None, 5, ["a"], np.array([1, 2])):
        with pytest.raises(ArgumentTypeError, match="text must be a str or bytes"):
            tokenizer.encode(wrong)
    with pytest.raises(DataError, match=r"^prompt: .*U\+D800"):
        tokenizer.encode("To \ud800", where="prompt")
    for wrong in ([1.5], [True], ["1"], "1", None, [None], [[1], [2, 3]], np.array([1.0])):
        with pytest.raises(DTypeError, match="decode: ids must be integers"):
            tokenizer.decode(wrong)
    for none in ([], (), np.zeros(0), ""):
        if not isinstance(none, str):
            assert tokenizer.decode(none) == ""


@pytest.mark.unchecked
def test_half_of_a_character_is_none():
    with pytest.raises(ArgumentError, match=r"got U\+DCFF, half of a pair"):
        tokenizers.CharTokenizer("ab\udcff")
