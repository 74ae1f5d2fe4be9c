"""The memory database's schema, as the steps that made it. Steps are only ever added.

What is derived from turns (terms, vectors, versions, records) hangs on them, so that forgetting reaches all of it.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at_s REAL NOT NULL)",
        """CREATE TABLE sources (
            id INTEGER PRIMARY KEY,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            UNIQUE (namespace_id, name)
        )""",
        """CREATE TABLE chunks (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            length_tokens INTEGER NOT NULL DEFAULT 0,
            created_at_s REAL NOT NULL,
            sealed_at_s REAL,
            reconciled_at_s REAL,
            estimated_rho REAL
        )""",
        # One chunk takes a namespace's turns at a time.
        "CREATE UNIQUE INDEX chunks_open ON chunks(namespace_id) WHERE sealed_at_s IS NULL",
        # Numbers are never used twice: a log or a link can't come to mean another turn.
        """CREATE TABLE turns (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            digest TEXT NOT NULL,
            source_id INTEGER NOT NULL REFERENCES sources(id),
            previous_id INTEGER REFERENCES turns(id) ON DELETE SET NULL,
            chunk_id INTEGER REFERENCES chunks(id) ON DELETE SET NULL,
            speaker TEXT NOT NULL,
            text TEXT NOT NULL,
            event_at_s REAL,
            length_tokens INTEGER NOT NULL,
            traits INTEGER NOT NULL,
            added_at_s REAL NOT NULL,
            UNIQUE (namespace_id, digest)
        )""",
        "CREATE INDEX turns_chunk ON turns(chunk_id)",
        "CREATE INDEX turns_source ON turns(source_id)",
        "CREATE INDEX turns_previous ON turns(previous_id)",
        """CREATE TABLE provenance (
            turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
            source_id INTEGER NOT NULL REFERENCES sources(id),
            reference TEXT NOT NULL,
            event_at_s REAL,
            PRIMARY KEY (turn_id, source_id, reference)
        ) WITHOUT ROWID""",
        "CREATE INDEX provenance_reference ON provenance(source_id, reference)",
        """CREATE TABLE terms (
            id INTEGER PRIMARY KEY,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            term TEXT NOT NULL,
            document_count INTEGER NOT NULL,
            UNIQUE (namespace_id, term)
        )""",
        # term_ids: little-endian uint32, in the turn's order, repeats kept.
        """CREATE TABLE turn_terms (
            turn_id INTEGER PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
            term_ids BLOB NOT NULL
        )""",
        """CREATE TABLE turn_vectors (
            turn_id INTEGER PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE,
            embedder TEXT NOT NULL,
            body BLOB NOT NULL
        )""",
        # How many turns have each of the embedder's tokens, as its owner writes it; and when all vectors were last made.
        """CREATE TABLE embedder_states (
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            embedder TEXT NOT NULL,
            turn_count INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (namespace_id, embedder)
        ) WITHOUT ROWID""",
        """CREATE TABLE chunk_versions (
            chunk_id INTEGER NOT NULL REFERENCES chunks(id) ON DELETE CASCADE,
            version INTEGER NOT NULL,
            text TEXT NOT NULL,
            rho REAL NOT NULL,
            made_by TEXT NOT NULL,
            made_at_s REAL NOT NULL,
            PRIMARY KEY (chunk_id, version)
        ) WITHOUT ROWID""",
        """CREATE TABLE chunk_links (
            chunk_id INTEGER NOT NULL REFERENCES chunks(id) ON DELETE CASCADE,
            other_id INTEGER NOT NULL REFERENCES chunks(id) ON DELETE CASCADE,
            weight REAL NOT NULL,
            PRIMARY KEY (chunk_id, other_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX chunk_links_other ON chunk_links(other_id)",
        """CREATE TABLE records (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            chunk_id INTEGER REFERENCES chunks(id) ON DELETE CASCADE,
            text TEXT NOT NULL,
            subject TEXT NOT NULL,
            slot TEXT NOT NULL,
            event_at_s REAL,
            made_by TEXT NOT NULL,
            made_at_s REAL NOT NULL
        )""",
        "CREATE INDEX records_subject ON records(namespace_id, subject, slot)",
        "CREATE INDEX records_chunk ON records(chunk_id)",
        """CREATE TABLE record_turns (
            record_id INTEGER NOT NULL REFERENCES records(id) ON DELETE CASCADE,
            turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
            PRIMARY KEY (record_id, turn_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX record_turns_turn ON record_turns(turn_id)",
        # relation: 'supersedes' (the record replaces the other), 'contradicts' (the record is the newer), 'link'.
        """CREATE TABLE record_relations (
            record_id INTEGER NOT NULL REFERENCES records(id) ON DELETE CASCADE,
            other_id INTEGER NOT NULL REFERENCES records(id) ON DELETE CASCADE,
            relation TEXT NOT NULL,
            reason TEXT NOT NULL,
            made_at_s REAL NOT NULL,
            PRIMARY KEY (record_id, other_id, relation)
        ) WITHOUT ROWID""",
        "CREATE INDEX record_relations_other ON record_relations(other_id)",
        # What searches returned, never what was asked. turn_ids: little-endian int64, best first.
        """CREATE TABLE result_sets (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            at_s REAL NOT NULL,
            turn_ids BLOB NOT NULL
        )""",
        "CREATE INDEX result_sets_namespace ON result_sets(namespace_id, id)",
    ),
    (
        # What is the same but for case, spaces and the end of the sentence; '' where only the same is the same.
        "ALTER TABLE turns ADD COLUMN likeness TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX turns_likeness ON turns(namespace_id, likeness) WHERE likeness <> ''",
        # What a statement says of its slot; '' when that isn't known. changes: its words say that it wasn't always so.
        "ALTER TABLE records ADD COLUMN value TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE records ADD COLUMN is_negated INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE records ADD COLUMN changes INTEGER NOT NULL DEFAULT 0",
        # How much was said lately of which worth, as its owner writes it: numbers only, no word of it.
        """CREATE TABLE compaction_states (
            namespace_id INTEGER PRIMARY KEY REFERENCES namespaces(id) ON DELETE CASCADE,
            body TEXT NOT NULL
        )""",
    ),
    (
        # How far followed logs were read. Devices and inodes may be greater than SQLite's integers, so they are text.
        """CREATE TABLE watch_marks (
            namespace_id INTEGER NOT NULL REFERENCES namespaces(id) ON DELETE CASCADE,
            device TEXT NOT NULL,
            inode TEXT NOT NULL,
            path TEXT NOT NULL,
            offset_bytes INTEGER NOT NULL,
            line INTEGER NOT NULL,
            tail TEXT NOT NULL,
            format TEXT NOT NULL,
            settle_bytes INTEGER,
            PRIMARY KEY (namespace_id, device, inode)
        ) WITHOUT ROWID""",
    ),
)
"""MIGRATIONS[n] brings a memory database from version n to n + 1."""

TABLES = frozenset({"namespaces", "turns"})
"""By these a memory database is known as ours."""
