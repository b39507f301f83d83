"""TransNormer and the code of its authors, without the learned angles of its language models."""

from functools import partial

import torch

from linrnn.mixers import TransNormer
from published.case import Case, fill, golden_cases


def layer(**options):
    # theirs adds 1e-8 to the root that it divides by, and has no gain
    ours = TransNormer(6, n_heads=2, block_size=4, norm_eps=1e-16, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    if ours.gain is not None:
        torch.nn.init.ones_(ours.gain)
    return ours


LAYERS = {
    f"transnormer_{variant.lower()}, {kind} layers, decoder_use_urpe=False": partial(
        layer, variant=variant, attention=attention
    )
    for variant in ("T1", "T2")
    for kind, attention in (("late", "linear"), ("early", "block"))
}
SOURCE = "OpenNLPLab/fairseq-evo@38fa81f, NormLinearAttention and NormLocalAttention"
TURNS = "queries and keys turned by learned angles are no option here"
CASES = [
    *golden_cases("transnormer", SOURCE, LAYERS, 1e-6),
    Case("transnormer", SOURCE, "transnormer_t1 and t2, default", "layer", None, note=TURNS),
]
