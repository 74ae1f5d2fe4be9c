"""The schema, as the steps that made it. Steps are only ever added; each runs in one transaction with its record."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY,
            parent_id INTEGER REFERENCES messages(id),
            depth INTEGER NOT NULL,
            chain TEXT NOT NULL UNIQUE,
            digest TEXT NOT NULL,
            json TEXT NOT NULL,
            created_at_s REAL NOT NULL
        )""",
        "CREATE INDEX messages_parent ON messages(parent_id)",
        """CREATE TABLE sessions (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            head_id INTEGER REFERENCES messages(id),
            title TEXT NOT NULL,
            origin TEXT NOT NULL,
            forked_from TEXT,
            created_at_s REAL NOT NULL,
            updated_at_s REAL NOT NULL,
            window_start_message INTEGER
        )""",
        "CREATE INDEX sessions_head ON sessions(head_id)",
        """CREATE TABLE sampled (
            parent_chain TEXT NOT NULL,
            text_digest TEXT NOT NULL,
            token_ids BLOB NOT NULL,
            PRIMARY KEY (parent_chain, text_digest)
        ) WITHOUT ROWID""",
        """CREATE TABLE models (
            name TEXT PRIMARY KEY,
            path TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            mtime_ns INTEGER NOT NULL,
            is_default INTEGER NOT NULL DEFAULT 0
        )""",
    ),
)
"""MIGRATIONS[n] brings a database from version n to n + 1."""
