"""Triton kernels of the torch engine, one folder an op.

Importing this package, or an op, imports neither torch nor triton: `api` functions do so when they are called.
"""
