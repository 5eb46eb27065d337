"""Reading HTTP/1.1 requests from bytes, for the loopback server.

A reader of our own, because a general one costs more than all else that the server does for a reply,
and because a server that writes broken answers on purpose could not tell it what it wrote. It does no
input or output: :meth:`RequestReader.feed` takes bytes as they come, :meth:`RequestReader.next` gives
whole requests. Requests that follow in the same bytes stay until they are asked for.

It reads what clients of model APIs write: a body with a length or in chunks, or none. It is no
general server's reader: nothing but the loopback interface ever reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD = 1 << 16
"""Bytes of a head, or of a line of a chunked body, after which a request is given up."""

_HEX = b"0123456789abcdefABCDEF"


class BadRequestError(ValueError):
    """What came is not a request; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Request:
    """One request. ``last``: the client wants no other on this connection."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    last: bool
    body: bytes = b""


class RequestReader:
    """Reads the requests of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._request: Request | None = None
        self._length = 0
        self._chunks: bytearray | None = None
        self._trailers = False
        self.expects_continue = False
        """The client waits to be told to go on before it sends its body; reset it once told."""

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        self._buffer += data

    def next(self) -> Request | None:
        """The next request, or ``None`` until more bytes come.

        Raises :class:`BadRequestError`, after which the connection cannot be used any more.
        """
        if self._request is None:
            self._request = self._read_head()
        request = self._request
        if request is None:
            return None
        body = self._read_length() if self._chunks is None else self._read_chunks(self._chunks)
        if body is None:
            return None
        request.body, self._request, self.expects_continue = body, None, False
        return request

    def _read_head(self) -> Request | None:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._limit()
            return None
        first, *lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        words = first.decode("latin-1").split(" ")
        if len(words) != 3 or not all(words) or not words[2].startswith("HTTP/"):
            raise BadRequestError(400, "the first line is not that of an HTTP request")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise BadRequestError(400, "a header has no name")
            name = name.lower()
            value = value.strip()
            headers[name] = headers[name] + b", " + value if name in headers else value
        if words[2] != "HTTP/1.1":
            raise BadRequestError(505, "only HTTP/1.1 is spoken here")
        self._plan_body(headers)
        last = b"close" in headers.get(b"connection", b"").lower()
        return Request(words[0], words[1], headers, last)

    def _plan_body(self, headers: dict[bytes, bytes]) -> None:
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length", b"0")
        if coding is not None and coding.lower() != b"chunked":
            raise BadRequestError(501, "the only transfer coding that is read here is chunked")
        if not length.isdigit():
            raise BadRequestError(400, "content-length is not a number")
        self._chunks = None if coding is None else bytearray()
        self._trailers = False
        self._length = int(length)
        self.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    def _read_length(self) -> bytes | None:
        if len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        return body

    def _read_chunks(self, chunks: bytearray) -> bytes | None:
        buffer = self._buffer
        while (end := buffer.find(b"\r\n")) >= 0:
            if self._trailers:
                del buffer[: end + 2]
                if end == 0:
                    return bytes(chunks)
                continue
            digits = bytes(buffer[:end]).partition(b";")[0].rstrip()
            if not digits or digits.strip(_HEX):
                raise BadRequestError(400, "a chunk has no size")
            size = int(digits, 16)
            if size == 0:
                del buffer[: end + 2]
                self._trailers = True
                continue
            stop = end + 2 + size
            if len(buffer) < stop + 2:
                return None
            chunks += buffer[end + 2 : stop]
            del buffer[: stop + 2]
        self._limit()
        return None

    def _limit(self) -> None:
        if len(self._buffer) > MAX_HEAD:
            raise BadRequestError(431, "a line or head of the request is too long")
