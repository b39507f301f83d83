"""Actions from joints: files as NTU RGB+D has them, and archives."""

import gzip

import numpy as np
import pytest
import torch
from made_data import skeleton, write_skeletons

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.skeletons import Skeletons, SkeletonsOptions


@pytest.fixture
def files(tmp_path):
    """A folder of recordings, and their joints by path."""
    return tmp_path / "files", write_skeletons(tmp_path / "files")


def make(place, **options):
    return Skeletons(SkeletonsOptions(**{"data": str(place), "check_counts": False} | options))


def steps_of(joints, frames):
    """The inputs of a model from joints (time, 25, 3) of bodies, those that move most first."""
    order = sorted(joints, key=lambda x: x.var(0).sum(), reverse=True)
    time = len(order[0])
    middle = [int((i + 0.5) * time / frames) for i in range(frames)]
    x = np.zeros((frames, 2, 25, 3))
    for body, track in enumerate(order):
        x[:, body] = (track - order[0][0, 1])[middle]
    return x.reshape(frames, 150)


@pytest.mark.parametrize("protocol", ["subject", "view"])
def test_recordings_are_split_by_protocol_and_centred(files, protocol):
    folder, joints = files
    task = make(folder, protocol=protocol, frames=5)
    rows = {}
    for part, data in zip(("train", "validation", "test"), task.datasets(), strict=True):
        for x, target in data:
            rows[tuple(x.flatten().tolist())] = (part, int(target))
    assert len(rows) == len(joints) == 45
    for path, bodies in joints.items():
        camera, person = int(path.name[5:8]), int(path.name[9:12])
        key = torch.from_numpy(steps_of(bodies, 5)).float().flatten()
        match = min(rows, key=lambda row: (torch.tensor(row) - key).abs().max().item())
        assert torch.allclose(torch.tensor(match), key, atol=2e-5)
        part, target = rows[match]
        assert target == int(path.name[17:20]) - 1
        if protocol == "subject":
            expected = "test" if person in (3, 6) else "validation" if person == 1 else "train"
        else:
            expected = "test" if camera == 1 else "validation" if person == 1 else "train"
        assert part == expected


def test_a_body_may_come_and_go(tmp_path):
    still, moving = np.ones((6, 25, 3)), np.random.RandomState(0).randn(6, 25, 3)
    moving[:2] = np.nan
    path = tmp_path / "S001C001P001R001A001.skeleton.gz"
    path.write_bytes(gzip.compress(skeleton({7: still, 9: moving}).encode()))
    x = make(tmp_path, frames=6).read_given(path).x[0].reshape(6, 2, 25, 3).numpy()
    assert not x[:2, 0].any()
    assert np.allclose(x[2:, 0], moving[2:] - moving[2, 1], atol=1e-5)
    assert np.allclose(x[:, 1], still - moving[2, 1], atol=1e-5)
    one = make(tmp_path, frames=6, bodies=1).read_given(path).x[0].reshape(6, 1, 25, 3).numpy()
    assert np.array_equal(one[:, 0], x[:, 0])


def test_recordings_without_a_body_are_left_out(files):
    folder, _ = files
    before = sum(map(len, make(folder).datasets()))
    (folder / "S001C002P002R002A002.skeleton").write_text("2\n0\n0\n")
    assert sum(map(len, make(folder).datasets())) == before
    with pytest.raises(DataError, match="must hold a body in some frame, got none"):
        make(folder).read_given(folder / "S001C002P002R002A002.skeleton")


def test_an_archive_is_cut_at_its_padding(tmp_path):
    rng = np.random.RandomState(0)
    x = rng.randn(24, 30, 150).astype(np.float32)
    lengths = rng.randint(5, 30, 24)
    for row, length in zip(x, lengths, strict=True):
        row[length:] = 0
    y = np.arange(24) % 4
    np.savez(tmp_path / "ntu.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    task = make(tmp_path / "ntu.npz", frames=4)
    splits = task.datasets()
    assert [len(part) for part in splits] == [16, 4, 4]
    for i in range(4):
        joints = x[20 + i, : lengths[20 + i]].reshape(-1, 2, 25, 3)
        steps = [int((s + 0.5) * len(joints) / 4) for s in range(4)]
        expected = (joints - joints[0, 0, 1])[steps].reshape(4, 150)
        assert np.allclose(splits.test[i][0].numpy(), expected, atol=1e-6)
    assert splits.test[:][1].tolist() == y[20:].tolist()


def test_nearest_mean_sequence(files):
    task = make(files[0], frames=3)
    splits = task.datasets()
    x, target = splits.train[:]
    centres = {a: x[target == a].mean(0) for a in target.unique().tolist()}
    right = [
        min(centres, key=lambda a, one=one: (one - centres[a]).norm().item()) == truth
        for one, truth in splits.test
    ]
    assert task.baselines()["nearest mean sequence"] == pytest.approx(np.mean(right))
    assert task.picture(splits.test[0][0]).shape == (48, 72)


@pytest.mark.unchecked
def test_data_that_cannot_be_used(files, tmp_path):
    folder, joints = files
    with pytest.raises(DataError, match=r"there must be 56,880 files in .* or 56,578 .* got 45"):
        make(folder, check_counts=True).datasets()
    with pytest.raises(DataError, match=r"must hold files such as S001C002P003R002A013\.skeleton"):
        make(tmp_path / "none").datasets()
    path = next(iter(joints))
    text = path.read_text()
    for wrong, reason in (
        (text[:-30], "its end"),
        (text + "1\n", "1 numbers after the last frame"),
        (text.replace("\n25\n", "\n24\n", 1), "24 joints"),
        (text.replace(" 1 2 3 4", " 1 2 x 4", 1), "could not convert"),
        ("-1\n", "a count of -1"),
    ):
        path.write_text(wrong)
        with pytest.raises(DataError, match=f"must hold frames of bodies with 25 joints.*{reason}"):
            make(folder).datasets()
    path.write_text(text)
    path.rename(folder / "S001C001P001R001A061.skeleton")
    with pytest.raises(DataError, match=r"actions in .* must be A001 to A060, got A061"):
        make(folder).datasets()
    (folder / "S001C001P001R001A061.skeleton").rename(folder / "x.skeleton")
    with pytest.raises(DataError, match=r"must be like S001C002P003R002A013\.skeleton, got"):
        make(folder).datasets()
    for path in folder.glob("*"):
        path.unlink()
    write_skeletons(folder, people=(3, 6))
    with pytest.raises(DataError, match=r"must hold recordings for training .* persons are 3, 6"):
        make(folder).datasets()


@pytest.mark.unchecked
def test_archives_and_options_that_cannot_be_used(tmp_path):
    path = tmp_path / "x.npz"
    x, y = np.ones((4, 3, 75)), np.arange(4)
    np.savez(path, x=x, y=y)
    with pytest.raises(DataError, match="must hold x_train, y_train, x_test and y_test, got no"):
        make(path).datasets()
    np.savez(path, x_train=x, y_train=y, x_test=x[..., :70], y_test=y)
    with pytest.raises(DataError, match=r"a frame must have 75 numbers a body.* got 70"):
        make(path).datasets()
    np.savez(path, x_train=x, y_train=y + 57, x_test=x, y_test=y)
    with pytest.raises(DataError, match="an action must be one of 0 to 59, got '60'"):
        make(path).datasets()
    with pytest.raises(UnknownNameError, match="no Skeletons protocol named 'person'"):
        make(path, protocol="person")
    with pytest.raises(ArgumentError, match="Skeletons: frames must be an integer of at least 1"):
        make(path, frames=0)
