"""Tests of how the memory of a call is measured."""

from pathlib import Path

import pytest
import torch

from linrnn.compare.usage import added_peak

MEGABYTE = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak cannot be reset")
@pytest.mark.parametrize("size", [1 << 16, 64 * MEGABYTE], ids=["small blocks", "one block"])
def test_what_was_freed_before_hides_nothing(size):
    held = [torch.ones(size, dtype=torch.uint8) for _ in range(64 * MEGABYTE // size)]
    pinned = torch.ones(1000)  # behind what is freed
    del held
    found = added_peak(lambda: torch.ones(16 * MEGABYTE, dtype=torch.uint8))
    # pages of others may be given back in the meantime
    assert 15 * MEGABYTE <= found < 20 * MEGABYTE
    assert pinned.sum() == 1000


def test_what_is_freed_within_a_call_counts():
    def call():
        torch.ones(16 * MEGABYTE, dtype=torch.uint8).sum()

    assert added_peak(call) >= 16 * MEGABYTE
