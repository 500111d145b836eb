//! The words that the chaos provider says: the answer to a request, and the partial text of a step that fails.
//!
//! Pure functions of the request's body, so that equal requests get equal answers. Called by [`super::response`].

use serde_json::Value;

/// Stands in every piece of partial text and in no answer that the server makes itself (unless the prompt says it), so
/// that a test can search a journal or a request for output that should have been discarded.
pub const PARTIAL_MARK: &str = "partial";

const PARTIAL_WORDS: [&str; 4] = ["A partial ", "answer, partial ", "words, partial ", "thoughts: partial "];

/// The longest part of a prompt that an answer repeats, in characters.
const MAX_ECHO: usize = 120;

/// What an answer needs to know about its request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    pub model: String,
    /// The text of the last user message, with its white space made single spaces.
    pub prompt: String,
    /// Words in all messages: the stand-in for a token count.
    pub words: usize,
}

impl Asked {
    /// Reads a request body. A body that is no chat completion gives an empty prompt: the script decides what is
    /// answered, and a test may well send nonsense.
    pub fn read(body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        // The Responses protocol has another name for them.
        let messages = body["messages"].as_array().or_else(|| body["input"].as_array());
        let messages = messages.map(Vec::as_slice).unwrap_or_default();
        let prompt = messages.iter().rfind(|message| message["role"] == "user").map(text_of).unwrap_or_default();
        Asked {
            model: body["model"].as_str().unwrap_or("chaos").to_owned(),
            prompt: prompt.split_whitespace().collect::<Vec<_>>().join(" "),
            words: messages.iter().map(|message| text_of(message).split_whitespace().count()).sum(),
        }
    }

    /// The answer: `Seven.` to a prompt that asks for a prime, else a sentence that repeats the prompt.
    pub fn answer(&self) -> String {
        if self.prompt.to_lowercase().contains("prime") {
            return "Seven.".into();
        }
        if self.prompt.is_empty() {
            return "There was nothing to answer.".into();
        }
        let mut echo: String = self.prompt.chars().take(MAX_ECHO).collect();
        if echo.len() < self.prompt.len() {
            echo.push('…');
        }
        format!("You wrote “{echo}”, and this is the whole answer to it.")
    }
}

/// The text of a message whose content is a string or a list of parts.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

/// Cuts a text into the pieces in which it is streamed: words with the space that follows them. A single word is cut
/// in two, so that every answer takes more than one piece.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let words: Vec<String> = text.split_inclusive(' ').map(str::to_owned).collect();
    match words.as_slice() {
        [word] if word.chars().count() > 1 => {
            let middle = word.char_indices().nth(word.chars().count() / 2).map_or(0, |(index, _)| index);
            vec![word[..middle].to_owned(), word[middle..].to_owned()]
        }
        _ => words,
    }
}

/// `count` words of filler.
pub(super) fn filler(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("word{number} ")).collect()
}

/// `count` pieces of text, each of which contains [`PARTIAL_MARK`].
pub(super) fn partial(count: usize) -> Vec<String> {
    PARTIAL_WORDS.iter().cycle().take(count).map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Asked {
        Asked::read(body.as_bytes())
    }

    #[test]
    fn a_prime_is_seven_and_anything_else_is_repeated() {
        let prime = asked(r#"{"messages":[{"role":"user","content":"Name one Prime number"}]}"#);
        assert_eq!(prime.answer(), "Seven.");
        let other = asked(
            r#"{"model":"m","messages":[{"role":"system","content":"You  are"},{"role":"user","content":[{"type":"text","text":"good\n day"}]}]}"#,
        );
        assert_eq!(other, Asked { model: "m".into(), prompt: "good day".into(), words: 4 });
        assert_eq!(other.answer(), "You wrote “good day”, and this is the whole answer to it.");
    }

    #[test]
    fn nonsense_is_answered_too() {
        for body in ["", "{", "[]", r#"{"messages":3}"#, r#"{"messages":[{"role":"user","content":7}]}"#] {
            assert_eq!(asked(body).answer(), "There was nothing to answer.", "{body}");
        }
    }

    #[test]
    fn a_long_prompt_is_repeated_in_part() {
        let prompt = "é".repeat(MAX_ECHO + 1);
        let answer = Asked { prompt, ..Asked::default() }.answer();
        assert_eq!(answer.matches('é').count(), MAX_ECHO);
        assert!(answer.contains('…'));
    }

    #[test]
    fn every_answer_takes_several_pieces_and_they_add_up() {
        for text in ["Seven.", "two words", "é…", "a b c "] {
            assert!(pieces(text).len() > 1, "{text}");
            assert_eq!(pieces(text).concat(), text);
        }
        assert!(pieces("").is_empty());
        assert_eq!(pieces("x"), ["x"]);
    }

    #[test]
    fn every_partial_piece_carries_the_mark_and_no_answer_does() {
        assert!(partial(9).iter().all(|word| word.contains(PARTIAL_MARK)));
        assert_eq!(partial(9).len(), 9);
        assert!(filler(3).iter().all(|word| !word.contains(PARTIAL_MARK)));
        assert!(!Asked { prompt: "hello".into(), ..Asked::default() }.answer().contains(PARTIAL_MARK));
    }
}
