"""Long-term memory: what is kept of turns that have left the window, and how it is found again."""
