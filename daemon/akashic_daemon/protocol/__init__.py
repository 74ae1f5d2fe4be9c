"""What travels between the daemon and its clients. The CLI imports this, `paths`, `config` and `errors`, nothing else."""

PROTOCOL_VERSION = 1
"""Raised when a change would make an older CLI misread the daemon."""
