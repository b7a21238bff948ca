"""The execution mask as a scheduler: a call without a frame is not scheduled and costs nothing. Thread: tick."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class LockstepScheduler(Scheduler):
    """Shows `schedule` only the running requests whose call has a frame (or a prompt to prefill) in this step."""

    armed: frozenset[str] = frozenset()  # request ids, set before every step
    running: list[Any]  # vLLM's own list of requests that have been scheduled

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule the armed requests; the others keep their place and their blocks."""
        paused = [request for request in self.running if request.request_id not in self.armed]
        self.running = [request for request in self.running if request.request_id in self.armed]
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.running += paused
