"""How things look: sizes, durations, tables. Knows no daemon."""
