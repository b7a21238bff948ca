"""Rows, special ids and profiles of Moshi-class language models: what a checkpoint means, before any tensor.

A row is one position of the model: int [K] with K = 1 + n_q = 17, the text token, then the assistant's 8 codebooks, then the user's 8. The
acoustic codebooks (1 to 7 of each side) are delayed by one position (specs: moshi-model section 6). numpy-free, torch-free. Thread: any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from gateway.errors import ConfigError

CODEBOOKS = 8  # codebooks of one side that the models use; source: kyutai-labs/moshi@e6a55d2 loaders.py, n_q 16 = 2 x 8
ROW_WIDTH = 1 + 2 * CODEBOOKS  # 17
TEXT, ASSISTANT, USER = slice(0, 1), slice(1, 1 + CODEBOOKS), slice(1 + CODEBOOKS, ROW_WIDTH)
DELAYS = (0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1)  # row k lags by DELAYS[k] positions; same source, _lm_kwargs

TEXT_EPAD, TEXT_BOS, TEXT_EOS = 0, 1, 2  # end of padding, begin, end: never shown to anybody
SPECIAL_TEXT_IDS = 4  # ids below this are special: the three above and padding (3 in every published checkpoint)

SILENCE_CODES = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)  # source: NVIDIA/personaplex moshi/models/lm.py, SILENCE_TOKENS
SINE_CODES = (430, 1268, 381, 1611, 1095, 1495, 56, 472)  # 440 Hz at amplitude 0.5; same source, SINE_TOKENS
SILENCE_FRAMES = 6  # int(0.5 s x 12.5 frames/s) before and after the persona; same source

PERSONAPLEX_VOICE = "NATF0"  # of callers who name none; source: NVIDIA/personaplex client, the voice its page starts with

FRAME_RATE = 12.5  # frames per second of Mimi

# The 7B values of both published models; source: kyutai-labs/moshi@e6a55d2 moshi/models/loaders.py, _lm_kwargs.
DEFAULT_LM: Mapping[str, Any] = {
    "dim": 4096, "text_card": 32000, "existing_text_padding_id": 3, "n_q": 16, "dep_q": 8, "card": 2048, "num_heads": 32, "num_layers": 32,
    "hidden_scale": 4.125, "context": 3000, "max_period": 10000, "depformer_dim": 1024, "depformer_dim_feedforward": 4224,
    "depformer_num_heads": 16, "depformer_num_layers": 6, "delays": list(DELAYS),
}  # fmt: skip

_FIXED = {"causal": True, "layer_scale": None, "gating": "silu", "norm": "rms_norm_f32", "positional_embedding": "rope", "kv_repeat": 1,
          "depformer_layer_scale": None, "depformer_multi_linear": True, "depformer_gating": "silu", "depformer_pos_emb": "none",
          "depformer_weights_per_step": True, "cross_attention": False, "demux_second_stream": False, "quantize": False, "lora": False,
          "depformer_low_rank_embeddings": None, "depformer_weights_per_step_schedule": None, "conditioners": None, "fuser": None,
          "extra_heads_num_heads": 0, "delays": list(DELAYS), "n_q": 2 * CODEBOOKS, "text_card_out": None}  # fmt: skip


def gating_hidden(dim: int, feedforward: int) -> int:
    """Hidden size of a gated feed-forward block of nominal size `feedforward` (specs: moshi-model section 2)."""
    return 21 * dim // 8 if feedforward == 4 * dim else 2 * feedforward // 3


Number = TypeVar("Number", int, float)


def _positive(values: Mapping[str, Any], key: str, kind: type[Number] = int) -> Number:  # type: ignore[assignment]
    value = values[key]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json: {key} must be a positive number, not {value!r}")
    return kind(value)


@dataclasses.dataclass(frozen=True, slots=True)
class LMConfig:
    """Shapes of the language model."""

    dim: int
    num_layers: int
    num_heads: int
    hidden: int  # gating hidden size
    text_card: int  # text logits; the table has one row more, the initial token
    card: int  # audio logits; the tables have one row more, the initial token
    context: int  # positions of the reference's attention ring
    max_period: int  # RoPE base
    depth_dim: int
    depth_num_layers: int
    depth_num_heads: int
    depth_hidden: int
    padding_id: int  # text padding

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def table_starts(self) -> tuple[int, ...]:
        """Where each entry of a row begins in the stacked embedding table: codebook tables first, the text's last."""
        return (2 * CODEBOOKS * (self.card + 1), *(k * (self.card + 1) for k in range(2 * CODEBOOKS)))

    @property
    def table_rows(self) -> int:
        """Rows of the stacked embedding table."""
        return 2 * CODEBOOKS * (self.card + 1) + self.text_card + 1

    @property
    def text_initial(self) -> int:
        """Text id of the first row; the last row of the table."""
        return self.text_card

    @property
    def audio_initial(self) -> int:
        """Code of entries that have no value yet; the last row of each table."""
        return self.card

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LMConfig:
        """Read Kyutai's flat `config.json`; without `dim` the published 7B values hold.

        Raises:
            ConfigError: a feature this engine does not have, or a value of the wrong kind.
        """
        values = {**DEFAULT_LM, **raw} if "dim" in raw else dict(DEFAULT_LM)
        for key, only in _FIXED.items():
            if key in values and values[key] != only and (values[key] or only):
                raise ConfigError(f"config.json: {key} = {values[key]!r} is not supported (only {only!r})")
        dim, depth_dim = _positive(values, "dim"), _positive(values, "depformer_dim")
        config = cls(
            dim=dim,
            num_layers=_positive(values, "num_layers"),
            num_heads=_positive(values, "num_heads"),
            hidden=gating_hidden(dim, int(_positive(values, "hidden_scale", float) * dim)),
            text_card=_positive(values, "text_card"),
            card=_positive(values, "card"),
            context=_positive(values, "context"),
            max_period=_positive(values, "max_period"),
            depth_dim=depth_dim,
            depth_num_layers=_positive(values, "depformer_num_layers"),
            depth_num_heads=_positive(values, "depformer_num_heads"),
            depth_hidden=gating_hidden(depth_dim, _positive(values, "depformer_dim_feedforward")),
            padding_id=_positive(values, "existing_text_padding_id"),
        )
        if config.dim % config.num_heads or config.depth_dim % config.depth_num_heads:
            raise ConfigError("config.json: dim must be a multiple of num_heads, for the temporal and the depth transformer")
        return config


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """How a family of checkpoints is prompted and windowed."""

    name: Literal["personaplex", "moshi"]  # the window variant of the codec carries this name too
    takes_prompt: bool  # voice and persona rows before the call
    window: int  # keys a temporal query sees, its own included
    silence_codes: tuple[int, ...]  # the assistant's side of prompts, and what steering forces
    sine_codes: tuple[int, ...]  # the user's side of prompts
    voice_aliases: Mapping[str, str]  # other names under which a voice is known to clients
    default_voice: str | None  # used if the checkpoint has it
    default_persona: str  # "" is none

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], config: LMConfig, *, is_personaplex: bool) -> Profile:
        """Derive the profile; the optional object `gateway` of `config.json` overrides what the family implies.

        The window differs by family: the ring of PersonaPlex hides its oldest key (specs: moshi-model section 4.1).

        Raises:
            ConfigError: unknown keys in `gateway`, or codes outside the codec's card.
        """
        extra = dict(raw.get("gateway") or {})
        family = extra.pop("family", "personaplex" if is_personaplex else "moshi")
        if family not in ("personaplex", "moshi"):
            raise ConfigError(f"config.json: gateway.family must be personaplex or moshi, not {family!r}")
        profile = cls(
            name=family,
            takes_prompt=bool(extra.pop("takes_prompt", family == "personaplex")),
            window=config.context - (family == "personaplex"),
            silence_codes=tuple(extra.pop("silence_codes", SILENCE_CODES)),
            sine_codes=tuple(extra.pop("sine_codes", SINE_CODES)),
            voice_aliases=dict(extra.pop("voice_aliases", {})),
            default_voice=extra.pop("default_voice", PERSONAPLEX_VOICE if family == "personaplex" else None),
            default_persona=str(extra.pop("default_persona", "")),
        )
        if extra:
            raise ConfigError(f"config.json: unknown keys in gateway: {', '.join(sorted(extra))}")
        for name in ("silence_codes", "sine_codes"):
            codes = getattr(profile, name)
            if len(codes) != CODEBOOKS or not all(isinstance(code, int) and 0 <= code < config.card for code in codes):
                raise ConfigError(f"config.json: gateway.{name} must be {CODEBOOKS} codes below {config.card}")
        return profile
