"""The load client against servers that answer well, badly, and not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from workers.load.client import CompletionClient, GarbageError, read_event
from workers.load.prompts import Prompt
from workers.load.records import Record

PROMPT = Prompt([5, 6, 7], 4)
TOKEN = {"id": "c", "choices": [{"index": 0, "text": "a"}]}
USAGE = {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[[Handler], Awaitable[Record]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Sends one prompt to a server with this handler."""
    runners: list[web.AppRunner] = []

    async def send(handler: Handler) -> Record:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        clock = asyncio.get_running_loop().time
        record = Record(due=clock())
        async with CompletionClient(url, "m", clock=clock) as client:
            await client.send(record, PROMPT)
        return record

    yield send
    for runner in runners:
        await runner.cleanup()


def stream(*pieces: bytes, seen: list[dict[str, object]] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if seen is not None:
            seen.append(await request.json())
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
        return answer

    return handler


def event(content: object) -> bytes:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class TestAWholeAnswer:
    async def test_is_counted_by_usage_with_several_tokens_in_a_chunk(self, ask: Ask) -> None:
        record = await ask(stream(event(TOKEN), event(TOKEN), event(USAGE), DONE))
        assert record.error is None
        assert len(record.chunks) == 2
        assert (record.output_tokens, record.prompt_tokens) == (4, 3)
        assert record.due <= record.sent <= record.chunks[0] <= record.chunks[-1] <= record.ended

    async def test_may_arrive_in_pieces_that_cut_an_event(self, ask: Ask) -> None:
        whole = event(TOKEN) + event(USAGE) + DONE
        record = await ask(stream(*(whole[at : at + 7] for at in range(0, len(whole), 7))))
        assert record.error is None
        assert len(record.chunks) == 1

    async def test_is_asked_for_with_an_exact_length(self, ask: Ask) -> None:
        seen: list[dict[str, object]] = []
        await ask(stream(event(TOKEN), event(USAGE), DONE, seen=seen))
        assert seen[0]["prompt"] == [5, 6, 7]
        assert seen[0]["min_tokens"] == seen[0]["max_tokens"] == 4
        assert seen[0]["ignore_eos"] is True
        assert seen[0]["stream_options"] == {"include_usage": True}


class TestGarbage:
    @pytest.mark.parametrize(
        "pieces",
        [
            [event(TOKEN), event(USAGE)],
            [event(TOKEN), DONE],
            [event(USAGE), DONE],
            [event(TOKEN), event(USAGE | {"usage": {"completion_tokens": 3}}), DONE],
            [event(TOKEN), event(USAGE | {"usage": {"completion_tokens": "many"}}), DONE],
            [b"data: {nonsense\n\n", DONE],
            [b"data: []\n\n", DONE],
            [b"<html>", DONE],
        ],
        ids=["no end", "no usage", "no token", "too few", "no number", "no JSON", "no object", "a page"],
    )
    async def test_is_an_error_of_its_own(self, ask: Ask, pieces: list[bytes]) -> None:
        record = await ask(stream(*pieces))
        assert record.error == "garbage"
        assert record.detail
        assert record.ended is not None


class TestAnError:
    async def test_is_named_by_its_status_and_keeps_what_the_server_says(self, ask: Ask) -> None:
        async def handler(_: web.Request) -> web.Response:
            return web.Response(status=503, text="queue is full")

        record = await ask(handler)
        assert record.error == "http_503"
        assert "queue is full" in record.detail

    async def test_within_the_stream_is_named_by_its_code(self, ask: Ask) -> None:
        error = {"error": {"message": "EngineCore encountered an issue", "code": 500}}
        record = await ask(stream(event(TOKEN), event(error), DONE))
        assert record.error == "http_500"
        assert "EngineCore" in record.detail

    async def test_of_the_connection_in_the_middle(self, ask: Ask) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(event(TOKEN))
            request.transport.abort()
            return answer

        record = await ask(handler)
        assert record.error == "connection"
        assert len(record.chunks) == 1
        assert record.output_tokens is None

    async def test_of_a_server_that_is_not_there(self) -> None:
        clock = asyncio.get_running_loop().time
        record = Record(due=clock())
        async with CompletionClient("http://127.0.0.1:9", "m", clock=clock) as client:
            await client.send(record, PROMPT)
        assert record.error == "connection"


class TestReadingAnEvent:
    def test_notes_the_usage_that_comes_with_every_chunk(self) -> None:
        record = Record(due=0.0)
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        read_event(json.dumps(TOKEN | {"usage": usage}, separators=(",", ":")).encode(), record, 1.0)
        assert (record.chunks, record.output_tokens) == ([1.0], 2)

    def test_does_not_care_for_white_space(self) -> None:
        record = Record(due=0.0)
        read_event(json.dumps(USAGE).encode(), record, 1.0)
        assert record.output_tokens == 4

    def test_refuses_what_is_neither_tokens_nor_usage(self) -> None:
        with pytest.raises(GarbageError):
            read_event(b'{"id":"c","choices":[]}', Record(due=0.0), 1.0)
