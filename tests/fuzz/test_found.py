"""Faults from fuzzing: each case was another exception, a wrong read, or took seconds."""

import csv
import io
import wave
import zipfile

import numpy as np
import pytest
import torch

from linrnn import mixers, tokenizers
from linrnn import state as states
from linrnn.errors import ArgumentError, DataError, DeviceError, DTypeError, LinrnnError, ShapeError
from linrnn.nn.conv import CausalConv
from linrnn.ops import fft_scan, gated_scan, linear_scan, log_linear_scan
from linrnn.tasks._kinds.images import read_idx
from linrnn.tasks._kinds.pathfinder import released
from linrnn.tasks._reading.audio import read_wav
from linrnn.tasks._reading.series import Layout, read_series
from linrnn.tasks._reading.table import read_table
from linrnn.tasks.listops import evaluate
from linrnn.tasks.scifar import read_npz
from linrnn.tasks.table import Table
from linrnn.testing._mixer_runs import quiet
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import COLUMNS, read_metrics

pytestmark = [pytest.mark.unchecked, pytest.mark.filterwarnings("ignore:ComplexHalf")]


def refused(error, match, call, *args, **options):
    with pytest.raises(error, match=match):
        call(*args, **options)


def npy(header, version=1, body=b"\0" * 64):
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + body


def test_quotation_mark_that_is_not_closed(tmp_path):
    (tmp_path / "x.csv").write_text('"1",",0\n3,4,1\n')
    match = "quotation mark too many or too few"
    refused(DataError, match, read_series, tmp_path / "x.csv", Layout(1, False))


@pytest.fixture(params=[131_072, 2**31 - 1])
def limit(request):
    """The limit of the module csv, and values that some libraries set."""
    before = csv.field_size_limit(request.param)
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("read", [read_table, lambda p, n: read_series(p, Layout(1, False))])
def test_cell_longer_than_any_number(tmp_path, read):
    (tmp_path / "x.csv").write_text("1,2,3\n1," + "1" * 200_000 + ",3\n")
    refused(
        DataError,
        "x.csv: .*(field larger than field limit|at most 131,072 characters).* in line 2",
        read,
        tmp_path / "x.csv",
        3,
    )


def test_time_stamps_that_are_neither_true_nor_false(tmp_path):
    (tmp_path / "x.ts").write_text("@timestamps\n@classlabel true a\n@data\n1,2:a\n")
    assert len(read_series(tmp_path / "x.ts", Layout(1, False))["train"].x) == 1


def test_numbers_beyond_float32_are_refused_without_a_warning(tmp_path):
    (tmp_path / "x.csv").write_text("1,1e39,a\n")
    refused(DataError, "values must be finite", read_series, tmp_path / "x.csv", Layout(1, False))


@pytest.mark.parametrize("shape", [(0, 0, 0), (2, 3, 0)])
def test_sequences_without_a_channel(tmp_path, shape):
    np.savez(tmp_path / "x.npz", x=np.zeros(shape), y=np.zeros(len(np.zeros(shape))))
    refused(DataError, "x.npz: ", read_series, tmp_path / "x.npz", Layout(1, False))


def test_too_few_rows_name_the_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,a\n2,b\n")
    refused(
        DataError,
        f"{path}: there must be at least 10 sequences, got 2",
        Table,
        Table.Options(data=str(path)),
    )


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (True, True)}\n",
        b"{'descr': '<U0', 'fortran_order': False, 'shape': (1099511627776,)}\n",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775808, 0)}\n",
        b"{'descr': '<f8,<f8'" + b" " * 9000 + b"\n",
    ],
)
def test_headers_of_arrays(tmp_path, header):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy(header, 2))
        archive.writestr("y.npy", npy(header, 2))
    (tmp_path / "x.npy").write_bytes(npy(header, 2))
    for read in (
        lambda: read_table(tmp_path / "x.npy", 3),
        lambda: read_series(tmp_path / "x.npz", Layout(1, False)),
    ):
        with pytest.raises(DataError) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_member_of_an_archive_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x_train", b"1")
    for read in (
        lambda: read_npz(tmp_path / "x.npz", "train"),
        lambda: read_series(tmp_path / "x.npz", Layout(1, False)),
        lambda: read_table(tmp_path / "x.npz", 3),
    ):
        with pytest.raises(DataError, match="'x_train', which is no array"):
            read()


def test_clip_whose_parts_end_beyond_the_file():
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setparams((1, 2, 8000, 0, "NONE", ""))
    data = file.getvalue().replace(b"fmt ", b"fmz ")[:-8] + b"dat\0\xff\xff\xff\x7f"
    refused(DataError, "x must be a complete .wav", read_wav, "x", data, 8000)


def test_images_without_a_byte(tmp_path):
    sizes = b"\xff\xff\xff\xff" * 2 + bytes(4)
    (tmp_path / "x").write_bytes(b"\0\0\x08\x03" + sizes)
    refused(DataError, "must hold .* bytes, got 0", read_idx, tmp_path / "x", 3)


def test_list_of_images_of_three_axes(tmp_path):
    level = tmp_path / "pathfinder8" / "curv_contour_length_14" / "metadata"
    level.mkdir(parents=True)
    np.save(level / "0.npy", np.zeros((1, 1, 0)))
    refused(DataError, "an array of 3 axes", released, tmp_path, 8)


def test_list_of_images_with_a_name_no_file_can_have(tmp_path):
    level = tmp_path / "pathfinder8" / "curv_contour_length_14" / "metadata"
    level.mkdir(parents=True)
    (level / "0.npy").write_text(f"imgs {'1' * 5000} 0 1\n")
    refused(DataError, "at least 10 images, got 0", released, tmp_path, 8)


def test_half_a_character_in_a_tokenizer():
    text = '{"format": 1, "kind": "char", "characters": "\\ud800"}'
    refused(DataError, "got half of a pair", tokenizers.from_json, text)


def test_digit_of_another_script():
    refused(DataError, "must be complete, got '²'", evaluate, "[MAX ² 1 ]")


@pytest.mark.parametrize("header", ["[" * 5000, '{"format": Infinity}'])
def test_header_of_a_state_that_is_no_header(tmp_path, header):
    from safetensors.torch import save_file

    save_file({"0": torch.zeros(1)}, tmp_path / "x", {"state": header})
    refused(DataError, "must be a state that linrnn saved", states.read_header, tmp_path / "x")


@pytest.mark.parametrize("files", ["[null]", "1.5", '{"a": null}'])
def test_files_of_a_run_that_are_no_table(tmp_path, files):
    (tmp_path / "config.json").write_text(f'{{"format": 1, "files": {files}}}')
    refused(LinrnnError, "must be names with checksums", RunFolder(tmp_path).check_kept)


def test_metrics_with_a_cell_longer_than_any_number(tmp_path):
    (tmp_path / "metrics.csv").write_text(f"{','.join(COLUMNS)}\n{'1' * 200_000}\n")
    words = "must hold the numbers epoch, step,.* in each row"
    refused(LinrnnError, words, read_metrics, RunFolder(tmp_path))


ONES = torch.ones(1, 3, 4)


@pytest.mark.parametrize("bad", [None, [1.0], "x", np.ones(4), ONES.to_sparse()])
def test_what_is_no_dense_tensor(bad):
    refused(DTypeError, "b must be a (dense )?tensor", linear_scan, torch.ones(4), bad)
    refused(DTypeError, "a must be a (dense )?tensor", linear_scan, bad, ONES)
    refused(DTypeError, "x must be a (dense )?tensor", gated_scan, bad)


def test_state_without_axes():
    refused(
        ShapeError,
        "initial_state must have shape",
        linear_scan,
        torch.ones(4),
        ONES,
        torch.ones(()),
    )


def test_offsets_on_another_device():
    offsets = torch.tensor([0, 3]).to("meta")
    for op in (linear_scan, log_linear_scan):
        refused(
            DeviceError, "cu_seqlens must be on cpu", op, torch.ones(4), ONES, cu_seqlens=offsets
        )


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64])
def test_offsets_that_are_no_integers(kind):
    offsets = torch.tensor([0, 1]).to(kind)
    refused(ShapeError, "vector of integers", linear_scan, torch.ones(4), ONES, cu_seqlens=offsets)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_truth_values(value):
    refused(
        ArgumentError,
        "reverse must be True or False",
        linear_scan,
        torch.ones(4),
        ONES,
        reverse=value,
    )


@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.complex32])
def test_dtypes_without_a_kernel(kind):
    refused(DTypeError, "b must be floating point", linear_scan, torch.ones(4), ONES.to(kind))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 0, 4)])
def test_fft_of_nothing(shape):
    h, final = fft_scan(torch.ones(shape[2]), torch.ones(shape))
    assert h.shape == shape
    assert final.shape == (shape[0], shape[2])


@pytest.mark.parametrize("name", mixers.names())
def test_batch_of_no_rows(name):
    layer = mixers.build(name, 4)
    y, state = layer(torch.ones(0, 5, 4))
    assert y.shape == (0, 5, 4)
    y, _ = layer.step(torch.ones(0, 4), state)
    assert y.shape == (0, 4)


@pytest.mark.parametrize("name", mixers.names())
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (2, 3, 1), (3,), (2, 0)])
def test_reset_of_another_shape_reaches_no_kernel(name, shape):
    layer = mixers.build(name, 4)
    reset = torch.zeros(shape, dtype=torch.bool)
    refused(ShapeError, "reset must have shape", layer, torch.ones(2, 3, 4), reset=reset)


def test_convolution_refuses_what_does_not_fit():
    conv = CausalConv(4, 3)
    past = conv.init_state(2)
    refused(ShapeError, "x must have shape", conv, torch.ones(2, 3, 5), past)
    refused(ShapeError, "past must have shape", conv, torch.ones(2, 3, 4), past[:1])


@pytest.mark.parametrize(
    "options", [{"r_min": "x"}, {"d_state": None, "gamma": 1}, {"form": ["scan"]}]
)
def test_options_of_another_type(options):
    refused(ArgumentError, "mixer 'lru': .* must be", mixers.build, "lru", 4, options)


@pytest.mark.parametrize("size", [-1, 1.5, "2", None, True])
def test_number_of_rows(size):
    refused(ArgumentError, "batch_size must be an integer", mixers.build("lru", 4).init_state, size)


def test_dtype_that_is_an_array():
    start = mixers.build("lru", 4).init_state
    refused(DTypeError, "dtype must be a real floating-point one", start, 2, dtype=np.zeros(2))


@pytest.mark.parametrize("name", mixers.names())
def test_input_of_another_precision_than_the_weights(name):
    layer, x = quiet(mixers.build(name, 8)), torch.randn(2, 3, 8, dtype=torch.float64)
    expected, state = layer(x.float())
    y, _ = layer(x)
    torch.testing.assert_close(y, expected.double(), atol=1e-4, rtol=1e-4)
    assert layer.step(x[:, 0].half(), state)[0].dtype == torch.float16
