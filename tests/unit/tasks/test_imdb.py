import io
import lzma
import tarfile

import pytest
import torch
from made_data import write_imdb, write_tar

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.imdb import IMDb, IMDbOptions


def make(place, **options):
    return IMDb(IMDbOptions(**({"data": str(place), "validation_size": 2} | options)))


def text(row, length):
    """A row of ids as a string."""
    assert row[length - 1] == 1
    assert not row[length:].any()
    return bytes((row[: length - 1] - 2).tolist()).decode()


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "aclImdb_v1.tar.gz"
    write_imdb(path)
    return path


@pytest.mark.slow
def test_real_reviews(shared_data):
    splits = IMDb(IMDbOptions(data=str(shared_data / "imdb"))).datasets()
    assert [len(part) for part in splits] == [22_500, 2_500, 25_000]
    classes = torch.cat([part.target for part in splits[:2]])
    assert torch.bincount(classes).tolist() == [12_500, 12_500]
    assert torch.bincount(splits.test.target).tolist() == [12_500, 12_500]
    assert len(splits.train.values) + len(splits.validation.values) == 33_132_823
    assert len(splits.test.values) == 32_350_685
    assert 1100 < splits.validation.target.sum() < 1400
    x, _, length = splits.test[range(64)]
    assert x.shape == (64, 4096)
    assert (length >= 33).all()


def test_real_example(shared_data, tmp_path):
    path = shared_data / "imdb" / "aclImdb_test.tar.xz"
    with tarfile.open(path) as archive:
        members = [m for m in (archive.next() for _ in range(5)) if m.isfile()]
        found = {m.name: archive.extractfile(m).read() for m in members}
    name = next(n for n in found if "/neg/" in n)
    more = {name.replace(a, b): b"." for a, b in (("neg", "pos"), ("test", "train"))}
    more[name.replace("test", "train").replace("neg", "pos")] = b"."
    write_tar(tmp_path / "a.tar.gz", {name: found[name]} | more)
    x, target, length = make(tmp_path / "a.tar.gz", validation_size=1).datasets().test[0]
    assert text(x, length) == found[name].decode()
    assert target == 0


def test_reviews_and_classes(archive):
    splits = make(archive).datasets()
    assert [len(part) for part in splits] == [4, 2, 6]
    words = []
    for split, part in zip(("train", "train", "test"), splits, strict=True):
        for x, target, length in part:
            review = text(x, length)
            assert review.split()[:2] == [split, ("neg", "pos")[target]]
            words.append(review)
    assert len(set(words)) == 12
    assert any("é<br />é<br />" in review for review in words)


def test_splits_are_fixed(archive):
    first, again = make(archive.parent).datasets(), make(archive).datasets()
    for a, b in zip(first, again, strict=True):
        for x, y in zip(a[range(len(a))], b[range(len(b))], strict=True):
            assert torch.equal(x, y)


def test_long_reviews_are_cut(archive):
    task = make(archive, length=8)
    x, _, length = task.datasets().test[range(6)]
    assert x.shape == (6, 8)
    assert (length == 8).all()
    assert (x[:, 7] == 1).all()
    assert task.at_length(16).datasets().test[0][0].shape == (16,)


def test_two_archives(tmp_path, archive):
    members = write_imdb(archive)
    for part in ("train", "test"):
        some = {n: c for n, c in members.items() if f"/{part}/" in n}
        write_tar(tmp_path / "two" / f"aclImdb_{part}.tar.xz", some)
    a, b = make(archive).datasets(), make(tmp_path / "two").datasets()
    assert torch.equal(a.test[range(6)][0], b.test[range(6)][0])
    assert torch.equal(a.train[range(4)][0], b.train[range(4)][0])


def test_read(tmp_path, archive):
    (tmp_path / "x.txt").write_text("good\n\nbad film\n")
    x = make(archive).read(tmp_path / "x.txt")
    assert x.shape == (3, 4096)
    assert [text(x[0], 5), text(x[1], 1), text(x[2], 9)] == ["good", "", "bad film"]


def test_example(archive):
    assert make(archive).example() == "input test neg 0  ...\ntarget negative"


def test_links_and_paths_that_lead_elsewhere_are_not_followed(tmp_path, archive):
    members = write_imdb(archive)
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as made:
        for name, content in (members | {"aclImdb/train/pos/../../../9_9.txt": b"up"}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("aclImdb/train/pos/8_8.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        made.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    splits = make(path).datasets()
    assert [len(part) for part in splits] == [4, 2, 6]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.unchecked
@pytest.mark.parametrize("size", [0, 100, -1])
def test_truncated_archive(archive, size):
    archive.write_bytes(archive.read_bytes()[:size])
    with pytest.raises(DataError, match=r"must be an archive of IMDb reviews, got: .*Get it anew"):
        make(archive).datasets()


@pytest.mark.unchecked
def test_other_archives(tmp_path):
    write_tar(tmp_path / "a.tar.gz", {"aclImdb/train/pos/1_9.txt": b"good"})
    with pytest.raises(DataError, match="good and bad reviews in aclImdb/train, got 1 of 1 kinds"):
        make(tmp_path / "a.tar.gz").datasets()
    (tmp_path / "b.tar.xz").write_bytes(lzma.compress(b"no archive" * 100))
    with pytest.raises(DataError, match="must be an archive of IMDb reviews, got: invalid header"):
        make(tmp_path / "b.tar.xz").datasets()
    with pytest.raises(DataError, match=r"imdb: the data file .*aclImdb_v1\.tar\.gz must exist"):
        make(tmp_path / "none").datasets()


@pytest.mark.unchecked
def test_sizes(archive):
    with pytest.raises(DataError, match="more than validation_size = 6 reviews for training, got"):
        make(archive, validation_size=6).datasets()
    with pytest.raises(ArgumentError, match="IMDb: length must be an integer of at least 1, got 0"):
        make(archive, length=0)
