"""The logical history: messages with their exact text, rendering, and who owns which token. Pure: no engine, no I/O."""
