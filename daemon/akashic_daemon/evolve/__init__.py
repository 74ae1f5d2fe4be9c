"""A search for better cache policies: proposed by a seeded mutator or a model, judged on recorded runs, told with evidence.

Policies are text of the op language and are only ever parsed and checked, never run as code.
"""
