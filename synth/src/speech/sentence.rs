//! Sentences of a given duration, made from the languages' word lists.

use super::locale::Locale;
use super::phone::phones;
use crate::draw::Draw;

/// Number of sentences without words per 1000; every real corpus has a few.
const WORDLESS_PER_MILLE: u64 = 8;
/// Milliseconds of the pause at a comma.
pub(crate) const COMMA_MS: f32 = 220.0;

/// Returns a sentence that takes about `speech_ms` at the usual rate of speech. It has words, punctuation and
/// sometimes quotation marks (of either kind, sometimes unbalanced), but never a tab or a line break.
pub(crate) fn sentence(draw: &mut Draw, locale: Locale, speech_ms: f32) -> String {
    if draw.below(1000) < WORDLESS_PER_MILLE {
        return draw.pick(&["…", "-", "."]).to_owned();
    }
    let mut text = String::new();
    let mut ms = 0.0;
    let mut words_of_phrase = 0;
    loop {
        let small = words_of_phrase % 2 == 0 && draw.chance(0.6);
        let word = draw.pick(if small { locale.function_words() } else { locale.content_words() });
        let word_ms = spoken_ms(locale, word);
        // A word that would overshoot by more than half of its length is left out.
        if !text.is_empty() && ms + word_ms / 2.0 > speech_ms {
            break;
        }
        if words_of_phrase > 3 && ms + COMMA_MS + word_ms < speech_ms && draw.chance(0.25) {
            text.push(',');
            ms += COMMA_MS;
            words_of_phrase = 0;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        match draw.below(150) {
            0 => text.extend(["\"", word, "\""]),
            1 => text.extend(["“", word, "”"]),
            2 => text.extend(["\"", word]), // as users type them
            _ => text.push_str(word),
        }
        ms += word_ms;
        words_of_phrase += 1;
    }
    text.push_str(draw.pick(&[".", ".", ".", ".", "?", "!"]));
    capitalised(&text)
}

/// Returns the milliseconds that `word` takes at the usual rate.
pub(crate) fn spoken_ms(locale: Locale, word: &str) -> f32 {
    let sounds = phones(locale, word);
    let stretches = |phone: &super::phone::Phone| {
        let (targets, count) = phone.targets();
        targets[..count].iter().map(|target| target.ms).sum::<f32>()
    };
    sounds.iter().map(stretches).sum()
}

fn capitalised(text: &str) -> String {
    match text.char_indices().find(|(_, sign)| sign.is_alphabetic()) {
        Some((at, letter)) => {
            let rest = &text[at + letter.len_utf8()..];
            format!("{}{}{rest}", &text[..at], letter.to_uppercase())
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_the_requested_length_and_no_tabs() {
        let mut quoted = 0;
        let mut wordless = 0;
        for seed in 0..2000 {
            let mut draw = Draw::new(seed);
            let locale = Locale::ALL[(seed % 4) as usize];
            let wanted = 500.0 + (seed % 100) as f32 * 100.0;
            let text = sentence(&mut draw, locale, wanted);
            assert!(!text.contains(['\t', '\n', '\r']), "{text}");
            quoted += u32::from(text.contains('"'));
            if !text.contains(char::is_alphabetic) {
                wordless += 1;
                continue;
            }
            let spoken: f32 = text.split(' ').map(|word| spoken_ms(locale, word)).sum();
            let pauses = text.matches(',').count() as f32 * COMMA_MS;
            assert!((spoken + pauses - wanted).abs() < 0.3 * wanted + 600.0, "{wanted} ms requested: {text}");
        }
        assert!((40..800).contains(&quoted), "{quoted} of 2000 have quotes");
        assert!((4..40).contains(&wordless), "{wordless} of 2000 have no words");
    }
}
