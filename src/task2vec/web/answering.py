"""Answers are worked out by a few threads, once for all who ask meanwhile, and kept until the library changes."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.responses import Response

from task2vec.web.answers import Answer
from task2vec.web.cache import Cache
from task2vec.web.world import View, World

_BYTES = 48 << 20
Made = TypeVar("Made")


class Answerer:
    """Works out answers beside the loop that reads requests, which therefore never waits for arithmetic."""

    def __init__(self, world: World, *, threads: int = 2):
        """More threads than cores would only get in each other's way."""
        self.world = world
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="task2vec-answer")
        self._kept: Cache[bytes] = Cache(_BYTES)
        self._under_way: dict[Hashable, asyncio.Task[bytes]] = {}

    async def answer(self, key: tuple[Hashable, ...], make: Callable[[View], Answer]) -> Response:
        """The answer under a key, or what `make` makes of all that is served; the same for all who ask meanwhile."""
        view = self.world.peek() or await self.run(self.world.look)
        whole = (view.revision, *key)
        content = self._kept.get(whole)
        if content is None:
            task = self._under_way.get(whole)
            if task is None:
                task = asyncio.create_task(self._make(whole, make, view))
                self._under_way[whole] = task
            content = await asyncio.shield(task)  # one visitor may leave, the others still wait
        return Response(content, media_type="application/json")

    async def run(self, work: Callable[[], Made]) -> Made:
        """What `work` returns, done by one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Lets the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _make(self, whole: tuple[Hashable, ...], make: Callable[[View], Answer], view: View) -> bytes:
        try:
            content = await self.run(lambda: make(view).model_dump_json().encode())
            self._kept.put(whole, content, size=len(content) + 500)
            return content
        finally:
            self._under_way.pop(whole, None)
