"""Pathfinder and Path-X: what is drawn, what is asked, and the released files."""

import numpy as np
import pytest
import torch
from PIL import Image

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._kinds.pathfinder import RULES
from linrnn.tasks._kinds.strokes import disc, stroke
from linrnn.tasks._reading.kept import KeptImages
from linrnn.tasks.path_x import PathX, PathXOptions
from linrnn.tasks.pathfinder import Pathfinder, PathfinderOptions

SMALL = {"train_size": 40, "validation_size": 20, "test_size": 30}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))


def make(**options):
    return Pathfinder(PathfinderOptions(**(SMALL | options)))


@pytest.fixture(scope="module")
def many():
    return Pathfinder().scenes("train", range(1200))


@pytest.fixture(scope="module")
def real(shared_data):
    with np.load(shared_data / "pathfinder" / "pathfinder32_samples.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def discs(image):
    """Pixels at which the brightest part of a marker is."""
    mark = disc(1.5)
    half, scale = len(mark) // 2, 255 / disc(1.5).max()
    core = (mark * scale)[half - 1 : half + 2, half - 1 : half + 2]
    found = [
        (y, x)
        for y in range(1, 31)
        for x in range(1, 31)
        if (image[y - 1 : y + 2, x - 1 : x + 2] >= 0.95 * core - 2).all() and image[y, x] >= 250
    ]
    return found


def neighbours(points):
    """Whether some pixels lie so close that they are one marker's."""
    return all(max(abs(y - v), abs(x - w)) <= 1 for y, x in points for v, w in points)


def test_marked_ends_are_of_one_path_where_the_label_says_so(many):
    ends = np.stack([many.tips[:, :, 0], many.tips[:, :, -1]], 1)  # (images, first/last, path, 2)
    path = (ends == many.marked[:, :, None]).all(-1)
    assert path.any(2).all()  # every marker is at an end: one at a first, one at a last
    one = (path[:, 0] & path[:, 1]).any(1)
    apart = (path[:, 0] & path[:, 1, ::-1]).any(1)
    shared = one & apart  # where two ends are the same pixel
    assert shared.mean() < 0.02
    assert ((many.label == 1) == one)[~shared].all()
    assert ((many.label == 0) == apart)[~shared].all()


def test_half_are_connected(many):
    assert abs(many.label.mean() - 0.5) < 4 * 0.5 / len(many.label) ** 0.5


@pytest.mark.parametrize("size", [32, 128])
def test_strokes_of_a_path_follow_each_other_and_are_drawn(size):
    rules = RULES[size]
    scenes = make(size=size).scenes("test", range(4))
    step = np.hypot(*np.moveaxis(np.diff(scenes.tips, axis=2), -1, 0))
    # from the end of a stroke over the gap and along the next one, to a whole pixel
    longest = rules.length + 2 * max(rules.margins) + 3
    assert (step[:, :, 1:] <= longest).all()
    assert (step[:, :, 0] <= longest + rules.length + max(rules.margins)).all()
    assert step[:, :, 1:].min() >= rules.length - 1
    for image, tips in zip(scenes.pixels, scenes.tips, strict=True):
        lit = np.pad(image, 1)
        for y, x in tips.reshape(-1, 2):
            assert lit[y : y + 3, x : x + 3].max() > 60


def test_paths_begin_in_the_middle_a_set_distance_apart(many):
    first, second = many.tips[:, 0, 0], many.tips[:, 1, 0]
    assert first.min() >= 14 - 1
    assert first.max() < 18 + 1
    distance = np.hypot(*(first - second).T)
    assert np.abs(distance - 7).max() < 0.8


def test_an_image_has_two_markers(many):
    counts = [len(discs(image)) for image in many.pixels[:60]]
    assert np.isin(counts, (1, 2)).all()
    assert np.mean(counts) > 1.9  # the rest overlap


def test_pixels_do_not_tell_the_classes_apart(many):
    sklearn = pytest.importorskip("sklearn.linear_model")
    x = many.pixels.reshape(len(many.pixels), -1) / 255.0
    fit = sklearn.LogisticRegression(C=0.01, max_iter=15).fit(x[:800], many.label[:800])
    assert abs(fit.score(x[800:], many.label[800:]) - 0.5) < 4 * 0.5 / 400**0.5


def test_brightness_is_that_of_the_released_images(many):
    # of 200,000 released images of the same level: mean 19.95, standard deviation 48.66
    assert many.pixels.mean() == pytest.approx(19.95, abs=0.5)
    assert many.pixels.std() == pytest.approx(48.66, abs=1.5)
    assert np.median(many.pixels) == 0
    assert (many.pixels.max((1, 2)) == 255).all()


def test_marker_is_that_of_the_released_images(real):
    mark = disc(1.5)
    half = len(mark) // 2
    ours = np.floor(255 * mark / mark.max()).astype(int)[half - 1 : half + 2, half - 1 : half + 2]
    assert ours.tolist() == [[206, 245, 117], [245, 255, 172], [117, 172, 42]]
    seen = [
        (image[y - 1 : y + 2, x - 1 : x + 2].astype(int) - ours).min() >= -7
        for image in real["images"]
        for y, x in zip(*np.nonzero(image == 255), strict=True)
    ]
    assert all(seen)


def test_strokes_are_those_of_the_released_images(real):
    bright, _ = stroke(0.0, 2, 0.5, 1)
    ours = bright[bright.shape[0] // 2] / bright.max()
    ours = ours[ours > 0.3]
    level = real["images"][real["difficulty"] == "hard"].astype(float)
    found = sum(
        np.abs(row[x : x + 3] / max(row[x + 1], 1) - ours).max() < 0.01 and row[x + 1] > 100
        for image in level
        for row in (*image, *image.T)
        for x in range(30)
    )
    assert found >= 5


def test_released_samples_look_like_ours(real, many):
    hard = real["images"][real["difficulty"] == "hard"]
    lit = (many.pixels > 20).mean((1, 2))
    low, high = np.quantile(lit, [0.001, 0.999])
    assert ((low <= (hard > 20).mean((1, 2))) & ((hard > 20).mean((1, 2)) <= high)).all()
    assert all(neighbours(discs(image)) or len(discs(image)) == 2 for image in hard)


def test_an_example_depends_on_its_index_alone():
    task = make()
    whole = task.scenes("train", range(40))
    for rows in ([0], [39, 7], [5, 6, 7, 8]):
        some = task.scenes("train", rows)
        for a, b in zip(some, whole, strict=True):
            assert np.array_equal(a, b[rows])


def test_a_batch_is_the_same_whatever_was_kept_before(tmp_path, monkeypatch):
    first = make().datasets().train
    x, target = first[[3, 39, 3]]
    assert torch.equal(x[0], x[2])
    again = make().datasets().train
    assert torch.equal(again[39][0], x[1])
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "other"))
    fresh = make().datasets().train[range(40)]
    assert torch.equal(fresh[0][[3, 39]], x[:2])
    assert torch.equal(fresh[1][[3, 39]], target[:2])


def test_what_is_kept_is_not_drawn_again(monkeypatch):
    x, _ = make().datasets().test[range(30)]
    monkeypatch.setattr(Pathfinder, "scenes", lambda *_: pytest.fail("drawn again"))
    assert torch.equal(make().datasets().test[range(30)][0], x)


def test_other_options_are_kept_apart():
    images = {
        name: make(**options).datasets().train[0][0].numpy().tobytes()
        for name, options in {
            "default": {},
            "seed": {"data_seed": 1},
            "full": {"single_paddles": True},
            "clip": {"contrast": "clip"},
        }.items()
    }
    assert len(set(images.values())) == 4


def test_images_are_kept_in_memory_where_no_file_can_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "file"))
    assert make().datasets().train[[1, 2]][0].shape == (2, 1024, 1)


def test_splits_share_no_image():
    splits = make().datasets()
    rows = [row.numpy().tobytes() for part in splits for row in part[range(len(part))][0]]
    assert [len(part) for part in splits] == [40, 20, 30]
    assert len(set(rows)) == 90


def test_single_paddles_fill_the_image():
    plain, full = (make(single_paddles=on).scenes("train", range(4)) for on in (False, True))
    assert np.array_equal(plain.tips, full.tips)
    assert (full.pixels > 20).mean() > 1.5 * (plain.pixels > 20).mean()


def test_clipped_images_have_brighter_strokes():
    clip, rescale = (make(contrast=c).scenes("train", range(5)).pixels for c in ("clip", "rescale"))
    assert (clip.max((1, 2)) == 255).all()
    assert (clip == 255).sum() > 3 * (rescale == 255).sum()


@pytest.mark.parametrize("size", [128, 256])
def test_sequences_of_every_size(size):
    task = make(size=size)
    x, target = task.datasets().test[[0]]
    assert x.shape == (1, task.sequence_length, 1)
    assert (x.min(), x.max()) == (-1, 1)
    image = task.scenes("test", [0]).pixels[0]
    assert torch.equal((255 * task.picture(x[0])).round().byte(), torch.from_numpy(image))
    assert target.dtype == torch.int64


def test_a_step_may_be_a_row(tmp_path):
    task, pixels = make(rows=True), make()
    (x, _), (flat, _) = (t.datasets().test[range(2)] for t in (task, pixels))
    assert x.shape == (2, task.sequence_length, task.d_input) == (2, 32, 32)
    assert torch.equal(x.flatten(1), flat.flatten(1))
    assert torch.equal(task.picture(x[0]), pixels.picture(flat[0]))
    with pytest.raises(ArgumentError, match="rows must be False"):
        task.at_length(128**2)


@pytest.mark.slow
def test_images_of_64_pixels():
    assert make(size=64).scenes("test", [0]).pixels.shape == (1, 64, 64)


def test_path_x_is_the_task_with_128_pixels():
    path_x, same = PathX(PathXOptions(**SMALL)), make(size=128)
    assert path_x.sequence_length == same.sequence_length == 128**2
    assert np.array_equal(path_x.scenes("test", [1]).pixels, same.scenes("test", [1]).pixels)


def test_at_length_is_another_size():
    assert make().at_length(16_384).options == PathfinderOptions(**SMALL, size=128)


def test_example_is_32_columns_wide():
    for task in (make(), make(size=128)):
        first, *rows, target = task.example().splitlines()
        assert first == "input, as the image it is"
        assert len(rows) == 16
        assert max(map(len, rows)) <= 32
        assert set("".join(rows)) == set(" ▀▄█")
        assert target in ("target apart", "target connected")


def test_read_gives_what_training_saw(tmp_path):
    task = make()
    np.save(tmp_path / "x.npy", task.scenes("test", range(3)).pixels)
    assert torch.equal(task.read(tmp_path / "x.npy"), task.datasets().test[range(3)][0])


@pytest.mark.unchecked
def test_bad_options():
    with pytest.raises(ArgumentError, match="size must be one of 32, 64, 128, 256, got 48"):
        make(size=48)
    with pytest.raises(UnknownNameError, match="no Pathfinder contrast named 'clipped'"):
        make(contrast="clipped")
    with pytest.raises(ArgumentError, match="test_size must be an integer of at least 1, got 0"):
        make(test_size=0)
    with pytest.raises(ArgumentError, match=r"length must be one of 1024, 4096, .* got 1000"):
        make().at_length(1000)


def write_release(folder, images=20, array=False):
    """Files in the layout of Long Range Arena's release; the first image is empty."""
    level = folder / "pathfinder32" / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    for batch in range(2):
        (level / "imgs" / str(batch)).mkdir(parents=True)
        rows = []
        for k in range(images // 2):
            path = level / "imgs" / str(batch) / f"sample_{k}.png"
            Image.fromarray(np.full((32, 32), 20 * batch + k, np.uint8)).save(path)
            rows.append([f"imgs/{batch}", path.name, str(k), str(k % 2), "1.0", "14"])
        file = level / "metadata" / f"{batch}.npy"
        if array:
            np.save(file, np.array(rows))
        else:
            file.write_text("".join(" ".join(row) + "\n" for row in rows))
    (level / "imgs" / "0" / "sample_0.png").write_bytes(b"")
    return level


@pytest.mark.parametrize("array", [False, True])
def test_released_files(tmp_path, array):
    write_release(tmp_path, array=array)
    splits = make(data=str(tmp_path)).datasets()
    assert [len(part) for part in splits] == [17, 1, 1]
    seen = {}
    for part in splits:
        x, target = part[range(len(part))]
        assert x.shape[1:] == (1024, 1)
        shade = (127.5 * (x[:, 0, 0] + 1)).round().int().tolist()
        seen |= dict(zip(shade, target.tolist(), strict=True))
    assert seen == {20 * b + k: k % 2 for b in range(2) for k in range(10) if (b, k) != (0, 0)}


@pytest.mark.unchecked
def test_released_files_that_do_not_fit(tmp_path):
    with pytest.raises(DataError, match=r"must hold pathfinder32/curv_contour.*Get lra_release"):
        make(data=str(tmp_path)).datasets()
    level = write_release(tmp_path)
    with pytest.raises(DataError, match="must have 64x64 pixels, got 32x32"):
        make(data=str(level.parent), size=64).datasets().train[0]
    (level / "imgs" / "1" / "sample_3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"sample_3\.png: the file must hold an image"):
        make(data=str(tmp_path)).datasets().train[range(17)]
    (level / "metadata" / "0.npy").write_text("imgs/0 sample_1.png 1 2\n")
    with pytest.raises(DataError, match="line 1 must be a folder, a file, a number and the class"):
        make(data=str(tmp_path)).datasets()


def test_images_of_which_a_power_cut_left_a_part_are_made_again(tmp_path):
    def make(numbers):
        return np.full((len(numbers), 3000), 7, np.uint8), np.ones(len(numbers), np.uint8)

    def batch():
        images = KeptImages(4, 3000, make, lambda x: x, tmp_path / "images.bin")
        return images.batch([0, 1, 3])

    whole = batch()
    content = bytearray((tmp_path / "images.bin").read_bytes())
    content[: len(content) // 4 - 1000] = bytes(len(content) // 4 - 1000)  # pages that did not come
    (tmp_path / "images.bin").write_bytes(content)
    assert all(map(torch.equal, batch(), whole))
    assert (tmp_path / "images.bin").read_bytes() != content
