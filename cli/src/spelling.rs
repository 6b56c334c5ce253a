//! Spelling of options in errors: as flags.
//!
//! The libraries' errors spell options as Rust and Python do (`shard_bytes`, `on_error="skip"`), but the command line
//! has flags. A flag's id is the option's name in Rust, so the flags of the subcommand are the dictionary.
//! [`OTHER_NAMES`] has the exceptions.

use clap::ArgMatches;

/// A flag's id, the option in Rust or Python, and the flag.
const OTHER_NAMES: [(&str, &str, &str); 3] = [
    ("skip_bad", "on_error=skip", "--skip-bad"),
    ("skip_bad", "on_error=\"skip\"", "--skip-bad"),
    ("force", "with force", "with --force"),
];

/// The text before the names of the data set's columns, at the end of a message.
const COLUMNS: &str = "columns are: ";

/// Returns `message` with options replaced by flags of the subcommand that `matches` chose.
pub(crate) fn with_flags(message: &str, command: &mut clap::Command, matches: &ArgMatches) -> String {
    command.build(); // gives subcommands the global flags
    let (mut command, mut matches) = (&*command, matches);
    while let Some((name, below)) = matches.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, matches) = (found, below);
    }
    let flags = command.get_arguments().filter_map(|flag| Some((flag.get_id().as_str(), flag.get_long()?)));
    replace(message, &flags.collect::<Vec<_>>())
}

/// Replaces the options of `flags`, which are ids and long names. Text in backquotes and names of columns stay
/// unchanged: they are the user's text.
fn replace(message: &str, flags: &[(&str, &str)]) -> String {
    let (head, columns) = message.split_at(message.find(COLUMNS).unwrap_or(message.len()));
    let parts = head.split('`').enumerate();
    let parts: Vec<String> = parts
        .map(|(index, part)| if index % 2 == 0 { replace_in_text(part, flags) } else { part.to_owned() })
        .collect();
    parts.join("`") + columns
}

fn replace_in_text(text: &str, flags: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (id, option, flag) in OTHER_NAMES {
        if flags.iter().any(|(known, _)| *known == id) {
            text = text.replace(option, flag);
        }
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c)).map_or(rest.len(), |length| start + length);
        let (before, word, after) = (&rest[..start], &rest[start..end], &rest[end..]);
        out.push_str(before);
        rest = after;
        // A word without an underscore may be an ordinary word, unless it has a value.
        let flag = flags.iter().find(|(id, _)| *id == word && (id.contains('_') || after.starts_with('=')));
        let Some((_, long)) = flag.filter(|_| !is_in_path(before, after)) else {
            out.push_str(word);
            continue;
        };
        out.push_str("--");
        out.push_str(long);
        if let Some((value, after)) = value(after) {
            out.push(' ');
            out.push_str(value);
            rest = after;
        }
    }
    out + rest
}

/// Returns whether a word between these two texts is part of a path, a flag or a call.
fn is_in_path(before: &str, after: &str) -> bool {
    let goes_on = after.strip_prefix('.').is_some_and(|after| after.starts_with(is_part));
    before.ends_with(['-', '.', '/']) || after.starts_with(['/', '(']) || goes_on
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the value of `=value` or `="value"`, and the text after it.
fn value(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('=')?;
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted.split_once('"');
    }
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [(&str, &str); 5] = [
        ("shard_bytes", "shard-bytes"),
        ("bad_shards", "bad-shards"),
        ("on_error", "on-error"),
        ("seed", "seed"),
        ("force", "force"),
    ];

    #[test]
    fn options_become_flags() {
        let cases = [
            ("shard_bytes 12 must be at least 4096", "--shard-bytes 12 must be at least 4096"),
            ("set bad_shards=\"skip\", or on_error=copy.", "set --bad-shards skip, or --on-error copy."),
            ("lower shard_bytes.", "lower --shard-bytes."),
            ("with seed=7 an epoch", "with --seed 7 an epoch"),
            ("another seed; replace it with force", "another seed; replace it with --force"),
            // Options of other commands, files, columns and expressions stay unchanged.
            ("max_lost_share (0.02)", "max_lost_share (0.02)"),
            ("/data/shard_bytes/x and shard_bytes.tar", "/data/shard_bytes/x and shard_bytes.tar"),
            (
                "there is no column `on_error`; the columns are: on_error",
                "there is no column `on_error`; the columns are: on_error",
            ),
            ("already --shard-bytes", "already --shard-bytes"),
            ("the filter `a < 1 and shard_bytes > 2` fails", "the filter `a < 1 and shard_bytes > 2` fails"),
        ];
        for (message, expected) in cases {
            assert_eq!(replace(message, &FLAGS), expected);
        }
        let bench = [("skip_bad", "skip-bad")];
        assert_eq!(replace("raise it or set on_error=skip", &bench), "raise it or set --skip-bad");
    }
}
