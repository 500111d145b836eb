//! Profiles that are wrong, keys and components that are missing, directories that cannot be written: each is an error
//! that names its place, before anything is asked of a provider.

use super::*;
use std::net::TcpListener;

/// Runs a profile text, which is refused, and returns what was said about it.
fn refused(profile: &str) -> String {
    let home = Home::new();
    home.write("profiles/p/profile.yml", profile);
    let finished = home.run(["hi"]).expect(2);
    assert_eq!(finished.out, "");
    assert_eq!(home.journals(), [] as [PathBuf; 0], "no session was begun");
    let checked = home.retake(["profile", "check", "p"]).expect(2);
    assert_eq!(checked.err, finished.err, "the check says the same");
    finished.err
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[test]
fn an_unknown_key_is_named_with_file_line_path_and_what_is_allowed() {
    let said = refused(
        "model: { provider: p, model: m }\nproviders:\n  - provider: p\n    adapter: openai-chat\n    base_url: http://127.0.0.1:9\n",
    );
    assert_says(&said, &["p/profile.yml:5:5: ", "providers[0].base_url", "did you mean \"baseUrl\"", "apiKeyEnv"]);
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_file_line_path_and_what_is_expected() {
    let said = refused(
        "model: { provider: p, model: m }\nproviders:\n  - { provider: p, adapter: openai-chat, chaos: ok }\nbundles: base\n",
    );
    assert_says(&said, &["p/profile.yml:4:1: ", "bundles: expected a list", "\"base\""]);
    let said = refused(
        "model: { provider: p, model: m }\nproviders:\n  - provider: p\n    adapter: openai-chat\n    chaos: ok\n    retryPolicy:\n      mode: normal\n      maxRetries: five\n",
    );
    assert_says(&said, &["p/profile.yml:8:7: ", "providers[0].retryPolicy.maxRetries", "five"]);
}

#[test]
fn a_value_out_of_range_is_named_with_file_line_path_and_its_range() {
    let said = refused(
        "model: { provider: p, model: m }\nproviders:\n  - provider: p\n    adapter: openai-chat\n    chaos: ok\n    retryPolicy:\n      mode: normal\n      backoff: { jitterRatio: 1.5 }\n",
    );
    assert_says(&said, &["p/profile.yml:8:", "providers[0].retryPolicy.backoff.jitterRatio", "1.5", "0", "1"]);
    let said = refused(
        "drainTimeoutMs: -1\nmodel: { provider: p, model: m }\nproviders:\n  - { provider: p, adapter: openai-chat, chaos: ok }\n",
    );
    assert_says(&said, &["p/profile.yml:1:1: ", "drainTimeoutMs", "-1", "0", "2147483647"]);
}

#[test]
fn several_mistakes_are_told_at_once() {
    let said = refused(
        "modle: x\nmodel: { provider: p, model: m }\nproviders:\n  - { provider: p, adapter: openai-chatt, chaos: ok }\n",
    );
    assert_says(&said, &["profile.yml:1:1: ", "\"modle\"", "profile.yml:4:", "openai-chatt"]);
}

#[test]
fn a_missing_api_key_is_named_before_any_request() {
    let home = Home::new();
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    provider.set_nonblocking(true).unwrap();
    let endpoint =
        format!("baseUrl: http://{}/v1\n    apiKeyEnv: RETAKE_TESTS_ABSENT_KEY", provider.local_addr().unwrap());
    home.profile(&endpoint, QUICK);
    home.run(["hi"]).expect(2).says(&["RETAKE_TESTS_ABSENT_KEY", "\"mock\""]);
    assert!(provider.accept().is_err(), "the provider was asked all the same");
    assert_eq!(home.journals(), [] as [PathBuf; 0]);
}

#[test]
fn a_missing_or_malformed_component_is_named_with_its_place_for_its_user_and_its_author() {
    let home = Home::chaos("ok", QUICK);
    let patch = home.write("retry.yml", "- insert:\n    - id: mine\n      component: ./mine.wasm\n");
    let patch = patch.to_str().unwrap();
    home.run(["--patch", patch, "hi"]).expect(2).says(&[
        "retry.yml:3:7: ",
        "\"mine\"",
        "mine.wasm",
        "could not be read",
        "Build it",
    ]);
    home.write("mine.wasm", "fn main() {}\n");
    home.run(["--patch", patch, "hi"]).expect(2).says(&[
        "retry.yml:3:7: ",
        "\"mine\"",
        "mine.wasm",
        "The file is text",
        "For its author: ",
        "`.wasm`",
    ]);
    assert_eq!(home.journals(), [] as [PathBuf; 0]);
}

#[test]
fn a_config_that_the_component_refuses_is_named_where_it_is_written() {
    let home = Home::chaos("ok", QUICK);
    let patch = home.write(
        "retry.yml",
        "- insert:\n    - id: mine\n      component: builtin:retry-strategy\n      config:\n        strategy: sideways\n",
    );
    home.run(["--patch", patch.to_str().unwrap(), "hi"]).expect(2).says(&["retry.yml:5:9: ", "\"mine\"", "strategy"]);
}

#[test]
fn a_sessions_directory_that_cannot_be_written_is_named_and_nothing_is_answered() {
    let home = Home::chaos("ok", QUICK);
    home.write("sessions", "a file where the directory should be");
    let finished = home.run(["hi"]).says(&["sessions", "error: "]);
    assert_eq!(finished.err.matches("os error").count(), 1, "the cause is told once: {}", finished.err);
    assert!(matches!(finished.code, Some(1 | 2)), "{:?}", finished.code);
    assert_eq!(finished.out, "");

    let home = Home::chaos("ok", QUICK);
    let sessions = home.path("sessions");
    fs::create_dir(&sessions).unwrap();
    let mut permissions = fs::metadata(&sessions).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&sessions, permissions).unwrap();
    let finished = home.run(["hi"]);
    // Who may write everywhere, such as root, is not stopped by a mode.
    if fs::write(sessions.join("probe"), "").is_err() {
        let finished = finished.says(&["sessions", "error: "]);
        assert!(matches!(finished.code, Some(1 | 2)), "{:?}", finished.code);
        assert_eq!(finished.out, "");
    } else {
        finished.expect(0);
    }
}
