//! FLAC's properties of its samples, and the checksums of its frames.

use symphonia::core::checksum::Crc16Ansi;
use symphonia::core::io::Monitor;

use feedstock_base::{Error, Result};

pub(super) const STREAM_INFO_BYTES: usize = 34;

/// The content of STREAMINFO.
#[derive(Debug, Clone, Copy)]
pub(in crate::audio) struct StreamInfo {
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    /// `None` if the encoder did not know it.
    pub(in crate::audio) samples: Option<u64>,
    pub(super) block: [u8; STREAM_INFO_BYTES],
}

impl StreamInfo {
    /// Reads the block that is the first after `fLaC`.
    pub(in crate::audio) fn parse(head: &[u8]) -> Result<Self> {
        let block = head.get(4..8).filter(|header| header[0] & 0x7F == 0).and_then(|_| head.get(8..));
        let Some(block) = block.and_then(|rest| rest.first_chunk::<STREAM_INFO_BYTES>()).copied() else {
            return Err(Error::bad_sample(
                "the FLAC audio clip does not begin with a whole STREAMINFO block",
            ));
        };
        let packed = u64::from_be_bytes([
            block[10], block[11], block[12], block[13], block[14], block[15], block[16], block[17],
        ]);
        // 20 bits of rate, 3 of channels − 1, 5 of bits − 1, 36 of samples.
        let (sample_rate, channels) = ((packed >> 44) as u32, (packed >> 41 & 7) as u32 + 1);
        let samples = packed & 0xF_FFFF_FFFF;
        Ok(Self { sample_rate, channels, samples: (samples > 0).then_some(samples), block })
    }
}

/// Whether a frame's checksum, its last two bytes, is right.
pub(super) fn is_intact(frame: &[u8]) -> bool {
    let Some((content, checksum)) = frame.split_last_chunk::<2>() else { return false };
    let mut crc = Crc16Ansi::new(0);
    crc.process_buf_bytes(content);
    crc.crc() == u16::from_be_bytes(*checksum)
}
