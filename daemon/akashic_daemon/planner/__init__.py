"""What a model would do on a machine: a roofline of decode, prefill and the movement of KV, and a search over it.

Pure arithmetic on shapes, formats and rates: nothing is loaded, timed or allocated here, and no engine is imported.
"""
