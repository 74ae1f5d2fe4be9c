"""How faithful an edited cache is: what the model says of recorded answers, against what it says with the full cache.

Runs as a process of its own (`python -m akashic_daemon.fidelity`) with an engine of its own, beside any daemon. `turns`
cuts a transcript into turns, `variants` says what the model sees in each, `reader` computes it through the radix index as
the step loop does, `measure` compares, `report` adds up.
"""
