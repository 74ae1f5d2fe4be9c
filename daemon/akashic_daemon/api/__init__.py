"""HTTP routes over the service: OpenAI's shapes and our own, the error border, and who may ask."""
