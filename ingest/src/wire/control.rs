//! How control messages are sent: JSON with checksums.
//!
//! ```text
//! greetings   length u32 │ {"crc":"1a2b3c4d","protocol":4, …}      the CRC covers everything after its comma
//! others      length u32, CRC of it u32 │ JSON │ CRC of it u32     length 0: not yet; nothing follows
//! ```
//! Numbers are little-endian, CRCs are CRC-32 as in Ethernet (IEEE 802.3). What does not match is an error of the connection,
//! so a damaged message costs a stream and never changes a run. Greetings have a form that every release reads, so that any
//! two can name their versions to each other.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Before a greeting's CRC.
const CRC_FIELD: &str = "{\"crc\":\"";
/// A CRC in hexadecimal.
const CRC_DIGITS: usize = 8;
/// The first protocol whose greetings have checksums.
const CHECKED_PROTOCOL: u32 = 4;
/// Length and CRC before a message.
const HEAD_BYTES: usize = 8;

/// The first message of each side.
pub(crate) trait Greeting {
    fn protocol(&self) -> u32;
}

/// Sends `message`.
pub(crate) async fn write_message<T: Serialize>(
    io: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut bytes = head(length_of(&text)?).to_vec();
    bytes.extend(&text);
    bytes.extend(crc32fast::hash(&text).to_le_bytes());
    io.write_all(&bytes).await?;
    io.flush().await
}

/// Sends that the answer is not ready yet.
pub(crate) async fn write_not_yet(io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    io.write_all(&head(0)).await?;
    io.flush().await
}

/// Receives a message of at most `limit` bytes.
pub(crate) async fn read_message<T: DeserializeOwned>(
    io: &mut (impl AsyncRead + Unpin),
    limit: u32,
) -> io::Result<T> {
    let length = read_length(io, limit).await?;
    read_text(io, length).await
}

/// Receives the length of a message; 0 for an answer that is not ready yet.
pub(crate) async fn read_length(io: &mut (impl AsyncRead + Unpin), limit: u32) -> io::Result<u32> {
    let mut bytes = [0; HEAD_BYTES];
    io.read_exact(&mut bytes).await?;
    let [a, b, c, d, ..] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]);
    match bytes == head(length) {
        true => within(length, limit),
        false => Err(damaged("the length of a message")),
    }
}

/// Receives what follows the length of a message.
pub(crate) async fn read_text<T: DeserializeOwned>(
    io: &mut (impl AsyncRead + Unpin),
    length: u32,
) -> io::Result<T> {
    let text = read_whole(io, length).await?;
    match io.read_u32_le().await? == crc32fast::hash(&text) {
        true => parse(&text),
        false => Err(damaged("a message")),
    }
}

/// Sends a greeting.
pub(crate) async fn write_greeting<T: Greeting + Serialize>(
    io: &mut (impl AsyncWrite + Unpin),
    greeting: &T,
) -> io::Result<()> {
    let fields = serde_json::to_string(greeting)?;
    let fields = fields.strip_prefix('{').ok_or_else(|| io::Error::other("a greeting without fields"))?;
    let text = format!("{CRC_FIELD}{:08x}\",{fields}", crc32fast::hash(fields.as_bytes()));
    let mut bytes = length_of(text.as_bytes())?.to_le_bytes().to_vec();
    bytes.extend(text.into_bytes());
    io.write_all(&bytes).await?;
    io.flush().await
}

/// Receives a greeting of at most `limit` bytes. Those of releases before checksums have none.
pub(crate) async fn read_greeting<T: Greeting + DeserializeOwned>(
    io: &mut (impl AsyncRead + Unpin),
    limit: u32,
) -> io::Result<T> {
    let length = within(io.read_u32_le().await?, limit)?;
    let text = read_whole(io, length).await?;
    let checked = text.strip_prefix(CRC_FIELD.as_bytes());
    let checked = checked.and_then(|rest| rest.split_at_checked(CRC_DIGITS));
    let Some((crc, Some(fields))) = checked.map(|(crc, rest)| (crc, rest.strip_prefix(b"\","))) else {
        let greeting: T = parse(&text)?;
        return match greeting.protocol() < CHECKED_PROTOCOL {
            true => Ok(greeting),
            false => Err(damaged("a greeting")),
        };
    };
    match format!("{:08x}", crc32fast::hash(fields)).as_bytes() == crc {
        true => parse(&text),
        false => Err(damaged("a greeting")),
    }
}

fn head(length: u32) -> [u8; HEAD_BYTES] {
    let ([a, b, c, d], [e, f, g, h]) =
        (length.to_le_bytes(), crc32fast::hash(&length.to_le_bytes()).to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

fn length_of(text: &[u8]) -> io::Result<u32> {
    u32::try_from(text.len()).map_err(|_| io::Error::other("a message over 4 GiB"))
}

fn within(length: u32, limit: u32) -> io::Result<u32> {
    match length > limit {
        true => Err(garbage(format!("a message of {length} bytes, over the {limit} allowed"))),
        false => Ok(length),
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> io::Result<T> {
    serde_json::from_slice(text).map_err(|e| garbage(format!("a message that makes no sense: {e}")))
}

/// Reads `length` bytes.
pub(super) async fn read_whole(io: &mut (impl AsyncRead + Unpin), length: u32) -> io::Result<Vec<u8>> {
    let bytes = read_up_to(io, length).await?;
    match bytes.len() < length as usize {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(bytes),
    }
}

/// Reads the next `most` bytes, fewer at the end. Memory is taken as they come.
async fn read_up_to(io: &mut (impl AsyncRead + Unpin), most: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io.take(most.into()).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

pub(crate) fn damaged(what: &str) -> io::Error {
    garbage(format!("{what} is damaged: its checksum does not match"))
}

/// The other side does not speak as it should.
pub(crate) fn garbage(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::super::message::{
        Answer, Ask, Failure, HELLO_BYTES, Hello, LaneRequest, MESSAGE_BYTES, Offered, PlanId, Welcome,
        WorkerStatus,
    };
    use super::*;
    use crate::Error;
    use crate::wire::Capacity;
    use feedstock_dataset::{Rank, StepShape, StepSize, Tail};
    use serde_json::json;

    /// Bytes of which every bit is flipped in turn; `read` must return an error for each, and not wait for more.
    async fn flip_all(what: &str, bytes: &[u8], read: impl AsyncFn(&[u8]) -> io::Result<()>) {
        read(bytes).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = read(&flipped).await.expect_err(&format!("{what}, bit {bit} is noticed"));
            let kinds = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "{what}, bit {bit}: {error}");
        }
    }

    async fn flip_message<T: Serialize + DeserializeOwned>(message: &T) {
        let mut bytes = Vec::new();
        write_message(&mut bytes, message).await.unwrap();
        let text = serde_json::to_string(message).unwrap();
        let read = async |mut bytes: &[u8]| read_message::<T>(&mut bytes, MESSAGE_BYTES).await.map(|_| ());
        flip_all(&text, &bytes, read).await;
    }

    async fn flip_greeting<T: Greeting + Serialize + DeserializeOwned>(greeting: &T) {
        let mut bytes = Vec::new();
        write_greeting(&mut bytes, greeting).await.unwrap();
        let text = serde_json::to_string(greeting).unwrap();
        let read = async |mut bytes: &[u8]| read_greeting::<T>(&mut bytes, HELLO_BYTES).await.map(|_| ());
        flip_all(&text, &bytes, read).await;
    }

    fn request() -> LaneRequest {
        let fingerprint = json!({
            "version": 1, "catalog": 1_u64 << 60, "blocks": 2, "filter": 0, "shuffle": "window", "seed": 7, "lanes": 64,
            "window": 4_880,
        });
        let size = StepSize::Rows(256);
        LaneRequest {
            plan: plan(),
            cursor: serde_json::from_value(
                json!({ "fingerprint": fingerprint, "epoch": 3, "position": 256 }),
            )
            .unwrap(),
            shape: StepShape { size, rank: Rank::new(1, 8), tail: Tail::Drop },
            strands: serde_json::from_value(json!([1, 2, 7])).unwrap(),
            end_epoch: Some(4),
            budget_bytes: 64 << 20,
            most_bytes: 512 << 20,
            sample_bytes: 1 << 20,
            places: 4,
            overdue: 0,
        }
    }

    fn plan() -> PlanId {
        serde_json::from_value(json!("0123456789abcdef0123456789abcdef")).unwrap()
    }

    #[tokio::test]
    async fn every_flipped_bit_of_every_control_message_is_noticed() {
        let failure = || Failure::from(&Error::config("s3://b/x.parquet row 7: damaged"));
        let catalog = Ask::Catalog { number: 1, index: "{}".into() };
        let describe = Ask::Describe { catalogs: vec![Offered { number: 1, listing: 7 }] };
        for ask in [Ask::Status, describe, catalog, Ask::Prepare(plan()), Ask::Open(Box::new(request()))] {
            flip_message(&ask).await;
        }
        let status = WorkerStatus {
            release: "0.2.0".into(),
            protocol: 4,
            samples: 1 << 40,
            ..WorkerStatus::default()
        };
        let answers = [
            Answer::Status(status),
            Answer::Described { wanted: vec![1] },
            Answer::Taken,
            Answer::Unknown,
            Answer::Prepared,
            Answer::Opened,
        ];
        for answer in answers.into_iter().chain([Answer::Failed(failure())]) {
            flip_message(&answer).await;
        }
        flip_message(&failure()).await;
        flip_message(&json!({ "recipe": [{ "uri": "s3://bucket/data", "seed": 7 }] })).await;
    }

    #[tokio::test]
    async fn every_flipped_bit_of_a_greeting_is_noticed() {
        let hello = |protocol| Hello { protocol, release: "0.2.0".into(), ops_version: 3, token: None };
        flip_greeting(&hello(4)).await;
        let welcome = |refused| Welcome {
            protocol: 4,
            release: "0.2.0".into(),
            ops_version: 3,
            instance: "a-1".into(),
            unix: Some("/tmp/a.sock".into()),
            capacity: Some(Capacity { units: 8, generation: 1_790_000_000_000 }),
            refused,
        };
        flip_greeting(&welcome(None)).await;
        let refused = Failure::from(&Error::config("the worker has protocol 5, the rank has protocol 4"));
        flip_greeting(&welcome(Some(refused))).await;
        // Releases before checksums are understood, so that their versions can be named.
        let of_release = async |protocol| {
            let text = serde_json::to_vec(&hello(protocol)).unwrap();
            let bytes = [&length_of(&text).unwrap().to_le_bytes()[..], &text].concat();
            read_greeting::<Hello>(&mut &bytes[..], HELLO_BYTES).await
        };
        assert_eq!(of_release(3).await.unwrap().protocol, 3);
        of_release(4).await.unwrap_err();
        // And they understand ours: an unknown field, then theirs.
        let mut bytes = Vec::new();
        write_greeting(&mut bytes, &hello(4)).await.unwrap();
        assert_eq!(serde_json::from_slice::<Hello>(&bytes[4..]).unwrap().ops_version, 3);
    }

    #[tokio::test]
    async fn every_flipped_bit_of_a_sign_of_work_is_noticed() {
        let mut bytes = Vec::new();
        write_not_yet(&mut bytes).await.unwrap();
        let read = async |mut bytes: &[u8]| {
            read_length(&mut bytes, MESSAGE_BYTES).await.map(|length| assert_eq!(length, 0))
        };
        flip_all("not yet", &bytes, read).await;
    }

    #[tokio::test]
    async fn memory_comes_with_the_bytes_and_not_with_their_number() {
        let bytes = read_up_to(&mut &[0; 1000][..], 256 << 20).await.unwrap();
        assert_eq!(bytes.len(), 1000);
        assert!(bytes.capacity() < 64 << 10, "{}", bytes.capacity());
    }
}
