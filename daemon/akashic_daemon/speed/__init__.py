"""A process that times this machine and the engine on it, for the planner to be fitted to and judged by."""
