//! Parts of the keys of a store, and the rest of the whole without some parts.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The keys with this prefix above `after`, up to `until`; `None` means no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeySpan {
    pub(crate) prefix: String,
    pub(crate) after: Option<String>,
    pub(crate) until: Option<String>,
}

impl KeySpan {
    pub(crate) fn all(prefix: String) -> Self {
        Self { prefix, after: None, until: None }
    }
}

/// Returns the parts of the keys with these prefixes that are not in `known`.
pub(crate) fn rest<'a>(
    prefixes: impl IntoIterator<Item = String>,
    known: impl IntoIterator<Item = &'a KeySpan>,
) -> Vec<KeySpan> {
    let mut by_prefix: HashMap<&str, Vec<&KeySpan>> = HashMap::new();
    known.into_iter().for_each(|span| by_prefix.entry(&span.prefix).or_default().push(span));
    let mut rest = Vec::new();
    for prefix in prefixes {
        let mut spans = by_prefix.remove(prefix.as_str()).unwrap_or_default();
        spans.sort_unstable_by(|a, b| a.after.cmp(&b.after)); // `None`, the start, comes first
        let mut left = Some(KeySpan::all(prefix));
        for span in spans {
            let Some(mut open) = left.take() else { break };
            if span.after > open.after {
                rest.push(KeySpan { until: span.after.clone(), ..open.clone() });
            }
            left = span.until.as_ref().map(|until| {
                if open.after.as_ref().is_none_or(|after| after < until) {
                    open.after = Some(until.clone());
                }
                open
            });
        }
        rest.extend(left);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(prefix: &str, after: Option<&str>, until: Option<&str>) -> KeySpan {
        KeySpan { prefix: prefix.into(), after: after.map(str::to_owned), until: until.map(str::to_owned) }
    }

    #[test]
    fn what_is_left_is_between_the_known_spans() {
        let of = |known: &[KeySpan]| rest(["a/".to_owned(), "b/".to_owned()], known);
        assert_eq!(of(&[]), [KeySpan::all("a/".into()), KeySpan::all("b/".into())]);
        let known = [
            span("b/", None, None),
            span("a/", Some("a/5"), Some("a/7")),
            span("a/", None, Some("a/3")),
            span("a/", Some("a/2"), Some("a/4")),
            span("other/", None, None),
        ];
        assert_eq!(of(&known), [span("a/", Some("a/4"), Some("a/5")), span("a/", Some("a/7"), None)]);
        let nested =
            [span("a/", None, Some("a/9")), span("a/", Some("a/2"), Some("a/3")), span("b/", None, None)];
        assert_eq!(of(&nested), [span("a/", Some("a/9"), None)]);
        let end =
            [span("a/", Some("a/9"), None), span("a/", None, Some("a/9")), span("b/", Some("b/1"), None)];
        assert_eq!(of(&end), [span("b/", None, Some("b/1"))]);
    }
}
