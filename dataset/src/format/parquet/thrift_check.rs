//! Checks the structure of a Parquet footer before parquet parses it.
//!
//! parquet 59 reserves memory for the number of row groups and page locations that a list claims, recurses once for each
//! level of the schema, and skips lists of booleans without reading them. A footer of 100 bytes could exhaust memory or
//! stack, which ends the process. This walk allows no list more elements than there are bytes left, and no schema more than
//! [`MAX_LEVELS`] levels.
//!
//! parquet reads the fields that it knows as the types that they should have, whatever type they state, so their types are
//! checked, too. Format: <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>. Time:
//! linear in the bytes.

use super::thrift::{Compact, code};

/// Limit on the levels of a schema: each takes some hundred bytes of stack in parquet and in arrow. Writers nest up to
/// about ten.
const MAX_LEVELS: usize = 64;
/// Limit on the levels of structs and lists in unknown fields.
const MAX_UNKNOWN_LEVELS: u8 = 32;

/// The type of a field.
enum Kind {
    Bool,
    Byte,
    /// Of 16, 32 or 64 bits, which are encoded alike.
    Int,
    Double,
    Bytes,
    Struct(&'static Shape),
    List(&'static Kind),
    /// The elements of the schema.
    Schema,
}

/// The known fields of a struct by their ids.
type Shape = [(i16, Kind)];

use Kind::{Bool, Byte, Bytes, Double, Int, List, Schema, Struct};

const FOOTER: &Shape = &[
    (1, Int),
    (2, Schema),
    (3, Int),
    (4, List(&Struct(ROW_GROUP))),
    (5, List(&Struct(PAIR))),
    (6, Bytes),
    (7, List(&Struct(UNION))),
];
/// The number of children is read separately.
const ELEMENT: &Shape = &[
    (1, Int),
    (2, Int),
    (3, Int),
    (4, Bytes),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, Int),
    (9, Int),
    (10, Struct(LOGICAL_TYPE)),
];
const CHILDREN: i16 = 5;
const LOGICAL_TYPE: &Shape = &[
    (1, Struct(EMPTY)),
    (2, Struct(EMPTY)),
    (3, Struct(EMPTY)),
    (4, Struct(EMPTY)),
    (5, Struct(&[(1, Int), (2, Int)])),
    (6, Struct(EMPTY)),
    (7, Struct(TIME)),
    (8, Struct(TIME)),
    (10, Struct(&[(1, Byte), (2, Bool)])),
    (11, Struct(EMPTY)),
    (12, Struct(EMPTY)),
    (13, Struct(EMPTY)),
    (14, Struct(EMPTY)),
    (15, Struct(EMPTY)),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Bytes)])),
    (18, Struct(&[(1, Bytes), (2, Int)])),
];
const TIME: &Shape = &[(1, Bool), (2, Struct(UNION))];
/// A union of empty structs.
const UNION: &Shape = &[(1, Struct(EMPTY)), (2, Struct(EMPTY)), (3, Struct(EMPTY))];
const EMPTY: &Shape = &[];
const PAIR: &Shape = &[(1, Bytes), (2, Bytes)];
const ROW_GROUP: &Shape = &[
    (1, List(&Struct(CHUNK))),
    (2, Int),
    (3, Int),
    (4, List(&Struct(&[(1, Int), (2, Bool), (3, Bool)]))),
    (5, Int),
    (6, Int),
    (7, Int),
];
const CHUNK: &Shape = &[(1, Bytes), (2, Int), (3, Struct(COLUMN)), (4, Int), (5, Int), (6, Int), (7, Int)];
const COLUMN: &Shape = &[
    (1, Int),
    (2, List(&Int)),
    (3, List(&Bytes)),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, List(&Struct(PAIR))),
    (9, Int),
    (10, Int),
    (11, Int),
    (12, Struct(STATISTICS)),
    (13, List(&Struct(&[(1, Int), (2, Int), (3, Int)]))),
    (14, Int),
    (15, Int),
    (16, Struct(&[(1, Int), (2, List(&Int)), (3, List(&Int))])),
    (17, Struct(&[(1, Struct(BOX)), (2, List(&Int))])),
];
const STATISTICS: &Shape =
    &[(1, Bytes), (2, Bytes), (3, Int), (4, Int), (5, Bytes), (6, Bytes), (7, Bool), (8, Bool)];
const BOX: &Shape =
    &[(1, Double), (2, Double), (3, Double), (4, Double), (5, Double), (6, Double), (7, Double), (8, Double)];
const OFFSET_INDEX: &Shape = &[(1, List(&Struct(&[(1, Int), (2, Int), (3, Int)]))), (2, List(&Int))];

/// Checks a footer's metadata.
pub(super) fn footer(bytes: &[u8]) -> Result<(), String> {
    Walk(Compact { rest: bytes }).structure(FOOTER, None)
}

/// Checks the offset index of one column.
pub(super) fn offset_index(bytes: &[u8]) -> Result<(), String> {
    Walk(Compact { rest: bytes }).structure(OFFSET_INDEX, None)
}

impl Kind {
    fn is(&self, code: u8) -> bool {
        match self {
            Bool => matches!(code, code::TRUE | code::FALSE),
            Byte => code == code::BYTE,
            Int => (code::I16..=code::I64).contains(&code),
            Double => code == code::DOUBLE,
            Bytes => code == code::BINARY,
            Struct(_) => code == code::STRUCT,
            List(_) | Schema => code == code::LIST,
        }
    }
}

struct Walk<'a>(Compact<'a>);

impl Walk<'_> {
    /// Walks a struct; `children` receives the number of children of an element of the schema.
    fn structure(&mut self, shape: &Shape, mut children: Option<&mut i64>) -> Result<(), String> {
        let mut last = 0;
        while let Some((id, code)) = self.0.field(last)? {
            last = id;
            let known = shape.iter().find(|(known, _)| *known == id).map(|(_, kind)| kind);
            match (known, &mut children) {
                (Some(kind), _) if !kind.is(code) => return Err(format!("field {id} of type {code}")),
                (Some(_), Some(children)) if id == CHILDREN => **children = self.0.int()?,
                (Some(kind), _) => self.known(kind)?,
                (None, _) => self.0.skip_field(code, 0, MAX_UNKNOWN_LEVELS)?,
            }
        }
        Ok(())
    }

    fn known(&mut self, kind: &Kind) -> Result<(), String> {
        match kind {
            Bool => Ok(()), // its value is its type
            Byte => self.0.byte().map(|_| ()),
            Int => self.0.varint().map(|_| ()),
            Double => self.0.jump(8),
            Bytes => self.0.varint().and_then(|bytes| self.0.jump(bytes)),
            Struct(shape) => self.structure(shape, None),
            List(kind) => {
                let (count, code) = self.0.list()?;
                if count > 0 && !kind.is(code) {
                    return Err(format!("a list of elements of type {code}"));
                }
                (0..count).try_for_each(|_| self.known(kind))
            }
            Schema => self.schema(),
        }
    }

    /// Walks the elements of the schema, which is a tree in depth-first order.
    fn schema(&mut self) -> Result<(), String> {
        let (count, code) = self.0.list()?;
        if count > 0 && !Struct(ELEMENT).is(code) {
            return Err(format!("a schema of elements of type {code}"));
        }
        // The children that are still to come, of each incomplete group.
        let mut open: Vec<u64> = Vec::new();
        for _ in 0..count {
            let mut children = 0;
            self.structure(ELEMENT, Some(&mut children))?;
            let children = u64::try_from(children).ok().filter(|children| *children < count);
            let children =
                children.ok_or("a schema whose group has more children than there are elements")?;
            if let Some(left) = open.last_mut() {
                *left -= 1; // complete groups are removed below
            }
            if children > 0 {
                open.push(children);
            }
            if open.len() > MAX_LEVELS {
                return Err(format!("a schema of over {MAX_LEVELS} levels"));
            }
            while open.last() == Some(&0) {
                open.pop();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A schema of one group within another, and a list of `groups` row groups, of which none is there.
    fn metadata(levels: u8, groups: &[u8]) -> Vec<u8> {
        let element = |children: u8| [&[0x48, 1, b'x'], [0x15, 2 * children].as_slice(), &[0]].concat();
        let mut bytes = vec![0x15, 2, 0x19, 0xfc, levels + 1];
        (0..levels).for_each(|_| bytes.extend(element(1)));
        bytes.extend(element(0));
        bytes.extend([0x16, 0, 0x19]);
        bytes.extend(groups);
        bytes.push(0);
        bytes
    }

    #[test]
    fn lists_are_no_longer_than_what_is_left() {
        assert_eq!(footer(&metadata(1, &[0x0c])), Ok(()));
        let error = footer(&metadata(1, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0x07])).unwrap_err();
        assert!(error.contains("a list of 2147483647 elements in 1 bytes"), "{error}");
        let error = offset_index(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0]).unwrap_err();
        assert!(error.contains("2147483647"), "{error}");
        // the row groups, said to be an integer: parquet reads a list
        let mut disguised = metadata(1, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0x07]);
        let at = disguised.len() - 8;
        assert_eq!(disguised[at], 0x19);
        disguised[at] = 0x16;
        assert!(footer(&disguised).unwrap_err().contains("field 4"), "{:?}", footer(&disguised));
        // 2³¹ booleans of an unknown field, which parquet skips one by one
        assert!(footer(&[0x09, 0x28, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0]).is_err());
    }

    #[test]
    fn schemas_are_not_deeper_than_the_stack() {
        assert_eq!(footer(&metadata(64, &[0x0c])), Ok(()));
        let error = footer(&metadata(65, &[0x0c])).unwrap_err();
        assert!(error.contains("64 levels"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_end_the_walk(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _either = (footer(&bytes), offset_index(&bytes));
        }
    }
}
