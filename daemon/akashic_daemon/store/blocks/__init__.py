"""The block store: records with payloads in extents, found through an SQLite index of their own."""
