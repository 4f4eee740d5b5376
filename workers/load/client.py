"""Sends streamed completions and notes when what arrived."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import aiohttp

from workers.load.arrivals import Clock
from workers.load.prompts import Prompt
from workers.load.records import Record

__all__ = ["CompletionClient", "GarbageError", "read_event"]

KEEP_ALIVE_S = 2.0
"""Idle connections are dropped before the server does so, after 5 s by default: a request that meets a
closing connection would count as the configuration's error."""

DETAIL_CHARACTERS = 300
DATA = b"data:"
DONE = b"[DONE]"


class GarbageError(Exception):
    """The server's answer is not a stream of completions."""


class ServerError(Exception):
    """The server reported an error within the stream.

    Attributes:
        status: its HTTP status, if it gave one.
    """

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_event(payload: bytes, record: Record, now: float) -> None:
    """Note one event of the stream.

    Most events carry tokens and no usage; they are told by their text alone, because parsing each one would
    make the client the thing that is measured.

    Raises:
        GarbageError: the event is no JSON object, or holds neither choices nor usage.
        ServerError: the event is an error.
    """
    if payload.startswith(b'{"id"') and b'"usage":{' not in payload and b'"choices":[{' in payload:
        record.chunks.append(now)
        return
    try:
        event = json.loads(payload)
    except ValueError as error:
        raise GarbageError(f"not JSON: {payload[:80]!r}") from error
    if not isinstance(event, dict):
        raise GarbageError(f"no object: {payload[:80]!r}")
    if "error" in event:
        raise _server_error(event["error"])
    if event.get("choices"):
        record.chunks.append(now)
    elif not event.get("usage"):
        raise GarbageError(f"neither choices nor usage: {payload[:80]!r}")
    usage = event.get("usage")
    if isinstance(usage, dict):
        record.output_tokens = int(usage["completion_tokens"])
        record.prompt_tokens = int(usage.get("prompt_tokens", record.prompt_tokens))


def _server_error(error: object) -> ServerError:
    if not isinstance(error, dict):
        return ServerError(None, str(error))
    code = error.get("code")
    return ServerError(code if isinstance(code, int) else None, str(error.get("message", error)))


def _check(record: Record, *, done: bool) -> None:
    """Whether the stream was whole: it ended by its mark, and has the tokens that were asked for."""
    if not done:
        raise GarbageError("the stream broke off")
    if record.output_tokens is None:
        raise GarbageError("the stream has no usage")
    if record.output_tokens != record.wanted_tokens or not record.chunks:
        raise GarbageError(f"{record.output_tokens} output tokens instead of {record.wanted_tokens}")


class _Lines:
    """Splits a stream into the payloads of its ``data:`` lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield line[len(DATA) :].strip()


class CompletionClient:
    """Sends requests to one server's ``/v1/completions``; an async context manager.

    Args:
        url: address of the server.
        model: the name under which it serves the model.
        clock: the clock of the records.
    """

    def __init__(self, url: str, model: str, *, clock: Clock) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None),  # the drain after the window ends what is too slow
            headers={"Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def body(self, prompt: Prompt) -> bytes:
        """The request: exactly ``output_tokens`` tokens, whatever the model would like to say."""
        return json.dumps(
            {
                "model": self._model,
                "prompt": prompt.token_ids,
                "max_tokens": prompt.output_tokens,
                "min_tokens": prompt.output_tokens,
                "ignore_eos": True,
                "temperature": 0.0,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            separators=(",", ":"),
        ).encode()

    async def send(self, record: Record, prompt: Prompt) -> None:
        """Send one prompt and fill its record. Never raises for what the server does: it notes it."""
        record.prompt_tokens = len(prompt.token_ids)
        record.wanted_tokens = prompt.output_tokens
        try:
            await self._stream(record, self.body(prompt))
        except GarbageError as error:
            self._fail(record, "garbage", error)
        except ServerError as error:
            self._fail(record, "garbage" if error.status is None else f"http_{error.status}", error)
        except (aiohttp.ClientError, OSError) as error:
            self._fail(record, "connection", error)
        except (ValueError, KeyError, TypeError) as error:  # usage without numbers, a broken encoding
            self._fail(record, "garbage", error)
        record.ended = self._clock()

    async def _stream(self, record: Record, body: bytes) -> None:
        if self._session is None:
            raise RuntimeError("use the client as a context manager")
        record.sent = self._clock()
        async with self._session.post(self._url, data=body) as answer:
            if answer.status != 200:
                raise ServerError(answer.status, await answer.text(errors="replace"))
            lines, done = _Lines(), False
            async for data in answer.content.iter_any():
                now = self._clock()
                for payload in lines.feed(data):
                    if payload == DONE:
                        done = True
                    else:
                        read_event(payload, record, now)
        _check(record, done=done)

    def _fail(self, record: Record, kind: str, error: Exception) -> None:
        record.error = kind
        record.detail = f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS]
