"""Long-term memory on disk: turns, chunks, records, and what a search index needs. The only SQL of memory."""
