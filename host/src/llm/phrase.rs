//! Wording patterns over whole words, for the rows of the classification table that read prose.
//!
//! A text is cut into lower-case runs of letters and digits, so that `context_length_exceeded`, `Context length
//! exceeded` and `context-length-exceeded` are one phrase, and `rpm` is not found in `rpmbuild`. A pattern is a list of
//! tokens: `word`, `this|that`, `maybe?` (or `a|b?`), `~part` (a word that contains it, which also serves languages
//! without spaces), `#` (a word that begins with a digit), `*8` (up to eight words of anything). Matching takes time linear in the text for a given pattern.

/// At most this many words of a text are read; an error says what it is about early.
const MAX_WORDS: usize = 2000;

/// A text, cut into words.
pub(super) struct Words(Vec<String>);

impl Words {
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let words = texts.into_iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
        Words(words.filter(|word| !word.is_empty()).take(MAX_WORDS).map(str::to_lowercase).collect())
    }

    /// The words with a space between them; as a pattern, it finds them next to one another.
    pub(super) fn joined(&self) -> String {
        self.0.join(" ")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of the patterns stands anywhere in the text.
    pub(super) fn contain_any(&self, patterns: &[&str]) -> bool {
        patterns.iter().any(|pattern| {
            let tokens: Vec<&str> = pattern.split(' ').collect();
            (0..self.0.len()).any(|start| matches(&tokens, &self.0[start..]))
        })
    }
}

fn matches(tokens: &[&str], words: &[String]) -> bool {
    let Some((token, rest)) = tokens.split_first() else { return true };
    if let Some(gap) = token.strip_prefix('*') {
        let gap: usize = gap.parse().unwrap_or(0);
        return (0..=gap.min(words.len())).any(|skipped| matches(rest, &words[skipped..]));
    }
    let (token, optional) = match token.strip_suffix('?') {
        Some(token) => (token, true),
        None => (*token, false),
    };
    let here = words.first().is_some_and(|word| match token.strip_prefix('~') {
        Some(part) => word.contains(part),
        None if token == "#" => word.starts_with(|c: char| c.is_ascii_digit()),
        None => token.split('|').any(|choice| choice == word),
    });
    (here && matches(rest, &words[1..])) || (optional && matches(rest, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, text: &str) -> bool {
        Words::of([text]).contain_any(&[pattern])
    }

    #[test]
    fn separators_and_case_do_not_matter() {
        for text in ["context_length_exceeded", "Context Length Exceeded!", "the context-length  exceeded"] {
            assert!(found("context length exceeded", text), "{text}");
        }
        assert!(!found("context length exceeded", "contextlength exceeded"));
    }

    #[test]
    fn a_word_is_matched_whole() {
        assert!(found("rpm", "limit: 3 RPM."));
        assert!(!found("rpm", "rpmbuild failed"));
        assert!(found("~throttl", "ThrottlingException"));
        assert!(found("~访问量过大", "该模型当前访问量过大"));
    }

    #[test]
    fn choices_options_and_gaps_are_followed() {
        assert!(found("retry in #", "Please retry in 45.8s."));
        assert!(!found("retry in #", "retry in a while"));
        assert!(found("prompt|input is? too long", "Input too long"));
        assert!(found("prompt|input is? too long", "prompt is too long"));
        assert!(!found("prompt|input is? too long", "prompt was too long"));
        assert!(found("quota *2 limit", "quota a b limit"));
        assert!(found("quota *2 limit", "quota limit"));
        assert!(!found("quota *2 limit", "quota a b c limit"));
    }

    #[test]
    fn words_of_several_texts_stand_in_order() {
        assert!(Words::of(["insufficient", "quota"]).contain_any(&["insufficient quota"]));
        assert!(!Words::of([]).contain_any(&["quota"]));
    }
}
