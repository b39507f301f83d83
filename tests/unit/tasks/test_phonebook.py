from math import log2

import numpy as np
import pytest
import torch

from linrnn import recipes, train
from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.phonebook import ASK, COLON, END, FIRST, LAST, Phonebook, PhonebookOptions


@pytest.fixture(scope="module")
def batch():
    return Phonebook().datasets().train[range(1000)]


def read_book(task, row):
    """The book, name to number, and the questions of a sequence of tokens with its answer."""
    line = task.options.digits + 4
    book = row[: task.options.lines * line].reshape(-1, line)
    questions = row[task.options.lines * line :].reshape(-1, line + 1)
    for part in (book, questions[:, 1:]):
        assert (part[:, 2] == COLON).all()
        assert (part[:, -1] == END).all()
    numbers = {tuple(r[:2]): tuple(r[3:-1]) for r in book.tolist()}
    return numbers, questions.tolist()


def whole(x, target):
    """Sequences with the last answer digit and the end of the last line."""
    end = torch.full((len(x), 1), END)
    return torch.cat([x, target[:, -1:], end], 1).numpy()


def answers(task, digits):
    y = torch.zeros(len(digits), task.sequence_length, task.d_output)
    chosen = torch.as_tensor(np.array(digits))
    y[:, -task.options.digits :] = torch.nn.functional.one_hot(chosen, task.d_output).float()
    return y


def test_every_question_is_about_a_line_of_the_book_and_they_differ(batch):
    task = Phonebook()
    for row in whole(*batch):
        numbers, questions = read_book(task, row)
        assert len(numbers) == 10  # names differ
        assert len({tuple(q[1:3]) for q in questions}) == 3
        for mark, first, last, _, *rest in questions:
            assert mark == ASK
            assert tuple(rest[:-1]) == numbers[first, last]


def test_names_and_numbers_are_of_their_kinds(batch):
    book = batch[0][:, :140].reshape(-1, 14)
    assert book[:, 0].unique().tolist() == list(range(FIRST, LAST))
    assert book[:, 1].unique().tolist() == list(range(LAST, Phonebook.d_input))
    assert book[:, 3].unique().tolist() == [6, 7, 8, 9]
    assert book[:, 4:13].unique().tolist() == list(range(10))
    counts = np.bincount(book[:, 4:13].flatten()) / book[:, 4:13].numel()
    assert np.abs(counts - 0.1).max() < 0.01


def test_a_dictionary_solves_it_and_a_line_at_random_is_right_once_in_ten(batch):
    task = Phonebook()
    books = [read_book(task, row) for row in whole(*batch)]
    right = [numbers[q[-1][1], q[-1][2]] for numbers, q in books]
    assert task.scores(answers(task, right), batch[1]).min() == 1
    any_line = [next(iter(numbers.values())) for numbers, _ in books]
    assert task.scores(answers(task, any_line), batch[1]).mean() == pytest.approx(0.1, abs=0.03)


def test_one_wrong_digit_is_no_exact_match(batch):
    task, target = Phonebook(), batch[1][:10]
    digits = target[:, -10:].clone()
    for place in range(10):
        digits[place, place] = (digits[place, place] + 1) % 10
    assert task.scores(answers(task, digits.tolist()), target).tolist() == [0.0] * 10


def test_targets_are_the_answers(batch):
    x, target = batch
    assert ((target != IGNORE).sum(1) == 30).all()
    scored = target[:, :-1] != IGNORE
    assert torch.equal(target[:, :-1][scored], x[:, 1:][scored])
    alone = Phonebook(PhonebookOptions(train_shots=False)).datasets().train[range(1000)]
    assert torch.equal(alone[0], x)
    assert torch.equal(alone[1][:, -10:], target[:, -10:])
    assert (alone[1][:, :-10] == IGNORE).all()


def test_chance_and_bits_are_those_of_the_numbers():
    task = Phonebook(PhonebookOptions(lines=5, digits=1))
    assert task.chance == 0.25
    _, target = task.datasets().train[range(2000)]
    constant = task.scores(answers(task, [[7]] * 2000), target).mean()
    assert constant == pytest.approx(0.25, abs=0.03)
    assert task.bits == 10
    assert Phonebook().bits / 10 == pytest.approx(2 + 9 * log2(10))
    assert Phonebook().bits / 10 == pytest.approx(31.9, abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": 2}, r"lines must be from shots \+ 1 = 3 to 3600, the number of names, got 2"),
        ({"lines": 3601}, "got 3601"),
        ({"shots": -1}, "shots must be at least 0, got -1"),
        ({"digits": 0}, "digits must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match="Phonebook: .*" + message):
        Phonebook(PhonebookOptions(**options))


@pytest.mark.slow
def test_a_small_model_looks_numbers_up(tmp_path):
    config = recipes.load("phonebook").config
    result = train.run(config, out=tmp_path / "run")
    assert result.test_metric > 2 / config.task_options.lines
