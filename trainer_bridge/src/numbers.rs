//! Columns of numbers, in the form of tensors.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Field;
use feedstock_device::Element;
use std::borrow::Cow;

/// A column of numbers or flags without nulls. Lists of a fixed size are further axes.
#[derive(Debug, Clone)]
pub struct Numbers {
    element: Element,
    shape: Vec<usize>,
    values: ArrayRef,
}

impl Numbers {
    /// Returns a batch's column in this form, or `None` if it has other values or its field may have nulls
    /// ([`Nulls::List`](crate::Nulls::List)).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{ArrayRef, BooleanArray};
    /// use arrow::datatypes::{DataType, Field};
    /// use feedstock_trainer_bridge::{Element, Numbers};
    ///
    /// let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    /// let numbers = Numbers::of(&Field::new("ok", DataType::Boolean, false), &flags).unwrap();
    /// assert_eq!((numbers.element(), &numbers.bytes()[..]), (Element::Bool, &[1, 0][..]));
    /// assert!(Numbers::of(&Field::new("ok", DataType::Boolean, true), &flags).is_none()); // may have nulls
    /// ```
    pub fn of(field: &Field, array: &ArrayRef) -> Option<Self> {
        if field.is_nullable() {
            return None;
        }
        let mut shape = vec![array.len()];
        let mut values = array.clone();
        while let Some(list) = values.as_fixed_size_list_opt() {
            if list.null_count() > 0 {
                return None;
            }
            shape.push(usize::try_from(list.value_length()).ok()?);
            values = list.values().clone();
        }
        let element = Element::of_nested(values.data_type()).filter(|_| values.null_count() == 0)?;
        Some(Self { element, shape, values })
    }

    /// Returns the type of the numbers. Flags are [`Element::Bool`].
    pub fn element(&self) -> Element {
        self.element
    }

    /// Returns the lengths of the axes, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns all numbers, row-major. They are viewed in place, except flags, which become one byte each.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if let Some(flags) = self.values.as_boolean_opt() {
            return Cow::Owned(flags.values().iter().map(u8::from).collect());
        }
        let data = self.values.to_data();
        let (start, bytes) = (data.offset() * self.element.bytes(), data.len() * self.element.bytes());
        let buffer = data.buffers()[0].clone();
        let start = buffer.as_ptr().wrapping_add(start);
        // SAFETY: inside the column's buffer, which `self` keeps unchanged.
        Cow::Borrowed(unsafe { std::slice::from_raw_parts(start, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, FixedSizeListArray, Int16Array, StringArray};
    use arrow::datatypes::DataType;
    use std::sync::Arc;

    #[test]
    fn numbers_and_flags_are_dense_and_all_else_is_none() {
        let of = |array: ArrayRef, nullable: bool| {
            Numbers::of(&Field::new("x", array.data_type().clone(), nullable), &array)
        };
        let numbers = |array: ArrayRef| of(array, false);
        let short = numbers(Arc::new(Int16Array::from(vec![1, 2, 3, 4]).slice(1, 2))).unwrap();
        assert_eq!(
            (short.element(), short.shape(), short.bytes().as_ref()),
            (Element::I16, &[2][..], &[2, 0, 3, 0][..])
        );
        assert!(matches!(short.bytes(), Cow::Borrowed(_)));
        let flags = numbers(Arc::new(BooleanArray::from(vec![true, false, true]).slice(1, 2))).unwrap();
        assert_eq!((flags.element(), flags.bytes().as_ref()), (Element::Bool, &[0, 1][..]));
        let item = Arc::new(Field::new("item", DataType::Int16, false));
        let list =
            |values| FixedSizeListArray::try_new(item.clone(), 2, Arc::new(Int16Array::from(values)), None);
        let pairs = numbers(Arc::new(list(vec![1, 2, 3, 4, 5, 6]).unwrap().slice(1, 2))).unwrap();
        assert_eq!((pairs.shape(), pairs.bytes().len(), pairs.bytes()[0]), (&[2, 2][..], 8, 3));
        assert!(numbers(Arc::new(Int16Array::from(vec![Some(1), None]))).is_none(), "a value is missing");
        assert!(of(Arc::new(Int16Array::from(vec![1])), true).is_none(), "a list in every batch");
        assert!(numbers(Arc::new(StringArray::from(vec!["1"]))).is_none());
    }
}
