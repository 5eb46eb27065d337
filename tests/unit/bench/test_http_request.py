"""Reading requests: the same as h11 reads, however the bytes are cut."""

from __future__ import annotations

import h11
import pytest

from loopspec.bench.http_request import BadRequestError, Request, RequestReader

GOOD: dict[str, bytes] = {
    "no body": b"GET /1/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "length": b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "empty body": b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "chunks": (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nhel\r\nA;x=y\r\nlo\r\nworld!\r\n0\r\n\r\n"
    ),
    "chunks with trailers": (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n"
    ),
    "blanks round values": b"POST /a?b=c HTTP/1.1\r\nhost:x\r\nX-A: \t b c \r\ncontent-length:2\r\n\r\n{}",
    "close": b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive, Close\r\nContent-Length: 2\r\n\r\n{}",
    "empty line before": b"\r\nPOST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "line ends in the body": b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n\r\n\r\n\r\n\r\n",
}

BAD: dict[str, tuple[bytes, int]] = {
    "no request line": (b"what is this\r\n\r\n", 400),
    "too few words": (b"GET /\r\n\r\n", 400),
    "another protocol": (b"GET / SPDY/3\r\n\r\n", 400),
    "an old version": (b"GET / HTTP/1.0\r\n\r\n", 505),
    "a header without a colon": (b"GET / HTTP/1.1\r\nhost\r\n\r\n", 400),
    "a header without a name": (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\nhost: x\r\n y\r\n\r\n", 400),
    "a length that is no number": (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
    "another coding": (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
    "a chunk without a size": (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", 400),
    "a chunk of less than nothing": (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", 400),
    "a head without an end": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
    "a chunk line without an end": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 70_000, 431,
    ),
}  # fmt: skip


def by_h11(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """What h11 reads from the same bytes."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data.removeprefix(b"\r\n"))  # which h11 does not skip
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return request.method, request.target, sorted(request.headers), body


@pytest.mark.parametrize("name", GOOD)
def test_it_reads_what_h11_reads(name: str) -> None:
    """Method, target, headers and body, from one piece of bytes."""
    reader = RequestReader()
    reader.feed(GOOD[name])
    request = reader.next()
    assert request is not None
    method, target, headers, body = by_h11(GOOD[name])
    assert (request.method.encode(), request.target.encode(), request.body) == (method, target, body)
    names = {key: value for key, value in headers if key != b"transfer-encoding"}
    assert {key: value for key, value in request.headers.items() if key in names} == names
    assert request.last == (name == "close")
    assert reader.next() is None


@pytest.mark.parametrize("name", GOOD)
def test_bytes_may_be_cut_anywhere(name: str) -> None:
    """Each cut in two, and byte by byte, gives the same request, and not before its end."""
    data = GOOD[name]
    whole = RequestReader()
    whole.feed(data)
    expected = whole.next()
    for size in (*range(1, len(data)), 1):
        reader = RequestReader()
        got: list[Request] = []
        parts = [data[:size], data[size:]] if size > 1 else [bytes([byte]) for byte in data]
        for part in parts:
            assert not got
            reader.feed(part)
            if (request := reader.next()) is not None:
                got.append(request)
        assert got == [expected]


def test_requests_in_one_piece_come_one_by_one() -> None:
    """What belongs to the next request stays for it."""
    reader = RequestReader()
    reader.feed(b"".join(GOOD.values()))
    bodies = []
    while (request := reader.next()) is not None:
        bodies.append(request.body)
    assert bodies == [by_h11(data)[3] for data in GOOD.values()]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request_is_refused(name: str) -> None:
    """With the status that says why."""
    data, status = BAD[name]
    reader = RequestReader()
    reader.feed(data)
    with pytest.raises(BadRequestError) as caught:
        reader.next()
    assert caught.value.status == status


def test_a_client_that_waits_to_be_told_to_go_on_is_known() -> None:
    """From the head until the body is there."""
    reader = RequestReader()
    reader.feed(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.expects_continue
    reader.feed(b"{}")
    assert reader.next() is not None
    assert not reader.expects_continue
