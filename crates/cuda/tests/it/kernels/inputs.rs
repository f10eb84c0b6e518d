//! Random inputs of any type on the GPU, and comparisons of results.

use half::{bf16, f16};
use phalanx_cuda::{ElementType, Gpu, Slice};
use phalanx_kernels::Context;

use crate::harness::gpu;
use crate::software;

pub(crate) const FLOATS: [ElementType; 4] =
    [ElementType::F32, ElementType::F64, ElementType::Bf16, ElementType::F16];

/// Types of activations and of their gradients.
pub(crate) const PAIRS: [(ElementType, ElementType); 6] = [
    (ElementType::F32, ElementType::F32),
    (ElementType::F64, ElementType::F64),
    (ElementType::Bf16, ElementType::F32),
    (ElementType::Bf16, ElementType::Bf16),
    (ElementType::F16, ElementType::F32),
    (ElementType::F16, ElementType::F16),
];

/// Lengths around those of packs, warps and blocks.
pub(crate) const LENGTHS: [usize; 12] = [1, 2, 3, 4, 7, 8, 31, 33, 256, 1000, 1027, 5003];

/// Runs a test's body on the software GPU, with several orders of threads and blocks; or once on the machine's own GPU, if
/// selected.
pub(crate) fn on_gpu(body: impl Fn(&Gpu)) {
    if software::is_real() {
        return body(&gpu());
    }
    for order in ["0", "1", "77"] {
        software::run_with(&[("SOFTWARE_GPU_ORDER", order)], || body(&gpu()));
        if software::is_inside() {
            break;
        }
    }
}

/// Returns the CPU context of the expected results.
pub(crate) fn cpu() -> Context {
    Context::new(1)
}

/// A stream of random numbers: splitmix64.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns numbers around 0, most of them small, rounded to `dtype`.
    pub(crate) fn numbers(&mut self, dtype: ElementType, len: usize) -> Vec<f64> {
        (0..len)
            .map(|_| {
                let sum: f64 = (0..4).map(|_| self.unit() - 0.5).sum();
                rounded(dtype, 2.0 * sum)
            })
            .collect()
    }

    /// Returns random numbers and their slice, which may be unaligned.
    pub(crate) fn slice(&mut self, gpu: &Gpu, dtype: ElementType, len: usize) -> (Vec<f64>, Slice) {
        let values = self.numbers(dtype, len);
        let offset = self.below(3) % 2;
        let slice = upload(gpu, dtype, &[vec![0.0; offset], values.clone()].concat());
        (values, slice.view(offset..offset + len).expect("a range"))
    }
}

pub(crate) fn rounded(dtype: ElementType, value: f64) -> f64 {
    match dtype {
        ElementType::F32 => f64::from(value as f32),
        ElementType::Bf16 => f64::from(bf16::from_f32(value as f32)),
        ElementType::F16 => f64::from(f16::from_f32(value as f32)),
        _ => value,
    }
}

pub(crate) fn upload(gpu: &Gpu, dtype: ElementType, values: &[f64]) -> Slice {
    let singles = || values.iter().map(|value| *value as f32);
    match dtype {
        ElementType::F32 => gpu.upload(&singles().collect::<Vec<f32>>()),
        ElementType::F64 => gpu.upload(values),
        ElementType::Bf16 => gpu.upload(&singles().map(bf16::from_f32).collect::<Vec<_>>()),
        ElementType::F16 => gpu.upload(&singles().map(f16::from_f32).collect::<Vec<_>>()),
        ElementType::U8 => gpu.upload(&values.iter().map(|value| *value as u8).collect::<Vec<_>>()),
        ElementType::U32 => gpu.upload(&values.iter().map(|value| *value as u32).collect::<Vec<_>>()),
        ElementType::I64 => gpu.upload(&values.iter().map(|value| *value as i64).collect::<Vec<_>>()),
    }
    .expect("memory")
}

pub(crate) fn download(gpu: &Gpu, slice: &Slice) -> Vec<f64> {
    fn wide<T: Copy + Into<f64>>(values: Vec<T>) -> Vec<f64> {
        values.into_iter().map(Into::into).collect()
    }
    match slice.dtype() {
        ElementType::F32 => wide(gpu.download::<f32>(slice).expect("numbers")),
        ElementType::F64 => gpu.download::<f64>(slice).expect("numbers"),
        ElementType::Bf16 => wide(gpu.download::<bf16>(slice).expect("numbers")),
        ElementType::F16 => wide(gpu.download::<f16>(slice).expect("numbers")),
        ElementType::U8 => wide(gpu.download::<u8>(slice).expect("numbers")),
        ElementType::U32 => wide(gpu.download::<u32>(slice).expect("numbers")),
        ElementType::I64 => {
            gpu.download::<i64>(slice).expect("numbers").into_iter().map(|value| value as f64).collect()
        }
    }
}

/// Checks results: f32 to 1e-5 of the largest, f64 to 1e-12, 16-bit types to one unit in the last place on top of f32's
/// tolerance.
pub(crate) fn assert_close(gpu: &Gpu, what: &str, slice: &Slice, expected: &[f64]) {
    assert_within(gpu, what, slice, expected, if slice.dtype() == ElementType::F64 { 1e-12 } else { 1e-5 });
}

/// Works as [`assert_close`], with another tolerance.
pub(crate) fn assert_within(gpu: &Gpu, what: &str, slice: &Slice, expected: &[f64], tolerance: f64) {
    assert_of(gpu, what, slice, expected, tolerance, 0.0);
}

/// Works as [`assert_within`], for differences of terms as large as `magnitude`, which leave rounding errors.
pub(crate) fn assert_of(
    gpu: &Gpu,
    what: &str,
    slice: &Slice,
    expected: &[f64],
    tolerance: f64,
    magnitude: f64,
) {
    let found = download(gpu, slice);
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let largest = expected
        .iter()
        .filter(|v| v.is_finite())
        .fold(magnitude.max(1e-30), |largest: f64, v| largest.max(v.abs()));
    let unit = match slice.dtype() {
        ElementType::Bf16 => 1.0 / 128.0,
        ElementType::F16 => 1.0 / 1024.0,
        _ => 0.0,
    };
    // The subnormal numbers of f16 have steps of 6e-8.
    let least = if slice.dtype() == ElementType::F16 { 1.2e-7 } else { 0.0 };
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance * largest + unit * expected.abs() + least;
        let close =
            (found - expected).abs() <= allowed || found == expected || found.is_nan() && expected.is_nan();
        assert!(close, "{what}, {} at {at} of {}: {found}, expected {expected}", slice.dtype(), slice.len());
    }
}
