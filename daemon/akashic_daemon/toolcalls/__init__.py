"""Tool calls in a model's own words: what wrapper its template uses, grammars for it, and reading calls out of answers."""
