"""The daemon as a process: lock, sockets, signals, and what it is; and processes of its own that measure."""
