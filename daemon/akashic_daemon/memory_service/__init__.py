"""Long-term memory for the rest of the daemon: in conversations, over HTTP, and from logs that are followed."""
