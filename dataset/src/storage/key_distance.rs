//! Estimates the number of keys between two texts from the keys of one page.

/// Characters that estimates use, from the first one that differs: twelve digits.
const WEIGHED_CHARS: usize = 12;

/// A page that was not the last of its range.
pub(super) struct Page {
    pub(super) first: String,
    pub(super) last: String,
    pub(super) keys: usize,
}

impl Page {
    /// Returns the distance from the last key to `key` above it, in multiples of what this page covers.
    pub(super) fn pages_to(&self, key: &str) -> f64 {
        self.in_pages(distance(&self.last, key, &self.last))
    }

    /// Returns the distance from `key` to the last key above it, in multiples of what this page covers.
    pub(super) fn pages_from(&self, key: &str) -> f64 {
        self.in_pages(distance(key, &self.last, &self.last))
    }

    fn in_pages(&self, distance_covered: f64) -> f64 {
        distance_covered / distance(&self.first, &self.last, &self.last).max(f64::MIN_POSITIVE)
    }
}

/// Estimates the distance of two texts as a fraction. The character of `like` at each place decides which digits that place
/// has: ten digits, 26 letters, or 64 other characters around it.
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
            break; // what follows a character above all digits is unknown
        }
    }
    sum
}

/// Returns the length in bytes of the common start of two texts, in whole characters.
pub(super) fn shared(a: &str, b: &str) -> usize {
    let pairs = a.char_indices().zip(b.chars());
    pairs.take_while(|((_, x), y)| x == y).last().map_or(0, |((at, x), _)| at + x.len_utf8())
}
