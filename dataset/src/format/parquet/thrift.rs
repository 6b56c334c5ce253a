//! Thrift's compact protocol, as far as Parquet's headers and footers are checked before parquet parses them.
//!
//! Format: <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.

/// The types of the protocol; in structs, 1 and 2 are booleans with their value.
pub(crate) mod code {
    pub(in crate::format) const TRUE: u8 = 1;
    pub(in crate::format) const FALSE: u8 = 2;
    pub(in crate::format) const BYTE: u8 = 3;
    pub(in crate::format) const I16: u8 = 4;
    pub(in crate::format) const I64: u8 = 6;
    pub(in crate::format) const DOUBLE: u8 = 7;
    pub(in crate::format) const BINARY: u8 = 8;
    pub(in crate::format) const LIST: u8 = 9;
    pub(in crate::format) const SET: u8 = 10;
    pub(in crate::format) const MAP: u8 = 11;
    pub(in crate::format) const STRUCT: u8 = 12;
    pub(in crate::format) const UUID: u8 = 13;
}

/// Reads values one after another.
pub(crate) struct Compact<'a> {
    pub(crate) rest: &'a [u8],
}

impl Compact<'_> {
    pub(crate) fn byte(&mut self) -> Result<u8, String> {
        let (first, rest) = self.rest.split_first().ok_or("it ends within its metadata")?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn jump(&mut self, bytes: u64) -> Result<(), String> {
        let rest = usize::try_from(bytes).ok().and_then(|bytes| self.rest.get(bytes..));
        self.rest = rest.ok_or("a value that is longer than its metadata")?;
        Ok(())
    }

    pub(crate) fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("an integer of over 10 bytes".to_owned())
    }

    pub(crate) fn int(&mut self) -> Result<i64, String> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    /// Returns the id and the type of the next field after field `last`; `None` at the struct's end.
    pub(crate) fn field(&mut self, last: i16) -> Result<Option<(i16, u8)>, String> {
        let head = self.byte()?;
        if head & 0xf == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => i16::try_from(self.int()?).ok(),
            delta => last.checked_add(delta.into()),
        };
        Ok(Some((id.ok_or("a field of a number over 2^15")?, head & 0xf)))
    }

    /// Returns the number of elements of a list, and their type. Each takes a byte or more.
    pub(crate) fn list(&mut self) -> Result<(u64, u8), String> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => few.into(),
        };
        self.check_count(count)?;
        Ok((count, head & 0xf))
    }

    /// Skips the value of a field at `level` of nested structs and lists, which may have up to `most` levels.
    pub(crate) fn skip_field(&mut self, code: u8, level: u8, most: u8) -> Result<(), String> {
        match code {
            code::TRUE | code::FALSE => Ok(()), // its value is its type
            code => self.skip(code, level, most),
        }
    }

    fn skip(&mut self, code: u8, level: u8, most: u8) -> Result<(), String> {
        if level > most {
            return Err(format!("values of over {most} levels"));
        }
        match code {
            code::BYTE => self.byte().map(|_| ()),
            code::I16..=code::I64 => self.varint().map(|_| ()),
            code::DOUBLE => self.jump(8),
            code::UUID => self.jump(16),
            code::BINARY => self.varint().and_then(|bytes| self.jump(bytes)),
            code::LIST | code::SET => {
                let (count, code) = self.list()?;
                self.skip_elements(count, &[code], level + 1, most)
            }
            code::MAP => {
                let count = self.varint()?;
                let codes = if count > 0 { self.byte()? } else { 0 };
                self.skip_elements(count, &[codes >> 4, codes & 0xf], level + 1, most)
            }
            code::STRUCT => {
                let mut last = 0;
                while let Some((id, code)) = self.field(last)? {
                    last = id;
                    self.skip_field(code, level + 1, most)?;
                }
                Ok(())
            }
            code => Err(format!("a value of type {code}")),
        }
    }

    /// Skips the elements of a list or map. Booleans are an error: parquet takes no byte for one, the protocol takes one.
    fn skip_elements(&mut self, count: u64, codes: &[u8], level: u8, most: u8) -> Result<(), String> {
        self.check_count(count)?;
        (0..count).try_for_each(|_| codes.iter().try_for_each(|code| self.skip(*code, level, most)))
    }

    fn check_count(&self, count: u64) -> Result<(), String> {
        match count > self.rest.len() as u64 {
            true => Err(format!("a list of {count} elements in {} bytes", self.rest.len())),
            false => Ok(()),
        }
    }
}
