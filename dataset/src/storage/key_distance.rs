//! Estimates of how many keys are between two texts, from the keys of one page.

/// Characters that estimates look at, from the first one that differs: twelve digits.
const WEIGHED_CHARS: usize = 12;

/// A page that was not the last of its range.
pub(super) struct Page {
    pub(super) first: String,
    pub(super) last: String,
    pub(super) keys: usize,
}

impl Page {
    /// How far a key above the last one is from it, in multiples of what this page covers.
    pub(super) fn pages_to(&self, key: &str) -> f64 {
        self.in_pages(distance(&self.last, key, &self.last))
    }

    /// How far the last key is from one below it.
    pub(super) fn pages_from(&self, key: &str) -> f64 {
        self.in_pages(distance(key, &self.last, &self.last))
    }

    fn in_pages(&self, distance_covered: f64) -> f64 {
        distance_covered / distance(&self.first, &self.last, &self.last).max(f64::MIN_POSITIVE)
    }
}

/// An estimate of how far two texts are apart, as a fraction. What stands at a place of `like` is one of the digits there: one of
/// ten digits, 26 letters, or 64 other characters around it.
fn distance(low: &str, high: &str, like: &str) -> f64 {
    let (mut low, mut high) = (low.chars(), high.chars());
    let (mut sum, mut unit, mut compared) = (0.0, 1.0, 0);
    for around in like.chars() {
        let (least, digits) = match around {
            '0'..='9' => ('0', 10.0),
            'a'..='z' => ('a', 26.0),
            'A'..='Z' => ('A', 26.0),
            other => (char::from_u32(u32::from(other).saturating_sub(32)).unwrap_or(other), 64.0),
        };
        let digit = |c: Option<char>| {
            c.map_or(0.0, |c| f64::from(u32::from(c)) - f64::from(u32::from(least))).clamp(0.0, digits)
        };
        let (below, above) = (low.next(), high.next());
        unit /= digits;
        if below != above || compared > 0 {
            sum += (digit(above) - digit(below)) * unit;
            compared += 1;
        }
        if compared == WEIGHED_CHARS || digit(above) >= digits {
            break; // a character above all digits says nothing of what follows it
        }
    }
    sum
}

/// The length in bytes of the start that two texts share, in whole characters.
pub(super) fn shared(a: &str, b: &str) -> usize {
    let pairs = a.char_indices().zip(b.chars());
    pairs.take_while(|((_, x), y)| x == y).last().map_or(0, |((at, x), _)| at + x.len_utf8())
}
