"""No stream is poisoned: what is not finite is refused, and the stream stays where it was."""

import itertools
import json
import math

import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn import state as states
from linrnn._files.storage import read_tensors, write_tensors
from linrnn.errors import ArgumentError, DataError, NonFiniteError
from linrnn.generation import Sampling, TokenStream, generate, generate_batch
from linrnn.state import leaves
from linrnn.streaming import Session, Sessions
from linrnn.streaming.input import as_input

pytestmark = pytest.mark.unchecked

D = 6
NAMES = [n for n in mixers.names() if "constant_memory" not in mixers.load(n).declared]
FORMS = [(name, form) for name in NAMES for form in mixers.load(name).forms]


def mixer(name, form=None):
    torch.manual_seed(0)
    several = len(mixers.load(name).forms) > 1
    return mixers.build(name, D, {"form": form} if form and several else {}).eval()


def model(**options):
    torch.manual_seed(0)
    sizes = {"d_model": D, "n_layers": 2, "pool": "none", "norm": "layer", **options}
    return SequenceModel(1, 3, **sizes).eval()


def language(**options):
    torch.manual_seed(0)
    sizes = {"d_model": D, "n_layers": 1, "pool": "none", "encoder": "tokens", "norm": "layer"}
    found = SequenceModel(11, 11, **sizes, **options).eval()
    with torch.no_grad():
        found.encoder.weight[7] = 3e38  # finite, but its variance is not
    return found


def bits(state):
    return [h.clone() for h in leaves(state)]


def unchanged(state, before):
    return all(map(torch.equal, leaves(state), before))


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_mixer_stays_finite_or_its_session_stays_where_it_was(name, form):
    session = Session(mixer(name, form))
    assert all(h.isfinite().all() for h in leaves(session.state))
    session.feed(torch.randn(3, D))
    for size, sign, steps in itertools.product((1e10, 1e25, 3e38), (1, -1), (1, 5)):
        before, read = bits(session.state), session.steps
        x = torch.randn(steps, D).clamp(-1, 1) * size * sign
        try:
            y = session.feed(x if steps > 1 else x[0])
        except (NonFiniteError, ArgumentError):  # form='cumsum' has a limit of its own
            assert unchanged(session.state, before)
            assert session.steps == read
        else:
            assert y.isfinite().all()
        assert all(h.isfinite().all() for h in leaves(session.state))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_can_be_asked_for(name):
    free = Session(mixer(name), allow_nonfinite=True)
    free.feed(torch.full((2, D), math.nan))
    assert not all(h.isfinite().all() for h in leaves(free.state))


BAD = (math.nan, math.inf, -math.inf, 1e39, -1e39, 1e300)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "kind",
    [list, lambda x: torch.tensor(x, dtype=torch.float64), lambda x: torch.tensor(x).numpy()],
)
def test_input_that_the_dtype_does_not_hold_is_refused_with_its_place(bad, kind):
    session, pool = Session(model()), Sessions(model())
    pool.join("a")
    for streams, feed in ((session, session.feed), (pool, lambda x: pool.feed({"a": x}))):
        before = bits(session.state if streams is session else pool.state("a"))
        with pytest.raises(ArgumentError, match=r"finite numbers that torch.float32 .*\(1, 0\)"):
            feed(kind([[0.5], [bad]]))
        assert unchanged(session.state if streams is session else pool.state("a"), before)
    for one in (session.model.half(), model(dtype=torch.float64)):
        with pytest.raises(ArgumentError, match=r"must be finite numbers that torch\.float"):
            as_input(
                "here",
                one,
                [70000.0 if one.head.weight.dtype == torch.half else math.nan],
                finite=True,
            )
    assert Session(model(), allow_nonfinite=True).feed(kind([[bad]])).isnan().any()


def test_only_the_numbers_of_the_dtype_are_asked_for():
    wide = model(dtype=torch.float64)
    x, _ = as_input(
        "here",
        wide,
        [
            0.1,
        ][:1],
        finite=True,
    )
    assert x.item() == 0.1  # not by way of float32
    assert as_input("here", wide, [1e39], finite=True)[0].item() == 1e39


@pytest.mark.parametrize("capacity", [None, 5])
def test_of_many_streams_the_one_at_fault_is_named_and_none_has_moved(capacity):
    pool = Sessions(model(), capacity=capacity)
    for name in "abcd":
        pool.join(name)
        pool.feed({name: torch.randn(3, 1)})
    before = {name: bits(pool.state(name)) for name in pool}
    with pytest.raises(NonFiniteError, match=r"stream 'c': .* must be finite"):
        pool.feed({"a": [0.5], "b": [[0.5], [0.5]], "c": [[0.5], [3e38]], "d": [0.1]})
    assert all(unchanged(pool.state(name), before[name]) for name in pool)
    assert {pool.steps(name) for name in pool} == {3}
    assert pool.feed({"a": [0.5], "c": [0.5]})["c"].isfinite().all()


def test_a_long_input_is_read_whole_or_not_at_all():
    session, x = Session(model(), chunk=4), torch.randn(11, 1)
    before = bits(session.state)
    x[9] = 3e38
    with pytest.raises(NonFiniteError):
        session.feed(x)
    assert unchanged(session.state, before)
    assert session.steps == 0


def poisoned(path, allow=True):
    session = Session(model(), allow_nonfinite=allow)
    session.feed([[math.nan]])
    session.save(path)
    return session


def test_a_state_that_is_not_finite_is_neither_written_nor_read_unless_that_is_asked_for(tmp_path):
    path = tmp_path / "s"
    session = poisoned(path)
    again = Session(model(), allow_nonfinite=True)
    again.load(path)
    assert all(
        map(
            torch.equal,
            [h.isnan() for h in leaves(again.state)],
            [h.isnan() for h in leaves(session.state)],
        )
    )
    for stream in (Session(model()), Sessions(model())):
        with pytest.raises(DataError, match=r"s: the state must be finite, .* got part 0 of shape"):
            stream.load(*(() if isinstance(stream, Session) else ("a",)), path)
    Session(model()).save(path)
    good = path.read_bytes()
    careful, pool = Session(model()), Sessions(model())
    careful.state = session.state
    for begin in (lambda s: Session(model(), state=s), lambda s: pool.join("a", s)):
        with pytest.raises(ArgumentError, match=r"state must be finite, .* got part 0 of shape"):
            begin(session.state)
    assert len(pool) == 0
    with pytest.raises(NonFiniteError, match=r"must be finite, got part 0 of shape"):
        careful.save(path)
    assert path.read_bytes() == good


@pytest.mark.parametrize("part", ["0", "1"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_resealed_state_that_is_not_finite_is_refused(tmp_path, part, bad):
    path = tmp_path / "s"
    Session(model()).save(path)
    flat, meta = read_tensors(path, inside=None)
    flat[part].view(-1)[-1] = bad
    write_tensors(path, flat, meta)
    with pytest.raises(DataError, match=rf"the state must be finite, .* got part {part} of shape"):
        Session(model()).load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("steps", value) for value in ("3", True, 1.0, -1, 2**63, None)],
        *[("pending", value) for value in (3, ["1_0"], [True], [-1], None)],
    ],
)
def test_what_was_read_is_said_in_integers(tmp_path, field, value):
    path = tmp_path / "s"
    Session(model()).save(path)
    flat, meta = read_tensors(path, inside=None)
    header = json.loads(meta["state"]) | {field: value}
    write_tensors(path, flat, {"state": json.dumps(header)})
    with pytest.raises(DataError, match="must say what was read"):
        Session(model()).load(path)


def test_helpers_of_states_take_what_is_asked_for(tmp_path):
    state = {"h": torch.tensor([[1.0, -math.inf]])}
    with pytest.raises(NonFiniteError, match=r"got part 0 of shape \(1, 2\) has -inf at \(0, 1\)"):
        states.save(state, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    states.save(state, tmp_path / "s", allow_nonfinite=True)
    with pytest.raises(DataError, match="must be finite"):
        states.load(tmp_path / "s", state)
    assert torch.equal(states.load(tmp_path / "s", state, allow_nonfinite=True)["h"], state["h"])


@pytest.mark.parametrize("tokens", [[7], [1, 7, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
@pytest.mark.parametrize("call", ["surprise", "read"])
def test_a_text_is_read_whole_or_not_at_all(tokens, call):
    stream = TokenStream(language(), chunk=3)
    stream.read([1, 2])
    before, last, steps = bits(stream.state), stream.last, stream.steps
    # the last token is beside the state: what follows reads it
    with pytest.raises(NonFiniteError, match="TokenStream: the model's outputs and state must be"):
        getattr(stream, call)([*tokens, 1])
    assert unchanged(stream.state, before)
    assert (stream.last, stream.steps) == (last, steps)
    assert stream.surprise([1, 2, 3]).isfinite().all()


def test_a_language_model_does_not_write_after_what_is_not_finite():
    with pytest.raises(NonFiniteError):
        next(generate(language(), [7], 1))
    wide = language()
    with torch.no_grad():
        wide.head.weight.fill_(1e38)
        wide.head.bias[3] = math.inf
    for make in (generate, lambda model, prompt, n: generate_batch(model, [prompt], n)):
        with pytest.raises(NonFiniteError, match="must be numbers, got NaN or infinity"):
            next(make(wide, [1, 2], 3))
    with pytest.raises(NonFiniteError):
        TokenStream(wide).surprise([1, 2, 3])
    draw = Sampling().draw
    with pytest.raises(NonFiniteError):
        draw(torch.tensor([0.0, math.inf]), torch.Generator())
    assert draw(torch.tensor([0.0, -math.inf]), torch.Generator()) == 0
