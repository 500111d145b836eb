//! Wording patterns over whole words, for the rows of the classification table that read prose.
//!
//! A text is cut into lower-case runs of letters and digits, so that `context_length_exceeded`, `Context length
//! exceeded` and `context-length-exceeded` are one phrase, and `rpm` is not found in `rpmbuild`. A name in camel case
//! is read both as one word and as several: `RateLimitError` is `ratelimiterror` and `rate limit error`.
//!
//! A pattern is a list of tokens: `word`, `this|that`, `maybe?` (or `a|b?`), `~part|other` (a word that contains one of
//! them, which also serves languages without spaces), `#` (a word that begins with a digit), `*8` (up to eight words of
//! anything). Matching takes time linear in the text for a given pattern.

/// At most this many words of a text are read; an error says what it is about early.
const MAX_WORDS: usize = 2000;

/// Scripts that put no spaces between words, or hang particles on them: Thai and Lao, Burmese, Khmer, Chinese and
/// Japanese, Korean.
const UNSPACED: [(char, char); 9] = [
    ('\u{e00}', '\u{eff}'),
    ('\u{1000}', '\u{109f}'),
    ('\u{1100}', '\u{11ff}'),
    ('\u{1780}', '\u{17ff}'),
    ('\u{2e80}', '\u{9fff}'),
    ('\u{ac00}', '\u{d7af}'),
    ('\u{f900}', '\u{faff}'),
    ('\u{ff66}', '\u{ff9f}'),
    ('\u{20000}', '\u{3ffff}'),
];

/// A text, cut into words.
pub(super) struct Words {
    plain: Vec<String>,
    /// The same with names in camel case taken apart; empty where there are none.
    parted: Vec<String>,
}

impl Words {
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let runs = texts.into_iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
        let runs: Vec<&str> = runs.filter(|run| !run.is_empty()).take(MAX_WORDS).collect();
        let plain: Vec<String> = runs.iter().map(|run| run.to_lowercase()).collect();
        let parted: Vec<String> = runs.into_iter().flat_map(parts_of_camel_case).map(str::to_lowercase).collect();
        let parted = if parted.len() == plain.len() { Vec::new() } else { parted };
        Words { plain, parted }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plain.is_empty()
    }

    /// Whether any of the patterns stands anywhere in the text.
    pub(super) fn contain_any(&self, patterns: &[&str]) -> bool {
        patterns.iter().any(|pattern| {
            let tokens: Vec<&str> = pattern.split(' ').collect();
            let stands = |words: &[String]| (0..words.len()).any(|start| matches(&tokens, &words[start..]));
            stands(&self.plain) || stands(&self.parted)
        })
    }
}

/// The tokens that find a text's words next to one another; in a script without spaces, also within a longer word.
pub(super) fn tokens_of(text: &str) -> Vec<String> {
    let unspaced = |word: &str| word.chars().any(|c| UNSPACED.iter().any(|(from, to)| (*from..=*to).contains(&c)));
    let words = Words::of([text]).plain;
    words.into_iter().map(|word| if unspaced(&word) { format!("~{word}") } else { word }).collect()
}

/// Cuts `APIConnectionError` into `API`, `Connection` and `Error`.
fn parts_of_camel_case(run: &str) -> impl Iterator<Item = &str> {
    let signs: Vec<(usize, char)> = run.char_indices().collect();
    let begins = move |index: usize| {
        let lower = |index: usize| signs.get(index).is_some_and(|(_, sign)| sign.is_lowercase());
        let upper = |index: usize| signs.get(index).is_some_and(|(_, sign)| sign.is_uppercase());
        let cut = index > 0 && upper(index) && (lower(index - 1) || (upper(index - 1) && lower(index + 1)));
        cut.then(|| signs[index].0)
    };
    let mut start = 0;
    let mut cuts: Vec<usize> = (0..run.chars().count()).filter_map(begins).collect();
    cuts.push(run.len());
    cuts.into_iter().map(move |end| &run[std::mem::replace(&mut start, end)..end])
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
        Some(parts) => parts.split('|').any(|part| word.contains(part)),
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
        assert!(found("~繁忙|访问量过大", "该模型当前访问量过大"));
    }

    #[test]
    fn a_name_in_camel_case_is_one_word_and_several() {
        for text in ["litellm.RateLimitError", "rateLimitError", "rate_limit_error", "APIRateLimitError: x"] {
            assert!(found("rate limit error", text), "{text}");
        }
        assert!(found("ratelimiterror", "RateLimitError"));
        assert!(found("api connection error", "APIConnectionError"));
        assert!(found("per minute per", "GenerateRequestsPerMinutePerProject"));
        assert!(!found("rate limit", "RATELIMIT"));
        assert!(!found("no te", "Note"));
    }

    #[test]
    fn a_text_is_found_whole_or_within_a_word_of_a_script_without_spaces() {
        let within = |text: &str, other: &str| found(&tokens_of(text).join(" "), other);
        assert!(within("额度已用完", "您的账户额度已用完，请充值"));
        assert!(within("code 额度已用完", "[code] 您的额度已用完"));
        assert!(within("Prompt超长", "错误：prompt超长了"));
        assert!(within("잔액", "잔액이 부족합니다"));
        assert!(within("server-busy", "the Server busy now"));
        assert!(!within("busy", "busybox"));
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
