//! Arrays of numbers with a shape whose first dimension counts samples.

use crate::error::{DataError, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The type of the elements of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// Byte.
    U8,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer.
    I64,
}

impl ElementType {
    /// Returns the name in Rust.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::U8 => "u8",
            Self::U32 => "u32",
            Self::I64 => "i64",
        }
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The elements of an array, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayData {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Bytes.
    U8(Vec<u8>),
    /// 32-bit unsigned integers.
    U32(Vec<u32>),
    /// 64-bit signed integers.
    I64(Vec<i64>),
}

/// Evaluates an expression with the typed vector of an [`ArrayData`].
macro_rules! on_data {
    ($data:expr, $values:ident => $run:expr) => {
        match $data {
            ArrayData::F32($values) => $run,
            ArrayData::F64($values) => $run,
            ArrayData::U8($values) => $run,
            ArrayData::U32($values) => $run,
            ArrayData::I64($values) => $run,
        }
    };
}

impl ArrayData {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        on_data!(self, values => values.len())
    }

    /// Returns true without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        match self {
            Self::F32(_) => ElementType::F32,
            Self::F64(_) => ElementType::F64,
            Self::U8(_) => ElementType::U8,
            Self::U32(_) => ElementType::U32,
            Self::I64(_) => ElementType::I64,
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type of array elements.
pub trait ArrayElement: sealed::Sealed + Copy {
    /// The matching element type.
    const TYPE: ElementType;
    /// Returns the elements if they have this type.
    fn of(data: &ArrayData) -> Option<&[Self]>;
    /// Returns the elements, mutable, if they have this type.
    fn of_mut(data: &mut ArrayData) -> Option<&mut [Self]>;
    /// Wraps elements as array data.
    fn data(values: Vec<Self>) -> ArrayData;
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl sealed::Sealed for $type {}
        impl ArrayElement for $type {
            const TYPE: ElementType = ElementType::$variant;
            fn of(data: &ArrayData) -> Option<&[Self]> {
                match data {
                    ArrayData::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn of_mut(data: &mut ArrayData) -> Option<&mut [Self]> {
                match data {
                    ArrayData::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn data(values: Vec<Self>) -> ArrayData {
                ArrayData::$variant(values)
            }
        }
        impl From<Vec<$type>> for ArrayData {
            fn from(values: Vec<$type>) -> Self {
                ArrayData::$variant(values)
            }
        }
    };
}

element!(f32, F32);
element!(f64, F64);
element!(u8, U8);
element!(u32, U32);
element!(i64, I64);

/// An array in row-major order whose first dimension counts samples.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchArray {
    shape: Vec<usize>,
    data: ArrayData,
}

impl BatchArray {
    /// Makes an array.
    ///
    /// # Errors
    /// If the shape has no dimension, or its size is not the number of elements.
    pub fn new(shape: impl Into<Vec<usize>>, data: impl Into<ArrayData>) -> Result<Self> {
        let (shape, data) = (shape.into(), data.into());
        if shape.is_empty() {
            return Err(DataError::ArrayShape {
                shape,
                reason: "the first dimension must count samples".into(),
            });
        }
        if shape.iter().product::<usize>() != data.len() {
            let reason = format!("it does not hold {} elements of type {}", data.len(), data.element_type());
            return Err(DataError::ArrayShape { shape, reason });
        }
        Ok(Self { shape, data })
    }

    /// Returns the shape, samples first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of samples, the first dimension.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape[0]
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.data.element_type()
    }

    /// Returns the elements.
    #[must_use]
    pub fn data(&self) -> &ArrayData {
        &self.data
    }

    /// Returns the elements if they have type `T`.
    #[must_use]
    pub fn values<T: ArrayElement>(&self) -> Option<&[T]> {
        T::of(&self.data)
    }

    /// Returns the elements, mutable, if they have type `T`.
    pub(super) fn values_mut<T: ArrayElement>(&mut self) -> Option<&mut [T]> {
        T::of_mut(&mut self.data)
    }

    /// Splits the array into its shape and its elements, without a copy.
    #[must_use]
    pub fn into_parts(self) -> (Vec<usize>, ArrayData) {
        (self.shape, self.data)
    }

    /// Drops the samples from `samples` on.
    pub(super) fn truncate(&mut self, samples: usize) {
        let each: usize = self.shape[1..].iter().product();
        on_data!(&mut self.data, values => values.truncate(samples * each));
        self.shape[0] = self.shape[0].min(samples);
    }

    /// Copies a range of samples, which must exist.
    pub(super) fn narrow(&self, samples: &Range<usize>) -> Self {
        let each: usize = self.shape[1..].iter().product();
        let (from, to) = (samples.start * each, samples.end * each);
        let mut shape = self.shape.clone();
        shape[0] = samples.len();
        let data = on_data!(&self.data, values => ArrayElement::data(values[from..to].to_vec()));
        Self { shape, data }
    }

    /// Appends the samples of another array. Returns false, and changes nothing, if the type or the shape differs.
    pub(super) fn append(&mut self, other: &Self) -> bool {
        if self.shape[1..] != other.shape[1..] {
            return false;
        }
        match (&mut self.data, &other.data) {
            (ArrayData::F32(own), ArrayData::F32(more)) => own.extend_from_slice(more),
            (ArrayData::F64(own), ArrayData::F64(more)) => own.extend_from_slice(more),
            (ArrayData::U8(own), ArrayData::U8(more)) => own.extend_from_slice(more),
            (ArrayData::U32(own), ArrayData::U32(more)) => own.extend_from_slice(more),
            (ArrayData::I64(own), ArrayData::I64(more)) => own.extend_from_slice(more),
            _ => return false,
        }
        self.shape[0] += other.shape[0];
        true
    }
}
