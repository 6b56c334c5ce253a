//! The HTML page: one file that contains its images, without scripts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use feedstock_dataset::hide_urls;
use std::fmt::Write as _;

/// One sample.
pub(super) struct Tile {
    pub(super) id: u64,
    pub(super) place: String,
    /// `column: value`, one per line.
    pub(super) facts: String,
    /// The spoken text of speech.
    pub(super) sentence: Option<String>,
    /// The results, or why there are none.
    pub(super) shown: Result<Vec<Shown>, String>,
    /// The stored images, if they are to be shown.
    pub(super) originals: Vec<Vec<u8>>,
    /// The stored audio clip, for playing.
    pub(super) sound: Option<Sound>,
}

/// One result of a sample.
pub(super) struct Shown {
    /// The name of its view; `None` without views.
    pub(super) name: Option<String>,
    /// Its images, as PNGs.
    pub(super) pngs: Vec<Vec<u8>>,
}

/// An audio clip.
pub(super) struct Sound {
    pub(super) bytes: Vec<u8>,
    /// Duration, if its header has it.
    pub(super) seconds: Option<f64>,
}

/// The page's content.
pub(super) struct Page<'a> {
    pub(super) uri: &'a str,
    /// What the ops do: terms and texts.
    pub(super) chains: &'a [(String, String)],
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) tiles: &'a [Tile],
}

const STYLE: &str = "\
body{font:14px/1.4 system-ui,sans-serif;margin:1.5rem;background:#fff;color:#222}\
h1{font-size:1.2rem;margin:0}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}\
dt{color:#666}dd{margin:0;font-family:ui-monospace,monospace}\
main{display:flex;flex-wrap:wrap;gap:.8rem}\
figure{margin:0;width:min-content;min-width:14rem}\
figure div{display:flex;gap:.3rem}.several{width:auto;max-width:100%}.several div{flex-wrap:wrap}\
.view{flex-direction:column}small{color:#666}img{display:block;max-height:18rem}\
figcaption{font-size:.8rem;white-space:pre-line;overflow-wrap:anywhere}\
.sound{width:32rem}.sound img{width:100%;height:9rem;image-rendering:pixelated}audio{width:100%;height:2rem}\
blockquote{margin:.2rem 0;font-size:1rem}\
b{font-family:ui-monospace,monospace}.bad{border:1px solid #b00;color:#b00;padding:.5rem;width:13rem}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}dt,small{color:#999}}";

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let mut html = String::new();
        let uri = escape(&hide_urls(self.uri));
        let (seed, epoch, count) = (self.seed, self.epoch, self.tiles.len());
        let _infallible = write!(
            html,
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{uri}</title><style>{STYLE}</style>\n\
             <h1>What the model sees</h1>\n<dl><dt>data set</dt><dd>{uri}</dd>"
        );
        for (term, text) in self.chains {
            let _infallible = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(text));
        }
        let _infallible = write!(
            html,
            "<dt>order</dt><dd>seed {seed}, epoch {epoch}, the first {count} samples</dd></dl>\n<main>\n"
        );
        for tile in self.tiles {
            tile.write(&mut html);
        }
        html.push_str("</main></html>\n");
        html
    }
}

impl Tile {
    /// Returns the number of images of the results.
    pub(super) fn images(&self) -> usize {
        self.shown.iter().flatten().map(|shown| shown.pngs.len()).sum()
    }

    fn write(&self, html: &mut String) {
        html.push_str(match (&self.sound, self.images() > 1 || self.originals.len() > 1) {
            (Some(_), _) => "<figure class=\"sound\"><div>",
            (None, true) => "<figure class=\"several\"><div>",
            (None, false) => "<figure><div>",
        });
        match &self.shown {
            Ok(shown) => shown.iter().for_each(|shown| shown.write(html)),
            Err(reason) => {
                let _infallible = write!(html, "<span class=\"bad\">{}</span>", escape(reason));
            }
        }
        for original in &self.originals {
            image(html, mime(original), original, "as stored");
        }
        html.push_str("</div>");
        if let Some(sound) = &self.sound {
            sound.write(html);
        }
        if let Some(sentence) = &self.sentence {
            let _infallible = write!(html, "<blockquote>{}</blockquote>", escape(sentence));
        }
        let (place, facts) = (escape(&self.place), escape(self.facts.trim_end()));
        let length = self.sound.as_ref().and_then(|sound| sound.seconds);
        let length = length.map_or_else(String::new, |seconds| format!(", {seconds:.2} s"));
        let _infallible =
            writeln!(html, "<figcaption><b>{}</b> {place}{length}\n{facts}</figcaption></figure>", self.id);
    }
}

impl Shown {
    fn write(&self, html: &mut String) {
        if let Some(name) = &self.name {
            let _infallible = write!(html, "<div class=\"view\"><small>{}</small><div>", escape(name));
        }
        for png in &self.pngs {
            image(html, "image/png", png, "after the ops");
        }
        if self.pngs.is_empty() {
            html.push_str("<small>no images</small>");
        }
        if self.name.is_some() {
            html.push_str("</div></div>");
        }
    }
}

impl Sound {
    fn write(&self, html: &mut String) {
        let mime = sound_mime(&self.bytes);
        let _infallible = write!(html, "<audio controls preload=\"none\" src=\"data:{mime};base64,");
        STANDARD.encode_string(&self.bytes, html);
        html.push_str("\"></audio>");
    }
}

fn image(html: &mut String, mime: &str, bytes: &[u8], title: &str) {
    let _infallible = write!(html, "<img alt=\"\" title=\"{title}\" src=\"data:{mime};base64,");
    STANDARD.encode_string(bytes, html);
    html.push_str("\">");
}

fn mime(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => "image/jpeg",
    }
}

fn sound_mime(bytes: &[u8]) -> &'static str {
    match bytes {
        [b'R', b'I', b'F', b'F', ..] => "audio/wav",
        [b'f', b'L', b'a', b'C', ..] => "audio/flac",
        [b'O', b'g', b'g', b'S', ..] => "audio/ogg",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "audio/mp4",
        _ => "audio/mpeg",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(shown: Result<Vec<Shown>, String>) -> Tile {
        let (place, facts) = ("a.jpg".to_owned(), "label: 3\n".to_owned());
        Tile { id: 7, place, facts, sentence: None, shown, originals: Vec::new(), sound: None }
    }

    fn html(tile: Tile) -> String {
        let facts = ["ops", "result"].map(|term| (term.to_owned(), "<of the ops>".to_owned()));
        Page { uri: "/a\"b", chains: &facts, seed: 1, epoch: 0, tiles: &[tile] }.html()
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let html = html(Tile {
            place: "<script>alert(1)</script>.jpg".to_owned(),
            sentence: Some("<b>\"quoted\"</b>".to_owned()),
            originals: vec![vec![0xff, 0xd8]],
            sound: Some(Sound { bytes: b"fLaC".to_vec(), seconds: Some(1.5) }),
            ..tile(Err("the JPEG is cut & broken".to_owned()))
        });
        assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"));
        assert!(html.contains("cut &amp; broken") && html.contains("data:image/jpeg;base64,/9g="));
        assert!(html.contains("&lt;b&gt;&quot;quoted&quot;") && html.contains(".jpg, 1.50 s"));
        assert!(html.contains("<audio controls preload=\"none\" src=\"data:audio/flac;base64,ZkxhQw==\">"));
        assert!(html.contains("<dt>ops</dt><dd>&lt;of the ops&gt;</dd><dt>result</dt>"));
    }

    #[test]
    fn each_view_has_its_name_and_its_images() {
        let view = |name: &str, images| Shown { name: Some(name.to_owned()), pngs: vec![vec![0; 3]; images] };
        let views = tile(Ok(vec![view("a & b", 1), view("local", 2)]));
        assert_eq!(views.images(), 3);
        let html = html(views);
        let image = "<img alt=\"\" title=\"after the ops\" src=\"data:image/png;base64,AAAA\">";
        let shown = format!(
            "<figure class=\"several\"><div><div class=\"view\"><small>a &amp; b</small><div>{image}</div></div>\
             <div class=\"view\"><small>local</small><div>{image}{image}</div></div></div>"
        );
        assert!(html.contains(&shown), "{html}");
    }

    #[test]
    fn a_list_may_have_no_images() {
        let empty = html(tile(Ok(vec![Shown { name: None, pngs: Vec::new() }])));
        assert!(empty.contains("<figure><div><small>no images</small></div>"), "{empty}");
    }
}
