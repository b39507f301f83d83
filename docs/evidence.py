"""Conclusions of the pages of results/, computed from results/runs; run it to write them there."""

from pathlib import Path

from linrnn.reproductions._page.outcome import rewrite

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    rewrite(RESULTS)
