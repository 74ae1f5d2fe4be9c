"""A model that another server computes: any OpenAI-compatible endpoint."""
