"""Cache programs: what attention may read at each token, told as operations on a trajectory. Pure; no engine, no I/O."""
