"""The RAM and SSD tiers: where KV blocks go when the engine lets go of them, and how they come back."""
