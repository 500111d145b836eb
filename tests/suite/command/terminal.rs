//! The wait line: redrawn in place on a terminal, plain lines elsewhere.

use super::*;
use std::{
    os::fd::{FromRawFd, OwnedFd},
    ptr,
};

/// A wait long enough for the countdown to change twice.
const COUNTED: &str = "{ mode: normal, backoff: { initialDelayMs: 2300, maxDelayMs: 2300, jitterRatio: 0 } }";

/// A new terminal of 120 columns: our side and the process's side.
fn terminal() -> (fs::File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let mut size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are to live variables, or null where the call allows it.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, ptr::null_mut(), ptr::null_mut(), &raw mut size) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were just opened, and nobody else owns them.
    unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

#[test]
fn on_a_terminal_the_countdown_is_redrawn_in_place_and_the_line_stays_with_its_end() {
    let home = Home::chaos("503, ok", COUNTED);
    let (ours, theirs) = terminal();
    let mut command = home.command(["run", "-p", "p", "name one prime"]);
    command.stderr(theirs).env("TERM", "xterm");
    let mut screen = Stream::read(ours);
    let running = Running::start(&mut command);
    // Our copy of the process's side, which would keep the terminal open.
    drop(command);
    let finished = running.finish().expect(0);
    assert_eq!(finished.out, "Seven.\n");
    let drawn = screen.whole();
    let counts: Vec<_> = ["· 3s ·", "· 2s ·", "· 1s ·"].iter().map(|count| drawn.find(count)).collect();
    assert!(counts.iter().all(Option::is_some) && counts.is_sorted(), "{counts:?} in {drawn:?}");
    assert_eq!(drawn.matches('\n').count(), 1, "the countdown takes one line: {drawn:?}");
    assert!(drawn.contains("\r\u{1b}[2K"), "a line is cleared before it is drawn again: {drawn:?}");
    let last = drawn.rsplit("\u{1b}[2K").next().unwrap();
    assert!(last.starts_with("Retried model request (1/5) · 3s · SERVER 503"), "{drawn:?}");
}

#[test]
fn elsewhere_each_wait_is_one_plain_line() {
    let home = Home::chaos("503, 429, ok", QUICK);
    let finished = home.run(["name one prime"]).expect(0);
    assert!(!finished.err.contains(['\r', '\u{1b}']), "{:?}", finished.err);
    let lines: Vec<_> = finished.err.lines().filter(|line| line.starts_with("Retrying")).collect();
    assert_eq!(lines.len(), 2, "{}", finished.err);
    assert!(lines[0].starts_with("Retrying model request (1/5) · 1s · SERVER 503 · llm-retry "), "{}", lines[0]);
    assert!(lines[1].starts_with("Retrying model request (2/5) · 1s · RATE_LIMIT 429 · llm-retry "), "{}", lines[1]);
}

#[test]
fn the_log_has_colours_on_a_terminal_alone() {
    let home = Home::chaos("ok", QUICK);
    fs::remove_file(home.path("cache")).unwrap();
    home.write("cache", "a file where the directory should be");
    let finished = home.run(["name one prime"]).expect(0).says(&["WARN", "compiled components cannot be kept"]);
    assert!(!finished.err.contains('\u{1b}'), "{:?}", finished.err);
}

#[test]
fn a_wait_without_a_limit_shows_infinity() {
    let home = Home::chaos("503, ok", "{ mode: always, backoff: { initialDelayMs: 20 } }");
    home.run(["name one prime"]).expect(0).says(&["Retrying model request (1/∞) · 1s · SERVER 503"]);
}
