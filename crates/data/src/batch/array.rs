//! Arrays of numbers with a shape, of which the first dimension counts samples.

use crate::error::{DataError, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The type of an array's elements.
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
    /// The name in Rust.
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

/// An array's numbers, one after the other.
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

/// Runs an expression with the vector of whatever type an [`ArrayData`] holds.
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
    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        on_data!(self, values => values.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
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

/// A type that arrays can have as elements.
pub trait ArrayElement: sealed::Sealed + Copy {
    /// Which of the types it is.
    const TYPE: ElementType;
    /// The numbers, if they are of this type.
    fn of(data: &ArrayData) -> Option<&[Self]>;
    /// The numbers as an array's.
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

/// Numbers with a shape whose first dimension counts the samples; rows of the last dimension lie together.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchArray {
    shape: Vec<usize>,
    data: ArrayData,
}

impl BatchArray {
    /// An array of this shape.
    ///
    /// # Errors
    /// If the shape has no dimension, or asks for another number of elements than there are.
    pub fn new(shape: impl Into<Vec<usize>>, data: impl Into<ArrayData>) -> Result<Self> {
        let (shape, data) = (shape.into(), data.into());
        if shape.is_empty() {
            return Err(DataError::ArrayShape {
                shape,
                reason: "the first dimension must count samples".into(),
            });
        }
        if shape.iter().product::<usize>() != data.len() {
            let reason = format!("{} numbers of type {} do not fill it", data.len(), data.element_type());
            return Err(DataError::ArrayShape { shape, reason });
        }
        Ok(Self { shape, data })
    }

    /// Its dimensions, samples first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many samples it has: its first dimension.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape[0]
    }

    /// The type of its elements.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.data.element_type()
    }

    /// Its numbers.
    #[must_use]
    pub fn data(&self) -> &ArrayData {
        &self.data
    }

    /// Its numbers, if they are of type `T`.
    #[must_use]
    pub fn values<T: ArrayElement>(&self) -> Option<&[T]> {
        T::of(&self.data)
    }

    /// Its shape and its numbers, without a copy.
    #[must_use]
    pub fn into_parts(self) -> (Vec<usize>, ArrayData) {
        (self.shape, self.data)
    }

    /// A copy of some samples, which must be there.
    pub(super) fn narrow(&self, samples: &Range<usize>) -> Self {
        let each: usize = self.shape[1..].iter().product();
        let (from, to) = (samples.start * each, samples.end * each);
        let mut shape = self.shape.clone();
        shape[0] = samples.len();
        let data = on_data!(&self.data, values => ArrayElement::data(values[from..to].to_vec()));
        Self { shape, data }
    }

    /// Puts the samples of another array after its own; false, and nothing happens, if they are of another
    /// type or shape.
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
