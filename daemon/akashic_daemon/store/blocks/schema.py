"""The index's schema, as the steps that made it. Steps are only ever added."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Numbers are never used twice: a file that a crash left can't be taken for a later extent.
        "CREATE TABLE extents (id INTEGER PRIMARY KEY AUTOINCREMENT, end_bytes INTEGER NOT NULL)",
        """CREATE TABLE records (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            token_ids BLOB,
            size_bytes INTEGER NOT NULL,
            checksum BLOB NOT NULL,
            extent_id INTEGER REFERENCES extents(id),
            offset_bytes INTEGER NOT NULL DEFAULT 0,
            payload BLOB,
            created_at_s REAL NOT NULL,
            read_at_s REAL NOT NULL,
            read_count INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX records_extent ON records(extent_id, offset_bytes)",
        """CREATE TABLE members (
            group_name TEXT NOT NULL,
            sequence INTEGER NOT NULL,
            record_id INTEGER NOT NULL REFERENCES records(id) ON DELETE CASCADE,
            PRIMARY KEY (group_name, sequence, record_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX members_record ON members(record_id)",
        # Of a damaged record only what names it and where it lay: neither payload nor token ids.
        """CREATE TABLE quarantine (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL,
            kind TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            extent_id INTEGER,
            offset_bytes INTEGER NOT NULL,
            reason TEXT NOT NULL,
            at_s REAL NOT NULL
        )""",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    ),
)
"""MIGRATIONS[n] brings an index from version n to n + 1."""

TABLES = frozenset({"extents", "records"})
"""By these an index is known as ours."""
