"""Engines compute KV and logits. `base` is the contract; each engine is a folder of its own."""
