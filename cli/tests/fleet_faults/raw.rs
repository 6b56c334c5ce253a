//! The protocol by hand (ingest/src/wire): messages that no rank and no worker of this release would send.

use feedstock::ops::OPS_VERSION;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The first bytes of a connection.
pub const MAGIC: &[u8] = b"feedstck";

/// The protocol version of this release.
pub const PROTOCOL: u32 = 6;

/// Bytes before a message: its length and the checksum of that.
pub const MESSAGE_HEAD_BYTES: usize = 8;

/// Longer than the worker takes for any answer.
const PATIENCE: Duration = Duration::from_secs(25);

/// A connection from a client that is not necessarily a rank.
pub struct Raw(TcpStream);

impl Raw {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Returns a connection that has sent the greeting of a rank of this release.
    pub fn greeted(address: &str) -> Self {
        let mut raw = Self::connect(address);
        raw.say(MAGIC);
        raw.greeting(&hello(PROTOCOL));
        let welcome = raw.welcome().unwrap();
        assert_eq!(welcome["refused"], Value::Null, "{welcome}");
        raw
    }

    /// Sends bytes. The other side may have closed the connection already.
    pub fn say(&mut self, bytes: &[u8]) {
        let _refused = self.0.write_all(bytes);
    }

    /// Sends the first message of a side, with its checksum.
    pub fn greeting(&mut self, greeting: &Value) {
        let text = greeting.to_string();
        let fields = &text[1..];
        let text = format!("{{\"crc\":\"{:08x}\",{fields}", crc32fast::hash(fields.as_bytes()));
        self.say(&u32::try_from(text.len()).unwrap().to_le_bytes());
        self.say(text.as_bytes());
    }

    pub fn message(&mut self, message: &Value) {
        self.say(&checked(message.to_string().as_bytes()));
    }

    /// Returns the first message of the other side.
    pub fn welcome(&mut self) -> io::Result<Value> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut text)?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    }

    /// Returns the next message with content. Empty messages mean "not yet".
    pub fn answer(&mut self) -> io::Result<Value> {
        loop {
            let mut head = [0; MESSAGE_HEAD_BYTES];
            self.0.read_exact(&mut head)?;
            let length = u32::from_le_bytes(head[..4].try_into().unwrap());
            assert_eq!(head[..], head_of(length));
            if length == 0 {
                continue;
            }
            let mut text = vec![0; length as usize + 4];
            self.0.read_exact(&mut text)?;
            let crc = text.split_off(length as usize);
            assert_eq!(crc, crc32fast::hash(&text).to_le_bytes());
            return serde_json::from_slice(&text).map_err(io::Error::other);
        }
    }

    /// Sends the end of this side.
    pub fn ends(&self) {
        let _gone = self.0.shutdown(Shutdown::Write);
    }

    /// Returns the bytes that the other side sends until it closes the connection, which it must do.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        match self.0.read_to_end(&mut said) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                panic!("the connection was not closed within {PATIENCE:?}")
            }
            _ => said, // an end, or a reset
        }
    }
}

/// Returns what comes before a message of this length.
pub fn head_of(length: u32) -> Vec<u8> {
    let length = length.to_le_bytes();
    [length, crc32fast::hash(&length).to_le_bytes()].concat()
}

/// Returns the bytes of a message of this text.
pub fn checked(text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap();
    [&head_of(length)[..], text, &crc32fast::hash(text).to_le_bytes()].concat()
}

pub fn hello(protocol: u32) -> Value {
    json!({ "protocol": protocol, "release": "9.9.9", "ops_version": OPS_VERSION })
}

/// A server that answers every greeting in the same way and then waits.
pub struct FakeWorker {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl FakeWorker {
    /// Starts a server that runs until the test program ends.
    pub fn saying(welcome: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let (welcome, counted) = (welcome.clone(), asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut raw = Raw(stream.unwrap());
                let mut magic = [0; 8];
                if raw.0.read_exact(&mut magic).is_err() || magic != MAGIC || raw.welcome().is_err() {
                    continue;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                raw.greeting(&welcome);
                let _gone = raw.0.shutdown(Shutdown::Write);
                let _gone = raw.0.read_to_end(&mut Vec::new());
            }
        });
        Self { address, asked }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of ranks that have sent a greeting.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}
