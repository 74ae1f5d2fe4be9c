"""Sessions between requests: which one a request extends, what is known of them, and how they leave and come in."""
