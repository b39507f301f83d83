"""Numbers of sequences as resets and as offsets give what each sequence gives alone."""

import pytest
import torch

from linrnn.errors import DTypeError, ShapeError
from linrnn.ops import linear_scan, seq_idx_to_cu_seqlens, seq_idx_to_reset

SEQ_IDX = torch.tensor([[0, 0, 1, 1, 1, 2], [5, 4, 4, 4, -1, -1]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_resets_and_offsets_keep_sequences_apart(dtype):
    x = torch.rand(2, 6, 3, dtype=torch.float64)
    a = torch.tensor([0.5, 0.9, -0.3], dtype=torch.float64)
    lengths = [2, 3, 1, 1, 3, 2]
    alone = [linear_scan(a, part[None]) for part in x.flatten(0, 1).split(lengths)]
    expected = torch.cat([h[0] for h, _ in alone])
    seq_idx = SEQ_IDX.to(dtype)
    h, _ = linear_scan(a, x, reset=seq_idx_to_reset(seq_idx))
    torch.testing.assert_close(h.flatten(0, 1), expected)
    cu_seqlens = seq_idx_to_cu_seqlens(seq_idx)
    assert cu_seqlens.diff().tolist() == lengths
    h, final = linear_scan(a, x.flatten(0, 1)[None], cu_seqlens=cu_seqlens)
    torch.testing.assert_close(h[0], expected)
    torch.testing.assert_close(final, torch.cat([last for _, last in alone]))


def test_the_first_step_goes_on_from_the_initial_state():
    assert not seq_idx_to_reset(SEQ_IDX)[:, 0].any()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (2, 1)])
def test_no_rows_and_no_steps(shape):
    seq_idx = torch.zeros(shape, dtype=torch.long)
    assert seq_idx_to_reset(seq_idx).shape == shape
    expected = [0, 1, 2] if shape == (2, 1) else [i * 3 for i in range(shape[0] + 1)]
    assert seq_idx_to_cu_seqlens(seq_idx).tolist() == (expected if seq_idx.numel() else [0])


@pytest.mark.unchecked
@pytest.mark.parametrize("function", [seq_idx_to_reset, seq_idx_to_cu_seqlens])
def test_errors_name_rule_and_value(function):
    with pytest.raises(DTypeError, match=r"seq_idx must be integers, got torch.float32. Use"):
        function(SEQ_IDX.float())
    with pytest.raises(ShapeError, match=r"seq_idx must have shape \(batch, time\), got \(6,\)"):
        function(SEQ_IDX[0])
