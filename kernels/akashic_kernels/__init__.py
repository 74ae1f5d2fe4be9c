"""Part of akashic."""
