//! DALI's `x.idx`: every member's place and size.
//!
//! ```text
//! v1.2 1000                                        version, samples
//! jpg 512 70321 a/0001.jpg cls 71680 2 a/0001.cls  a line a sample: extension, offset, bytes, from v1.2 the name
//! ```
//! The index has no texts. They are read at their places: near ones together, many at a time. A text between payloads of more
//! than 128 KiB costs one request.
//!
//! The index is used if its members fill the tar: each follows the one before, with room for its header in between, up to the
//! end marker. These headers are read and compared:
//! - the first and the last one;
//! - those of texts, which are read with the texts;
//! - the first of each sample, if the index has no names;
//! - those of names that only an extended header has: over 90 bytes or not ASCII, after a gap of more than one record;
//! - those after a gap of unusual length, and 8 more if the usual gap is longer than one record (512 bytes). An index that
//!   skips a member or is wrong about an extended header has such gaps: that of `wds2idx.py` 2.4 is 1,024 bytes short for
//!   names over 100 bytes in GNU's format.
//!
//! The others are compared when payloads are read (`header.rs`).
//!
//! Cost of a tar with large payloads alone: 4 requests.

use super::super::cataloguing::Cataloguing;
use super::super::guard::guarded;
use super::header::PLAIN_NAME_BYTES;
use super::index_read::{Problem, read, unfit};
use crate::format::tars::{self, MAX_TEXT_MEMBER_BYTES, Member, RECORD_BYTES};
use crate::{ObjectRef, Result};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::ops::Range;

/// A tar ends with two empty records.
const END_BYTES: u64 = 2 * RECORD_BYTES;
/// Room for a header with an extended header, a long name and folders in front.
const GAP_MAX_BYTES: u64 = 64 << 10;
/// Headers that are compared in addition if most of them are extended.
const SPREAD: usize = 8;
/// Gap up to which places are read together: with 64 requests of 30 ms under way, one costs as much time as 30 KB at 60 MB/s.
const JOIN_GAP_BYTES: u64 = 128 << 10;
/// The same for local files, which the kernel reads ahead.
const JOIN_GAP_LOCAL_BYTES: u64 = 16 << 10;
/// Limit on the bytes of one read, unless one text alone is larger.
const JOINED_MAX_BYTES: u64 = 1 << 20;

/// A member as the index states it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    /// From v1.2 on, its name; before, its extension.
    name: String,
    /// The records before its content: its header, extended headers, folders.
    gap: Range<u64>,
    bytes: u64,
    /// Whether it begins a sample.
    is_first: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    members: Vec<Listed>,
    has_names: bool,
}

/// Returns the members of a tar by its index.
pub(super) async fn members(
    tar: &ObjectRef,
    index: &ObjectRef,
    keep: fn(&str) -> bool,
    with: &Cataloguing<'_>,
) -> Result<Vec<Member>, Problem> {
    let text = read(index, tar.size, with.storage).await?;
    let size = tar.size;
    let parsed = tars::blocking(with.storage.io(), move || Ok(parse(&text, size))).await?;
    let parsed = parsed.map_err(Problem::Unfit)?;
    let is_local = with.storage.local_path(&tar.uri).is_some();
    let runs =
        runs(places(&parsed, keep, tar.size)?, if is_local { JOIN_GAP_LOCAL_BYTES } else { JOIN_GAP_BYTES });
    let parsed = &parsed;
    let mut reads = stream::iter(runs)
        .map(|run| async move {
            let span = run[0].range.start..run[run.len() - 1].range.end;
            let bytes = with.storage.read(tar, span.clone()).await?;
            run.iter().map(|place| found(place, &bytes, span.start, parsed)).collect::<Result<Vec<_>, _>>()
        })
        .buffer_unordered(with.reads_at_once());
    let mut names: HashMap<usize, String> = HashMap::new();
    let mut texts: HashMap<usize, Vec<u8>> = HashMap::new();
    while let Some(run) = reads.try_next().await? {
        for found in run.into_iter().flatten() {
            texts.extend(found.text.map(|text| (found.member, text)));
            if !parsed.has_names {
                names.insert(found.member, found.name);
            }
        }
    }
    named(parsed, &names, texts)
}

/// Gives members their names and texts. Without names in the index, a sample has the key of its first member's header.
fn named(
    parsed: &Parsed,
    names: &HashMap<usize, String>,
    mut texts: HashMap<usize, Vec<u8>>,
) -> Result<Vec<Member>, Problem> {
    let mut stem = "";
    let mut members = Vec::with_capacity(parsed.members.len());
    for (i, listed) in parsed.members.iter().enumerate() {
        let name = match parsed.has_names {
            true => listed.name.clone(),
            false => {
                if listed.is_first {
                    let Some(name) = names.get(&i) else { return unfit("a header was not read") };
                    let Some(of_sample) = stem_of(name, &listed.name) else {
                        return unfit(format!(
                            "member {name} does not have the extension {} that it states",
                            listed.name
                        ));
                    };
                    stem = of_sample;
                }
                format!("{stem}.{}", listed.name)
            }
        };
        let text = texts.remove(&i);
        members.push(Member { name, offset: listed.gap.end, bytes: listed.bytes, text });
    }
    Ok(members)
}

/// Returns the name without its extension, if the extension is all that follows the first dot of the file name.
fn stem_of<'a>(name: &'a str, extension: &str) -> Option<&'a str> {
    let stem = name.strip_suffix(extension)?.strip_suffix('.')?;
    (!stem[stem.rfind('/').map_or(0, |at| at + 1)..].contains('.')).then_some(stem)
}

/// Parses the index of a tar of `size` bytes and checks that its members can follow one another in that tar.
fn parse(index: &[u8], size: u64) -> Result<Parsed, String> {
    let text = std::str::from_utf8(index).map_err(|e| format!("it is not text: {e}"))?;
    let mut lines = text.lines();
    let (version, samples) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or_default();
    let has_names = match version {
        "v1.1" => false,
        "v1.2" => true,
        _ => return Err("it does not begin with v1.1 or v1.2 and the number of samples".to_owned()),
    };
    let (mut members, mut end, mut rows) = (Vec::new(), 0, 0_u64);
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        let mut is_first = true;
        while let Some(extension) = words.next() {
            let malformed =
                || format!("line {} is not a list of extension, offset, bytes and name", rows + 2);
            let offset = words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(malformed)?;
            let bytes = words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(malformed)?;
            let name = if has_names { words.next().ok_or_else(malformed)? } else { extension };
            if name.contains('\\') {
                return Err(format!(
                    "line {} has a name with a backslash, with which GNU tar escapes other bytes",
                    rows + 2
                ));
            }
            let gap = end..offset;
            let length = offset.saturating_sub(end);
            let after = offset.checked_add(bytes).filter(|&after| after <= size);
            let after = after.and_then(|after| after.checked_next_multiple_of(RECORD_BYTES));
            let Some(after) = after.filter(|_| offset.is_multiple_of(RECORD_BYTES) && length >= RECORD_BYTES)
            else {
                return Err(format!(
                    "line {}: {bytes} bytes cannot be at {offset} in a tar of {size}",
                    rows + 2
                ));
            };
            if length > GAP_MAX_BYTES {
                return Err(format!(
                    "line {}: no member is stated for the {length} bytes before {offset}",
                    rows + 2
                ));
            }
            members.push(Listed { name: name.to_owned(), gap, bytes, is_first });
            (end, is_first) = (after, false);
        }
        if is_first {
            return Err(format!("line {} is empty", rows + 2));
        }
        rows += 1;
    }
    if samples.trim().parse() != Ok(rows) || members.is_empty() {
        return Err(format!("it should have {} samples and has {rows}", samples.trim()));
    }
    Ok(Parsed { members, has_names })
}

/// Bytes of the tar that are needed.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    range: Range<u64>,
    what: What,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    /// The records before a member.
    Header(usize),
    /// The same, and its content.
    Text(usize),
    /// The end marker.
    End,
}

/// Returns what is read: headers that prove the index, texts, and the end, in the order of the tar.
fn places(parsed: &Parsed, keep: fn(&str) -> bool, size: u64) -> Result<Vec<Place>, Problem> {
    let members = &parsed.members;
    let usual = usual_gap(members);
    let step = members.len().div_ceil(SPREAD).max(1);
    let last = members.len() - 1;
    let mut places = Vec::new();
    for (i, member) in members.iter().enumerate() {
        let gap = member.gap.end - member.gap.start;
        // Without a name, the extension decides whether the member is text.
        let is_text = if parsed.has_names { keep(&member.name) } else { keep(&format!("x.{}", member.name)) };
        let is_plain = member.name.is_ascii() && member.name.len() < PLAIN_NAME_BYTES;
        let is_proof = i == 0
            || i == last
            || gap != usual
            || (usual != RECORD_BYTES && i % step == 0)
            || (gap > RECORD_BYTES && !is_plain);
        if is_text && member.bytes > MAX_TEXT_MEMBER_BYTES {
            return unfit(format!("member {} has {} bytes, too many for text", member.name, member.bytes));
        }
        if is_text {
            let range = member.gap.start..member.gap.end + member.bytes;
            places.push(Place { range, what: What::Text(i) });
        } else if is_proof || (member.is_first && !parsed.has_names) {
            places.push(Place { range: member.gap.clone(), what: What::Header(i) });
        }
    }
    let end = end_of(&members[last]);
    let range = end.min(size)..end.saturating_add(END_BYTES).min(size);
    if range.is_empty() {
        return unfit("the tar ends with the last member that it states, without an end marker");
    }
    places.push(Place { range, what: What::End });
    Ok(places)
}

/// Returns where the records of a member end.
fn end_of(member: &Listed) -> u64 {
    member.gap.end.saturating_add(member.bytes).next_multiple_of(RECORD_BYTES)
}

/// Returns the most frequent length of the gaps before members.
fn usual_gap(members: &[Listed]) -> u64 {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    members.iter().for_each(|member| *counts.entry(member.gap.end - member.gap.start).or_default() += 1);
    counts.into_iter().max_by_key(|&(gap, count)| (count, gap)).map_or(RECORD_BYTES, |(gap, _)| gap)
}

/// Joins places that are near; each run is one read.
fn runs(places: Vec<Place>, gap: u64) -> Vec<Vec<Place>> {
    let mut runs: Vec<Vec<Place>> = Vec::new();
    for place in places {
        let open = runs.last_mut().filter(|run| {
            let (start, end) = (run[0].range.start, run[run.len() - 1].range.end);
            place.range.start.saturating_sub(end) <= gap && place.range.end - start <= JOINED_MAX_BYTES
        });
        match open {
            Some(run) => run.push(place),
            None => runs.push(vec![place]),
        }
    }
    runs
}

/// What a place holds of a member.
struct Found {
    member: usize,
    name: String,
    text: Option<Vec<u8>>,
}

/// Compares the bytes of a place with what the index states. `bytes` begin at `start` in the tar.
fn found(place: &Place, bytes: &Bytes, start: u64, parsed: &Parsed) -> Result<Option<Found>, Problem> {
    let at = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
    let Some(bytes) = bytes.get(at(place.range.start)..at(place.range.end)) else {
        return unfit("a read was short");
    };
    let (member, is_text) = match place.what {
        What::Header(member) => (member, false),
        What::Text(member) => (member, true),
        What::End if bytes.iter().all(|&byte| byte == 0) => return Ok(None),
        What::End => {
            return unfit(format!("the tar goes on at {}, after the last member", place.range.start));
        }
    };
    let listed = &parsed.members[member];
    let (header, content) = bytes.split_at((at(listed.gap.end) - at(listed.gap.start)).min(bytes.len()));
    let (name, size) = match guarded(|| header_of(header)) {
        Ok(found) => found,
        Err(why) => return unfit(format!("no member begins at {}: {why}", listed.gap.end)),
    };
    if size != listed.bytes || (parsed.has_names && name != listed.name) {
        let (stated, bytes) = (&listed.name, listed.bytes);
        return unfit(format!("at {} is {name} of {size} bytes, not {stated} of {bytes}", listed.gap.end));
    }
    Ok(Some(Found { member, name, text: is_text.then(|| content.to_vec()) }))
}

/// Returns name and size of the file whose header ends `records`. Extended headers and entries that are not files may
/// precede it.
fn header_of(records: &[u8]) -> Result<(String, u64), String> {
    let mut archive = tar::Archive::new(records);
    for entry in archive.entries().map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        let kind = entry.header().entry_type();
        if kind.is_gnu_sparse() || !(kind.is_file() || kind.is_contiguous()) {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        return match entry.raw_file_position() == records.len() as u64 {
            true => Ok((name, entry.size())),
            false => Err(format!("member {name} is before it")),
        };
    }
    Err("there is no header of a file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "v1.2 2\njpg 512 700 a/0.jpg cls 2048 1 a/0.cls\njpg 3072 700 a/1.jpg\n";

    #[test]
    fn an_index_is_parsed_as_dali_writes_it() {
        let parsed = parse(TWO.as_bytes(), 5_120).unwrap();
        let gaps: Vec<_> = parsed.members.iter().map(|m| (m.gap.clone(), m.is_first)).collect();
        assert_eq!(gaps, [(0..512, true), (1536..2048, false), (2560..3072, true)]);
        assert_eq!(
            (parsed.members[1].name.as_str(), parsed.members[1].bytes, parsed.has_names),
            ("a/0.cls", 1, true)
        );
        let older = parse(b"v1.1 1\njpg 512 700 cls 2048 1\n", 5_120).unwrap();
        assert_eq!((older.members[1].name.as_str(), older.has_names), ("cls", false));
    }

    #[test]
    fn an_index_that_fits_no_tar_is_refused() {
        let cases = [
            ("", "v1.1 or v1.2"),
            ("v1.0 1\njpg 512 1\n", "v1.1 or v1.2"),
            ("v1.2 1000000000\njpg 512 1 a.jpg\n", "should have 1000000000 samples"),
            ("v1.2 0\n", "should have 0 samples"),
            ("v1.2 1\njpg 512 1\n", "line 2"),
            ("v1.2 1\njpg 512 1 a b.jpg\n", "line 2"),
            ("v1.2 2\njpg 512 1 a.jpg\n\n", "line 3 is empty"),
            ("v1.2 1\njpg 512 9223372036854775808 a.jpg\n", "cannot be at 512"),
            ("v1.2 1\njpg 18446744073709551104 512 a.jpg\n", "cannot be at"),
            ("v1.2 1\njpg 0 1 a.jpg\n", "cannot be at 0"),
            ("v1.2 1\njpg 513 1 a.jpg\n", "cannot be at 513"),
            ("v1.2 2\njpg 512 700 a.jpg\njpg 1536 1 b.jpg\n", "line 3"),
            ("v1.2 1\njpg 512 5000 a.jpg\n", "cannot be at 512"),
            ("v1.2 1\njpg 512 1 \\303.jpg\n", "backslash"),
        ];
        for (index, why) in cases {
            let error = parse(index.as_bytes(), 5_120).unwrap_err();
            assert!(error.contains(why), "{index:?}: {error}");
        }
        assert!(parse(b"v1.2 1\njpg 131072 1 a.jpg\n", 1 << 20).unwrap_err().contains("no member is stated"));
        assert!(parse(&[0xff; 40], 5_120).is_err());
    }

    #[test]
    fn names_come_from_headers_where_the_index_has_none() {
        assert_eq!(stem_of("a.b/c.seg.png", "seg.png"), Some("a.b/c"));
        assert_eq!(stem_of("a/c.seg.png", "png"), None);
        assert_eq!(stem_of("a/c.jpg", "png"), None);
    }

    #[test]
    fn few_headers_prove_an_index_of_large_payloads() {
        let lines = |gap: u64| {
            let at = |i: u64| i * (1_000_000_u64.next_multiple_of(512) + gap) + gap;
            (0..1_000).map(|i| format!("jpg {} 1000000 {i}.jpg\n", at(i))).collect::<String>()
        };
        for (gap, proofs) in [(512, 2), (1_536, 9)] {
            let parsed = parse(format!("v1.2 1000\n{}", lines(gap)).as_bytes(), 1 << 40).unwrap();
            let places = places(&parsed, |_| false, 1 << 40).unwrap();
            assert_eq!(places.len(), proofs + 1, "with the end marker");
            assert_eq!(runs(places, JOIN_GAP_BYTES).len(), proofs + 1);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_index_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in any::<u64>()) {
            let _ = parse(&bytes, size);
        }

        #[test]
        fn any_numbers_are_places_in_the_tar_or_refused(
            numbers in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..3_u8), 1..8), size in any::<u64>(),
        ) {
            let mut end = 0_u64;
            let mut text = format!("v1.2 {}\n", numbers.len());
            for (i, (offset, bytes, sense)) in numbers.iter().enumerate() {
                let offset = if *sense == 0 { *offset } else { end.saturating_add(512) };
                let bytes = if *sense == 2 { bytes % 10_000 } else { *bytes };
                end = offset.saturating_add(bytes).checked_next_multiple_of(512).unwrap_or(0);
                text += &format!("jpg {offset} {bytes} {i}.jpg\n");
            }
            if let Ok(parsed) = parse(text.as_bytes(), size) {
                let found = places(&parsed, |_| false, size);
                for place in found.into_iter().flatten() {
                    prop_assert!(place.range.start < place.range.end && place.range.end <= size);
                }
            }
        }
    }
}
