//! Plays the replies of a case on loopback, byte for byte, in the protocol of an adapter.

use super::format::{Adapter, Case, Reply, Step};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The text of the good answer that is given after the replies of a case.
const GOOD: &str = "done";

pub struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(case: &Case, adapter: Adapter) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, replies, repeat) = (requests.clone(), case.replies.clone(), case.repeat);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, adapter, replies.clone(), repeat, log.clone()));
            }
        });
        Server { address, requests, task }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What was asked so far, heads included.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().clone()
    }
}

async fn serve(
    mut socket: TcpStream,
    adapter: Adapter,
    replies: Vec<Reply>,
    repeat: bool,
    log: Arc<Mutex<Vec<Vec<u8>>>>,
) {
    let Some(request) = read_request(&mut socket).await else { return };
    let number = {
        let mut log = log.lock();
        log.push(request);
        log.len() - 1
    };
    let last = replies.last().filter(|_| repeat);
    let acts = match replies.get(number).or(last) {
        Some(reply) => acts(reply, adapter),
        None => good(adapter),
    };
    play(socket, acts).await;
}

async fn read_request(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 65536];
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
        let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
        if request.len() >= end + 4 + length {
            return Some(request);
        }
    }
}

enum Act {
    Send(Vec<u8>),
    Pause(u64),
    Reset,
    Hang,
}

async fn play(mut socket: TcpStream, acts: Vec<Act>) {
    for act in acts {
        match act {
            // A client that has left needs no bytes.
            Act::Send(bytes) => socket.write_all(&bytes).await.unwrap_or_default(),
            Act::Pause(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Act::Reset => {
                // The client reads first what was sent: a reset discards what is still on its way.
                tokio::time::sleep(Duration::from_millis(50)).await;
                socket.set_zero_linger().expect("the socket is open");
                return;
            }
            Act::Hang => {
                let mut byte = [0];
                while matches!(socket.read(&mut byte).await, Ok(1)) {}
                return;
            }
        }
    }
    // A close with unread bytes would be a reset; the request was read whole, so this is a clean end.
    socket.shutdown().await.unwrap_or_default();
}

fn acts(reply: &Reply, adapter: Adapter) -> Vec<Act> {
    let steps = |steps: &[Step]| -> Vec<Act> {
        let mut wire = Wire { adapter, index: 0, last: "" };
        steps.iter().map(|step| wire.act(step)).collect()
    };
    match (&reply.status, &reply.stream, &reply.wire) {
        (None, None, Some(wire)) => steps(wire),
        (None, Some(stream), None) => {
            let head = head(200, &[("content-type", "text/event-stream")], reply);
            std::iter::once(Act::Send(head)).chain(steps(stream)).collect()
        }
        (Some(status), None, None) => {
            let length = reply.body.len().to_string();
            let mut bytes = head(*status, &[("content-length", &length)], reply);
            bytes.extend_from_slice(reply.body.as_bytes());
            vec![Act::Send(bytes)]
        }
        _ => panic!("a reply is one of status, stream and wire"),
    }
}

/// A head; the headers of the reply go before the usual ones of the same name.
fn head(status: u16, usual: &[(&str, &str)], reply: &Reply) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\n");
    let given = |name: &str| reply.headers.keys().any(|key| key.eq_ignore_ascii_case(name));
    let usual = usual.iter().filter(|(name, _)| !given(name)).map(|(name, value)| (*name, *value));
    for (name, value) in usual.chain(reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// Writes the pieces of an answer in the protocol of an adapter.
struct Wire {
    adapter: Adapter,
    /// The number of the block that is being written.
    index: u64,
    /// The kind of the block that is being written.
    last: &'static str,
}

impl Wire {
    fn act(&mut self, step: &Step) -> Act {
        let text = if let Some(text) = &step.say {
            self.say(text)
        } else if let Some(text) = &step.think {
            self.think(text)
        } else if let Some(arguments) = &step.call {
            self.call(arguments)
        } else if let Some(reason) = &step.end {
            self.end(reason)
        } else if let Some(raw) = &step.raw {
            raw.clone()
        } else if let Some(raws) = &step.raws {
            raws.get(self.adapter.name()).unwrap_or_else(|| panic!("no raw text for {}", self.adapter.name())).clone()
        } else if let Some(hex) = &step.hex {
            return Act::Send(bytes_of(hex));
        } else if let Some(length) = step.fill {
            return Act::Send(vec![b'x'; length]);
        } else if let Some(ms) = step.pause {
            return Act::Pause(ms);
        } else if step.reset {
            return Act::Reset;
        } else if step.hang {
            return Act::Hang;
        } else {
            panic!("a step does nothing");
        };
        Act::Send(text.into_bytes())
    }

    /// Begins a block of another kind, where the protocol says so.
    fn block(&mut self, kind: &'static str, begin: Value) -> String {
        if self.last == kind {
            return String::new();
        }
        self.index += u64::from(!self.last.is_empty());
        self.last = kind;
        match self.adapter {
            Adapter::AnthropicMessages => {
                let begins = json!({"type": "content_block_start", "index": self.index, "content_block": begin});
                event(Some("content_block_start"), &begins)
            }
            _ => String::new(),
        }
    }

    fn say(&mut self, text: &str) -> String {
        let begin = self.block("text", json!({"type": "text", "text": ""}));
        let index = self.index;
        begin
            + &match self.adapter {
                Adapter::OpenAiChat => choice(json!({"content": text}), None),
                Adapter::AnthropicMessages => delta(index, json!({"type": "text_delta", "text": text})),
                Adapter::OpenAiResponses => {
                    named(json!({"type": "response.output_text.delta", "output_index": index, "delta": text}))
                }
            }
    }

    fn think(&mut self, text: &str) -> String {
        let begin = self.block("thinking", json!({"type": "thinking", "thinking": ""}));
        let index = self.index;
        begin
            + &match self.adapter {
                Adapter::OpenAiChat => choice(json!({"reasoning_content": text}), None),
                Adapter::AnthropicMessages => delta(index, json!({"type": "thinking_delta", "thinking": text})),
                Adapter::OpenAiResponses => {
                    named(json!({"type": "response.reasoning_text.delta", "output_index": index, "delta": text}))
                }
            }
    }

    fn call(&mut self, arguments: &str) -> String {
        let new = self.last != "call";
        let begin = self.block("call", json!({"type": "tool_use", "id": "c1", "name": "read", "input": {}}));
        let index = self.index;
        begin
            + &match self.adapter {
                Adapter::OpenAiChat => {
                    let name = if new { json!("read") } else { Value::Null };
                    let call = json!({"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments}});
                    choice(json!({"tool_calls": [call]}), None)
                }
                Adapter::AnthropicMessages => {
                    delta(index, json!({"type": "input_json_delta", "partial_json": arguments}))
                }
                Adapter::OpenAiResponses => {
                    let item = json!({"type": "function_call", "call_id": "c1", "name": "read", "arguments": ""});
                    let added = json!({"type": "response.output_item.added", "output_index": index, "item": item});
                    let more = json!({"type": "response.function_call_arguments.delta", "output_index": index, "delta": arguments});
                    if new { named(added) + &named(more) } else { named(more) }
                }
            }
    }

    fn end(&mut self, reason: &str) -> String {
        match self.adapter {
            Adapter::OpenAiChat => {
                let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}});
                choice(json!({}), Some(reason)) + &event(None, &usage) + "data: [DONE]\n\n"
            }
            Adapter::AnthropicMessages => {
                let reason = match reason {
                    "stop" if self.last == "call" => "tool_use",
                    "stop" => "end_turn",
                    "length" => "max_tokens",
                    other => other,
                };
                let delta =
                    json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}});
                event(Some("message_delta"), &delta) + &event(Some("message_stop"), &json!({"type": "message_stop"}))
            }
            Adapter::OpenAiResponses => {
                let usage = json!({"input_tokens": 9, "output_tokens": 3});
                named(match reason {
                    "stop" => {
                        json!({"type": "response.completed", "response": {"status": "completed", "output": [], "usage": usage}})
                    }
                    other => {
                        let reason = if other == "length" { "max_output_tokens" } else { other };
                        json!({"type": "response.incomplete", "response": {"status": "incomplete", "output": [], "incomplete_details": {"reason": reason}, "usage": usage}})
                    }
                })
            }
        }
    }
}

fn good(adapter: Adapter) -> Vec<Act> {
    let mut wire = Wire { adapter, index: 0, last: "" };
    let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned();
    text.push_str(&wire.say(GOOD));
    text.push_str(&wire.end("stop"));
    vec![Act::Send(text.into_bytes())]
}

fn event(name: Option<&str>, data: &Value) -> String {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n")
}

fn choice(delta: Value, finish: Option<&str>) -> String {
    event(None, &json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
}

fn delta(index: u64, delta: Value) -> String {
    event(Some("content_block_delta"), &json!({"type": "content_block_delta", "index": index, "delta": delta}))
}

fn named(data: Value) -> String {
    event(data["type"].as_str(), &data)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex digits are ASCII");
        u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("{pair:?} is no byte"))
    };
    digits.chunks(2).map(byte).collect()
}
