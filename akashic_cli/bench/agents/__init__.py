"""Agents as a load: recorded runs with the time that their tools took, at a concurrency or an arrival rate, under policies."""
