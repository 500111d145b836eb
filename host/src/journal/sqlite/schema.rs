//! How the database of sessions is opened: its file, its settings, its tables, each checked.

use crate::journal::store::StoreError;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::OFlags;
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Marks the file as a store of this program ("RTKJ").
pub(super) const APPLICATION_ID: i64 = 0x5254_4b4a;
/// The version of the tables below.
pub(super) const SCHEMA_VERSION: i64 = 1;
/// How long a connection waits for another process's transaction.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const TABLES: &str = "
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        -- The seq of the next event: an append states which one it expects.
        tail INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE events (
        session INTEGER NOT NULL REFERENCES sessions (key),
        seq INTEGER NOT NULL,
        type TEXT NOT NULL,
        time INTEGER NOT NULL,
        -- The event as one line of JSON, byte for byte what the JSONL store writes.
        line TEXT NOT NULL,
        PRIMARY KEY (session, seq)
    ) STRICT, WITHOUT ROWID;
";

pub(super) fn database_error(path: &Path, action: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    move |error| StoreError::Database { path: path.clone(), action, reason: error.to_string() }
}

/// Whose links have been followed: only the file itself may not be one.
fn resolved(path: &Path) -> PathBuf {
    match (path.parent().and_then(|dir| dir.canonicalize().ok()), path.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => path.to_owned(),
    }
}

/// Opens the database for writing; creates it, private to its owner, when it is absent.
pub(super) fn open_for_writing(path: &Path) -> Result<Connection, StoreError> {
    create_private(path)?;
    check_file(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(resolved(path), flags).map_err(database_error(path, "opened"))?;
    if connection.is_readonly("main").map_err(database_error(path, "opened"))? {
        let reason = "it may only be read".into();
        return Err(StoreError::Database { path: path.display().to_string(), action: "opened for writing", reason });
    }
    settings(path, &connection)?;
    write_ahead(path, &connection)?;
    create_tables(&mut connection).map_err(database_error(path, "prepared"))?;
    check_schema(path, &connection)?;
    Ok(connection)
}

/// Opens the database for reading; `None` when there is none.
///
/// The connection may write, so that SQLite can roll back what a crash left half done, but no statement on it may.
pub(super) fn open_for_reading(path: &Path) -> Result<Option<Connection>, StoreError> {
    if !path.try_exists().map_err(|source| io_error(path, "read", source))? {
        return Ok(None);
    }
    check_file(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let failed = database_error(path, "opened");
    let connection = Connection::open_with_flags(resolved(path), flags).map_err(&failed)?;
    connection.pragma_update(None, "query_only", 1).map_err(&failed)?;
    settings(path, &connection)?;
    if is_fresh(&connection).map_err(database_error(path, "read"))? {
        // Another process is just creating it.
        return Ok(None);
    }
    check_schema(path, &connection)?;
    Ok(Some(connection))
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.display().to_string(), action, source }
}

fn create_private(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path);
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error(path, "created", error)),
    }
}

fn check_file(path: &Path) -> Result<(), StoreError> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| io_error(path, "read", source))?;
    if metadata.is_file() { Ok(()) } else { Err(StoreError::NotAFile { path: path.display().to_string() }) }
}

fn settings(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let failed = database_error(path, "set up");
    connection.busy_timeout(BUSY_TIMEOUT).map_err(&failed)?;
    for (name, value) in [("foreign_keys", 1), ("trusted_schema", 0), ("mmap_size", 0), ("synchronous", 2)] {
        connection.pragma_update(None, name, value).map_err(&failed)?;
    }
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).map_err(&failed)?;
    verified(path, "synchronous", &synchronous.to_string(), "2")
}

/// Sets write-ahead logging, which two processes that open a new database at once may have to try again.
fn write_ahead(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let begun = Instant::now();
    loop {
        let mode: Result<String, _> = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
        match mode {
            Ok(mode) => return verified(path, "journal_mode", &mode, "wal"),
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && begun.elapsed() < BUSY_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(database_error(path, "set up")(error)),
        }
    }
}

fn verified(path: &Path, name: &str, found: &str, wanted: &str) -> Result<(), StoreError> {
    if found == wanted {
        return Ok(());
    }
    Err(StoreError::Database {
        path: path.display().to_string(),
        action: "set up",
        reason: format!("{name} stayed {found}, but it must be {wanted}"),
    })
}

fn is_fresh(connection: &Connection) -> rusqlite::Result<bool> {
    let marked: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(marked == 0 && tables == 0)
}

fn create_tables(connection: &mut Connection) -> rusqlite::Result<()> {
    if !is_fresh(connection)? {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been quicker.
    if is_fresh(&transaction)? {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    transaction.commit()
}

fn check_schema(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let failed = database_error(path, "read");
    let unsupported = |reason: String| StoreError::Unsupported { path: path.display().to_string(), reason };
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let marked = number("application_id").map_err(&failed)?;
    if marked != APPLICATION_ID {
        return Err(unsupported(format!(
            "its application id is {marked:#x}, and that of a store of sessions is {APPLICATION_ID:#x}"
        )));
    }
    let version = number("user_version").map_err(&failed)?;
    if version != SCHEMA_VERSION {
        return Err(unsupported(format!("its tables are of version {version}, and this build reads {SCHEMA_VERSION}")));
    }
    let strict: i64 = connection
        .query_row(
            "SELECT count(*) FROM pragma_table_list WHERE name IN ('sessions', 'events') AND strict = 1",
            [],
            |row| row.get(0),
        )
        .map_err(&failed)?;
    if strict != 2 {
        return Err(unsupported(format!("{strict} of its 2 tables are there and strict")));
    }
    Ok(())
}
