//! `retake run` and `retake demo`: answers, events, prompts, sessions and exit statuses.

use super::*;
use retake::chaos::PARTIAL_MARK;

const FAILING: &str = "429:retry-after-ms=30, 503, cut:3, ok";

#[test]
fn with_json_stdout_is_one_event_a_line_as_in_the_journal_and_last_a_result() {
    let home = Home::chaos(FAILING, QUICK);
    let finished = home.run(["--json", "name one prime"]).expect(0);
    let mut lines = json_lines(&finished.out);
    let result = lines.pop().unwrap();
    let events = home.events();
    assert_eq!(lines.len(), events.len());
    for (line, event) in lines.iter().zip(&events) {
        assert_eq!(line["type"], "session_event");
        assert_eq!(line["sessionId"], result["sessionId"]);
        assert_eq!(&line["event"], event);
    }
    let session = home.journals()[0].file_stem().unwrap().to_str().unwrap().to_owned();
    assert_eq!(result["type"], "result");
    assert_eq!(result["sessionId"], session);
    assert_eq!((&result["output"], &result["status"]), (&"Seven.".into(), &"completed".into()));
    assert!(result["usage"]["outputTokens"].as_u64().unwrap() > 0, "{result}");
    assert!(result.get("error").is_none());
}

#[test]
fn every_failed_step_is_closed_before_its_retry_is_scheduled_and_every_retry_is_started_once_and_named_by_its_turn() {
    let home = Home::chaos(FAILING, QUICK);
    home.run(["name one prime"]).expect(0);
    let events = home.events();
    let retries = of_type(&events, "llm/retry");
    assert_eq!(retries.len(), 3);
    for (index, retry) in retries.iter().enumerate() {
        let turn = &retry["data"]["turn"];
        let before = &events[..retry["seq"].as_u64().unwrap() as usize];
        let closed: Vec<_> =
            of_type(before, "step/end").into_iter().filter(|end| &end["data"]["turn"] == turn).collect();
        assert_eq!(closed.len(), 1);
        assert_eq!(closed[0]["data"]["failure"], retry["data"]["failure"]);
        assert_eq!(retry["data"]["retry"], index + 1);
        let started: Vec<_> = of_type(&events, "llm/retry-started")
            .into_iter()
            .filter(|started| &started["data"]["turn"] == turn)
            .collect();
        assert_eq!(started.len(), 1);
        assert_eq!(started[0]["data"]["retryId"], retry["data"]["retryId"]);
    }
    let turns: Vec<_> = of_type(&events, "turn/start")
        .iter()
        .map(|start| (start["data"]["turn"].as_u64(), start["data"]["retryOf"].as_u64()))
        .collect();
    assert_eq!(turns, [(Some(1), None), (Some(2), Some(1)), (Some(3), Some(2)), (Some(4), Some(3))]);
    let ends: Vec<_> = of_type(&events, "turn/end").iter().map(|end| end["data"]["reason"]["kind"].clone()).collect();
    assert_eq!(ends, ["retry", "retry", "retry", "completed"]);
    assert_eq!(of_type(&events, "llm/retry")[0]["data"]["delayMs"], 30);
    home.retake(["journal", "verify"]).expect(0);
}

#[test]
fn the_answer_is_all_of_stdout_and_holds_nothing_of_the_stream_that_was_cut() {
    let home = Home::chaos(FAILING, QUICK);
    let finished = home.run(["name one prime"]).expect(0);
    assert_eq!(finished.out, "Seven.\n");
    let finished = finished.says(&["Retrying model request (1/5)", "RATE_LIMIT 429", "SERVER 503", "TRANSPORT"]);
    assert!(!finished.err.contains(PARTIAL_MARK), "{}", finished.err);
    let events = home.events();
    let messages = of_type(&events, "assistant/message");
    assert_eq!(messages.len(), 1);
    let seqs: Vec<_> =
        messages[0]["sourceEventSeqs"].as_array().unwrap().iter().map(|seq| seq.as_u64().unwrap()).collect();
    assert!(seqs.iter().all(|&seq| events[seq as usize]["data"]["turn"] == 4), "{seqs:?}");
    let partial = events.iter().filter(|event| event.to_string().contains(PARTIAL_MARK));
    let types: Vec<_> = partial.map(|event| event["type"].clone()).collect();
    assert!(!types.is_empty() && types.iter().all(|name| name == "assistant/chunk"), "{types:?}");
}

#[test]
fn all_attempts_are_the_same_request_byte_by_byte_as_the_chaos_command_records_them() {
    let home = Home::new();
    let record = home.path("requests.jsonl");
    let arguments = ["chaos", "--script", FAILING, "--record", record.to_str().unwrap()];
    let mut chaos = Running::start(&mut home.command(arguments));
    let base_url = chaos.first_line();
    home.profile(&format!("baseUrl: {base_url}"), QUICK);
    assert_eq!(home.run(["name one prime"]).expect(0).out, "Seven.\n");
    chaos.interrupt();
    let chaos = chaos.finish().expect(0);
    assert_eq!(chaos.err.lines().count(), 4, "one line for each request: {}", chaos.err);
    let requests = json_lines(&fs::read_to_string(&record).unwrap());
    assert_eq!(requests.len(), 4);
    for request in &requests {
        for part in ["method", "path", "headers", "body"] {
            assert_eq!(request[part], requests[0][part]);
        }
    }
    let body: Value = serde_json::from_str(requests[0]["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["messages"], serde_json::json!([{ "role": "user", "content": "name one prime" }]));
}

#[test]
fn a_turn_that_fails_exits_with_1_and_a_sentence_and_prints_no_answer() {
    let home = Home::chaos("503, loop", "{ mode: normal, maxRetries: 2, backoff: { initialDelayMs: 5 } }");
    let finished = home.run(["hi"]).expect(1).says(&[
        "error: mock failed 3 requests in",
        "(503 ×3)",
        "SERVER 503 · row status/5xx · given up after 3 requests",
    ]);
    assert_eq!(finished.out, "");
    let finished = home.run(["--json", "hi"]).expect(1);
    let result = json_lines(&finished.out).pop().unwrap();
    assert_eq!((&result["type"], &result["status"]), (&"result".into(), &"failed".into()));
    assert!(result["error"].as_str().unwrap().contains("mock failed 3 requests"), "{result}");
    // The same for programs: the last failure, all that was tried, and what became of the newest retry.
    assert_eq!((&result["failure"]["code"], &result["failure"]["status"]), (&"SERVER".into(), &503.into()), "{result}");
    let tried = &result["tried"];
    assert_eq!((&tried["requests"], &tried["advice"]), (&3.into(), &"try-later".into()), "{result}");
    assert_eq!(tried["causes"], serde_json::json!([{ "code": "SERVER", "status": 503, "count": 3 }]));
    assert_eq!(tried["attempts"].as_array().unwrap().len(), 3);
    let retry = &result["retry"];
    assert_eq!((&retry["retry"], &retry["limit"], &retry["outcome"]), (&2.into(), &2.into(), &"failed-again".into()));
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let home = Home::chaos("ok", QUICK);
    home.run(["--jsn", "hi"]).expect(2).says(&["--jsn", "--json"]);
    home.retake(["run", "--profile", "nowhere", "hi"]).expect(2).says(&["\"nowhere\"", "demo, p"]);
    home.run(["--session", "../x", "hi"]).expect(2).says(&["../x"]);
    home.retake(["--log", "=", "run", "-p", "p", "hi"]).expect(2).says(&["--log"]);
    assert_eq!(home.journals(), [] as [PathBuf; 0], "nothing was begun");
}

#[test]
fn prompts_come_one_a_line_from_stdin_and_blank_lines_are_none() {
    let home = Home::chaos("503, ok", QUICK);
    let mut running = Running::start(home.command(["run", "-p", "p"]).stdin(Stdio::piped()));
    running.feed("name one prime\n\n  \nsay hello");
    let finished = running.finish().expect(0);
    let lines: Vec<_> = finished.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", finished.out);
    assert_eq!(lines[0], "Seven.");
    assert!(lines[1].contains("say hello"), "{}", lines[1]);
    assert_eq!(of_type(&home.events(), "user/message").len(), 2);
}

#[test]
fn without_a_prompt_there_is_nothing_to_do_and_the_error_says_how_to_give_one() {
    let home = Home::chaos("ok", QUICK);
    home.run([]).expect(2).says(&["no prompt", "retake run \"", "stdin"]);
}

#[test]
fn several_prompts_are_turns_of_one_session_and_one_failure_decides_the_status() {
    let home = Home::chaos("503, ok", QUICK);
    assert_eq!(home.run(["name one prime", "and another prime"]).expect(0).out, "Seven.\nSeven.\n");
    let events = home.events();
    assert_eq!(of_type(&events, "user/message").len(), 2);
    let numbers: Vec<_> = of_type(&events, "llm/retry").iter().map(|retry| retry["data"]["retry"].clone()).collect();
    assert_eq!(numbers, [1, 1], "each prompt has its own budget");

    let home = Home::chaos("401, loop", QUICK);
    let finished = home.run(["one", "two"]).expect(1);
    assert_eq!(finished.err.matches("error: ").count(), 2, "{}", finished.err);
}

#[test]
fn a_named_session_goes_on_where_it_ended() {
    let home = Home::new();
    let record = home.path("requests.jsonl");
    let mut chaos = Running::start(&mut home.command(["chaos", "--quiet", "--record", record.to_str().unwrap()]));
    home.profile(&format!("baseUrl: {}", chaos.first_line()), QUICK);
    home.run(["--session", "talk", "name one prime"]).expect(0);
    home.run(["--session", "talk", "and another prime"]).expect(0);
    assert_eq!(home.journals(), [home.path("sessions/talk.jsonl")]);
    let events = home.events();
    let turns: Vec<_> = of_type(&events, "turn/start").iter().map(|start| start["data"]["turn"].clone()).collect();
    assert_eq!(turns, [1, 2]);
    let reasons: Vec<_> =
        of_type(&events, "request/header").iter().map(|header| header["data"]["reason"].clone()).collect();
    assert_eq!(reasons, ["initial", "resume"]);
    let requests = json_lines(&fs::read_to_string(record).unwrap());
    let body: Value = serde_json::from_str(requests[1]["body"].as_str().unwrap()).unwrap();
    let said: Vec<_> = body["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect();
    assert_eq!(said, ["name one prime", "Seven.", "and another prime"]);
}

#[test]
fn the_demo_needs_nothing_shows_waits_and_a_swap_and_loses_no_turn() {
    let home = Home::new();
    let finished = home.retake(["demo"]).expect(0);
    let answers: Vec<_> = finished.out.lines().collect();
    assert_eq!(answers.len(), 4, "{}", finished.out);
    assert_eq!(answers[..2], ["Seven.", "Seven."]);
    assert_eq!(home.journals().len(), 4, "each turn has a session of its own");
    finished.says(&[
        "RATE_LIMIT 429",
        "(2/5)",
        "SERVER 503",
        "TRANSPORT",
        "Handed over from llm-retry to generation 2",
        "retry-strategy",
        "No turn was lost",
        "retake journal show",
    ]);
    // Whoever reads its journals without this program can: each line is as the schema says, and keeps every rule.
    let schema = serde_json::from_str(&home.retake(["journal", "schema"]).expect(0).out).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for journal in home.journals() {
        for line in json_lines(&fs::read_to_string(journal).unwrap()) {
            schema.validate(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            kinds.insert(line["type"].as_str().unwrap().to_owned());
        }
    }
    assert!(kinds.contains("llm/retry-handover") && kinds.len() > 12, "{kinds:?}");
    home.retake(["journal", "verify"]).expect(0);
}

#[test]
fn tool_calls_are_told_and_given_as_data_and_an_answer_of_nothing_else_prints_no_line() {
    let home = Home::new();
    let call = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"look_up","arguments":"{\"of\":7}"}}]},"finish_reason":"tool_calls"}]}"#;
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {call}\n\ndata: [DONE]\n\n"
    );
    let file = home.write("answer.raw", response);
    let mut chaos = Running::start(&mut home.command(["chaos", "--quiet", "--raw", file.to_str().unwrap()]));
    home.profile(&format!("baseUrl: {}", chaos.first_line()), QUICK);
    let finished = home.run(["hi"]).expect(0).says(&["calls the tool look_up with {\"of\":7}", "runs no tools"]);
    assert_eq!(finished.out, "");
    let result = json_lines(&home.run(["--json", "hi"]).expect(0).out).pop().unwrap();
    let expected =
        serde_json::json!([{ "type": "tool-call", "id": "c1", "name": "look_up", "arguments": "{\"of\":7}" }]);
    assert_eq!(
        (&result["toolCalls"], &result["output"], &result["status"]),
        (&expected, &"".into(), &"completed".into())
    );
}

/// A proxy for plain HTTP that answers by itself, and the heads of the requests that it got.
fn proxy(answer: &'static str) -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, heads) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            sender.send(String::from_utf8(head).unwrap()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (port, heads)
}

#[test]
fn a_proxy_of_the_environment_is_used_and_named_when_it_fails() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"By proxy.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let home = Home::new();
    home.profile("baseUrl: http://provider.example/v1", "{ mode: normal, maxRetries: 0 }");
    let run = |variables: &[(&str, &str)]| {
        let mut command = home.command(["run", "-p", "p", "--json", "hi"]);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        Running::start(command.envs(variables.iter().copied())).finish()
    };
    let (port, heads) = proxy(ANSWER);
    let address = format!("http://user:hunter2-hunter2@127.0.0.1:{port}");
    let finished = run(&[("http_proxy", &address)]).expect(0);
    assert_eq!(json_lines(&finished.out).pop().unwrap()["output"], "By proxy.");
    assert!(heads.recv().unwrap().starts_with("POST http://provider.example/v1/chat/completions HTTP/1.1\r\n"));

    // Nobody listens there any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://user:hunter2-hunter2@127.0.0.1:{closed}");
    let finished = run(&[("http_proxy", &address)]).expect(1);
    let result = json_lines(&finished.out).pop().unwrap();
    let failure = &result["failure"];
    assert_eq!(failure["code"], "TRANSPORT");
    let message = failure["message"].as_str().unwrap();
    assert!(message.contains(&format!("through the proxy http://127.0.0.1:{closed} of the environment")), "{message}");
    assert!(failure["evidence"]["causes"].as_array().unwrap().contains(&"proxy".into()), "{failure}");
    assert!(!finished.out.contains("hunter2") && !finished.err.contains("hunter2"), "{}", finished.out);

    let finished = run(&[("http_proxy", &address), ("no_proxy", "provider.example")]).expect(1);
    let result = json_lines(&finished.out).pop().unwrap();
    assert!(!result["failure"]["message"].as_str().unwrap().contains("proxy"), "{result}");
}
