"""The context of a session: its cache program as a prompt, as data, and as something that people operate on."""
