//! What a page of `preview` shows.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns width, height and RGB pixels of each image that the ops made, in the order of the page.
pub(crate) fn images(html: &str) -> Vec<(u32, u32, Vec<u8>)> {
    html.split("data:image/png;base64,")
        .skip(1)
        .map(|rest| decoded(rest.split('"').next().unwrap()))
        .collect()
}

fn decoded(base64: &str) -> (u32, u32, Vec<u8>) {
    let bytes = STANDARD.decode(base64).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    (reader.info().width, reader.info().height, pixels)
}
