"""A process that measures long-term memory on conversations with questions whose evidence is known.

A suite is a function of the corpus that returns data: its rows of figures, and what they mean. `__main__` lists them.
"""
