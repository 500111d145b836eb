//! `retake journal list`: every session with its state. One that is damaged hides no other.

use super::{
    source::Source,
    when::{span, utc},
};
use crate::{
    cli::{
        Exit,
        stdout::{print, print_line},
    },
    env::{Clock, SystemClock},
    journal::{projection::RetryRow, record::Contents},
    profile::Home,
};
use clap::Args;
use serde::Serialize;

#[derive(Args, Debug)]
pub(in crate::cli) struct ListArgs {
    /// Only these sessions.
    #[arg(value_name = "SESSION")]
    sessions: Vec<String>,
    /// Only sessions in one of these states.
    #[arg(long, value_name = "STATE", value_enum, value_delimiter = ',')]
    state: Vec<State>,
    /// Print one line of JSON a session.
    #[arg(long)]
    json: bool,
}

/// What a session does, as far as its record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// A retry is scheduled and has not started.
    Waiting,
    /// A turn is open, or is to be repeated.
    Open,
    /// Its last turn has ended.
    Done,
    /// It cannot be gone on with.
    Damaged,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    path: String,
    state: State,
    /// Milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<u64>,
    turns: u64,
    last_activity: u64,
    /// The wait, or why it cannot be read.
    detail: String,
    /// The process that writes it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    written_by: Option<u32>,
    /// Its newest retry, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryRow>,
}

pub(super) fn run(home: &Home, args: &ListArgs) -> anyhow::Result<Exit> {
    let (mut sources, errors) = Source::listed(home);
    for wanted in &args.sessions {
        anyhow::ensure!(
            sources.iter().any(|source| source.id() == *wanted),
            "There is no session \"{wanted}\" in {}.",
            home.sessions_dir().display()
        );
    }
    sources.retain(|source| args.sessions.is_empty() || args.sessions.contains(&source.id()));
    let now = SystemClock.wall_ms();
    let mut rows: Vec<_> = sources.iter().map(|source| row(source, now)).collect();
    rows.retain(|row| args.state.is_empty() || args.state.contains(&row.state));
    rows.sort_by_key(|row| std::cmp::Reverse(row.last_activity));
    if args.json {
        for row in &rows {
            print_line(&serde_json::to_string(row)?)?;
        }
    } else if rows.is_empty() && !sources.is_empty() {
        eprintln!("None of the {} sessions is in such a state.", sources.len());
    } else if rows.is_empty() && errors.is_empty() {
        eprintln!("There are no sessions in {} yet; `retake demo` makes one.", home.sessions_dir().display());
    } else if !rows.is_empty() {
        print(&table(&rows))?;
    }
    for error in &errors {
        eprintln!("error: {error}");
    }
    Ok(if errors.is_empty() { Exit::Completed } else { Exit::Failed })
}

fn row(source: &Source, now_ms: u64) -> Row {
    match source.read() {
        Ok(contents) => readable(source, &contents, now_ms),
        Err(error) => Row {
            id: source.id(),
            path: source.name(),
            state: State::Damaged,
            created_at: None,
            turns: 0,
            last_activity: source.modified_ms(),
            detail: error.to_string(),
            written_by: None,
            retry: None,
        },
    }
}

fn readable(source: &Source, contents: &Contents, now_ms: u64) -> Row {
    let session = &contents.state;
    let (state, detail) = if let Some(damage) = contents.obstacle() {
        let place = format!("{}: line {} (byte {}): {}", source.name(), damage.line, damage.offset, damage.reason);
        (State::Damaged, place)
    } else if let Some(row) = session.retries.waiting() {
        let due = match row.remaining_ms(now_ms) {
            0 => format!("due since {}", utc(row.due_at)),
            left => format!("due in {}", span(left)),
        };
        (State::Waiting, format!("retry {} of {} {due}", row.count(), row.provider))
    } else if let Some(turn) = session.to_repeat {
        (State::Open, format!("turn {turn} is to be repeated"))
    } else if session.turn_open {
        (State::Open, format!("turn {}", session.last_turn))
    } else {
        (State::Done, String::new())
    };
    Row {
        id: source.id(),
        path: source.name(),
        state,
        created_at: Some(contents.header.created_at),
        turns: session.last_turn,
        last_activity: contents.events.last().map_or(contents.header.created_at, |event| event.time),
        detail,
        written_by: source.written_by(),
        retry: session.retries.current.clone(),
    }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(0).max("SESSION".len());
    let mut text =
        format!("{:<width$}  {:<20}  {:>5}  {:<20}  {}\n", "SESSION", "CREATED", "TURNS", "LAST ACTIVITY", "STATE");
    for row in rows {
        let state = match row.state {
            State::Waiting => "waiting",
            State::Open => "open",
            State::Done => "done",
            State::Damaged => "damaged",
        };
        let separator = if row.detail.is_empty() { "" } else { ": " };
        let writer = row.written_by.map_or_else(String::new, |process| format!(" (process {process} writes it)"));
        text.push_str(&format!(
            "{:<width$}  {:<20}  {:>5}  {:<20}  {state}{separator}{}{writer}\n",
            row.id,
            row.created_at.map_or_else(|| "-".to_owned(), utc),
            row.turns,
            utc(row.last_activity),
            row.detail
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{
            Body, Event, JsonlStore, SqliteStore, Store,
            event::{StepEnd, TurnEnd, TurnEndReason},
            fixture::turn,
        },
        llm::{Failure, FailureCode},
    };

    fn write(store: &dyn Store, id: &str, bodies: &[Body]) {
        let mut log = store.open(id).unwrap().log;
        for (seq, body) in (0..).zip(bodies) {
            log.write(&Event { seq, time: 1_000 + seq, body: body.clone(), source_event_seqs: None }).unwrap();
        }
    }

    /// A turn whose failed step is about to be repeated.
    fn to_repeat() -> Vec<Body> {
        let mut bodies = turn(1);
        let failure = Some(Failure::new(FailureCode::Server, "busy"));
        bodies.truncate(3);
        bodies.push(Body::StepEnd(StepEnd { turn: 1, step: 1, failure }));
        bodies.push(Body::TurnEnd(TurnEnd { turn: 1, reason: TurnEndReason::Retry }));
        bodies
    }

    #[test]
    fn a_damaged_session_hides_no_other_and_tells_where_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        let sessions = home.sessions_dir();
        let files = JsonlStore::new(&sessions);
        write(&files, "done", &turn(1));
        write(&files, "open", &turn(1)[..1]);
        write(&files, "repeat", &to_repeat());
        write(&SqliteStore::new(&sessions), "kept-in-sqlite", &turn(1));
        write(&files, "cut", &turn(1));
        let cut = sessions.join("cut.jsonl");
        let text = std::fs::read_to_string(&cut).unwrap().replacen("\"seq\":0", "\"seq\":5", 1);
        std::fs::write(&cut, text).unwrap();
        std::fs::write(sessions.join("noise.jsonl"), [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]).unwrap();
        let (sources, errors) = Source::listed(&home);
        assert!(errors.is_empty());
        let rows: Vec<_> = sources.iter().map(|source| row(source, 2_000)).collect();
        let states: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.state)).collect();
        assert_eq!(
            states,
            [
                ("cut", State::Damaged),
                ("done", State::Done),
                ("noise", State::Damaged),
                ("open", State::Open),
                ("repeat", State::Open),
                ("kept-in-sqlite", State::Done),
            ]
        );
        assert!(rows[0].detail.contains("cut.jsonl: line 2 (byte"), "{}", rows[0].detail);
        assert!(rows[2].detail.contains("noise.jsonl is not a session"), "{}", rows[2].detail);
        assert!(table(&rows).lines().count() == 7);
        assert!(rows.iter().all(|row| row.written_by.is_none()));
        let _open = files.open("open").unwrap();
        let held = row(&sources[3], 2_000);
        assert_eq!((held.id.as_str(), held.written_by), ("open", Some(std::process::id())));
        assert!(table(&[held]).contains(&format!("open: turn 1 (process {} writes it)", std::process::id())));
    }
}
