"""vLLM V1's scheduler, as vLLM 0.32's ``vllm/v1/core/sched/scheduler.py`` has it, without the engine.

Every call of :meth:`Scheduler.schedule` composes one batch: running requests first, in the order in which
they were admitted, one token for each that decodes and a chunk for the one whose prompt is unfinished; when
the KV blocks run out, the last of them is preempted and will recompute. Then waiting requests are admitted,
first come, first served, unless something was preempted, while the token budget, ``max_num_seqs`` and the
free blocks allow it.

A request that decodes needs nothing of its own in most steps, so it costs nothing here: its number of
tokens follows from the batch in which its prompt was finished. Requests that cross a block's boundary in the
same steps share a counter. Only admission, the end, and preemption touch a request. Notation:

    batch b       the b-th batch that was not empty
    joined        the batch in which a request's prompt (and what it recomputes) is finished; it emits a token
    last          the batch that emits its last token
    tokens at b   goal + (b - joined) have a slot after batch b, of which one is new
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from tuner.simulation.blocks import BlockPool

__all__ = ["Batch", "Limits", "Prefill", "Request", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a batch, by vLLM's names.

    Attributes:
        asynchronous: the next batch is composed while this one runs, before its outputs are known.
        reserve_full_prompt: admit a request only when its whole prompt has room (vLLM's
            ``scheduler_reserve_full_isl``).
        watermark: share of all blocks that admission leaves free.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int = 16
    chunked_prefill: bool = True
    asynchronous: bool = True
    reserve_full_prompt: bool = True
    watermark: float = 0.0

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")


@dataclass(slots=True, eq=False)
class Request:
    """One request. Lengths are given; the scheduler keeps the rest.

    Attributes:
        shared_tokens: leading tokens of the prompt that all requests share.
        generated: output tokens emitted before it was last preempted.
        spans: batches (first, last) that emitted its tokens without a gap, one span per residence.
        goal: tokens to compute before the next token can be emitted: prompt and ``generated``.
        computed: tokens of ``goal`` that are computed or hit while its prompt is unfinished.
        private: blocks of its own it holds while its prompt is unfinished; afterwards they follow
            from its tokens.
        shared_held: leading blocks that it holds together with others.
    """

    number: int
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    generated: int = 0
    preemptions: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    goal: int = 0
    computed: int = 0
    private: int = 0
    shared_held: int = 0
    holds_shared: bool = False
    joined: int | None = None
    last: int = -1
    resident: bool = False


@dataclass(frozen=True, slots=True)
class Prefill:
    """One chunk of one prompt: ``tokens`` new ones behind ``context`` that are in the cache already."""

    request: Request
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes.

    Attributes:
        number: counts the batches that were not empty, from 0.
        decodes: requests that get their next token.
        decode_context: tokens that the decodes attend to, all together.
        prefills: chunks of prompts.
        completed: requests whose prompt this finishes: they get a token too.
        preempted: requests preempted while the batch was composed.
        blocks_used: KV blocks held while the batch runs.
    """

    number: int
    decodes: int
    decode_context: int
    prefills: tuple[Prefill, ...]
    completed: tuple[Request, ...]
    preempted: int
    blocks_used: int

    @property
    def emitted(self) -> int:
        """Tokens that leave the engine at the end of the step."""
        return self.decodes + len(self.completed)

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return self.decodes + sum(prefill.tokens for prefill in self.prefills)


class Scheduler:
    """Composes batches. Call :meth:`schedule`, run the batch, call :meth:`finish`; repeat.

    With ``asynchronous`` limits, :meth:`schedule` is called for the next batch before :meth:`finish`
    of the current one.

    Attributes:
        preemptions: requests preempted so far.
    """

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._size = limits.block_size
        self._watermark = int(limits.watermark * pool.total)
        self._batches = 0
        self._decodes = 0
        self._context = 0
        self._crossing = [0] * limits.block_size
        self._ending: defaultdict[int, list[Request]] = defaultdict(list)
        self._partial: Request | None = None

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        request.goal = request.input_tokens
        self.waiting.append(request)

    def schedule(self) -> Batch | None:
        """Compose the next batch; ``None`` when there is nothing to compute."""
        number = self._batches
        if self.limits.asynchronous:
            self._retire(number - 1)
        before = self.preemptions
        prefills: list[Prefill] = []
        self._advance_running(number, prefills)
        if self.preemptions == before:
            self._admit(prefills)
        if not self._decodes and not prefills:
            return None
        return self._compose(number, prefills, self.preemptions - before)

    def finish(self, batch: Batch) -> list[Request]:
        """Take note that the batch ran; returns the requests that got their last token by it."""
        if not self.limits.asynchronous:
            self._retire(batch.number)
        ended = self._ending.pop(batch.number, [])
        for request in ended:
            request.spans.append((_joined(request), batch.number))
            if request.resident:
                self.running.remove(request)
                slots = request.goal + batch.number - _joined(request)
                self._free(request, (slots, slots), reusable=False)
        return ended

    # ------------------------------------------------------------ composing a batch

    def _compose(self, number: int, prefills: list[Prefill], preempted: int) -> Batch:
        decodes, context = self._decodes, self._context
        self._batches += 1
        self._context += decodes
        completed = [
            prefill.request for prefill in prefills if prefill.request.computed == prefill.request.goal
        ]
        for request in completed:
            self._start_decoding(request, number)
        return Batch(
            number=number,
            decodes=decodes,
            decode_context=context,
            prefills=tuple(prefills),
            completed=tuple(completed),
            preempted=preempted,
            blocks_used=self.pool.total - self.pool.free,
        )

    def _start_decoding(self, request: Request, number: int) -> None:
        if request is self._partial:
            self._partial = None
        request.joined = number
        request.last = number + request.output_tokens - request.generated - 1
        self._ending[request.last].append(request)
        if request.last > number:
            self._decodes += 1
            self._context += request.goal + 1
            self._crossing[self._boundary(request)] += 1

    def _retire(self, number: int) -> None:
        """Requests whose last token is that of batch ``number`` get none afterwards."""
        for request in self._ending.get(number, ()):
            if _joined(request) < number:
                self._stop_decoding(request, number + 1)

    def _stop_decoding(self, request: Request, number: int) -> None:
        """The request gets no token in batch ``number``, nor later, in this residence."""
        self._decodes -= 1
        self._context -= request.goal + number - _joined(request)
        self._crossing[self._boundary(request)] -= 1

    def _boundary(self, request: Request) -> int:
        """Batches with this remainder by the block size need a new block for the request."""
        return (_joined(request) + 1 - request.goal) % self._size

    def _needs_block(self, request: Request, number: int) -> int:
        return int(number % self._size == self._boundary(request))

    # ------------------------------------------------------------ running requests

    def _advance_running(self, number: int, prefills: list[Prefill]) -> None:
        needed = self._crossing[number % self._size]
        if needed + self._chunk_blocks() > self.pool.free:
            self._advance_one_by_one(number)
        else:
            self.pool.take(needed)
        if self._partial is not None:
            self._continue_partial(self._partial, prefills)

    def _chunk(self, request: Request) -> int:
        return min(request.goal - request.computed, self.limits.max_num_batched_tokens - self._decodes)

    def _chunk_blocks(self) -> int:
        request = self._partial
        if request is None:
            return 0
        return self._blocks(request.computed + self._chunk(request)) - request.private - request.shared_held

    def _advance_one_by_one(self, number: int) -> None:
        """Give each its block in order, preempting from the end of the line."""
        position = 0
        while position < len(self.running):
            request = self.running[position]
            position += 1
            if request is self._partial:
                self._make_room(self._chunk_blocks(), request, number)
            elif _joined(request) < number and request.last >= number:
                needed = self._needs_block(request, number)
                if self._make_room(needed, request, number):
                    self.pool.take(needed)

    def _make_room(self, needed: int, request: Request, number: int) -> bool:
        while needed > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim, number)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, number: int) -> None:
        self.preemptions += 1
        request.preemptions += 1
        if request is self._partial:
            self._partial = None
            self._free(request, (request.computed, request.computed), reusable=True)
            self.waiting.appendleft(request)
        elif request.last < number:
            # Its last token is on its way: it only loses its blocks earlier.
            self._free(request, self._slots_of_preempted(request, number), reusable=False)
        else:
            self._interrupt(request, number)

    def _interrupt(self, request: Request, number: int) -> None:
        joined = _joined(request)
        self._stop_decoding(request, number)
        self._ending[request.last].remove(request)
        self._free(request, self._slots_of_preempted(request, number), reusable=True)
        request.spans.append((joined, number - 1))
        request.generated += number - joined
        request.goal = request.input_tokens + request.generated
        request.joined = None
        self.waiting.appendleft(request)

    def _slots_of_preempted(self, request: Request, number: int) -> tuple[int, int]:
        """Tokens with a slot, and those of them that are known and so can be hit again.

        The token that a batch in flight computes becomes known only when that batch is finished.
        """
        decoded = number - 1 - _joined(request)
        in_flight = 1 if self.limits.asynchronous and decoded else 0
        return request.goal + decoded, request.goal + decoded - in_flight

    def _continue_partial(self, request: Request, prefills: list[Prefill]) -> None:
        # The budget always covers it: decodes are at most max_num_seqs - 1 beside it.
        self._extend(request, self._chunk(request), prefills)

    # ------------------------------------------------------------ admission

    def _admit(self, prefills: list[Prefill]) -> None:
        budget = (
            self.limits.max_num_batched_tokens - self._decodes - sum(prefill.tokens for prefill in prefills)
        )
        while budget > 0 and self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            tokens = self._admit_one(request, budget, prefills)
            if not tokens:
                break
            budget -= tokens

    def _admit_one(self, request: Request, budget: int, prefills: list[Prefill]) -> int:
        """Admit the request with a first chunk if there is room; returns the chunk's tokens, else 0."""
        shared, own = self._hits(request)
        hit = shared + own
        missing = request.goal - hit * self._size
        if missing > budget and not self.limits.chunked_prefill:
            return 0
        tokens = min(missing, budget)
        needed = self._blocks(request.goal if self.limits.reserve_full_prompt else hit * self._size + tokens)
        in_queue = own + (min(shared, self.pool.shared_in_queue()))
        spare = self._watermark if self.running else 0
        if needed - hit + in_queue + spare > self.pool.free:
            return 0
        self.waiting.popleft()
        self.running.append(request)
        self._take_hits(request, shared, own)
        self._extend(request, tokens, prefills)
        if request.computed < request.goal:
            self._partial = request
        return tokens

    def _hits(self, request: Request) -> tuple[int, int]:
        """Cached blocks of the prompt's beginning: shared with all, and its own from before a preemption.

        The last token is always computed, to have something to sample from.
        """
        most = (request.goal - 1) // self._size
        prefix = min(request.shared_tokens // self._size, most)
        shared = min(self.pool.shared_hit(), prefix)
        if shared < prefix:
            return shared, 0
        return shared, min(self.pool.cached_blocks(request.number), most - shared)

    def _take_hits(self, request: Request, shared: int, own: int) -> None:
        request.resident = True
        request.computed = (shared + own) * self._size
        request.holds_shared = self.pool.caching and request.shared_tokens >= self._size
        if request.holds_shared:
            self.pool.hold_shared()
        request.shared_held = shared
        request.private = own
        if own:
            self.pool.reclaim(request.number, own)

    def _extend(self, request: Request, tokens: int, prefills: list[Prefill]) -> None:
        """Compute ``tokens`` more of the prompt, with the blocks that they need."""
        prefills.append(Prefill(request, tokens, request.computed))
        request.computed += tokens
        new = self._blocks(request.computed) - request.private - request.shared_held
        self.pool.take(new)
        if request.holds_shared:
            full = min(request.computed, request.shared_tokens) // self._size
            grown = max(0, full - self.pool.shared_hit())
            self.pool.grow_shared(grown)
            request.shared_held += grown
            new -= grown
        request.private += new

    def _free(self, request: Request, tokens: tuple[int, int], *, reusable: bool) -> None:
        """Free all blocks of a request; ``tokens`` have a slot, and those known of them can be hit again."""
        slots, known = tokens
        private = self._blocks(slots) - request.shared_held
        cached = max(0, known // self._size - request.shared_held)
        owner = request.number if reusable else None
        self.pool.give(cached, private - cached, owner=owner)
        if request.holds_shared:
            self.pool.release_shared()
        request.computed = request.private = request.shared_held = 0
        request.holds_shared = request.resident = False

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)


def _joined(request: Request) -> int:
    if request.joined is None:
        raise RuntimeError(f"request {request.number} has not finished its prompt")
    return request.joined
