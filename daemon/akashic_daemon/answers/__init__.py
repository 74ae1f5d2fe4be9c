"""A request for text: which engine answers it, what is computed for it, and what of its answer is kept."""
