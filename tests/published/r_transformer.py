"""The R-Transformer and the code of its authors."""

from published.case import Case

SOURCE = "DSE-MSU/R-transformer@3103cdf, Block"
NOTE = "its norms divide by the unbiased deviation, and its attention has biases; no options here"
CASES = [Case("r_transformer", SOURCE, "default", "layer", None, note=NOTE)]
