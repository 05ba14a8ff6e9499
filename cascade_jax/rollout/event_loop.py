"""An event loop in a thread of its own, for blocking callers: from any thread, also where an event loop is running."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 64  # for what is sent to a thread from the loop


@contextlib.contextmanager
def event_loop(name: str = "event loop") -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """run(coroutine) -> its result, while the context lasts; then what is still running is cancelled."""
    loop = asyncio.new_event_loop()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
    loop.set_default_executor(threads)
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting
            future.cancel()
            raise

    try:
        yield run
    finally:
        run(_cancel_others())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        threads.shutdown(wait=False, cancel_futures=True)


async def _cancel_others() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
