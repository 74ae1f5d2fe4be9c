"""The akashic daemon: a local model with an editable, tiered KV cache and a durable history."""

__version__ = "0.1.0"
