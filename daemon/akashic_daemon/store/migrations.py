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
    (
        # What a session has left behind (by rewinding, or by an edited history) stays its own until it is removed.
        """CREATE TABLE past_heads (
            session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
            message_id INTEGER NOT NULL REFERENCES messages(id),
            PRIMARY KEY (session_id, message_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX past_heads_message ON past_heads(message_id)",
        # Version 1 didn't note whose these were; no command could reach them, and `session rm` promised them gone.
        """DELETE FROM messages WHERE id NOT IN (
            WITH RECURSIVE reached(id) AS (
                SELECT head_id FROM sessions WHERE head_id IS NOT NULL
                UNION SELECT m.parent_id FROM messages m JOIN reached ON m.id = reached.id WHERE m.parent_id IS NOT NULL)
            SELECT id FROM reached)""",
        "DELETE FROM sampled WHERE parent_chain <> '' AND parent_chain NOT IN (SELECT chain FROM messages)",
        "DELETE FROM sampled WHERE length(token_ids) = 0",
    ),
    (
        # The digest says which message it is; times, sources and error marks are outside it, but damage there counts.
        # What was damaged before can't be told any more: it gets the checksum of what stands there.
        "ALTER TABLE messages ADD COLUMN checksum TEXT NOT NULL DEFAULT ''",
        """UPDATE messages SET checksum =
            row_checksum(CAST(chain AS BLOB), depth, CAST(json AS BLOB), created_at_s)""",
    ),
    (
        """CREATE TABLE programs (
            session_id INTEGER PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
            policy TEXT,
            policy_since INTEGER NOT NULL DEFAULT 0,
            ops TEXT NOT NULL DEFAULT '[]'
        )""",
        """CREATE TABLE explanations (
            session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
            turn INTEGER NOT NULL,
            json TEXT NOT NULL,
            PRIMARY KEY (session_id, turn)
        ) WITHOUT ROWID""",
    ),
    ("ALTER TABLE programs ADD COLUMN edit_reuse TEXT",),
    (
        # What a continuing request is recognised by. Traces are tokens, which are text in another form.
        """CREATE TABLE fingerprints (
            fingerprint TEXT PRIMARY KEY,
            model TEXT NOT NULL,
            parts TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE traces (
            id INTEGER PRIMARY KEY,
            session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
            fingerprint TEXT NOT NULL REFERENCES fingerprints(fingerprint),
            head_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
            length_tokens INTEGER NOT NULL,
            body BLOB NOT NULL,
            checksum TEXT NOT NULL,
            UNIQUE (session_id, fingerprint)
        )""",
        "CREATE INDEX traces_head ON traces(head_id)",
        """CREATE TABLE places (
            session_id INTEGER PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
            json TEXT NOT NULL
        )""",
        """CREATE TABLE request_ends (
            id INTEGER PRIMARY KEY,
            chain TEXT NOT NULL UNIQUE,
            session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE
        )""",
        "CREATE INDEX request_ends_session ON request_ends(session_id)",
        # After an edited history an answer is known by its text alone; of several samplings the newest counts.
        "ALTER TABLE sampled ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX sampled_text ON sampled(text_digest, sequence)",
    ),
    (
        # A call comes back by its id, its arguments perhaps written otherwise; the message says how they stood.
        """CREATE TABLE calls (
            call_id TEXT NOT NULL,
            message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            PRIMARY KEY (call_id, message_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX calls_message ON calls(message_id)",
    ),
    (
        # Responses that later requests continue by id. Their words are their session's, and go with it.
        """CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            previous TEXT,
            session_id INTEGER REFERENCES sessions(id) ON DELETE CASCADE,
            items TEXT NOT NULL,
            body TEXT NOT NULL,
            created_at_s REAL NOT NULL,
            checksum TEXT NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX responses_session ON responses(session_id)",
    ),
    (
        # Sessions that go into long-term memory; message_count: how many of its messages are there.
        """CREATE TABLE remembering (
            session_id INTEGER PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
            namespace TEXT NOT NULL,
            message_count INTEGER NOT NULL DEFAULT 0
        )""",
    ),
    (
        # What a remote model is reached by; its path is the URL.
        "ALTER TABLE models ADD COLUMN remote TEXT",
    ),
    (
        # The chain of a session's messages that are in memory: others may have taken their place. '' in older marks.
        "ALTER TABLE remembering ADD COLUMN chain TEXT NOT NULL DEFAULT ''",
    ),
)
"""MIGRATIONS[n] brings a database from version n to n + 1."""
