//! Divides keys among listers, so that several of them list many keys at once, wherever the keys are.
//!
//! ```text
//! range (after, until] ─▶ page ─▶ page ─▶ …             a free lister takes half of the range with the most keys left:
//! (after, middle] ─▶ page        (middle, until] ─▶ page
//! ```
//! A store does not return a middle, so it is guessed from the last key of the last page: the key up to some character, with
//! that character raised. The best guess halves the estimated rest, by the density of the keys on that page. If nothing bounds
//! the keys, the best guess leaps a few times as far as the listing has come: `img_0001`, `img_001`, `img_01`, `img_1`. A leap
//! beyond all keys costs one empty page and shows where they end.
//!
//! Invariants: the ranges of one prefix follow one another without gap or overlap; keys of a page beyond the end of its range
//! belong to the next range. Free of I/O.
//! Cost: all pages are full except the last of each range. One split is allowed for every [`PAGES_PER_SPLIT`] pages, and
//! [`FREE_SPLITS`] more: n keys below one prefix take at most n/1,000 × 1.25 + 18 pages.

use super::key_distance::{Page, shared};
use super::key_span::KeySpan;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Splits that are allowed from the start: one for each of 16 listers.
const FREE_SPLITS: usize = 16;
/// Full pages that allow another split: at worst, a quarter of all pages are useless.
const PAGES_PER_SPLIT: usize = 4;
/// A range with an estimated rest below two pages is not split: that would cost as many requests as it saves.
const LEAST_PAGES: f64 = 2.0;
/// Pages that the first leap skips: one for each of 16 listers.
const LEAST_LEAP_PAGES: f64 = 16.0;
/// A later leap goes this many times as far as the first key is away: ten leaps are a factor of a million.
const LEAP: f64 = 3.0;
/// What a lister does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// List range `range`: the keys with this prefix that follow `after`.
    List { range: usize, prefix: Arc<str>, after: Option<String> },
    /// Ask again when a page has arrived.
    Wait,
    /// No page will arrive any more.
    Done,
}

/// A key of a page. Folders' marks (`folder/`) arrive without their slash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) text: &'a str,
    /// Whether it has no bytes, so that it may be a mark.
    pub(super) is_empty: bool,
}

/// What the listing does with a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// This many of its keys, the first ones, belong to the range.
    pub(super) keys: usize,
    /// Whether the range has another page.
    pub(super) goes_on: bool,
    /// The range is listed up to this key; `None`: to the end of its prefix.
    pub(super) through: Option<String>,
}

impl Taken {
    /// Whether the page extends the listing. A store may send pages without keys in between.
    pub(super) fn is_progress(&self) -> bool {
        self.keys > 0 || !self.goes_on
    }
}

/// The error that the store does not list in bytewise order, or not from the requested key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unordered;

struct Range {
    prefix: Arc<str>,
    /// Keys up to this one belong to other ranges.
    after: Option<String>,
    /// Keys above this one belong to other ranges; `None`: all keys that follow belong to this one.
    until: Option<String>,
    last_page: Option<Page>,
    /// Keys on its pages so far.
    listed: usize,
    /// The first key of the range that it was cut from, and so on.
    origin: Option<String>,
}

/// All ranges of one listing.
pub(super) struct KeyRanges {
    ranges: Vec<Range>,
    waiting: VecDeque<usize>,
    /// The ranges being listed: one for each active lister.
    open: Vec<usize>,
    /// The characters that occur in keys.
    seen: BTreeSet<char>,
    splits: usize,
    full_pages: usize,
    can_split: bool,
    page_keys: f64,
}

impl KeyRanges {
    /// Makes a range for each span. `can_split` means that the store lists in bytewise order, from the requested key.
    /// `page_keys` is the number of keys of a full page.
    pub(super) fn new(spans: Vec<KeySpan>, can_split: bool, page_keys: usize) -> Self {
        let range = |span: KeySpan| Range {
            prefix: span.prefix.into(),
            after: span.after,
            until: span.until,
            last_page: None,
            listed: 0,
            origin: None,
        };
        let ranges: Vec<Range> = spans.into_iter().map(range).collect();
        let waiting = (0..ranges.len()).collect();
        #[expect(clippy::cast_precision_loss, reason = "1,000")]
        let page_keys = page_keys as f64;
        let (open, splits, full_pages) = (Vec::new(), 0, 0);
        Self { ranges, waiting, open, seen: BTreeSet::new(), splits, full_pages, can_split, page_keys }
    }

    /// Returns what a free lister does next.
    pub(super) fn next(&mut self) -> Next {
        if self.waiting.is_empty() {
            if self.open.is_empty() {
                return Next::Done;
            }
            match self.split() {
                Some(range) => self.waiting.push_back(range),
                None => return Next::Wait,
            }
        }
        let Some(range) = self.waiting.pop_front() else { return Next::Wait };
        self.open.push(range);
        let one = &self.ranges[range];
        Next::List { range, prefix: Arc::clone(&one.prefix), after: one.after.clone() }
    }

    /// Processes a page of `range`; `more` means that the store has another one.
    pub(super) fn on_page(&mut self, range: usize, keys: &[Key<'_>], more: bool) -> Result<Taken, Unordered> {
        assert!(self.open.contains(&range), "the page is of a range that is not being listed");
        let one = &mut self.ranges[range];
        let before = one.last_page.as_ref().map(|page| page.last.as_str()).or(one.after.as_deref());
        if self.can_split && !is_sorted(before, keys) {
            return Err(Unordered);
        }
        let until = one.until.as_deref();
        let own = keys.iter().take_while(|key| until.is_none_or(|until| key.text <= until)).count();
        let goes_on = more && own == keys.len();
        if goes_on {
            self.full_pages += 1;
            if let (Some(first), Some(last)) = (keys.first(), keys.iter().map(|key| key.text).max()) {
                one.last_page =
                    Some(Page { first: first.text.to_owned(), last: last.to_owned(), keys: keys.len() });
                one.listed += keys.len();
                one.origin.get_or_insert_with(|| first.text.to_owned());
                if self.can_split {
                    self.seen.extend(last[one.prefix.len().min(shared(last, &one.prefix))..].chars());
                }
            }
        } else {
            self.open.retain(|&open| open != range);
        }
        let reached = one.last_page.as_ref().map(|page| page.last.clone()).or_else(|| one.after.clone());
        let through = if goes_on { reached } else { one.until.clone() };
        Ok(Taken { keys: own, goes_on, through })
    }

    /// Cuts the open range with the largest estimated rest; returns its upper part.
    fn split(&mut self) -> Option<usize> {
        if !self.can_split || self.splits >= FREE_SPLITS + self.full_pages / PAGES_PER_SPLIT {
            return None;
        }
        let open = self.open.iter().map(|&i| (Self::keys_left(&self.ranges[i]), i));
        let mut open: Vec<(f64, usize)> = open.collect();
        open.retain(|(left, _)| *left >= LEAST_PAGES * self.page_keys);
        open.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (lower, middle) = open.into_iter().find_map(|(_, i)| Some((i, self.middle(&self.ranges[i])?)))?;
        self.splits += 1;
        let lower = &mut self.ranges[lower];
        let upper = Range {
            prefix: Arc::clone(&lower.prefix),
            after: Some(middle.clone()),
            until: lower.until.replace(middle),
            last_page: None,
            listed: 0,
            origin: lower.origin.clone(),
        };
        self.ranges.push(upper);
        Some(self.ranges.len() - 1)
    }

    /// Estimates the keys left in a range: as dense as on its last page; without an end, the number that it had so far.
    fn keys_left(range: &Range) -> f64 {
        let Some(page) = &range.last_page else { return 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (keys, listed) = (page.keys as f64, range.listed as f64);
        match &range.until {
            Some(until) => keys * page.pages_to(until),
            None => listed,
        }
    }

    /// Returns a text above the last key of the last page and below the range's end: that key up to one of its characters, with
    /// that character raised.
    fn middle(&self, range: &Range) -> Option<String> {
        let page = range.last_page.as_ref()?;
        let (last, until) = (page.last.as_str(), range.until.as_deref());
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let pages = self.full_pages as f64;
        let aim = match (until, &range.origin) {
            (Some(until), _) => page.pages_to(until) / 2.0,
            (None, Some(origin)) => pages.max(LEAST_LEAP_PAGES).max(LEAP * page.pages_from(origin)),
            (None, None) => return None,
        };
        let from = until.map_or(0, |until| shared(last, until)).max(range.prefix.len().min(last.len()));
        let to = shared(&page.first, last).max(from);
        let places = last.char_indices().skip_while(|(at, _)| *at < from).take_while(|(at, _)| *at <= to);
        let guesses =
            places.flat_map(|(at, c)| self.above(c).map(move |raised| format!("{}{raised}", &last[..at])));
        let between =
            guesses.filter(|guess| guess.as_str() > last && until.is_none_or(|until| guess.as_str() < until));
        let rated = between.map(|guess| ((page.pages_to(&guess) / aim).ln().abs(), guess));
        rated.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, guess)| guess)
    }

    /// Returns the characters to which `c` may be raised: all digits or letters above it, and the next character in keys.
    fn above(&self, c: char) -> impl Iterator<Item = char> {
        let end = match c {
            '0'..='9' => '9',
            'a'..='z' => 'z',
            'A'..='Z' => 'Z',
            _ => c,
        };
        (c..=end).skip(1).chain(self.seen.range(c..).find(|seen| **seen > end).copied())
    }
}

/// Whether the keys rise, from above `before`. A mark without its slash may come later than it seems.
fn is_sorted(before: Option<&str>, keys: &[Key<'_>]) -> bool {
    let mut before = before.map(str::to_owned);
    for key in keys {
        if let Some(before) = &before
            && key.text <= before.as_str()
            && !(key.is_empty && format!("{}/", key.text).as_str() > before.as_str())
        {
            return false;
        }
        if before.as_deref().is_none_or(|before| key.text > before) {
            before = Some(key.text.to_owned());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::key_span::rest;
    use super::*;
    use proptest::prelude::*;
    use rand_core::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    const PAGE: usize = 10;

    /// What a listing found before it ended or was interrupted.
    #[derive(Default)]
    struct Listed {
        found: Vec<(String, bool)>,
        spans: Vec<KeySpan>,
        pages: usize,
        rounds: usize,
    }

    /// Runs a listing of `spans` by `listers` and interrupts it after `most` pages; `seed` decides the order of the pages.
    /// `keys` is sorted; keys that end with `/` are marks of folders and lose the slash, as in object_store.
    fn list_some(keys: &[String], spans: Vec<KeySpan>, listers: usize, seed: u64, most: usize) -> Listed {
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut ranges = KeyRanges::new(spans, true, PAGE);
        let mut listed = Listed::default();
        /// Range, prefix, the start of the page, and the end up to which the range is listed.
        type AtWork = (usize, Arc<str>, Option<String>, Option<String>);
        let mut at_work: Vec<AtWork> = Vec::new();
        loop {
            while at_work.len() < listers {
                match ranges.next() {
                    Next::List { range, prefix, after } => {
                        at_work.push((range, prefix, after.clone(), after))
                    }
                    Next::Wait => break,
                    Next::Done if at_work.is_empty() => return listed,
                    Next::Done => unreachable!("a lister is at work"),
                }
            }
            listed.rounds += 1;
            for _ in 0..at_work.len() {
                if at_work.is_empty() {
                    break;
                }
                if listed.pages == most {
                    return listed;
                }
                let one = random.next_u64() as usize % at_work.len();
                let (range, prefix, after, reached) = at_work.swap_remove(one);
                if most != usize::MAX && random.next_u64().is_multiple_of(4) {
                    // A page without keys and with a token.
                    let taken = ranges.on_page(range, &[], true).unwrap();
                    assert!(taken.goes_on && !taken.is_progress());
                    at_work.push((range, prefix, after, reached));
                    continue;
                }
                let start = keys.partition_point(|key| {
                    after.as_ref().is_some_and(|after| key <= after) || **key < *prefix
                });
                let own: Vec<&String> =
                    keys[start..].iter().take_while(|key| key.starts_with(&*prefix)).take(PAGE + 1).collect();
                let page = &own[..own.len().min(PAGE)];
                listed.pages += 1;
                let of = |key: &&String| (key.trim_end_matches('/').to_owned(), key.ends_with('/'));
                let texts: Vec<(String, bool)> = page.iter().map(of).collect();
                let views: Vec<Key<'_>> =
                    texts.iter().map(|(text, is_empty)| Key { text, is_empty: *is_empty }).collect();
                let taken = ranges.on_page(range, &views, own.len() > PAGE).unwrap();
                listed.found.extend_from_slice(&texts[..taken.keys]);
                let is_progress = taken.is_progress();
                let through = taken.through;
                if is_progress {
                    let (prefix, until) = ((*prefix).into(), through.clone());
                    listed.spans.push(KeySpan { prefix, after: reached, until });
                }
                if taken.goes_on {
                    at_work.push((range, prefix, page.last().map(|key| (*key).clone()), through));
                }
            }
        }
    }

    /// Runs a whole listing. Returns what it found, sorted, and the numbers of pages and rounds.
    fn list(
        keys: &[String],
        prefixes: &[&str],
        listers: usize,
        seed: u64,
    ) -> (Vec<(String, bool)>, usize, usize) {
        let spans = prefixes.iter().map(|prefix| KeySpan::all((*prefix).to_owned())).collect();
        let listed = list_some(keys, spans, listers, seed, usize::MAX);
        (merged(listed.found), listed.pages, listed.rounds)
    }

    /// Merges as the listing itself merges what its listers found.
    fn merged(mut found: Vec<(String, bool)>) -> Vec<(String, bool)> {
        found.sort();
        found.dedup_by(|b, a| a.0 == b.0 && a.1 && b.1);
        found
    }

    fn all(keys: &[String]) -> Vec<(String, bool)> {
        merged(keys.iter().map(|key| (key.trim_end_matches('/').to_owned(), key.ends_with('/'))).collect())
    }

    fn sorted(keys: impl IntoIterator<Item = String>) -> Vec<String> {
        keys.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Checks the bound that the head of this file states.
    fn assert_bounded(keys: usize, pages: usize) {
        let most = keys as f64 / PAGE as f64 * 1.25 + 18.0;
        assert!(pages as f64 <= most, "{pages} pages for {keys} keys, {most} at most");
    }

    proptest! {
        #[test]
        fn listers_find_every_key_once(
            numbers in prop::collection::vec(0u32..100_000, 0..400),
            words in prop::collection::vec("[a-c\\-./ü𐍈é_~ ]{1,6}", 0..300),
            hashes in prop::collection::vec(any::<u64>(), 0..300),
            long in "[a-z/]{0,40}",
            listers in 1usize..20,
            seed: u64,
        ) {
            let names = numbers.iter().map(|n| format!("p/{long}{n:08}.jpg"));
            let names = names.chain(words.iter().map(|word| format!("p/{word}")));
            let names = names.chain(hashes.iter().map(|hash| format!("p/{:02x}/{hash:016x}", hash >> 56)));
            let names = names.chain(numbers.iter().step_by(7).map(|n| format!("p/{n}/")));
            let keys = sorted(names.filter(|name| !name.contains("//"))); // object_store refuses them
            let (found, pages, _) = list(&keys, &["p/"], listers, seed);
            prop_assert_eq!(found, all(&keys));
            assert_bounded(keys.len(), pages);
        }

        /// Each listing is interrupted, and the next one lists what is left.
        #[test]
        fn an_interrupted_listing_is_resumed(
            numbers in prop::collection::vec(0u32..100_000, 0..300),
            words in prop::collection::vec("[a-c\\-./ü~]{1,4}", 0..200),
            parts in prop::collection::vec(0usize..12, 0..8),
            seed: u64,
        ) {
            let names = numbers.iter().map(|n| format!("p/{n:08}.jpg"));
            let names = names.chain(words.iter().map(|word| format!("q/{word}")));
            let names = names.chain(numbers.iter().step_by(7).map(|n| format!("q/{n}/")));
            let keys = sorted(names.filter(|name| !name.contains("//")));
            let prefixes = || ["p/", "q/"].map(str::to_owned);
            let mut all_of = Listed::default();
            for (part, most) in parts.iter().copied().chain([usize::MAX]).enumerate() {
                let left = rest(prefixes(), &all_of.spans);
                let listed = list_some(&keys, left, 5, seed ^ part as u64, most);
                all_of.found.extend(listed.found);
                all_of.spans.extend(listed.spans);
                all_of.pages += listed.pages;
            }
            prop_assert_eq!(rest(prefixes(), &all_of.spans), []);
            prop_assert_eq!(merged(all_of.found), all(&keys));
            // Each resumption lists again the pages that were under way, and may end pages early.
            let most = keys.len() / PAGE * 5 / 4 + 19 + 6 * (parts.len() + 1) + 16 * parts.len();
            prop_assert!(all_of.pages <= most, "{} pages, {most} at most", all_of.pages);
        }

        #[test]
        fn a_folder_with_nearly_all_keys_is_shared(
            small in prop::collection::vec((0u32..8, 0u32..100), 0..50), many in 100u32..3_000, seed: u64,
        ) {
            let names = small.iter().map(|(folder, n)| format!("{folder}/{n}"));
            let keys = sorted(names.chain((0..many).map(|n| format!("5/{n:07}.jpg"))));
            let prefixes = ["0/", "1/", "2/", "3/", "4/", "5/", "6/", "7/"];
            let (found, pages, _) = list(&keys, &prefixes, 16, seed);
            prop_assert_eq!(found, all(&keys));
            assert_bounded(keys.len(), pages - prefixes.len());
        }
    }

    /// Returns how many times faster 16 listers are than one, in rounds of one page each.
    fn speed_up(keys: &[String]) -> f64 {
        let keys = sorted(keys.iter().cloned());
        let (found, pages, rounds) = list(&keys, &[""], 16, 7);
        assert_eq!(found, all(&keys));
        assert_bounded(keys.len(), pages);
        let alone = list(&keys, &[""], 1, 7).1;
        println!("{} keys: {alone} pages alone; {pages} pages in {rounds} rounds", keys.len());
        alone as f64 / rounds as f64
    }

    #[test]
    fn sixteen_listers_are_ten_times_as_fast_whatever_the_names() {
        let mut random = SplitMix64::seed_from_u64(3);
        let hashes: Vec<String> = (0..20_000).map(|_| format!("{:016x}.jpg", random.next_u64())).collect();
        let words: Vec<String> = (0..20_000)
            .map(|_| {
                let letters = (0..8).map(|_| char::from(b'a' + (random.next_u64() % 26) as u8));
                letters.collect::<String>() + ".flac"
            })
            .collect();
        for keys in [
            (0..20_000).map(|n| format!("img_{n:08}.jpg")).collect(),
            (0..20_000)
                .map(|n| format!("n{:08}/n{:08}_{}.JPEG", n / 40 * 7_919, n / 40 * 7_919, n % 40))
                .collect(),
            (0..20_000).map(|n| format!("common_voice_de_{}.mp3", 17_000_000 + n * 3)).collect(),
            (0..20_000)
                .map(|n| format!("2024-{:02}-{:02}/{:06}.png", n / 1_700 + 1, n / 60 % 28 + 1, n))
                .collect(),
            hashes,
            words,
        ] {
            let times = speed_up(&keys);
            assert!(times >= 10.0, "{} …: {times:.1} times as fast", keys[0]);
        }
    }

    #[test]
    fn a_store_that_starts_elsewhere_or_lists_in_another_order_is_noticed() {
        let key = |text| Key { text, is_empty: false };
        let mut ranges = KeyRanges::new(vec![KeySpan::all(String::new())], true, 2);
        assert!(matches!(ranges.next(), Next::List { range: 0, after: None, .. }));
        assert_eq!(ranges.next(), Next::Wait, "nothing is known that could be split");
        assert_eq!(ranges.on_page(0, &[key("b"), key("a")], true), Err(Unordered));
        let mut ranges = KeyRanges::new(vec![KeySpan::all(String::new())], true, 2);
        ranges.next();
        for page in [["a0", "a1"], ["a2", "a3"]] {
            let through = Some(page[1].to_owned());
            assert_eq!(
                ranges.on_page(0, &page.map(key), true),
                Ok(Taken { keys: 2, goes_on: true, through })
            );
        }
        let Next::List { range: 1, after: Some(after), .. } = ranges.next() else { panic!("not split") };
        assert!(after.as_str() > "a3", "{after}");
        assert_eq!(
            ranges.on_page(1, &[key("a0"), key("a1")], true),
            Err(Unordered),
            "it ignored the start key"
        );
        let mut apart = KeyRanges::new(vec![KeySpan::all(String::new())], false, 2);
        apart.next();
        let taken = apart.on_page(0, &[key("b"), key("a")], true).unwrap();
        assert!(taken.keys == 2 && taken.goes_on, "without splits, any order is accepted");
    }
}
