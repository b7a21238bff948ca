"""Let a model in training answer: conversations completed frame by frame, and an examination with questions of speakers it never heard.

Thread: main.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import torch
from torch import Tensor

from gateway.engine.layout import CODEBOOKS, SPECIAL_TEXT_IDS, LMConfig
from gateway.training import persona as personas
from gateway.training.bank import SpeechBank
from gateway.training.codec_model import TrainedMimi
from gateway.training.dialogues import Dialogue, DialogueMaker
from gateway.training.grammar import Ask, intent_of, plain, reply
from gateway.training.lm_batches import Answers, Assembler, PromptMaker, Script
from gateway.training.lm_model import TrainedLM
from gateway.training.voices import VoicePrompts

FRAMES = 112  # of an answer's conversation, 9 s
LENGTH = 100 + FRAMES  # positions; prompts have fewer than 100
SPOKEN = 100  # frames kept of what is spoken
TEMPERATURE, TOPK = 0.4, 40  # of the codes; text is greedy


class _Draw:
    """The engine's `Sampler.draw` for one setting, without seeds."""

    def draw(self, step: int, logits: Tensor) -> Tensor:
        kept = logits.topk(TOPK, dim=-1).values[:, -1:]
        odds = (logits / TEMPERATURE).masked_fill(logits < kept, -torch.inf).softmax(-1)
        return torch.multinomial(odds, 1)[:, 0]


@torch.no_grad()
def complete(lm: TrainedLM, rows: Tensor, firsts: Tensor) -> Tensor:
    """Let the model make its part of rows.

    Args:
        lm: the model.
        rows: int64 [B, L, ROW_WIDTH]; L is at most the model's window.
        firsts: int64 [B], first position of each row that is the model's to make.

    Returns:
        The rows, text and the assistant's codes replaced from `firsts` on.
    """
    rows, draw, pasts = rows.clone(), _Draw(), lm.pasts()
    start = int(firsts.min())
    hidden = lm(rows[:, :start], pasts)[:, -1]
    for position in range(start, rows.shape[1]):
        is_own = position >= firsts
        text = torch.where(is_own, lm.text_logits(hidden).argmax(dim=-1), rows[:, position, 0])
        forced = torch.where(is_own[:, None], -1, rows[:, position, 1 : 1 + CODEBOOKS])
        rows[:, position, 0] = text
        rows[:, position, 1 : 1 + CODEBOOKS] = lm.depth(hidden.float(), text, forced, draw)  # type: ignore[arg-type]
        if position + 1 < rows.shape[1]:
            hidden = lm(rows[:, position : position + 1], pasts)[:, -1]
    return rows


def unstaggered(rows: Tensor) -> Tensor:
    """The assistant's codes int64 [T - 1, CODEBOOKS] by frame, of consecutive rows [T, ROW_WIDTH]: acoustic ones come a row late."""
    return torch.cat((rows[:-1, 1:2], rows[1:, 2 : 1 + CODEBOOKS]), dim=1)


class Examination:
    """Fixed questions with known answers."""

    def __init__(
        self, bank: SpeechBank, num_own: int, mimi: TrainedMimi, config: LMConfig, prompts: VoicePrompts, tokenizer: Path, count: int
    ) -> None:
        import sentencepiece

        self._tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
        self._mimi, self._config = mimi, config
        rng = random.Random(1)
        maker = DialogueMaker(bank.index, FRAMES, seed=1)
        prompter = PromptMaker(self._tokenizer, prompts, config, seed=1)
        clips = list(range(num_own, len(bank.index.clips)))
        rng.shuffle(clips)
        self._asks: list[Ask] = []
        scripts: list[Script] = []
        voices = sorted(prompts.codes)
        for i in clips:
            if len(scripts) == count:
                break
            if bank.index.clips[i].role != "user":
                continue
            text = bank.index.clips[i].text
            persona = dataclasses.replace(personas.draw(rng), greets_first=False)  # or it would speak into the question
            ask = Ask(*intent_of(text), text)
            dialogue: Dialogue = maker.single(ask, i, persona, rng.choice(voices))
            self._asks.append(ask)
            scripts.append(prompter.script(dialogue, first_prompt=True))
        self._scripts = scripts
        no_answers = Answers(bank.restricted(0), mimi)
        self._rows = Assembler(bank, mimi, config, prompts.profile.silence_codes, LENGTH, no_answers)(scripts, clean=True).rows
        self._sizes = torch.tensor([len(script.prompt) for script in scripts], device=mimi.device)

    def answer(self, lm: TrainedLM) -> tuple[list[str], Tensor]:
        """Return what the model writes, and the codes it speaks, int64 [B, SPOKEN, CODEBOOKS]."""
        rows = complete(lm, self._rows, self._sizes)
        written, spoken = [], []
        for own, size in zip(rows, self._sizes.tolist(), strict=True):
            written.append(self._tokenizer.decode([piece for piece in own[size:, 0].tolist() if piece >= SPECIAL_TEXT_IDS]))
            spoken.append(unstaggered(own[size : size + SPOKEN + 1]))
        return written, torch.stack(spoken)

    def report(self, lm: TrainedLM, keep: Path | None = None) -> float:
        """Say how many answers are right; with `keep`, also write texts and sound there."""
        lm.eval()
        written, spoken = self.answer(lm)
        lm.train()
        wanted = [reply(ask.intent, ask.slot, script.dialogue.persona) for ask, script in zip(self._asks, self._scripts, strict=True)]
        right = [plain(one) == plain(other) for one, other in zip(written, wanted, strict=True)]
        share = sum(right) / len(right)
        print(f"examination: {sum(right)} of {len(right)} right ({share:.0%})", file=sys.stderr, flush=True)
        wrong = [(ask.text, text) for ask, text, ok in zip(self._asks, written, right, strict=True) if not ok]
        for text, answer in wrong[:8]:
            print(f"    {text!r} -> {answer!r}", file=sys.stderr, flush=True)
        if keep is not None:
            pcm = self._mimi.decode_codes(spoken[:24])
            dialogues = [script.dialogue for script in self._scripts]
            asked = [(ask.text, dialogue.persona.text, dialogue.voice) for ask, dialogue in zip(self._asks, dialogues, strict=True)]
            samples = (pcm * 32767).clamp(-32768, 32767).short().cpu()
            torch.save({"asked": asked, "wanted": wanted, "written": written, "pcm": samples}, keep)
        return share
