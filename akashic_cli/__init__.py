"""The `akashic` command: a thin synchronous client of the daemon.

Of the daemon it knows the wire models, the paths, the settings and the errors; only `serve` joins the rest.
"""
