//! Element types of device memory, and memory layouts of images.

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
    /// Returns the bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Returns the suffix of kernel names for this type: `bf16` in `add_bf16`.
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

    /// Returns true for the 16-bit types, which are stored but not computed in.
    pub fn is_half(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16)
    }

    /// Returns the compute type of this type: f32 for the 16-bit types, the type itself for all others.
    pub fn wide(self) -> Self {
        if self.is_half() { Self::F32 } else { self }
    }
}

/// The memory layout of images and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorLayout {
    /// Images [N, C, H, W], weights [O, I, KH, KW].
    ChannelsFirst,
    /// Images [N, H, W, C], weights [O, KH, KW, I]: the layout of tensor cores.
    ChannelsLast,
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.suffix())
    }
}

/// A host type whose values are elements of device memory.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The element type.
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
