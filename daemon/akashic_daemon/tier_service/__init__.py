"""The tiers as the rest of the daemon sees them: their life, their figures, and what people ask of them."""
