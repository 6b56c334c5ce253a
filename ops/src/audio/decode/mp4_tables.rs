//! The cost of finding the packets of an MP4 by its tables.
//!
//! symphonia (0.6.1) looks up the next packet of every track before it takes the earliest. For each track it passes over the
//! entries of the table of durations (`stts`) before the packet, and over the earlier runs (`trun`) and packets of the
//! fragment. Both tables are short in the files of common writers; a malicious file has megabytes of either.

use super::mp4_boxes::{all, be32, boxes};

/// The entries of a table per step: 4 are passed over in the time of a step, and half of a table's on average.
const ENTRIES_PER_STEP: u64 = 4 * 2;

/// Returns an upper bound of the steps that finding at most `max_packets` packets takes.
///
/// If a box that should be unique is repeated, symphonia uses the last, so all of them are counted. It looks up packets as
/// long as the durations state more, independent of the table of sizes.
pub(super) fn search_steps(bytes: &[u8], max_packets: u64) -> u64 {
    let tracks = all(bytes, &[b"moov", b"trak"]);
    let (mut packets, mut entries) = (0_u64, 0_u64);
    for times in tracks.iter().flat_map(|track| all(track, &[b"mdia", b"minf", b"stbl", b"stts"])) {
        let stated = stated(times, 8);
        let counts = times.get(8..).unwrap_or_default().chunks_exact(8).map(|entry| count_at(entry, 0));
        packets = (0..stated).zip(counts).fold(packets, |sum, (_, count)| sum.saturating_add(count));
        entries += stated;
    }
    let tracks = tracks.len() as u64;
    let (mut fragments, mut longest) = (0_u64, 0_u64);
    for (_, fragment) in boxes(bytes).filter(|(name, _)| name == b"moof") {
        let Fragment { packets: brought, parts, longest: run, idle } = Fragment::read(fragment, tracks);
        packets = packets.saturating_add(brought);
        longest = longest.max(run.saturating_add(parts));
        fragments += idle;
    }
    // Tracks without packets pass over each fragment again, the others over the entries before their packet.
    let passed = entries.saturating_add(fragments).saturating_add(tracks.saturating_mul(longest));
    packets.min(max_packets).saturating_mul(passed) / ENTRIES_PER_STEP
}

/// The content of a fragment.
struct Fragment {
    packets: u64,
    /// Its tracks and runs.
    parts: u64,
    /// Packets of the longest run whose packets are passed over, since each states its duration or size.
    longest: u64,
    /// Tracks without packets in it.
    idle: u64,
}

impl Fragment {
    fn read(fragment: &[u8], tracks: u64) -> Self {
        let mut read = Self { packets: 0, parts: 0, longest: 0, idle: tracks };
        for (_, track) in boxes(fragment).filter(|(name, _)| name == b"traf") {
            read.parts += 1;
            let before = read.packets;
            for (_, run) in boxes(track).filter(|(name, _)| name == b"trun") {
                read.parts += 1;
                read.packets = read.packets.saturating_add(count_at(run, 4));
                // Each stated packet has at least 4 bytes.
                read.longest = read.longest.max(stated(run, 4));
            }
            read.idle = read.idle.saturating_sub(u64::from(read.packets > before));
        }
        read
    }
}

fn count_at(content: &[u8], at: usize) -> u64 {
    be32(content, at).unwrap_or(0).into()
}

/// Returns the number of entries of `bytes` bytes that the content states and has.
fn stated(content: &[u8], bytes: usize) -> u64 {
    count_at(content, 4).min((content.len() / bytes) as u64)
}
