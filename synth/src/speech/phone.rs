//! Speech sounds: the sounds of a word's letters, and the targets of the vocal tract for each sound.
//!
//! Vowel formants are those of G. E. Peterson and H. L. Barney, "Control methods used in a study of the vowels", JASA
//! 24 (1952), men. The other targets follow the ranges of D. H. Klatt, "Software for a cascade/parallel formant
//! synthesizer", JASA 67 (1980). The spelling rules are approximate: the sounds must vary as in speech, but words
//! need not be pronounced well.

use super::locale::Locale;

/// A speech sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phone {
    A,
    Ae,
    E,
    I,
    Ih,
    O,
    U,
    Uh,
    Schwa,
    Y,
    Oe,
    W,
    J,
    R,
    L,
    M,
    N,
    Ng,
    S,
    Z,
    Sh,
    Zh,
    F,
    V,
    Th,
    H,
    X,
    P,
    B,
    T,
    D,
    K,
    G,
}

/// Targets of the vocal tract for one stretch of speech. Frequencies are in Hz for a man; levels are linear, and 1 is
/// the voice of an open vowel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Target {
    /// Resonances of the tract.
    pub(crate) formants: [f32; 3],
    /// Level of the vibrating vocal folds.
    pub(crate) voice: f32,
    /// Level of noise at the vocal folds, shaped by the whole tract.
    pub(crate) breath: f32,
    /// Level of noise at a constriction, shaped by the cavity in front of it.
    pub(crate) hiss: f32,
    /// Centre and width of that noise.
    pub(crate) hiss_hz: f32,
    pub(crate) hiss_width_hz: f32,
    /// Milliseconds at the usual rate.
    pub(crate) ms: f32,
}

impl Target {
    const fn voiced(f1: f32, f2: f32, f3: f32, voice: f32, ms: f32) -> Self {
        Self {
            formants: [f1, f2, f3],
            voice,
            breath: 0.02,
            hiss: 0.0,
            hiss_hz: 4000.0,
            hiss_width_hz: 3000.0,
            ms,
        }
    }

    const fn noisy(centre: f32, width: f32, hiss: f32, voice: f32, ms: f32) -> Self {
        Self {
            formants: [350.0, 1600.0, 2550.0],
            voice,
            breath: 0.0,
            hiss,
            hiss_hz: centre,
            hiss_width_hz: width,
            ms,
        }
    }

    /// No sound, the tract at rest.
    pub(crate) const fn silence(ms: f32) -> Self {
        Self::voiced(500.0, 1500.0, 2500.0, 0.0, ms).hushed()
    }

    const fn hushed(mut self) -> Self {
        self.breath = 0.0;
        self
    }

    const fn breathy(mut self, breath: f32) -> Self {
        self.breath = breath;
        self
    }
}

impl Phone {
    /// Returns whether it carries a syllable.
    pub(crate) fn is_vowel(self) -> bool {
        use Phone::{A, Ae, E, I, Ih, O, Oe, Schwa, U, Uh, Y};
        matches!(self, A | Ae | E | I | Ih | O | U | Uh | Schwa | Y | Oe)
    }

    /// Returns its stretches: one, or closure and burst for a stop.
    pub(crate) fn targets(self) -> ([Target; 2], usize) {
        let one = |target: Target| ([target, target], 1);
        let stop = |voice: f32, centre: f32, width: f32, breath: f32| {
            let closure = Target::voiced(250.0, 1400.0, 2500.0, voice, 55.0).hushed();
            let burst = Target::noisy(centre, width, 0.5, voice, if voice > 0.0 { 14.0 } else { 26.0 });
            ([closure, burst.breathy(breath)], 2)
        };
        match self {
            Self::A => one(Target::voiced(730.0, 1090.0, 2440.0, 1.0, 115.0)),
            Self::Ae => one(Target::voiced(660.0, 1720.0, 2410.0, 1.0, 120.0)),
            Self::E => one(Target::voiced(530.0, 1840.0, 2480.0, 0.95, 105.0)),
            Self::I => one(Target::voiced(270.0, 2290.0, 3010.0, 0.8, 105.0)),
            Self::Ih => one(Target::voiced(390.0, 1990.0, 2550.0, 0.85, 75.0)),
            Self::O => one(Target::voiced(570.0, 840.0, 2410.0, 1.0, 115.0)),
            Self::U => one(Target::voiced(300.0, 870.0, 2240.0, 0.85, 110.0)),
            Self::Uh => one(Target::voiced(640.0, 1190.0, 2390.0, 0.95, 85.0)),
            Self::Schwa => one(Target::voiced(490.0, 1350.0, 2500.0, 0.7, 60.0)),
            Self::Y => one(Target::voiced(270.0, 1800.0, 2200.0, 0.8, 105.0)),
            Self::Oe => one(Target::voiced(400.0, 1550.0, 2300.0, 0.9, 110.0)),
            Self::W => one(Target::voiced(290.0, 680.0, 2200.0, 0.5, 60.0)),
            Self::J => one(Target::voiced(270.0, 2200.0, 3000.0, 0.55, 60.0)),
            Self::R => one(Target::voiced(420.0, 1250.0, 1650.0, 0.55, 65.0)),
            Self::L => one(Target::voiced(370.0, 1050.0, 2650.0, 0.5, 65.0)),
            Self::M => one(Target::voiced(260.0, 1000.0, 2200.0, 0.32, 70.0)),
            Self::N => one(Target::voiced(260.0, 1600.0, 2600.0, 0.32, 65.0)),
            Self::Ng => one(Target::voiced(270.0, 2000.0, 2700.0, 0.3, 75.0)),
            Self::S => one(Target::noisy(6500.0, 2600.0, 0.55, 0.0, 105.0)),
            Self::Z => one(Target::noisy(6300.0, 2600.0, 0.3, 0.3, 80.0)),
            Self::Sh => one(Target::noisy(3400.0, 1700.0, 0.6, 0.0, 110.0)),
            Self::Zh => one(Target::noisy(3200.0, 1600.0, 0.3, 0.3, 80.0)),
            Self::F => one(Target::noisy(7500.0, 9000.0, 0.16, 0.0, 95.0)),
            Self::V => one(Target::noisy(7000.0, 9000.0, 0.08, 0.35, 65.0)),
            Self::Th => one(Target::noisy(6800.0, 7000.0, 0.13, 0.0, 90.0)),
            Self::H => one(Target::voiced(500.0, 1500.0, 2500.0, 0.05, 60.0).breathy(0.5)),
            Self::X => one(Target::noisy(1700.0, 900.0, 0.35, 0.0, 95.0)),
            Self::P => stop(0.0, 1000.0, 1800.0, 0.25),
            Self::T => stop(0.0, 4500.0, 3200.0, 0.2),
            Self::K => stop(0.0, 2100.0, 1200.0, 0.25),
            Self::B => stop(0.14, 900.0, 1800.0, 0.0),
            Self::D => stop(0.14, 4200.0, 3200.0, 0.0),
            Self::G => stop(0.14, 2000.0, 1200.0, 0.0),
        }
    }
}

/// Returns the sounds of one word. Characters that are not letters are silent.
pub(crate) fn phones(locale: Locale, word: &str) -> Vec<Phone> {
    let word = word.to_lowercase();
    let letters: Vec<char> = word.chars().filter(|letter| letter.is_alphabetic()).collect();
    let mut spoken = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let (used, sounds) = longest(locale, &letters[at..], at == 0);
        spoken.extend_from_slice(sounds);
        at += used;
    }
    if locale == Locale::English && letters.len() > 3 && letters.last() == Some(&'e') {
        spoken.pop(); // silent at the end
    }
    if locale == Locale::French
        && letters.len() > 2
        && matches!(letters.last(), Some('s' | 't' | 'x' | 'd' | 'e'))
    {
        spoken.pop();
    }
    spoken
}

type Rule = (&'static str, &'static [Phone]);

/// Returns the length of the longest known spelling at the start of `letters`, and its sounds. A letter without a
/// rule is a schwa.
fn longest(locale: Locale, letters: &[char], first: bool) -> (usize, &'static [Phone]) {
    let own = match locale {
        Locale::English => ENGLISH,
        Locale::German => GERMAN,
        Locale::Spanish => SPANISH,
        Locale::French => FRENCH,
    };
    for length in (1..=letters.len().min(3)).rev() {
        let head: String = letters[..length].iter().collect();
        if first && locale == Locale::German && head == "st" {
            return (2, &[Phone::Sh, Phone::T]);
        }
        let rule = own.iter().chain(COMMON).find(|(spelling, _)| *spelling == head);
        if let Some((_, sounds)) = rule {
            return (length, sounds);
        }
    }
    (1, &[Phone::Schwa])
}

use Phone::{
    A, Ae, B, D, E, F, G, H, I, Ih, J, K, L, M, N, Ng, O, Oe, P, R, S, Schwa, Sh, T, Th, U, Uh, V, W, X, Y,
    Z, Zh,
};

const COMMON: &[Rule] = &[
    ("a", &[A]),
    ("b", &[B]),
    ("c", &[K]),
    ("d", &[D]),
    ("e", &[E]),
    ("f", &[F]),
    ("g", &[G]),
    ("h", &[H]),
    ("i", &[I]),
    ("j", &[J]),
    ("k", &[K]),
    ("l", &[L]),
    ("m", &[M]),
    ("n", &[N]),
    ("o", &[O]),
    ("p", &[P]),
    ("q", &[K]),
    ("r", &[R]),
    ("s", &[S]),
    ("t", &[T]),
    ("u", &[U]),
    ("v", &[V]),
    ("w", &[W]),
    ("x", &[K, S]),
    ("y", &[I]),
    ("z", &[Z]),
    ("bb", &[B]),
    ("ff", &[F]),
    ("ll", &[L]),
    ("mm", &[M]),
    ("nn", &[N]),
    ("pp", &[P]),
    ("rr", &[R]),
    ("ss", &[S]),
    ("tt", &[T]),
    ("ph", &[F]),
];

const ENGLISH: &[Rule] = &[
    ("a", &[Ae]),
    ("ai", &[E, I]),
    ("ay", &[E, I]),
    ("ar", &[A, R]),
    ("ch", &[T, Sh]),
    ("ck", &[K]),
    ("ea", &[I]),
    ("ee", &[I]),
    ("er", &[Schwa, R]),
    ("i", &[Ih]),
    ("igh", &[A, I]),
    ("j", &[D, Zh]),
    ("kn", &[N]),
    ("ng", &[Ng]),
    ("o", &[O]),
    ("oo", &[U]),
    ("ou", &[A, U]),
    ("ow", &[O, U]),
    ("or", &[O, R]),
    ("qu", &[K, W]),
    ("sh", &[Sh]),
    ("th", &[Th]),
    ("u", &[Uh]),
    ("ur", &[Schwa, R]),
    ("wh", &[W]),
];

const GERMAN: &[Rule] = &[
    ("ä", &[E]),
    ("äu", &[O, I]),
    ("au", &[A, U]),
    ("ch", &[X]),
    ("chs", &[K, S]),
    ("ck", &[K]),
    ("ei", &[A, I]),
    ("er", &[Schwa, A]),
    ("en", &[Schwa, N]),
    ("eu", &[O, I]),
    ("h", &[H]),
    ("ie", &[I]),
    ("ng", &[Ng]),
    ("ö", &[Oe]),
    ("pf", &[P, F]),
    ("qu", &[K, V]),
    ("r", &[R]),
    ("s", &[Z]),
    ("sch", &[Sh]),
    ("sp", &[Sh, P]),
    ("st", &[S, T]),
    ("ß", &[S]),
    ("tz", &[T, S]),
    ("ü", &[Y]),
    ("v", &[F]),
    ("w", &[V]),
    ("z", &[T, S]),
];

const SPANISH: &[Rule] = &[
    ("á", &[A]),
    ("ce", &[Th, E]),
    ("ch", &[T, Sh]),
    ("ci", &[Th, I]),
    ("é", &[E]),
    ("ge", &[X, E]),
    ("h", &[]),
    ("ie", &[J, E]),
    ("í", &[I]),
    ("j", &[X]),
    ("ll", &[J]),
    ("ñ", &[N, J]),
    ("ó", &[O]),
    ("qu", &[K]),
    ("ú", &[U]),
    ("ue", &[W, E]),
    ("v", &[B]),
    ("z", &[Th]),
];

const FRENCH: &[Rule] = &[
    ("â", &[A]),
    ("ai", &[E]),
    ("an", &[A, N]),
    ("au", &[O]),
    ("ch", &[Sh]),
    ("é", &[E]),
    ("è", &[E]),
    ("ê", &[E]),
    ("eau", &[O]),
    ("eu", &[Oe]),
    ("ge", &[Zh, Schwa]),
    ("gn", &[N, J]),
    ("h", &[]),
    ("î", &[I]),
    ("in", &[Ae, N]),
    ("j", &[Zh]),
    ("oi", &[W, A]),
    ("on", &[O, N]),
    ("ou", &[U]),
    ("qu", &[K]),
    ("r", &[R, X]),
    ("u", &[Y]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_become_sounds() {
        assert_eq!(phones(Locale::English, "ship"), [Sh, Ih, P]);
        assert_eq!(phones(Locale::English, "stone"), [S, T, O, N]);
        assert_eq!(phones(Locale::German, "Schlüssel,"), [Sh, L, Y, S, E, L]);
        assert_eq!(phones(Locale::German, "Stein"), [Sh, T, A, I, N]);
        assert_eq!(phones(Locale::Spanish, "mañana"), [M, A, N, J, A, N, A]);
        assert_eq!(phones(Locale::French, "jamais"), [Zh, A, M, E]);
        assert_eq!(phones(Locale::English, "…"), []);
    }
}
