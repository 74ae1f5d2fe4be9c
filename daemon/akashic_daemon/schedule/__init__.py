"""How requests share the engine: the step loop, what a request is and hears, counters, text from tokens."""
