import os
import pickle

import pytest
import torch
from safetensors.torch import load_file

from linrnn.errors import RunFolderError
from linrnn.train.checkpoint import load_tensors, load_tree, save_tensors, save_tree


class Payload:
    """Unpickling this runs code."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def tree():
    return {
        "a": torch.randn(3, 4),
        "half": torch.randn(2).bfloat16(),
        "complex": torch.randn(2, dtype=torch.complex64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(5),
        "flipped": torch.arange(6).reshape(2, 3).T,
        7: [1, 2.5, None, True, ("x", (torch.ones(1),))],
        "tiny": 5e-324,
        "infinite": float("inf"),
        "nested": {"deep": {}},
    }


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def test_save_tree_round_trip(tmp_path):
    saved = tree()
    save_tree(saved, tmp_path / "x.safetensors")
    same(load_tree(tmp_path / "x.safetensors"), saved)


def test_save_tree_keeps_tensors_that_share_memory(tmp_path):
    x = torch.arange(4.0)
    save_tree({"a": x, "b": x[1:]}, tmp_path / "x.safetensors")
    same(load_tree(tmp_path / "x.safetensors"), {"a": x, "b": x[1:]})


def test_save_tree_refuses_what_only_code_could_restore(tmp_path):
    with pytest.raises(TypeError, match="plain values, got set"):
        save_tree({"a": {1, 2}}, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [i / 40 for i in range(40)])
def test_load_tree_notices_a_flipped_byte(tmp_path, part):
    path = tmp_path / "x.safetensors"
    save_tree(tree(), path)
    data = bytearray(path.read_bytes())
    data[int(part * len(data))] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match=r"x\.safetensors: the file must be as it was written"):
        load_tree(path)


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_load_tree_notices_truncation(tmp_path, size):
    path = tmp_path / "x.safetensors"
    save_tree(tree(), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunFolderError, match="damaged content"):
        load_tree(path)


def test_load_tree_notices_a_rewritten_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors({"w": torch.ones(2)}, path)
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(RunFolderError, match=r"SHA-256 \w+ instead of none"):
        load_tensors(path)


def test_load_tree_says_that_weights_are_no_checkpoint(tmp_path):
    save_tensors({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(RunFolderError, match="must hold the state of a run, got weights alone"):
        load_tree(tmp_path / "w.safetensors")


def test_load_tree_says_that_the_file_is_missing(tmp_path):
    with pytest.raises(RunFolderError, match="the file must exist, got no such file"):
        load_tree(tmp_path / "none.safetensors")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_load_tree_never_unpickles(tmp_path, protocol):
    marker, path = tmp_path / "ran", tmp_path / "x.safetensors"
    path.write_bytes(pickle.dumps(Payload(marker), protocol))
    with pytest.raises(RunFolderError):
        load_tree(path)
    torch.save(Payload(marker), path)
    with pytest.raises(RunFolderError):
        load_tree(path)
    assert not marker.exists()


def test_save_tree_leaves_the_old_file_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    save_tree({"a": 1}, path)

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        save_tree({"a": 2}, path)
    assert load_tree(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_save_tensors_is_readable_with_safetensors_alone(tmp_path):
    weights = {"w": torch.randn(2, 2), "b": torch.randn(2)}
    save_tensors(weights, tmp_path / "m.safetensors")
    same(dict(sorted(load_file(tmp_path / "m.safetensors").items())), dict(sorted(weights.items())))
