"""The defaults of `linrnn.fit` learn as much as a plain GRU with Adam, in as many steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import linrnn

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]
WORDS, TIME, EPOCHS = 16, 32, 5


def language():
    """Sequences in which a word depends on the last two, and the best loss in nats."""
    draw = torch.Generator().manual_seed(0)
    scores = 2.5 * torch.randn(WORDS, WORDS, WORDS, generator=draw)
    rows = torch.randint(WORDS, (288, TIME + 1), generator=draw)
    for t in range(2, TIME + 1):
        chances = scores[rows[:, t - 2], rows[:, t - 1]].softmax(-1)
        rows[:, t] = torch.multinomial(chances, 1, generator=draw)[:, 0]
    return rows[:, :-1], rows[:, 1:]


def batches(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.rnn = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, WORDS)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def loss_of(answers, y):
    return F.cross_entropy(answers.flatten(0, 1), y.flatten())


@pytest.fixture(scope="module")
def loss_of_a_plain_gru():
    torch.manual_seed(0)
    x, y = language()
    net = trained(x[:256], y[:256])
    with torch.no_grad():
        return loss_of(net(x[256:]), y[256:]).item()


def trained(x, y):
    net = Plain()
    adam = torch.optim.Adam(net.parameters())
    for _ in range(EPOCHS):
        for some_x, some_y in batches(x, y):
            adam.zero_grad()
            loss_of(net(some_x), some_y).backward()
            adam.step()
    return net.eval()


@pytest.mark.parametrize("mixer", ["lru", "mingru", "gru", "mamba"])
def test_defaults_learn_as_much_as_a_plain_gru(mixer, loss_of_a_plain_gru):
    torch.manual_seed(0)
    x, y = language()
    model = linrnn.SequenceModel(
        WORDS, WORDS, mixer=mixer, n_layers=2, encoder="tokens", pool="none"
    )
    result = linrnn.fit(
        model,
        batches(x[:256], y[:256]),
        loss="cross_entropy",
        epochs=EPOCHS,
        seed=0,
        threads=None,
        trainer={"enable_progress_bar": False},
    )
    with torch.no_grad():
        ours = loss_of(result.model(x[256:])[0], y[256:])
    assert ours < loss_of_a_plain_gru
