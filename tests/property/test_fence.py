"""The fence rule over any history of writes: a resource never accepts an older owner after a newer one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from leasekeeper.fencing import (
    EPOCH_MAX,
    REVISION_MAX,
    TOKEN_MAX,
    Admitted,
    admits,
    format_token,
    make_token,
    parse_token,
    split_token,
)

epochs = st.integers(0, EPOCH_MAX)
revisions = st.integers(1, REVISION_MAX)
edges = st.sampled_from([1, 2, 2**44 - 1, 2**44 + 1, 2**53 - 1, 2**53, 2**53 + 1, TOKEN_MAX - 1, TOKEN_MAX])
tokens = st.builds(make_token, epochs, revisions) | edges.filter(lambda token: bool(split_token(token)[1]))
# Few claims and few tokens, so that owners meet; after a restore one token can belong to two claims.
writes = st.tuples(st.integers(1, 6) | tokens, st.sampled_from("abc"))


@given(st.lists(writes, max_size=30))
@example([(5, "a"), (5, "b"), (5, "a")])
@example([(2**53, "a"), (2**53 + 1, "b"), (2**53, "a")])
@example([(TOKEN_MAX, "a"), (TOKEN_MAX, "b"), (1, "a")])
def test_no_older_owner_is_accepted_after_a_newer_one(history: list[tuple[int, str]]) -> None:
    """G4: accepted tokens never fall, and one token is only ever accepted from the first claim that used it."""
    highest: Admitted | None = None
    accepted: list[tuple[int, str]] = []
    for token, claim in history:
        if admits(highest, token, claim):
            highest = Admitted(token, claim)
            accepted.append((token, claim))
    numbers = [token for token, _ in accepted]
    assert numbers == sorted(numbers)
    assert len(dict(accepted)) == len(set(accepted))


@given(st.lists(writes, max_size=30))
def test_a_newer_owner_is_never_kept_out(history: list[tuple[int, str]]) -> None:
    """The rule refuses nobody it need not: a token above all accepted ones always passes."""
    highest: Admitted | None = None
    for token, claim in history:
        passes = admits(highest, token, claim)
        if highest is None or token > highest.token or (token, claim) == (highest.token, highest.claim):
            assert passes
        if passes:
            highest = Admitted(token, claim)


@given(epochs, revisions)
def test_a_token_gives_back_its_parts(epoch: int, revision: int) -> None:
    """Making and splitting are inverse, and every token made can be printed and parsed."""
    token = make_token(epoch, revision)
    assert split_token(token) == (epoch, revision)
    assert parse_token(format_token(token)) == parse_token(str(token)) == token


@given(tokens, tokens)
def test_text_compares_as_numbers_do(a: int, b: int) -> None:
    """A store that only compares strings applies the same rule."""
    assert (format_token(a) < format_token(b)) == (a < b)


@given(st.tuples(epochs, revisions), st.tuples(epochs, revisions))
def test_a_later_epoch_is_above_every_revision(a: tuple[int, int], b: tuple[int, int]) -> None:
    """G2: tokens are ordered by epoch first, then by create revision."""
    assert (make_token(*a) < make_token(*b)) == (a < b)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    """Whatever a header carries: a token in range, or one kind of error."""
    from leasekeeper.errors import ConfigError

    try:
        token = parse_token(text)
    except ConfigError:
        return
    assert 1 <= token <= TOKEN_MAX
    assert int(text) == token
