//! `feedstock_split(key, seed)`: a number in [0, 1) by a hash of the key, for splits that keep equal keys together.
//!
//! It is `(XXH64(text, seed) >> 11) / 2⁵³`, where the text of a number is decimal and a flag is `true` or `false`. In Python:
//! `(xxhash.xxh64_intdigest(str(key).encode(), seed) >> 11) / 2**53`. So it is the same on every machine and in every release, and
//! does not depend on how a column is stored: the width of integers, the type of texts, dictionaries.

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, PrimitiveArray};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;
use twox_hash::XxHash64;

/// The name of the function.
pub(crate) const SPLIT: &str = "feedstock_split";

/// 2⁵³: f64 holds numbers of 53 bits exactly.
const SCALE: f64 = 9_007_199_254_740_992.0;
const SHIFT: u32 = 11;

/// Returns the function, to be registered with a context.
pub(super) fn split_function() -> ScalarUDF {
    ScalarUDF::new_from_impl(Split { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Split {
    signature: Signature,
}

impl ScalarUDFImpl for Split {
    fn name(&self) -> &'static str {
        SPLIT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [key, seed] = types else {
            return plan_err!("{SPLIT} takes a key and a seed; got {} arguments", types.len());
        };
        let Some(key) = hashed_as(key) else {
            return plan_err!(
                "{SPLIT} takes texts, integers, flags or bytes as key, not {key}; cast the key, for example to bigint"
            );
        };
        if !seed.is_integer() {
            return plan_err!("{SPLIT} takes an integer as seed, not {seed}");
        }
        Ok(vec![key, DataType::UInt64])
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&arguments.args)?;
        let [keys, seeds] = arrays.as_slice() else {
            return exec_err!("{SPLIT} takes a key and a seed");
        };
        let seeds = seeds.as_primitive::<UInt64Type>();
        if seeds.null_count() > 0 {
            return exec_err!("the seed of {SPLIT} must be an integer >= 0");
        }
        Ok(ColumnarValue::Array(Arc::new(split(keys, seeds)?)))
    }
}

/// Returns the type that a key is converted to; `None` if values of its type cannot be keys.
fn hashed_as(key: &DataType) -> Option<DataType> {
    match key {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean | DataType::Null => {
            Some(DataType::Utf8View)
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Some(DataType::BinaryView)
        }
        DataType::Dictionary(_, values) => hashed_as(values),
        unsigned if unsigned.is_unsigned_integer() => Some(DataType::UInt64),
        signed if signed.is_integer() => Some(DataType::Int64),
        _ => None,
    }
}

fn split(keys: &ArrayRef, seeds: &PrimitiveArray<UInt64Type>) -> Result<Float64Array> {
    let seeds = seeds.values().iter().copied();
    Ok(match keys.data_type() {
        DataType::Utf8View => keys.as_string_view().iter().zip(seeds).map(place).collect(),
        DataType::BinaryView => keys.as_binary_view().iter().zip(seeds).map(place).collect(),
        DataType::Int64 => {
            let keys = keys.as_primitive::<Int64Type>().iter().map(|key| key.map(|key| key.to_string()));
            keys.zip(seeds).map(place).collect()
        }
        DataType::UInt64 => {
            let keys = keys.as_primitive::<UInt64Type>().iter().map(|key| key.map(|key| key.to_string()));
            keys.zip(seeds).map(place).collect()
        }
        other => return exec_err!("{SPLIT} does not take {other}"),
    })
}

/// Returns the number of a key; of a null it is 0, so that nulls are in the first part of every split.
fn place((key, seed): (Option<impl AsRef<[u8]>>, u64)) -> f64 {
    key.map_or(0.0, |key| {
        #[expect(clippy::cast_precision_loss, reason = "53 bits, which f64 holds")]
        let number = (XxHash64::oneshot(seed, key.as_ref()) >> SHIFT) as f64;
        number / SCALE
    })
}
