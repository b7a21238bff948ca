"""Headless clients, one per wire: `python -m examples.pcm_client --help`, `python -m examples.chat_client --help`."""
