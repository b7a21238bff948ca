"""A gateway for full-duplex speech models: many callers, one GPU, one process. Importing this never imports torch."""

__version__ = "0.1.0"
