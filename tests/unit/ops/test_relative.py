"""Attention by keys and distances: a loop over queries, gradients, and what is not finite."""

import torch
from torch.autograd import gradcheck, gradgradcheck

from linrnn.ops.attention import relative_read

F64 = torch.float64
AGE = torch.arange(9)[4:, None] - torch.arange(9)
VISIBLE = ((AGE >= 0) & (AGE < 7))[None]


def arguments(**like):
    torch.manual_seed(0)
    sizes = (2, 5, 3, 8), (2, 9, 3, 4), (2, 9, 3, 4), (3, 7, 4)
    return [torch.randn(size, dtype=F64, **like) for size in sizes]


def read(q, k, v, far):
    return relative_read(q, k, v, VISIBLE, far)


def test_equals_a_loop_over_queries():
    q, k, v, far = arguments()
    y = read(q, k, v, far)
    for b, t, h in ((0, 0, 0), (1, 4, 2), (0, 3, 1)):
        seen = range(max(0, t - 2), t + 5)
        near, p = q[b, t, h].chunk(2)
        scores = torch.stack([near @ k[b, s, h] + p @ far[h, t + 4 - s] for s in seen]) / 2
        expected = scores.softmax(0) @ v[b, list(seen), h]
        torch.testing.assert_close(y[b, t, h], expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_its_results_to_second_order():
    given = arguments(requires_grad=True)
    assert gradcheck(read, given)
    assert gradgradcheck(read, given)


def test_a_query_that_is_not_finite_spoils_its_row_alone():
    q, k, v, far = arguments(requires_grad=True)
    expected = read(q, k, v, far)
    bad = q.detach().clone()
    bad[:, 1] = float("inf")
    y, others = read(bad, k, v, far), [0, 2, 3, 4]
    torch.testing.assert_close(y[:, others], expected[:, others])
    assert y[:, 1].isnan().all()
