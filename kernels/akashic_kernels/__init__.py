"""Triton kernels of the torch engine; none is built yet."""
