"""Programs as people write them around nn.GRU and nn.LSTM, with one line changed."""

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linrnn

INSTEAD = ["gru", "lstm", "mingru", "minlstm", "lru", "mamba", "s5", "rg_lru"]
each_layer = pytest.mark.parametrize("name", INSTEAD)


class LanguageModel(nn.Module):
    """The recurrent model of PyTorch's example ``word_language_model``, in outline."""

    def __init__(self, name, vocabulary, width, n_layers):
        super().__init__()
        self.n_layers, self.width = n_layers, width
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = linrnn.RNN(name, width, width, n_layers, dropout=0.1)  # the line
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return F.log_softmax(self.decoder(output), -1), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        zeros = weight.new_zeros(self.n_layers, batch, self.width)
        if isinstance(self.rnn.init_state(batch), tuple):  # rnn_type == "LSTM" there
            return zeros, weight.new_zeros(self.n_layers, batch, self.width)
        return zeros


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


@each_layer
def test_a_language_model_learns_a_text(name):
    torch.manual_seed(0)
    text = torch.arange(400).remainder(7).view(4, 100).t()  # (time, batch)
    model = LanguageModel(name, 7, 16, 2)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(16):
        hidden = model.init_hidden(4)
        for begin in range(0, 80, 20):
            hidden = repackage_hidden(hidden)
            found, hidden = model(text[begin : begin + 20], hidden)
            loss = F.nll_loss(found.flatten(0, 1), text[begin + 1 : begin + 21].flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimiser.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


class Classifier(lightning.LightningModule):
    """A LightningModule around a packed batch, the last hidden state and a linear map."""

    def __init__(self, name):
        super().__init__()
        self.rnn = linrnn.RNN(name, 2, 12, batch_first=True, bidirectional=True)  # the line
        self.head = nn.Linear(24, 2)

    def training_step(self, batch, _):
        x, lengths, label = batch
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        _, hidden = self.rnn(packed)
        h = hidden[0] if isinstance(hidden, tuple) else hidden
        loss = F.cross_entropy(self.head(torch.cat([h[-2], h[-1]], -1)), label)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.03)


@each_layer
def test_a_lightning_module_learns_to_classify(name, tmp_path):
    torch.manual_seed(0)
    x, lengths = torch.randn(64, 9, 2), torch.randint(3, 10, (64,))
    label = torch.arange(64) % 2
    x[..., 0] += (2 * label - 1)[:, None]
    model = Classifier(name)
    model.losses = []
    data = torch.utils.data.DataLoader([*zip(x, lengths, label, strict=True)], batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        default_root_dir=tmp_path,
        **quiet,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    assert sum(model.losses[-4:]) < 0.6 * sum(model.losses[:4])


class Translator(nn.Module):
    """Encoder, additive attention over what it read, and a decoder that goes on from its state."""

    def __init__(self, name, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = linrnn.RNN(name, width, width, batch_first=True)  # the line
        self.decoder = linrnn.RNN(name, 2 * width, width, batch_first=True)  # and its like
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.score, self.out = nn.Linear(width, 1), nn.Linear(width, vocabulary)

    def forward(self, source, target):
        read, hidden = self.encoder(self.embedding(source))
        found = []
        for token in target.unbind(1):
            top = (hidden[0] if isinstance(hidden, tuple) else hidden)[-1]
            scores = self.score(torch.tanh(self.query(top)[:, None] + self.key(read)))
            context = (scores.softmax(1) * read).sum(1)
            given = torch.cat([self.embedding(token), context], -1)
            output, hidden = self.decoder(given[:, None], hidden)
            found.append(self.out(output[:, 0]))
        return torch.stack(found, 1)


@each_layer
def test_a_translator_with_attention_learns_to_copy(name):
    torch.manual_seed(0)
    model, source = Translator(name, 6, 16), torch.randint(1, 6, (16, 4))
    target = torch.cat([torch.zeros(16, 1).long(), source[:, :-1]], 1)
    optimiser, losses = torch.optim.Adam(model.parameters(), 0.02), []
    for _ in range(12):
        loss = F.cross_entropy(model(source, target).flatten(0, 1), source.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
