"""BLEU of translations, from counts that are added up over all sentences."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

ORDERS = 4
COUNTS = 2 * ORDERS + 2
"""Numbers of a sentence: matches and n-grams of orders 1 to 4, and both lengths."""


def bleu_counts(hypothesis: Sequence[str], reference: Sequence[str]) -> list[float]:
    """Counts of one sentence, which BLEU adds up.

    Args:
        hypothesis: words of the translation.
        reference: words of the one reference.

    Returns:
        n-grams of the hypothesis that are in the reference, each at most as often as there, for n =
        1 to 4; all n-grams of the hypothesis, for n = 1 to 4; words of the hypothesis and of the
        reference.

    Example:
        >>> bleu_counts("a b b".split(), "a b c d".split())
        [2.0, 1.0, 0.0, 0.0, 3.0, 2.0, 1.0, 0.0, 3.0, 4.0]
    """
    matches, totals = [], []
    for order in range(1, ORDERS + 1):
        ours, theirs = _ngrams(hypothesis, order), _ngrams(reference, order)
        matches.append(float((ours & theirs).total()))
        totals.append(float(ours.total()))
    return [*matches, *totals, float(len(hypothesis)), float(len(reference))]


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def bleu_contributions(counts: Tensor) -> Tensor:
    """Numbers whose mean is the BLEU of all sentences, from 0 to 100.

    ``BLEU = 100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)`` with ``p_n`` the matches over the
    n-grams, c the words of the hypotheses and r those of the references, all of them sums over the
    sentences. It is 0 if an order has no match; nothing is smoothed. A sentence contributes BLEU
    plus its influence ``n grad BLEU . (counts_i - mean counts)``, whose mean is 0. So the standard
    error is that of the linearised metric.

    Args:
        counts: (sentences, 10), as `bleu_counts` has them.

    Returns:
        (sentences,), float64.

    Reference:
        Papineni et al. 2002, "BLEU: a method for automatic evaluation of machine translation".
    """
    counts = counts.double()
    sums = counts.sum(0)
    if not sums[:ORDERS].all():
        return torch.zeros(len(counts), dtype=torch.float64)
    with torch.enable_grad():
        variable = sums.detach().clone().requires_grad_()
        logs = variable.log()
        precision = (logs[:ORDERS] - logs[ORDERS : 2 * ORDERS]).mean()
        brevity = (1 - variable[-1] / variable[-2]).clamp(max=0.0)
        bleu = 100 * (precision + brevity).exp()
        (gradient,) = torch.autograd.grad(bleu, variable)
    return bleu.detach() + len(counts) * ((counts - counts.mean(0)) @ gradient)
