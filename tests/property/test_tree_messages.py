"""The control socket cut anywhere: messages do not depend on how a stream falls into pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.cli.tree import messages as m

text = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), max_size=20)
number = st.integers(0, 2**31)
time_s = st.floats(allow_nan=False)

messages = st.one_of(
    st.builds(
        m.Start,
        argv=st.lists(text, max_size=4).map(tuple),
        env=st.dictionaries(text, text, max_size=4),
        pause_at_s=time_s,
        end_at_s=time_s,
        grace_s=time_s,
        ignored=st.lists(number, max_size=3).map(tuple),
        blocked=st.lists(number, max_size=3).map(tuple),
        home=number,
        lend=st.booleans(),
    ),
    st.builds(m.Good, time_s, time_s),
    st.builds(m.Stop, time_s, number),
    st.builds(m.Failed, number, text),
    st.builds(m.Gone, number, st.booleans()),
    st.just(m.Hold()),
)


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_pieces_make_the_same_messages(sent: list[m.Message], cuts: list[int]) -> None:
    """However the bytes are cut, the same messages come out in the same order, and nothing is left over."""
    stream = b"".join(m.encode(message) for message in sent)
    decoder = m.Decoder()
    received: list[m.Message] = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        received += decoder.feed(stream[begin:end])
    assert received == sent
    assert decoder.feed(b"") == []
