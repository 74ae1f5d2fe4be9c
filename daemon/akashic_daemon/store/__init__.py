"""What survives: SQLite, one writer thread. The only folder that touches sqlite3."""
