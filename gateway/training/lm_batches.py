"""Conversations as the language model reads them: prompt and dialogue as frames, rows and targets.

`DialogueStream` makes scripts in worker processes; `Assembler` turns a batch of them into codes and rows on the training device.
Thread: any.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gateway.engine.layout import CODEBOOKS, ROW_WIDTH, LMConfig
from gateway.engine.prompt import prompt_frames, wrap_persona
from gateway.training import lexicon
from gateway.training.bank import Index, SpeechBank
from gateway.training.codec_model import TrainedMimi
from gateway.training.dialogues import FRAME, Dialogue, DialogueMaker
from gateway.training.lm_model import stagger
from gateway.training.mixing import render, spoil, spread, vary_level
from gateway.training.voices import VoicePrompts

SHOPS = tuple(lexicon.SHOPS)
LEAD_FRAMES, TAIL_FRAMES = 16, 2  # of silence around an answer that is encoded: codes settle before it and after it
ENCODE_ROWS = 64
BARE_SHARE = 0.08  # of conversations without a prompt
USER_CORRUPTION, ASSISTANT_CORRUPTION = 0.05, 0.03  # shares of codes replaced at random in what the model reads


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """A dialogue and its prompt."""

    dialogue: Dialogue
    prompt: NDArray[np.int64]  # [P, ROW_WIDTH] frames
    name: int  # text piece of the persona's name; 0 without a prompt
    shop: int  # 0 is none


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """A batch for one training step: L positions."""

    rows: Tensor  # int64 [B, L, ROW_WIDTH], what the model reads
    targets: Tensor  # int64 [B, L - 1, 1 + CODEBOOKS], text and the assistant's codes of position p + 1
    is_live: Tensor  # bool [B, L - 1], position p + 1 is past the prompt
    speaking: Tensor  # bool [B, L - 1], the assistant speaks at p + 1
    overlap: Tensor  # bool [B, L - 1], the user has just begun to speak over it at p + 1
    phones: Tensor  # int64 [B, L - 1, SUBFRAMES] of the user in frame p
    words: Tensor  # int64 [B, L - 1]
    intents: Tensor  # int64 [B, L - 1], the question that has just ended
    names: Tensor  # int64 [B], text piece of the persona's name; 0 where there is no prompt
    shops: Tensor  # int64 [B]


class PromptMaker:
    """Prompt frames of a dialogue."""

    def __init__(self, tokenizer: Any, prompts: VoicePrompts, config: LMConfig, seed: int) -> None:
        self._tokenizer, self._prompts, self._config = tokenizer, prompts, config
        self._rng = random.Random(seed)

    def script(self, dialogue: Dialogue, *, first_prompt: bool = False) -> Script:
        """Give a dialogue its prompt; `first_prompt` takes the voice prompt that ships. A few go without: nothing of a call's
        prompt is left after some windows, and the call goes on."""
        if not first_prompt and self._rng.random() < BARE_SHARE:
            return Script(dialogue, np.zeros((2, ROW_WIDTH), dtype=np.int64), 0, 0)  # two rows have initial tokens
        choices = self._prompts.codes[dialogue.voice]
        codes = choices[0] if first_prompt or self._rng.random() < 0.6 else self._rng.choice(choices)
        persona = dialogue.persona
        prompt = prompt_frames(self._config, self._prompts.profile, codes, self._tokenizer.encode(wrap_persona(persona.text)))
        shop = 1 + SHOPS.index(persona.shop) if persona.shop else 0
        return Script(dialogue, prompt, self._tokenizer.encode(persona.name)[0], shop)


class DialogueStream(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of scripts; every worker draws its own."""

    def __init__(self, index: Index, tokenizer_file: str, prompts: VoicePrompts, config: LMConfig, frames: int, rows: int) -> None:
        self._given = index, tokenizer_file, prompts, config
        self._frames, self._rows = frames, rows

    def __iter__(self) -> Iterator[list[Script]]:
        import sentencepiece

        worker = get_worker_info()
        seed = int(torch.initial_seed() % 2**31) if worker is None else worker.seed % 2**31
        index, file, prompts, config = self._given
        maker = DialogueMaker(index, self._frames, seed)
        prompter = PromptMaker(sentencepiece.SentencePieceProcessor(model_file=file), prompts, config, seed)
        while True:
            yield [prompter.script(maker.draw()) for _ in range(self._rows)]


class Answers:
    """The codes of every clip of the assistant, encoded once: an answer in a conversation is a copy, silence between answers constant.

    So a sentence in a voice has few spellings in codes, which a small model learns well.
    """

    def __init__(self, bank: SpeechBank, mimi: TrainedMimi, own: Mapping[str, Tensor] | None = None) -> None:
        """Encode; `own` codes of a rehearsal (corpus.OWN_CODES) are taken as they are."""
        own = own or {}
        answers = [clip for clip in bank.index.clips if clip.role == "assistant"]
        given = [(clip, codes) for clip in answers if (codes := own.get(f"{clip.speaker} {clip.text}")) is not None]
        clips = sorted((clip for clip in answers if f"{clip.speaker} {clip.text}" not in own), key=lambda clip: clip.length)
        self._place: dict[int, tuple[int, int]] = {}  # first sample in the bank -> first row of `codes`, rows
        parts: list[Tensor] = [torch.zeros(0, CODEBOOKS, dtype=torch.int64, device=mimi.device)]
        count = 0
        for clip, codes in given:
            self._place[clip.start] = count, len(codes)
            parts.append(codes.to(mimi.device, torch.int64))
            count += len(codes)
        for first in range(0, len(clips), ENCODE_ROWS):
            some = clips[first : first + ENCODE_ROWS]
            frames = -(-some[-1].length // FRAME) + TAIL_FRAMES
            pcm = torch.zeros(len(some), (LEAD_FRAMES + frames) * FRAME, device=mimi.device)
            for row, clip in enumerate(some):
                at = LEAD_FRAMES * FRAME
                pcm[row, at : at + clip.length] = bank.samples[clip.start : clip.start + clip.length].float() / 32768
            encoded = mimi.encode_codes(pcm)[:, LEAD_FRAMES:, :CODEBOOKS]
            for row, clip in enumerate(some):
                size = -(-clip.length // FRAME) + TAIL_FRAMES
                self._place[clip.start] = count, size
                parts.append(encoded[row, :size])
                count += size
        self.codes = torch.cat(parts)

    def lay(self, dialogues: list[Dialogue], silence: Tensor, frames: int) -> Tensor:
        """The assistant's codes int64 [B, T, CODEBOOKS] of conversations; `silence` int64 [CODEBOOKS] stands between answers."""
        device = silence.device
        table = []
        for row, dialogue in enumerate(dialogues):
            for placement in dialogue.placements:
                if not placement.is_user:
                    at, (first, own) = placement.at // FRAME, self._place[placement.start]
                    table.append((row * frames + at, first, min(own, placement.length // FRAME + TAIL_FRAMES, frames - at)))
        out = silence.expand(len(dialogues) * frames, CODEBOOKS).clone()
        if table:
            starts, firsts, lengths = torch.tensor(table, device=device).unbind(1)
            run, place = spread(lengths.clamp(min=0))
            out[starts[run] + place] = self.codes[firsts[run] + place]
        return out.view(len(dialogues), frames, CODEBOOKS)


class Assembler:
    """Scripts to rows, through the mixer and the codec."""

    def __init__(
        self, bank: SpeechBank, mimi: TrainedMimi, config: LMConfig, silence: tuple[int, ...], length: int, answers: Answers
    ) -> None:
        self._bank, self._mimi, self._config, self._length = bank, mimi, config, length
        self._silence = torch.tensor(silence, device=mimi.device)
        self._answers = answers

    @torch.no_grad()
    def __call__(self, scripts: list[Script], *, clean: bool = False) -> Rows:
        """Make one batch; `clean` leaves the user's sound as it is."""
        device, length = self._bank.samples.device, self._length
        dialogues = [script.dialogue for script in scripts]
        frames = len(dialogues[0].text)
        batch = render(self._bank, dialogues, frames)
        user = batch.user if clean else spoil(vary_level(batch.user), batch.assistant)
        heard = self._mimi.encode_codes(user)[..., :CODEBOOKS]
        assistant = self._answers.lay(dialogues, self._silence, frames)
        text, speaking, overlap, intents = (
            torch.from_numpy(np.stack([getattr(dialogue, name) for dialogue in dialogues])).to(device)
            for name in ("text", "speaking", "overlap", "intents")
        )
        sizes = torch.tensor([len(script.prompt) for script in scripts], device=device)
        place = torch.arange(length, device=device) - sizes[:, None]  # frame of the dialogue at each position
        at = place.clamp(0, frames - 1)
        live = torch.cat((text[..., None], assistant, heard), dim=-1)
        joined = live.gather(1, at[..., None].expand(-1, -1, ROW_WIDTH))
        prompts = _padded([script.prompt for script in scripts], length).to(device)
        is_prompt = place < 0
        rows = stagger(torch.where(is_prompt[..., None], prompts, joined), self._config)
        return Rows(
            rows=rows,
            targets=rows[:, 1:, : 1 + CODEBOOKS],
            is_live=((place >= 0) & (place < frames))[:, 1:],
            speaking=speaking.gather(1, at)[:, 1:],
            overlap=overlap.gather(1, at)[:, 1:],
            phones=batch.phones[:, 0].gather(1, at[..., None].expand(-1, -1, batch.phones.shape[-1]))[:, :-1],
            words=batch.words.gather(1, at)[:, :-1],
            intents=intents.gather(1, at)[:, :-1],
            names=torch.tensor([script.name for script in scripts], device=device),
            shops=torch.tensor([script.shop for script in scripts], device=device),
        )


def corrupted(batch: Rows, card: int) -> Tensor:
    """What the model reads, int64 [B, L - 1, ROW_WIDTH], with random codes here and there: its own past will not be perfect either."""
    rows = batch.rows[:, :-1]
    shares = torch.tensor([0.0, *[ASSISTANT_CORRUPTION] * CODEBOOKS, *[USER_CORRUPTION] * CODEBOOKS], device=rows.device)
    is_hit = (torch.rand(rows.shape, device=rows.device) < shares) & batch.is_live[..., None]
    return torch.where(is_hit, torch.randint(0, card, rows.shape, device=rows.device), rows)


def _padded(prompts: list[NDArray[np.int64]], length: int) -> Tensor:
    out = np.zeros((len(prompts), length, ROW_WIDTH), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        out[row, : len(prompt)] = prompt[:length]
    return torch.from_numpy(out)
