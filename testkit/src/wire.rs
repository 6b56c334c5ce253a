//! HTTP/1.1 messages as bytes, for the proxy, which must be able to break them.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum bytes of a head; longer ones are an error.
const HEAD_MAX_BYTES: usize = 64 << 10;
const HEADERS_MAX: usize = 64;

/// A message's first line and headers.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) first_line: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.into()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.get("content-length")?.trim().parse().ok()
    }

    pub(crate) fn status(&self) -> Option<u16> {
        self.first_line.split(' ').nth(1)?.parse().ok()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{}\r\n", self.first_line);
        for (name, value) in &self.headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        out.push_str("\r\n");
        out.into_bytes()
    }
}

/// Reads a head from `from`. It uses the bytes that `buffer` already holds, and leaves those after the head in it.
/// Returns `None` if the peer closed the connection before the first byte.
pub(crate) async fn read_head(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Head>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = parse(&buffer[..end + 4])?;
            buffer.drain(..end + 4);
            return Ok(Some(head));
        }
        if buffer.len() > HEAD_MAX_BYTES {
            return Err(io::Error::other("the message head is too long"));
        }
        if from.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
    let (first_line, rest) = text.split_once("\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let parsed = httparse::parse_headers(rest.as_bytes(), &mut slots).map_err(io::Error::other)?;
    let httparse::Status::Complete((_, headers)) = parsed else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let pair = |h: &httparse::Header<'_>| (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned());
    Ok(Head { first_line: first_line.to_owned(), headers: headers.iter().map(pair).collect() })
}

/// Reads exactly `length` bytes, those in `buffer` first.
pub(crate) async fn read_body(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
) -> io::Result<Vec<u8>> {
    while buffer.len() < length {
        if from.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = buffer.split_off(length);
    Ok(std::mem::replace(buffer, rest))
}
