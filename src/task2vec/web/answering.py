"""Answers are worked out by a few threads, once for all who ask meanwhile, and kept until the library changes."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.responses import Response

from task2vec.web.answers import Answer, Problem
from task2vec.web.cache import Cache
from task2vec.web.problems import NotServedError
from task2vec.web.world import View, World

_BYTES = 48 << 20
# What may wait or run at a time, by whether it is long; the load test asks with 50 clients (benchmarks/web_load.py).
MOST_WAITING = {True: 64, False: 256}
Made = TypeVar("Made")


class Answerer:
    """Works out answers beside the loop that reads requests, which therefore never waits for arithmetic."""

    def __init__(self, world: World, *, threads: int = 2):
        """So many threads for what takes milliseconds, and as many for the rest: nobody waits behind a long answer."""
        self.world = world
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="task2vec-answer")
        self._slow_pool = ThreadPoolExecutor(threads, thread_name_prefix="task2vec-long-answer")
        self._kept: Cache[bytes] = Cache(_BYTES)
        self._waiting = {True: 0, False: 0}
        self._under_way: dict[Hashable, asyncio.Task[bytes]] = {}

    async def answer(
        self, key: tuple[Hashable, ...], make: Callable[[View], Answer], *, is_slow: bool = False
    ) -> Response:
        """The answer under a key, or what `make` makes of all that is served; the same for all who ask meanwhile."""
        view = self.world.peek() or await self.run(self.world.look)
        whole = (view.revision, *key)
        content = self._kept.get(whole)
        if content is None:
            task = self._under_way.get(whole)
            if task is None:
                task = asyncio.create_task(self._make(whole, make, view, is_slow))
                self._under_way[whole] = task
            content = await asyncio.shield(task)  # one visitor may leave, the others still wait
        return Response(content, media_type="application/json")

    async def run(self, work: Callable[[], Made], *, is_slow: bool = False) -> Made:
        """What `work` returns, done by one of the threads.

        Raises:
            NotServedError: As much as may wait is waiting.
        """
        if self._waiting[is_slow] >= MOST_WAITING[is_slow]:
            raise NotServedError(
                Problem(
                    what=f"{self._waiting[is_slow]} answers are being worked out or wait for it.",
                    why="Whoever came later would wait for long, and fill the memory meanwhile.",
                    mend="Ask again in a few seconds.",
                ),
                status=503,
            )
        pool = self._slow_pool if is_slow else self._pool
        self._waiting[is_slow] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._waiting[is_slow] -= 1

    def close(self) -> None:
        """Lets the threads go."""
        for pool in (self._pool, self._slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _make(
        self, whole: tuple[Hashable, ...], make: Callable[[View], Answer], view: View, is_slow: bool
    ) -> bytes:
        try:
            content = await self.run(lambda: make(view).model_dump_json().encode(), is_slow=is_slow)
            self._kept.put(whole, content, size=len(content) + 500)
            return content
        finally:
            self._under_way.pop(whole, None)
