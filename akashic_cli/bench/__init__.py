"""Measures of any OpenAI-compatible server from its client's side."""
