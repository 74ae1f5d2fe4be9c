"""Part of the akashic daemon."""
