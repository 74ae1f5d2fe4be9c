"""The generator of the man pages and of README's tables. No command imports it."""
