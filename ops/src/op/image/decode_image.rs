//! `decode_image`: JPEG, PNG and WebP into RGB. Its options are in `image/decode/options.rs`, because codecs check them.

use crate::image::compile::{Compiler, ImageOp};
use crate::image::decode::DecodeImage;
use feedstock_base::{Error, Result};

impl ImageOp for DecodeImage {
    fn compile(&self, _: &mut Compiler) -> Result<()> {
        Err(Error::config("the image is decoded already; decode_image comes once"))
    }

    fn decoder(&self) -> Option<&DecodeImage> {
        Some(self)
    }
}
