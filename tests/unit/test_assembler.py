"""The assembler: one reply put together from its pieces, whole or cut short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopspec.assembler import Assembler
from loopspec.vocabulary import (
    ArgumentsDelta,
    Call,
    CallEnd,
    CallStart,
    Piece,
    Reason,
    Reasoning,
    ReasoningDelta,
    Terminator,
    Text,
    TextDelta,
    Usage,
)


def assembled(*pieces: Piece) -> Assembler:
    assembler = Assembler()
    for piece in pieces:
        assembler.push(piece)
    return assembler


def call(index: int, id: str, arguments: str = "{}", *, ended: bool = True) -> list[Piece]:
    pieces: list[Piece] = [CallStart(index, id, "probe"), ArgumentsDelta(index, arguments)]
    return [*pieces, CallEnd(index)] if ended else pieces


# --------------------------------------------------------------------------------------------
# The reply


def test_reasoning_text_and_call_come_out_in_the_order_in_which_they_began():
    """Three kinds of block whose pieces follow each other, with usage and reason between."""
    assembler = assembled(
        ReasoningDelta("Let me "), ReasoningDelta("see."), TextDelta("I "), TextDelta("look."),
        *call(0, "c1", '{"value": "c1"}'), Usage(1, 2), Reason("toolUse"), Terminator(),
    )  # fmt: skip
    assert assembler.blocks() == (
        Reasoning("Let me see."), Text("I look."), Call("c1", "probe", '{"value": "c1"}'),
    )  # fmt: skip


def test_a_delta_needs_no_start():
    """Text and reasoning begin with their first delta."""
    assert assembled(TextDelta("a")).blocks() == (Text("a"),)


def test_deltas_of_one_kind_go_on_in_one_block():
    """A block is what one kind of piece says until another kind comes."""
    blocks = assembled(TextDelta("a"), TextDelta("b"), ReasoningDelta("c"), TextDelta("d")).blocks()
    assert blocks == (Text("ab"), Reasoning("c"), Text("d"))


def test_a_call_between_texts_parts_them():
    """What is said after a call is another block than what was said before it."""
    blocks = assembled(TextDelta("a"), *call(0, "c1"), TextDelta("b")).blocks()
    assert blocks == (Text("a"), Call("c1", "probe", "{}"), Text("b"))


def test_pieces_of_several_calls_may_interleave():
    """Calls are put together by their index, whatever the order of their pieces."""
    assembler = assembled(
        CallStart(0, "c1", "probe"), CallStart(1, "c2", "other"), ArgumentsDelta(1, '{"b"'),
        ArgumentsDelta(0, '{"a"'), CallEnd(2), ArgumentsDelta(1, ": 2}"), CallEnd(1),
        ArgumentsDelta(0, ": 1}"), CallEnd(0),
    )  # fmt: skip
    assert assembler.blocks() == (Call("c1", "probe", '{"a": 1}'), Call("c2", "other", '{"b": 2}'))
    assert assembler.unfinished_calls() == frozenset()


def test_a_second_start_at_the_same_index_is_ignored():
    """The first one stands, and a text is not parted by it."""
    blocks = assembled(
        CallStart(0, "c1", "probe"), TextDelta("a"), CallStart(0, "c9", "other"), TextDelta("b"),
        ArgumentsDelta(0, "{}"),
    ).blocks()  # fmt: skip
    assert blocks == (Call("c1", "probe", "{}"), Text("ab"))


def test_arguments_after_the_calls_end_are_ignored():
    """A call that is whole stays as it is."""
    assert assembled(*call(0, "c1"), ArgumentsDelta(0, "x")).blocks() == (Call("c1", "probe", "{}"),)


def test_arguments_for_a_call_that_never_began_are_ignored():
    """No call can be made out of them, and a text is not parted by them."""
    blocks = assembled(TextDelta("a"), ArgumentsDelta(3, "{}"), TextDelta("b")).blocks()
    assert blocks == (Text("ab"),)


def test_the_first_end_of_a_call_counts():
    """A second end changes nothing."""
    assembler = assembled(*call(0, "c1"), CallEnd(0), CallEnd(7))
    assert assembler.blocks() == (Call("c1", "probe", "{}"),)
    assert assembler.unfinished_calls() == frozenset()


def test_empty_deltas_change_nothing():
    """Some providers send them with every frame; they neither make a block nor part one."""
    blocks = assembled(
        TextDelta(""), ReasoningDelta("a"), TextDelta(""), ReasoningDelta("b"), ReasoningDelta(""),
    ).blocks()  # fmt: skip
    assert blocks == (Reasoning("ab"),)


def test_usage_reason_and_terminator_are_no_content():
    """They leave the block that is open open."""
    pieces = (TextDelta("a"), Usage(1, 1), Reason("stop"), TextDelta("b"), Terminator())
    assert assembled(*pieces).blocks() == (Text("ab"),)


def test_no_pieces_no_blocks():
    """A reply may be empty."""
    assert assembled().blocks() == ()
    assert assembled(Reason("stop"), Terminator()).blocks() == ()


def test_a_call_without_id_or_name_gets_an_id_that_names_its_place():
    """The name stays empty: that there is no such tool is for the loop to say."""
    assert assembled(CallStart(0, "", ""), ArgumentsDelta(0, "{}")).blocks() == (Call("call-1", "", "{}"),)


def test_a_repeated_id_is_made_distinct():
    """The first keeps the provider's id; no made id collides with one of the provider's."""
    pieces = [*call(0, "c1"), *call(1, "c1"), *call(2, "c1-2"), *call(3, "")]
    ids = [block.id for block in assembled(*pieces).blocks() if isinstance(block, Call)]
    assert ids[0] == "c1"
    assert ids[2] == "c1-2"
    assert len(set(ids)) == 4


def test_a_call_whose_end_never_came_is_unfinished():
    """It is named by its place among the calls, not among the blocks."""
    assembler = assembled(TextDelta("a"), *call(4, "c1"), *call(2, "c2", ended=False))
    assert assembler.unfinished_calls() == {1}


# --------------------------------------------------------------------------------------------
# A reply cut short


def test_closed_and_open_blocks_are_kept_in_order():
    """Reasoning that was over and the text that was going on were both read."""
    blocks = assembled(ReasoningDelta("Hm. "), TextDelta("The first ")).interrupted_blocks()
    assert blocks == (Reasoning("Hm. "), Text("The first "))


def test_calls_are_dropped_whether_they_were_closed_or_open():
    """Neither was dispatched, and neither must look as if it had been."""
    pieces = [TextDelta("a"), *call(0, "c1"), *call(1, "c2", ended=False)]
    assert assembled(*pieces).interrupted_blocks() == (Text("a"),)


def test_blank_blocks_are_dropped_and_others_are_not_trimmed():
    """White space alone was not read; white space round words belongs to them."""
    pieces = [TextDelta(" \n"), ReasoningDelta("  "), TextDelta(" a \n")]
    assert assembled(*pieces).interrupted_blocks() == (Text(" a \n"),)


def test_nothing_delivered_gives_nothing():
    """Blank text, empty reasoning and a half call make no prefix."""
    pieces = [TextDelta(" "), ReasoningDelta(""), *call(0, "c1", ended=False)]
    assert assembled(*pieces).interrupted_blocks() == ()


# --------------------------------------------------------------------------------------------
# Whatever comes

TEXTS = st.text("ab \n", max_size=4)
PIECES = st.lists(
    st.one_of(
        st.builds(TextDelta, TEXTS),
        st.builds(ReasoningDelta, TEXTS),
        st.builds(CallStart, st.integers(0, 2), st.sampled_from(["", "c1", "c2"]), st.just("probe")),
        st.builds(ArgumentsDelta, st.integers(0, 2), TEXTS),
        st.builds(CallEnd, st.integers(0, 2)),
        st.just(Usage(1, 1)),
        st.just(Reason("stop")),
    ),
    max_size=12,
)


@given(PIECES, st.data())
def test_cutting_pieces_anywhere_gives_the_same_blocks(pieces, data):
    """A reply is what it says, not how it was cut on its way."""
    cut: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, TextDelta | ReasoningDelta | ArgumentsDelta) and piece.text:
            at = data.draw(st.integers(0, len(piece.text)))
            for text in (piece.text[:at], piece.text[at:]):
                index = (piece.index,) if isinstance(piece, ArgumentsDelta) else ()
                cut.append(type(piece)(*index, text))  # type: ignore[arg-type]
        else:
            cut.append(piece)
    whole, parts = assembled(*pieces), assembled(*cut)
    assert parts.blocks() == whole.blocks()
    assert parts.interrupted_blocks() == whole.interrupted_blocks()
    assert parts.unfinished_calls() == whole.unfinished_calls()


@given(PIECES)
def test_interrupted_blocks_are_the_blocks_without_calls_and_blanks(pieces):
    """The same blocks, in the same order, word for word."""
    assembler = assembled(*pieces)
    expected = [b for b in assembler.blocks() if not isinstance(b, Call) and b.text.strip()]
    assert list(assembler.interrupted_blocks()) == expected


@given(PIECES, st.integers(0, 12))
def test_what_was_delivered_is_never_taken_back(pieces, cut):
    """Each kept block of a shorter prefix begins the block at its place in a longer one, or was blank then."""
    shorter = [b.text for b in assembled(*pieces[:cut]).interrupted_blocks()]
    longer = "".join(b.text for b in assembled(*pieces).interrupted_blocks())
    for text in shorter:
        assert text in longer


@given(PIECES)
def test_ids_are_distinct_and_never_empty(pieces):
    """Two results for one id could not be told apart."""
    ids = [block.id for block in assembled(*pieces).blocks() if isinstance(block, Call)]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@given(PIECES, PIECES)
def test_a_copy_goes_its_own_way(pieces, more):
    """What a copy takes the original does not, and a copy that takes the same says the same."""
    original = assembled(*pieces)
    before = original.snapshot()
    copy = original.copy()
    for piece in more:
        copy.push(piece)
    assert original.snapshot() == before
    assert copy.snapshot() == assembled(*pieces, *more).snapshot()
