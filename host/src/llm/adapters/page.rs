//! What a person would read of a text that has no structure: the words of a page without its code, and a line of them.
//!
//! Pure. Called by `provider_error` for the wording, and by `naming` for messages.

/// The longest excerpt of a text that stands in a message, in characters.
const MAX_EXCERPT: usize = 200;

/// Elements whose content nobody reads.
const UNREAD: [&str; 5] = ["style", "script", "svg", "noscript", "template"];

/// Names of characters that stand in pages of gateways.
const ENTITIES: [(&str, &str); 7] =
    [("nbsp", " "), ("lt", "<"), ("gt", ">"), ("quot", "\""), ("#39", "'"), ("apos", "'"), ("amp", "&")];

/// The text, at most so many bytes of it; of a page its title, and then what it shows.
pub(super) fn prose(text: &str, max: usize) -> String {
    let text = text.trim();
    let mut prose = if text.starts_with('<') { shown(text, max) } else { text.to_owned() };
    prose.truncate(prose.floor_char_boundary(max));
    prose
}

/// A text in one line, cut to the length that a message bears; `None` when it says nothing.
pub(super) fn excerpt(text: &str) -> Option<String> {
    let line = one_line(text);
    let mut excerpt: String = line.chars().take(MAX_EXCERPT).collect();
    if excerpt.len() < line.len() {
        excerpt.pop();
        excerpt.push('…');
    }
    Some(excerpt).filter(|excerpt| excerpt.contains(char::is_alphanumeric))
}

fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// What a page shows. Its end may be missing.
fn shown(page: &str, max: usize) -> String {
    let (mut title, mut body) = (String::new(), String::new());
    let mut rest = page;
    let mut in_title = false;
    while let Some(start) = rest.find('<').filter(|_| body.len() < max) {
        let text = if in_title { &mut title } else { &mut body };
        text.push_str(&rest[..start]);
        text.push(' ');
        let tag = &rest[start..];
        let (name, after) = match tag.strip_prefix("<!--") {
            Some(comment) => (String::new(), after(comment, "-->")),
            None => (name_of(tag), after(tag, ">")),
        };
        in_title = name == "title";
        rest = match UNREAD.contains(&name.as_str()) {
            true => after_element(after, &name),
            false => after,
        };
    }
    let text = if in_title { &mut title } else { &mut body };
    text.push_str(rest);
    one_line(&decoded(&format!("{title} {body}")))
}

/// The name of the tag that a text begins with, in small letters; an end tag's has its slash.
fn name_of(tag: &str) -> String {
    let name = tag[1..].split(|c: char| c.is_whitespace() || c == '>').next().unwrap_or_default();
    name.chars().take(16).collect::<String>().to_ascii_lowercase()
}

fn after<'t>(text: &'t str, end: &str) -> &'t str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// What follows an element whose start tag has been read.
fn after_element<'t>(text: &'t str, name: &str) -> &'t str {
    let ends = |start: &usize| text[*start + 2..].get(..name.len()).is_some_and(|end| end.eq_ignore_ascii_case(name));
    let end = text.match_indices("</").map(|(start, _)| start).find(ends);
    end.map_or("", |start| after(&text[start..], ">"))
}

fn decoded(text: &str) -> String {
    ENTITIES.iter().fold(text.to_owned(), |text, (name, character)| text.replace(&format!("&{name};"), character))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_is_read_without_its_code_and_with_its_title_first() {
        let css = "a{b:c}\n".repeat(600);
        let page = format!(
            "<!DOCTYPE html><html><head><STYLE type=x>{css}</style><script>if (a < b) {{ c('</p>') }}</script>\n<title>502 Bad\n Gateway</title></head><body><h1>It&#39;s&nbsp;down</h1><!-- a > b --><p class='x'>Ray ID: 7</body>"
        );
        assert_eq!(prose(&page, 2048), "502 Bad Gateway It's down Ray ID: 7");
        assert_eq!(prose("<p>down</p><title>Late</title>", 2048), "Late down");
        assert_eq!(prose("  plain < text  ", 2048), "plain < text");
        assert_eq!(prose("<html><title>cut he", 2048), "cut he");
        assert_eq!(prose("<style>a{}", 2048), "");
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt("Rate limit\r\n\texceeded\u{1b}[0m").as_deref(), Some("Rate limit exceeded [0m"));
        assert_eq!(excerpt(" \n-"), None);
        let long = excerpt(&"é".repeat(500)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with('…')), (MAX_EXCERPT, true));
    }

    proptest! {
        #[test]
        fn no_text_is_trouble(text in "(<|</|>|<!--|style|title|&#39;|\\PC){0,40}", max in 0_usize..60) {
            let page = format!("<{text}");
            prop_assert!(prose(&page, max).len() <= max);
        }
    }
}
