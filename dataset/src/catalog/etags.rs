//! The versions (ETags) of a data set's objects: as texts, or as 16 bytes each if all of them have one of the usual forms.
//!
//! 10⁷ texts such as `"9b2cf535f27731c974343645a3985328"` take 420 MB with their offsets; the same MD5s as bytes take 160 MB.

use crate::ObjectRef;
use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, FixedSizeBinaryBuilder, LargeStringArray,
};
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use std::collections::HashMap;
use std::sync::Arc;

/// The column of a stored table.
const ETAG: &str = "etag";
/// Key of the field metadata that names the form.
const FORM_KEY: &str = "feedstock.etag_form";
const PACKED_BYTES: i32 = 16;

/// The text form of a version of 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// 32 hexadecimal digits in quotes, as S3 lists them.
    QuotedMd5,
    /// 32 hexadecimal digits.
    Md5,
    /// A local file's `inode-nanoseconds-size`; the size is stored elsewhere.
    File,
}

const FORMS: [(Form, &str); 3] =
    [(Form::QuotedMd5, "quoted-md5"), (Form::Md5, "md5"), (Form::File, "inode-nanoseconds-size")];

/// The versions of all objects, in their order.
#[derive(Debug, Clone)]
pub(crate) enum Etags {
    Text(LargeStringArray),
    Packed(Form, FixedSizeBinaryArray),
}

impl Etags {
    pub(crate) fn of(objects: &[ObjectRef]) -> Self {
        let packed = FORMS.iter().find_map(|(form, _)| Some(Self::Packed(*form, packed(objects, *form)?)));
        packed.unwrap_or_else(|| Self::Text(objects.iter().map(|object| object.etag.as_deref()).collect()))
    }

    /// Returns the version of the object at `index`, which has `size` bytes.
    pub(crate) fn get(&self, index: usize, size: u64) -> Option<String> {
        match self {
            Self::Text(texts) => texts.is_valid(index).then(|| texts.value(index).to_owned()),
            Self::Packed(form, values) => Some(unpack(*form, values.value(index), size)),
        }
    }

    pub(crate) fn null_count(&self) -> usize {
        match self {
            Self::Text(texts) => texts.null_count(),
            Self::Packed(..) => 0,
        }
    }

    /// Returns the column as it is stored.
    pub(crate) fn to_column(&self) -> (Field, ArrayRef) {
        match self {
            Self::Text(texts) => (Field::new(ETAG, DataType::LargeUtf8, true), Arc::new(texts.clone())),
            Self::Packed(form, values) => {
                let name = FORMS.iter().find(|(known, _)| known == form).map_or("", |(_, name)| name);
                let field = Field::new(ETAG, DataType::FixedSizeBinary(PACKED_BYTES), false)
                    .with_metadata(HashMap::from([(FORM_KEY.to_owned(), name.to_owned())]));
                (field, Arc::new(values.clone()))
            }
        }
    }

    /// Reads the column of a stored table; tables of earlier releases have texts.
    pub(crate) fn from_batch(batch: &RecordBatch) -> Result<Self, String> {
        let column = batch.column_by_name(ETAG).ok_or_else(|| format!("no column {ETAG}"))?;
        if let Some(texts) = column.as_string_opt::<i64>() {
            return Ok(Self::Text(texts.clone()));
        }
        let schema = batch.schema();
        let name = schema.field_with_name(ETAG).ok().and_then(|field| field.metadata().get(FORM_KEY));
        let form = name.and_then(|name| FORMS.iter().find(|(_, known)| known == name));
        match (form, column.as_fixed_size_binary_opt()) {
            (Some((form, _)), Some(values))
                if values.value_length() == PACKED_BYTES && values.null_count() == 0 =>
            {
                Ok(Self::Packed(*form, values.clone()))
            }
            _ => Err(format!("column {ETAG} has no known form")),
        }
    }
}

/// Packs all versions in this form, if all have it.
fn packed(objects: &[ObjectRef], form: Form) -> Option<FixedSizeBinaryArray> {
    let mut values = FixedSizeBinaryBuilder::with_capacity(objects.len(), PACKED_BYTES);
    for object in objects {
        values.append_value(pack(form, object.etag.as_deref()?, object.size)?).ok()?;
    }
    (!objects.is_empty()).then(|| values.finish())
}

/// Packs a text into the 16 bytes from which [`unpack`] restores it.
fn pack(form: Form, text: &str, size: u64) -> Option<[u8; 16]> {
    let number = match form {
        Form::Md5 => hex(text, 32)?,
        Form::QuotedMd5 => hex(text.strip_prefix('"')?.strip_suffix('"')?, 32)?,
        Form::File => {
            let mut parts = text.splitn(3, '-');
            let [inode, nanoseconds, bytes] = [parts.next()?, parts.next()?, parts.next()?];
            let is_plain = |part: &str| part == "0" || !part.starts_with('0');
            if ![inode, nanoseconds, bytes].into_iter().all(is_plain)
                || hex(bytes, bytes.len())? != size.into()
            {
                return None;
            }
            let [inode, nanoseconds] = [inode, nanoseconds].map(|part| hex(part, part.len()));
            u128::from(u64::try_from(inode?).ok()?) << 64 | u128::from(u64::try_from(nanoseconds?).ok()?)
        }
    };
    Some(number.to_be_bytes())
}

/// Parses exactly `digits` lower-case hexadecimal digits, between 1 and 32.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = text.len() == digits && (1..=32).contains(&digits) && text.bytes().all(is_hex);
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn unpack(form: Form, bytes: &[u8], size: u64) -> String {
    let number = bytes.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    match form {
        Form::Md5 => format!("{number:032x}"),
        Form::QuotedMd5 => format!("\"{number:032x}\""),
        Form::File => format!("{:x}-{:x}-{size:x}", number >> 64, number & u128::from(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;

    fn object(etag: Option<&str>, size: u64) -> ObjectRef {
        ObjectRef { uri: "s3://b/x".into(), size, etag: etag.map(str::to_owned) }
    }

    /// Stores the versions, reads them back and checks that they are the same; returns the form in which they are held.
    fn round(objects: &[ObjectRef]) -> Etags {
        let (field, column) = Etags::of(objects).to_column();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap();
        let etags = Etags::from_batch(&batch).unwrap();
        for (i, object) in objects.iter().enumerate() {
            assert_eq!(etags.get(i, object.size), object.etag);
        }
        assert_eq!(etags.null_count(), objects.iter().filter(|object| object.etag.is_none()).count());
        etags
    }

    #[test]
    fn usual_versions_take_16_bytes_and_come_back_as_they_were() {
        let md5 = "00b2cf535f27731c974343645a3985f8";
        let quoted = format!("\"{md5}\"");
        for etag in
            [md5, &quoted, "1a2b3c-187f0c2b1a3d4e5f-4d2", "0-0-4d2", "ffffffffffffffff-ffffffffffffffff-4d2"]
        {
            let etags = round(&[object(Some(etag), 1_234), object(Some(etag), 1_234)]);
            assert!(matches!(etags, Etags::Packed(..)), "{etag}");
        }
    }

    #[test]
    fn others_stay_texts() {
        let md5 = "00b2cf535f27731c974343645a3985f8";
        for etags in [
            vec![Some(md5), None],
            vec![Some(md5), Some("\"00b2cf535f27731c974343645a3985f8\"")],
            vec![Some("\"00b2cf535f27731c974343645a3985f8-17\"")],
            vec![Some("00B2CF535F27731C974343645A3985F8")],
            vec![Some("01a-5-4d2")],
            vec![Some("1a-5-4d3")],
            vec![Some("1a--5-4d2")],
            vec![Some("+1a-5-4d2")],
            vec![Some("1ffffffffffffffff-5-4d2")],
            vec![Some("modified:17")],
            vec![Some("")],
            vec![None],
        ] {
            let objects: Vec<ObjectRef> = etags.iter().map(|etag| object(*etag, 1_234)).collect();
            assert!(matches!(round(&objects), Etags::Text(_)), "{etags:?}");
        }
        assert!(matches!(round(&[]), Etags::Text(_)));
    }
}
