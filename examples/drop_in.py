"""Train torch.nn.GRU, then the same script with one line changed to linrnn.RNN.

The task: handwritten digits (8x8 pixels, from scikit-learn) read one pixel at a time, each cut off
after a random number of rows. So the sequences have 48 to 64 steps, and are given packed.

    python examples/drop_in.py
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import linrnn

OPTIONS = {"lru": {"r_min": 0.9, "r_max": 0.999}}  # a memory of 10 to 1,000 steps


class Classifier(nn.Module):
    """A recurrent layer and a linear head, as in countless scripts."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        if layer == "torch.nn.GRU":
            self.rnn = nn.GRU(1, 64, num_layers=2)
        else:
            self.rnn = linrnn.RNN(layer, 1, 64, num_layers=2, mixer_options=OPTIONS.get(layer))
        self.head = nn.Linear(64, 10)

    def forward(self, x: PackedSequence) -> torch.Tensor:
        """Scores of the ten digits for each sequence."""
        output, _ = self.rnn(x)
        return self.head(linrnn.last_output(output))  # for a GRU this is h_n[-1]


def batches(images: torch.Tensor, labels: torch.Tensor, size: int, seed: int):
    """Shuffled and cut off: pairs of packed pixels and labels."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    for rows in order.split(size):
        steps = 8 * torch.randint(6, 9, (len(rows),), generator=generator)
        pixels = [images[i, :n, None] for i, n in zip(rows.tolist(), steps.tolist(), strict=True)]
        yield pack_sequence(pixels, enforce_sorted=False), labels[rows]


def train(layer: str, epochs: int, n_images: int | None = None) -> tuple[float, float]:
    """Accuracy on images held out, and seconds of training."""
    data = load_digits()
    images = torch.from_numpy(data.data[:n_images] / 16).float()
    labels = torch.from_numpy(data.target[:n_images])
    cut = len(images) * 4 // 5
    torch.manual_seed(0)
    model = Classifier(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    start = time.perf_counter()
    for epoch in range(epochs):
        for x, target in batches(images[:cut], labels[:cut], 64, seed=epoch):
            loss = nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    seconds = time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        right = [
            (model(x).argmax(-1) == target).float()
            for x, target in batches(images[cut:], labels[cut:], 64, seed=0)
        ]
    return torch.cat(right).mean().item(), seconds


def main() -> None:
    """Train both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", default=["torch.nn.GRU", "lru"])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--images", type=int, default=None, help="default: all 1,797")
    options = parser.parse_args()
    torch.set_num_threads(1)  # layers this small gain nothing from a second one
    for layer in options.layers:
        accuracy, seconds = train(layer, options.epochs, options.images)
        name = layer if layer == "torch.nn.GRU" else f"linrnn.RNN({layer!r}, ...)"
        print(f"{name:<24} accuracy {100 * accuracy:5.1f} %   training {seconds:5.1f} s")


if __name__ == "__main__":
    main()
