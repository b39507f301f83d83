"""What pages of results/ conclude, computed anew from results/runs; run it to write it there."""

from pathlib import Path

from linrnn.reproductions._page.outcome import rewrite

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    rewrite(RESULTS)
