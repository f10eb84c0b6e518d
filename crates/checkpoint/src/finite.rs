//! Counts values that are not finite among the bytes of elements.

use candle_core::DType;

/// Returns the number of infinities and NaNs among little-endian elements; 0 for types that have none.
pub(super) fn non_finite(dtype: DType, bytes: &[u8]) -> usize {
    // All bits of the exponent are set.
    match dtype {
        DType::F32 => count::<4>(bytes, |word| u32::from_le_bytes(word) & 0x7f80_0000 == 0x7f80_0000),
        DType::F64 => {
            let exponent = 0x7ff0_0000_0000_0000;
            count::<8>(bytes, |word| u64::from_le_bytes(word) & exponent == exponent)
        }
        DType::F16 => count::<2>(bytes, |word| u16::from_le_bytes(word) & 0x7c00 == 0x7c00),
        DType::BF16 => count::<2>(bytes, |word| u16::from_le_bytes(word) & 0x7f80 == 0x7f80),
        _ => 0,
    }
}

fn count<const N: usize>(bytes: &[u8], is_non_finite: impl Fn([u8; N]) -> bool) -> usize {
    bytes.as_chunks::<N>().0.iter().filter(|word| is_non_finite(**word)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn infinities_and_nans_are_counted_in_every_type() {
        let values = [0.0, -1.5, f64::INFINITY, 60_000.0, f64::NAN, f64::NEG_INFINITY, -0.0, 1e-40];
        let bytes = |to: fn(f64) -> Vec<u8>| values.iter().flat_map(|value| to(*value)).collect::<Vec<u8>>();
        let cases = [
            (DType::F64, bytes(|value| value.to_le_bytes().to_vec())),
            (DType::F32, bytes(|value| (value as f32).to_le_bytes().to_vec())),
            (DType::F16, bytes(|value| f16::from_f64(value).to_le_bytes().to_vec())),
            (DType::BF16, bytes(|value| bf16::from_f64(value).to_le_bytes().to_vec())),
        ];
        for (dtype, bytes) in cases {
            assert_eq!(non_finite(dtype, &bytes), 3, "{dtype:?}");
        }
        assert_eq!(non_finite(DType::U32, &[0xff; 8]), 0);
    }
}
