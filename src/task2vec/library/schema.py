"""The tables of the index, and how an older index becomes today's.

All that an embedding says stands in its blob; the index is what can be searched and listed without opening one.
Experts, measured errors, tags and runs are in the index alone.
"""

from collections.abc import Callable
from sqlite3 import Connection

SCHEMA = 1
APPLICATION = 0x54325643  # "T2VC", in the header of the file: tells an index from any other database

TABLES = """
CREATE TABLE tasks(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    images INTEGER NOT NULL,
    classes TEXT NOT NULL,
    counts TEXT NOT NULL,
    is_multilabel INTEGER NOT NULL,
    taxon TEXT,
    source TEXT NOT NULL DEFAULT '',
    added TEXT NOT NULL
) STRICT;
CREATE INDEX tasks_by_name ON tasks(name);

CREATE TABLE tags(
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    PRIMARY KEY (task, tag)
) STRICT, WITHOUT ROWID;

CREATE TABLE spaces(
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    probe TEXT NOT NULL,
    probe_fingerprint TEXT NOT NULL,
    settings TEXT NOT NULL,
    filters INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT 0,
    basis BLOB,
    fitted_on INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE embeddings(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    task INTEGER NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    space INTEGER NOT NULL REFERENCES spaces(id),
    settings TEXT NOT NULL,
    recipe INTEGER,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    norm REAL NOT NULL,
    cv_error REAL,
    has_halves INTEGER NOT NULL,
    added TEXT NOT NULL
) STRICT;
CREATE INDEX embeddings_by_task ON embeddings(task);
CREATE INDEX embeddings_by_space ON embeddings(space);
CREATE INDEX embeddings_by_blob ON embeddings(sha256);

CREATE TABLE places(
    embedding INTEGER PRIMARY KEY REFERENCES embeddings(id) ON DELETE CASCADE,
    space INTEGER NOT NULL REFERENCES spaces(id),
    slot INTEGER,
    crc INTEGER,
    sketch BLOB
) STRICT;
CREATE INDEX places_by_space ON places(space);

CREATE TABLE experts(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    location TEXT NOT NULL,
    task TEXT,
    recipe TEXT NOT NULL,
    parameters INTEGER,
    input_size INTEGER,
    cost REAL,
    sha256 TEXT,
    added TEXT NOT NULL
) STRICT;

CREATE TABLE errors(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task INTEGER NOT NULL REFERENCES tasks(id),
    expert INTEGER NOT NULL REFERENCES experts(id),
    protocol TEXT NOT NULL,
    seed INTEGER NOT NULL,
    error REAL NOT NULL,
    low REAL,
    high REAL,
    measured TEXT NOT NULL,
    measured_by TEXT NOT NULL,
    UNIQUE (task, expert, protocol, seed)
) STRICT;

CREATE TABLE runs(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    what TEXT NOT NULL,
    story TEXT NOT NULL,
    begun TEXT NOT NULL,
    ended TEXT,
    outcome TEXT
) STRICT;
"""

# From the schema of that number to the next one; each is run inside a transaction, after a backup was made.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {}


def create_tables(connection: Connection) -> None:
    """Makes the tables of an empty index, inside the caller's transaction."""
    for statement in TABLES.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
