//! Element types of tensors on a device: those of ops and of other columns, and the 16-bit ones that finishing makes.

use arrow::datatypes::DataType;
use feedstock_ops::DType;

/// An element type.
///
/// ```
/// use arrow::datatypes::DataType;
/// use feedstock_device::{Element, Real};
///
/// assert_eq!((Element::BF16.name(), Element::BF16.bytes()), ("bfloat16", 2));
/// assert_eq!(Element::of_column(&DataType::Int64), Some(Element::I64));
/// assert_eq!(Element::of_column(&DataType::Utf8), None);
/// assert_eq!(Element::from(Real::F16), Element::F16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are clear")]
pub enum Element {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns its name in numpy and torch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    /// Returns the element type of a mapped column, or `None` for types that no tensor has.
    pub fn of_mapped(dtype: DType) -> Option<Self> {
        match dtype {
            DType::U8 => Some(Self::U8),
            DType::U16 => Some(Self::U16),
            DType::F32 => Some(Self::F32),
            DType::I64 => Some(Self::I64),
            _ => None,
        }
    }

    /// Returns the element type of an unmapped column of numbers, flags or fixed-size lists, or `None` for any other column.
    pub fn of_nested(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::FixedSizeList(item, _) => Self::of_nested(item.data_type()),
            DataType::Boolean => Some(Self::Bool),
            other => Self::of_column(other),
        }
    }

    /// Returns the element type of an unmapped column, or `None` if it has no numbers.
    pub fn of_column(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 => Self::I32,
            DataType::Int64 => Self::I64,
            DataType::UInt8 => Self::U8,
            DataType::UInt16 => Self::U16,
            DataType::UInt32 => Self::U32,
            DataType::UInt64 => Self::U64,
            DataType::Float16 => Self::F16,
            DataType::Float32 => Self::F32,
            DataType::Float64 => Self::F64,
            _ => return None,
        })
    }
}

/// The element types that finishing makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Real {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a float.
    BF16,
}

impl Real {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

impl From<Real> for Element {
    fn from(real: Real) -> Self {
        match real {
            Real::F32 => Self::F32,
            Real::F16 => Self::F16,
            Real::BF16 => Self::BF16,
        }
    }
}
