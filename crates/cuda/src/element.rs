//! Types of elements in device memory, and the order in which those of images lie.

use half::{bf16, f16};

/// The type of the elements of a [`Slice`](crate::Slice).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16: the upper half of a single.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Bytes: masks, pixels.
    U8,
    /// Indices.
    U32,
    /// Counters.
    I64,
}

impl ElementType {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// What names of kernels for it end in, after an underscore: `add_bf16`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::U8 => "u8",
            Self::U32 => "u32",
            Self::I64 => "i64",
        }
    }

    /// Whether it is one of the types of 16 bits, which are stored and not computed in.
    pub fn is_half(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16)
    }

    /// The type that elements of this one are computed in: f32 for those of 16 bits.
    pub fn wide(self) -> Self {
        if self.is_half() { Self::F32 } else { self }
    }
}

/// In which order the elements of images and weights lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Images [N, C, H, W], weights [O, I, KH, KW].
    ChannelsFirst,
    /// Images [N, H, W, C], weights [O, KH, KW, I]: what tensor cores read.
    ChannelsLast,
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.suffix())
    }
}

/// A type of the host whose values are elements on a device.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Which type of elements that is.
    const TYPE: ElementType;
}

macro_rules! element {
    ($($type:ty => $variant:ident),*) => {
        $(impl Element for $type {
            const TYPE: ElementType = ElementType::$variant;
        })*
    };
}
element!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16, u8 => U8, u32 => U32, i64 => I64);
