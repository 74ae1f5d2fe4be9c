"""What `akashic chat` does: its input, a turn, a conversation."""
