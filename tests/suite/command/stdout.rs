//! A stdout that takes nothing more: a reader that went away is no error, a full disk is one.

use super::*;

#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_cannot_be_written_fails_the_run_and_stays_in_the_session() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["run", "-p", "p", "name one prime"][..], &["run", "-p", "p", "--json", "name one prime"]] {
        let home = Home::chaos("ok", QUICK);
        let output = home.command(arguments).stdout(full()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("error: stdout could not be written: No space left"), "{said}");
        assert_eq!(of_type(&home.events(), "assistant/message").len(), 1);
    }
    let home = Home::chaos("ok", QUICK);
    let output = home.command(["profile", "show", "-p", "p"]).stdout(full()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: stdout could not be written"), "{said}");
}

#[test]
fn a_reader_that_closes_the_pipe_ends_nothing_but_the_printing() {
    let home = Home::chaos("503, ok", QUICK);
    for arguments in [
        &["run", "-p", "p", "--json", "name one prime"][..],
        &["run", "-p", "p", "name one prime"],
        &["profile", "show", "-p", "p"],
        &["profile", "check", "p"],
        &["journal", "show"],
        &["journal", "show", "--json"],
        &["journal", "list"],
        &["--help"],
    ] {
        let mut child = home.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    assert_eq!(home.journals().len(), 2);
}
