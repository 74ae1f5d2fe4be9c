"""`akashic stats` on a terminal: a board of views that keys switch between, drawn again for each snapshot."""
