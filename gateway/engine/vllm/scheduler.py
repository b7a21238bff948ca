"""The execution mask as a scheduler: a call without a frame is not scheduled and costs nothing. Thread: tick."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class LockstepScheduler(Scheduler):
    """Shows `schedule` only the running requests whose call has a frame (or a prompt to prefill) in this step."""

    armed: frozenset[str] = frozenset()  # request ids, set before every step
    running: list[Any]  # vLLM's own list of requests that have been scheduled
    prev_step_scheduled_req_ids: set[str]  # vLLM's own

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule the armed requests; the others keep their blocks.

        Live ones come first: vLLM spends the tokens of a step in this order, and a prompt that is being read must not take a live caller's.
        """
        paused = [request for request in self.running if request.request_id not in self.armed]
        armed = [request for request in self.running if request.request_id in self.armed]
        self.running = sorted(armed, key=lambda request: request.num_computed_tokens < request.num_prompt_tokens)
        # A request that was not in the step before would be handed over with all its tokens, which only asynchronous scheduling reads.
        self.prev_step_scheduled_req_ids.update(request.request_id for request in armed)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.running += paused
