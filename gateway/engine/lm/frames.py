"""The frame logic of every slot: rows in, codes out; no vLLM here, no codec, no thread of its own.

Per slot it keeps the row that the temporal transformer reads next (the token and codes drawn last), the user's codes, the sampling
settings and the rows of the last window. The order of a step: `set_user` (codes of the armed slots), `embed` (their rows, before the
temporal forward pass), `advance` (text head, depth transformer, next row, after it). Tensors have a leading slot axis and one spare row
at the end, where padding of a captured batch size lands. The eager schedule of specs: moshi-model section 9.4. Thread: tick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gateway.engine.graphs import GraphedCall
from gateway.engine.layout import CODEBOOKS, ROW_WIDTH, LMConfig, Profile
from gateway.engine.lm.depth import DepthTransformer
from gateway.engine.lm.sampling import SamplingRows
from gateway.engine.lm.weights import embed_rows
from gateway.engine.prompt import PromptRows
from protocols.events import SamplingOptions


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """What the scheduler runs for one slot in one step."""

    slot_idx: int
    start: int  # first position
    count: int  # positions; a live slot has one


class LockstepFrames:
    """State of all slots between two temporal forward passes."""

    def __init__(self, config: LMConfig, profile: Profile, embeddings: Tensor, depth: DepthTransformer, *, num_slots: int) -> None:
        """`embeddings` is the stacked table of lm.weights.load_embeddings."""
        self.config, self.profile, self.num_slots = config, profile, num_slots
        self._table, self._depth = embeddings, depth
        self._device = device = embeddings.device
        rows = num_slots + 1
        whole: Any = {"device": device, "dtype": torch.int64}
        self._starts = torch.tensor(config.table_starts, **whole)
        self._text = torch.zeros(rows, **whole)  # token of the position to be read next
        self._audio = torch.zeros(rows, CODEBOOKS, **whole)  # the assistant's codes of that position
        self._user = torch.zeros(rows, CODEBOOKS, **whole)  # the user's codes of this step
        self._user_before = torch.zeros(rows, CODEBOOKS, **whole)  # and of the step before
        self._position = torch.zeros(rows, **whole)
        self._row = torch.zeros(rows, ROW_WIDTH, **whole)  # the row read in this step
        self._sampling = SamplingRows.empty(rows, device)
        self._prompts: dict[int, PromptRows] = {}
        self._prompt_embeds: dict[int, Tensor] = {}
        self._history = np.zeros((num_slots, profile.window, ROW_WIDTH), dtype=np.int32)
        self._num_rows = np.zeros(num_slots, dtype=np.int64)
        like = embeddings.new_zeros
        pad = (
            torch.full((1,), num_slots, **whole),
            torch.zeros(1, device=device, dtype=torch.bool),
            torch.full((1, 1 + CODEBOOKS), -1, **whole),
            like(1, config.dim),
            like(1, config.text_card),
        )
        self._call = GraphedCall[tuple[Tensor, ...]](
            self._advance, pad, state=(*self._state, *self._sampling.tensors), traced=True, blocks=True
        )

    def open(self, slot_idx: int, prompt: PromptRows, sampling: SamplingOptions) -> None:
        """Start a call; every field of `sampling` must be set."""
        rows = torch.from_numpy(prompt.rows).to(self._device)
        embeds = self.embed_rows(rows.clamp(min=0))
        if prompt.embeddings is not None:
            embeds[: len(prompt.embeddings)] = torch.from_numpy(prompt.embeddings).to(embeds)
        self._prompts[slot_idx], self._prompt_embeds[slot_idx] = prompt, embeds
        self._text[slot_idx] = rows[-1, 0]
        self._audio[slot_idx] = rows[-1, 1 : 1 + CODEBOOKS]
        self._user_before[slot_idx] = torch.from_numpy(prompt.user).to(self._device)
        self._position[slot_idx] = len(prompt.rows) - 1
        self._row[slot_idx] = rows[-1]
        self._sampling.set(slot_idx, sampling)
        kept = prompt.rows[:-1][-self.profile.window :]
        self._num_rows[slot_idx] = len(prompt.rows) - 1
        self._history[slot_idx, np.arange(len(prompt.rows) - 1 - len(kept), len(prompt.rows) - 1) % self.profile.window] = kept

    def close(self, slot_idx: int) -> None:
        """Forget a call."""
        self._prompts.pop(slot_idx, None)
        self._prompt_embeds.pop(slot_idx, None)

    def prompt_len(self, slot_idx: int) -> int:
        """Rows of the slot's prompt."""
        return len(self._prompts[slot_idx].rows)

    def set_user(self, slots: Tensor, codes: Tensor) -> None:
        """The user's codes of this step, int64 [N, CODEBOOKS], of the armed slots int64 [N]."""
        self._user[slots] = codes

    def set_pad_bias(self, bias: NDArray[np.float32]) -> None:
        """What this step adds to the log-probability of text padding, float32 [num_slots]. Free as long as it does not change."""
        self._sampling.set_pad_bias(bias)

    def embed_rows(self, rows: Tensor) -> Tensor:
        """Input embeddings [N, dim] of int64 [N, ROW_WIDTH] rows."""
        return embed_rows(self._table, self._starts, rows)

    def embed(self, chunks: Sequence[Chunk], target: Tensor) -> None:
        """Write the input embeddings of a step into `target` [sum of counts, dim], in the order of `chunks`."""
        live, at, offset = [], [], 0
        for chunk in chunks:
            if chunk.start >= self.prompt_len(chunk.slot_idx):
                live.append(chunk.slot_idx)
                at.append(offset)
            else:
                target[offset : offset + chunk.count] = self._prompt_embeds[chunk.slot_idx][chunk.start : chunk.start + chunk.count]
            offset += chunk.count
        if live:
            embeds = self.embed_rows(self._live_rows(torch.tensor(live, device=self._device)))
            if len(live) == offset:
                target[:offset] = embeds
            else:
                target[torch.tensor(at, device=self._device)] = embeds

    def advance(
        self, slots: Sequence[int], live: Sequence[bool], steered: Sequence[bool], hidden: Tensor, logits: Tensor
    ) -> tuple[Tensor, ...]:
        """Draw the next token and codes of each slot whose last position was run.

        Args:
            slots: the N slots.
            live: False for a slot that has just finished its prompt.
            steered: slots forced to padding and silence.
            hidden: [N, dim] states after the last norm.
            logits: [N, text_card] text logits.

        Returns:
            text int64 [N] drawn, and codec codes int64 [N, CODEBOOKS] of the output frame (first codebook of the row that was read,
            the others just drawn).
        """
        forced = np.full((len(slots), 1 + CODEBOOKS), -1, dtype=np.int64)
        for i, slot_idx in enumerate(slots):
            if steered[i]:
                forced[i] = [self.config.padding_id, *self.profile.silence_codes]
            elif not live[i]:
                forced[i, 1:] = self._prompts[slot_idx].forced
        on = self._device
        text, frame = self._call(
            torch.tensor(slots, device=on), torch.tensor(live, device=on), torch.from_numpy(forced).to(on), hidden, logits
        )
        for i, slot_idx in enumerate(slots):
            if not live[i]:
                self._prompt_embeds.pop(slot_idx, None)
        return text, frame

    def read_rows(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """The rows that the last step read, int64 [N, ROW_WIDTH]; also appends them to the slots' windows."""
        rows: NDArray[np.int64] = self._row[torch.tensor(slots, device=self._device)].cpu().numpy()
        at = np.asarray(slots)
        self._history[at, self._num_rows[at] % self.profile.window] = rows
        self._num_rows[at] += 1
        return rows

    def window_rows(self, slot_idx: int) -> NDArray[np.int32]:
        """Rows of the last window, int32 [T, ROW_WIDTH], oldest first."""
        count, window = int(self._num_rows[slot_idx]), self.profile.window
        order = np.arange(max(0, count - window), count) % window
        rows: NDArray[np.int32] = self._history[slot_idx, order]
        return rows

    def warm_up(self, buckets: Sequence[int]) -> None:
        """Capture `advance` for these batch sizes (CUDA) or run each once (CPU), on the spare row."""
        self._call.warm_up(buckets)

    def _live_rows(self, slots: Tensor) -> Tensor:
        """Rows int64 [N, ROW_WIDTH] that live slots read in this step."""
        audio, user = self._audio[slots], torch.cat([self._user[slots, :1], self._user_before[slots, 1:]], dim=1)
        # At position 1 no acoustic code exists yet: its frame would be position 0 (specs: moshi-model section 6).
        is_first = (self._position[slots] == 1)[:, None]
        acoustic = torch.where(is_first, self.config.audio_initial, audio[:, 1:])
        rows = torch.cat([self._text[slots, None], audio[:, :1], acoustic, user], dim=1)
        self._row[slots] = rows
        return rows

    @property
    def _state(self) -> tuple[Tensor, ...]:
        """What `_advance` reads and writes besides the sampling settings, in its order."""
        return self._text, self._audio, self._user, self._user_before, self._position, self._row

    def _advance(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """`advance` as a function of tensors: `_state`, the sampling settings', slots, live, forced, hidden, logits.

        Static shapes, no synchronisation: runs inside a CUDA graph.
        """
        text_rows, audio_rows, user, user_before, position, row, *settings = arguments[:-5]
        slots, live, forced, hidden, logits = arguments[-5:]
        sampling = self._sampling.on(settings)
        target = position[slots] + 1
        text = sampling.sample_text(slots, logits, target, self.config.padding_id)
        text = torch.where(forced[:, 0] >= 0, forced[:, 0], text)
        codes = self._depth(hidden, text, forced[:, 1:], sampling.audio_sampler(slots, target, self.config.card))
        frame = torch.cat([row[slots, 1:2], codes[:, 1:]], dim=1)
        sampling.note_text(slots, text)
        text_rows[slots] = text
        audio_rows[slots] = codes
        user_before[slots] = torch.where(live[:, None], user[slots], user_before[slots])
        position[slots] = target
        return text, frame
