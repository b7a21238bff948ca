"""Batched streaming Mimi: PCM frames to codes and back, torch and safetensors only; `mimi.py` states what it promises. Thread: tick."""

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.mimi import Mimi, load_mimi, random_mimi
from gateway.engine.codec.transformer import Window

__all__ = ["Mimi", "MimiConfig", "Window", "load_mimi", "random_mimi"]
