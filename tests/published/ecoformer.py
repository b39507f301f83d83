"""EcoFormer and the code of its authors."""

from published.case import Case

SOURCE = "ziplab/EcoFormer@a277f9e, pvt_v2"
NOTE = (
    "every step sees all others, and weighs its own value alone by bits + 1; this layer is causal"
)
CASES = [Case("ecoformer", SOURCE, "default", "layer", None, note=NOTE)]
