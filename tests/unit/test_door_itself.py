"""The door's own promises: names stay in their folder, races lose, no descriptor is left open."""

import contextlib
import os

import pytest
from odd_paths import KINDS, replace_by, untouched

from linrnn._files import door
from linrnn._files.door import DoorError, check_file, check_folder, folder_at, open_file, read_bytes
from linrnn._files.storage import append, link, remove, remove_leftovers, write_atomically

pytestmark = pytest.mark.unchecked


@pytest.fixture(params=[True, False], ids=["below an open folder", "by paths"])
def below(request, monkeypatch):
    """Where the system opens files below an open folder, and where it does not."""
    if not request.param:
        monkeypatch.setattr(door, "_BELOW", False)
    return request.param


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "x").write_bytes(b"1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_bytes(b"mine")
    return tmp_path / "in"


@pytest.mark.usefixtures("below")
@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_read(place, tmp_path, monkeypatch, kind):
    path = place / "sub" / "x"
    assert read_bytes(path, inside=place) == b"1"
    replace_by(kind, path, tmp_path / "elsewhere", monkeypatch)
    with untouched(tmp_path / "elsewhere"), pytest.raises(OSError) as caught:  # noqa: PT011
        read_bytes(path, inside=place)
    assert caught.value.filename == str(path)


@pytest.mark.usefixtures("below")
@pytest.mark.parametrize("name", ["", ".", "..", "../out/x", "sub/../../out/x", "/etc/hosts"])
def test_names_stay_in_their_folder(place, name):
    for use in (read_bytes, check_file):
        with pytest.raises(DoorError):
            use(place / name, inside=place)
    with folder_at(place) as folder:
        for use in (folder.look, folder.remove, lambda n: folder.open(n, os.O_RDONLY)):
            with pytest.raises(DoorError, match="a name outside its folder"):
                use(name)
        with pytest.raises(DoorError, match="a name outside its folder"):
            folder.replace("sub", name)


@pytest.mark.usefixtures("below")
@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
def test_names_that_no_file_can_have(place, name):
    with pytest.raises(OSError):  # noqa: PT011
        read_bytes(place / name, inside=place)
    with pytest.raises(OSError):  # noqa: PT011
        read_bytes(place / name, inside=None)


@pytest.mark.usefixtures("below")
def test_nothing_is_changed_through_a_link(place, tmp_path):
    (place / "sub").rename(place / "moved")
    (place / "sub").symlink_to(tmp_path / "out")
    (tmp_path / "out" / ".x.ab12cd34").write_bytes(b"mine")
    path, other = place / "sub" / "x", place / "sub" / "y"
    for use in (
        lambda: write_atomically(path, b"2", inside=place),
        lambda: append(path, b"2", inside=place),
        lambda: link(path, other, inside=place),
        lambda: remove(path, inside=place),
        lambda: remove_leftovers(path, inside=place),
        lambda: check_folder(path.parent, inside=place),
    ):
        with untouched(tmp_path / "out"), pytest.raises(OSError, match="sub as a symbolic link"):
            use()


@pytest.mark.usefixtures("below")
def test_what_has_the_name_goes_and_not_what_it_leads_to(place, tmp_path):
    path, mine = place / "sub" / "x", tmp_path / "out" / "x"
    for use in (lambda: write_atomically(path, b"2", inside=place), lambda: remove(path)):
        path.unlink(missing_ok=True)
        path.symlink_to(mine)
        with untouched(tmp_path / "out"):
            use()
        assert not path.is_symlink()


@pytest.mark.usefixtures("below")
def test_folders_are_made_and_files_replaced(place):
    path = place / "a" / "b" / "x"
    for text in (b"1", b"2", b"3"):
        write_atomically(path, text, keep=path.with_name("y"), inside=place)
    assert (path.read_bytes(), path.with_name("y").read_bytes()) == (b"3", b"2")
    append(path, b"4", inside=place)
    link(path, path.with_name("z"), inside=place)
    assert path.with_name("z").read_bytes() == b"34"
    assert sorted(os.listdir(path.parent)) == ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["link outside", "pipe", "folder"])
def test_what_changes_after_the_look_is_not_opened(place, tmp_path, monkeypatch, kind):
    path = place / "sub" / "x"
    replace_by(kind, path, tmp_path / "elsewhere", monkeypatch)
    monkeypatch.setattr(door.Folder, "look", lambda self, name: None)
    with untouched(tmp_path / "elsewhere"), pytest.raises(DoorError):
        open_file(path, inside=place)


def test_folder_that_changes_after_the_look_is_not_entered(place, tmp_path, monkeypatch):
    (place / "sub").rename(place / "moved")
    (place / "sub").symlink_to(tmp_path / "out")
    monkeypatch.setattr(door.Folder, "look", lambda self, name: None)
    with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
        read_bytes(place / "sub" / "x", inside=place)


def test_folder_that_is_moved_while_it_is_open(place, tmp_path):
    with folder_at(place / "sub", place) as folder:
        (place / "sub").rename(place / "moved")
        (place / "sub").symlink_to(tmp_path / "out")
        folder.remove("x")
    assert (tmp_path / "out" / "x").read_bytes() == b"mine"
    assert not (place / "moved" / "x").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list them")
def test_no_descriptor_is_left_open(place, tmp_path, monkeypatch):
    path = place / "sub" / "x"
    before = len(os.listdir("/proc/self/fd"))
    for kind in ("link outside", "pipe", "folder"):
        replace_by(kind, path, tmp_path / "elsewhere", monkeypatch)
        for inside in (place, None):
            for limit in (0, None):
                with contextlib.suppress(DoorError):
                    open_file(path, inside=inside, limit=limit).close()
        if path.is_dir():
            path.rmdir()
    for use in (check_folder, check_file):
        with pytest.raises(OSError):  # noqa: PT011
            use(place / "sub" / "\0", inside=place)
    assert len(os.listdir("/proc/self/fd")) == before


def test_file_for_a_library_that_takes_a_path(place, tmp_path, monkeypatch):
    path = place / "sub" / "x"
    with open_file(path, inside=place) as file:
        path.rename(place / "moved")
        path.symlink_to(tmp_path / "out" / "x")
        with open(door.address(file, path), "rb") as same:
            assert same.read() == b"1"
        monkeypatch.setattr(os.path, "exists", lambda name: False)  # no such paths elsewhere
        with pytest.raises(DoorError, match="another file than a moment before"):
            door.address(file, path)
        path.unlink()
        (place / "moved").rename(path)
        assert door.address(file, path) == str(path)


@pytest.mark.parametrize("size", [0, 1, 100, 101])
def test_no_more_is_read_than_allowed(tmp_path, size):
    (tmp_path / "x").write_bytes(bytes(size))
    for inside in (tmp_path, None):
        if size <= 100:
            assert len(read_bytes(tmp_path / "x", inside=inside, limit=100)) == size
        else:
            with pytest.raises(DoorError, match="a file of 101 bytes, more than 100"):
                read_bytes(tmp_path / "x", inside=inside, limit=100)


@pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="no such file here")
def test_file_that_does_not_say_how_long_it_is(tmp_path):
    """A regular file of the system, of 0 bytes, from which terabytes come."""
    with untouched(tmp_path), pytest.raises(OSError):  # noqa: PT011
        read_bytes(door.Path("/proc/self/pagemap"), inside=None, limit=1 << 20)


@pytest.mark.parametrize("missing", ["none", "none/below"])
def test_errors_of_the_system_name_one_path(place, tmp_path, missing):
    """Every one that goes through the door, whatever it was that named two."""
    path = tmp_path / missing
    calls = [
        lambda: door.open_file(path, inside=None),
        lambda: door.read_bytes(path, inside=tmp_path),
        lambda: door.folder_at(path, tmp_path).__enter__(),
    ]
    for call in calls:
        with pytest.raises(OSError, match="No such file or directory") as caught:
            call()
        assert "->" not in str(caught.value)
        assert caught.value.filename2 is None
