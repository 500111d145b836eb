//! Reading server-sent events in small pieces, against splitting the same bytes into lines.

use crate::{Figure, median};
use retake::llm::adapters::sse::Decoder;
use std::{hint::black_box, time::Instant};

const BYTES: usize = 1024 * 1024;

/// About what a TLS record of a model's stream carries.
const PIECE: usize = 300;

pub fn figures() -> Vec<Figure> {
    let line = "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"}}]}\n\n";
    let stream = line.repeat(BYTES / line.len());
    let mut events = Vec::new();
    let mut lines = Vec::new();
    // In turns, so that whatever else the machine does meets both.
    for _ in 0..31 {
        let begun = Instant::now();
        black_box(read_events(stream.as_bytes()));
        events.push(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        black_box(split_lines(stream.as_bytes()));
        lines.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let (events, lines) = (median(&mut events), median(&mut lines));
    vec![
        Figure::new("1 MB of server-sent events in pieces", events, "ms"),
        Figure::new("the same bytes, split into lines", lines, "ms"),
        Figure::new("the two against each other", events / lines, "×").at_most(2.0),
    ]
}

fn read_events(stream: &[u8]) -> usize {
    let mut decoder = Decoder::default();
    stream.chunks(PIECE).map(|piece| decoder.push(piece).expect("it is an event stream").len()).sum()
}

/// As plain as it gets: collect, look for the line feed, hand out the line as text.
fn split_lines(stream: &[u8]) -> usize {
    let mut buffer = Vec::new();
    let mut count = 0;
    for piece in stream.chunks(PIECE) {
        buffer.extend_from_slice(piece);
        while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            black_box(String::from_utf8(line).expect("it is UTF-8"));
            count += 1;
        }
    }
    count
}
