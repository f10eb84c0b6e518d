//! The peak of a device's arithmetic, of which logs show the share that a training has.

use std::time::{Duration, Instant};

use candle_core::{DType, Shape, Tensor};
use phalanx_tensor::backend::{Array, Factor, MatrixProduct, Products as _};
use phalanx_tensor::{Context, Precision, TensorError};

use super::device::Device;
use phalanx_config::Config;

/// The floating-point operations per second that a device reaches at most in the precision of the training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PeakRate(Option<f64>);

impl PeakRate {
    /// Returns the peak that is configured (`log.peak_gflops`), or else that of the data sheet of a GPU, or the rate of a large product
    /// on the threads of a CPU.
    ///
    /// # Errors
    /// If the product fails.
    pub(super) fn of(config: &Config, device: &Device, context: &Context) -> Result<Self, TensorError> {
        let precision = config.train.precision;
        if config.log.peak_gflops > 0.0 {
            return Ok(Self(Some(1e9 * config.log.peak_gflops)));
        }
        match gpu_name(device) {
            Some(name) => Ok(Self(of_data_sheet(&name, precision).map(|tera| 1e12 * tera))),
            None => measured(context, precision).map(|peak| Self(Some(peak))),
        }
    }

    /// The operations per second; `None` if they are unknown.
    pub(super) fn per_second(self) -> Option<f64> {
        self.0
    }
}

#[cfg(feature = "cuda")]
fn gpu_name(device: &Device) -> Option<String> {
    Some(device.gpu_of()?.device().description().name.clone())
}

#[cfg(not(feature = "cuda"))]
fn gpu_name(_: &Device) -> Option<String> {
    None
}

/// Rows and columns of the product.
const SIZE: usize = 768;
/// The time that products take in all, at most by one.
const TIME: Duration = Duration::from_millis(20);

/// Measures the rate of a product of square matrices on a CPU: the best of several.
fn measured(context: &Context, precision: Precision) -> Result<f64, TensorError> {
    let numbers: Vec<f32> = (0..SIZE * SIZE).map(|at| (at % 13) as f32 - 6.0).collect();
    let matrix = Array::from(Tensor::from_vec(numbers, (SIZE, SIZE), &candle_core::Device::Cpu)?);
    let shape = Shape::from((SIZE, SIZE));
    let (a, b) = (Factor::plain(&matrix), Factor::plain(&matrix));
    let (sizes, dtype) = ([1, SIZE, SIZE, SIZE], DType::F32);
    let mut best = f64::INFINITY;
    let begun = Instant::now();
    // The first product also allocates.
    for round in 0.. {
        let before = Instant::now();
        context.matmul(MatrixProduct { sizes, a, b, shape: &shape, precision, dtype })?;
        if round > 0 {
            best = best.min(before.elapsed().as_secs_f64());
        }
        if round > 1 && begun.elapsed() > TIME {
            break;
        }
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best)
}

/// The peak of a GPU by its data sheet, in tera.
struct DataSheet {
    /// The part of the driver's name that tells it.
    name: &'static str,
    /// f32 on plain cores.
    f32: f64,
    /// TF32 on tensor cores, without sparsity.
    tf32: f64,
    /// bf16 and f16 with f32 sums on tensor cores, without sparsity.
    half: f64,
}

const fn sheet(name: &'static str, f32: f64, tf32: f64, half: f64) -> DataSheet {
    DataSheet { name, f32, tf32, half }
}

/// Data sheets of NVIDIA. The first name counts that is a part of the driver's: longer ones come first.
const SHEETS: [DataSheet; 20] = [
    sheet("B200", 75.0, 1100.0, 2250.0),
    sheet("GH200", 67.0, 494.0, 989.0),
    sheet("H200", 67.0, 494.0, 989.0),
    sheet("H100 PCIe", 51.0, 378.0, 756.0),
    sheet("H100 NVL", 60.0, 417.0, 835.0),
    sheet("H100", 67.0, 494.0, 989.0),
    sheet("H800", 67.0, 494.0, 989.0),
    sheet("H20", 44.0, 74.0, 148.0),
    sheet("A100", 19.5, 156.0, 312.0),
    sheet("A800", 19.5, 156.0, 312.0),
    sheet("A40", 37.4, 74.8, 149.7),
    sheet("A30", 10.3, 82.0, 165.0),
    sheet("A10G", 31.5, 35.0, 70.0),
    sheet("A10", 31.2, 62.5, 125.0),
    sheet("RTX A6000", 38.7, 77.4, 154.8),
    sheet("L40S", 91.6, 183.0, 362.0),
    sheet("L40", 90.5, 90.5, 181.0),
    sheet("L4", 30.3, 60.0, 121.0),
    sheet("RTX 4090", 82.6, 82.6, 165.2),
    sheet("RTX 3090", 35.6, 35.6, 71.0),
];

/// Returns the peak of the GPU that the driver calls `name`, in tera, if its data sheet is known.
fn of_data_sheet(name: &str, precision: Precision) -> Option<f64> {
    let sheet = SHEETS.iter().find(|sheet| name.contains(sheet.name))?;
    Some(match precision {
        Precision::F32 => sheet.f32,
        Precision::Tf32 => sheet.tf32,
        Precision::Bf16 | Precision::F16 => sheet.half,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_find_their_data_sheets() {
        for (name, half) in [
            ("NVIDIA H100 80GB HBM3", Some(989.0)),
            ("NVIDIA H100 PCIe", Some(756.0)),
            ("NVIDIA H200", Some(989.0)),
            ("NVIDIA H20", Some(148.0)),
            ("NVIDIA A100-SXM4-80GB", Some(312.0)),
            ("NVIDIA A10G", Some(70.0)),
            ("NVIDIA A10", Some(125.0)),
            ("NVIDIA L40S", Some(362.0)),
            ("NVIDIA L4", Some(121.0)),
            ("NVIDIA GeForce RTX 4090", Some(165.2)),
            ("a new one", None),
        ] {
            assert_eq!(of_data_sheet(name, Precision::Bf16), half, "{name}");
        }
        assert_eq!(of_data_sheet("NVIDIA A100-PCIE-40GB", Precision::Tf32), Some(156.0));
        for (at, sheet) in SHEETS.iter().enumerate() {
            let hidden = SHEETS[..at].iter().find(|before| sheet.name.contains(before.name));
            assert!(hidden.is_none(), "{} is never found", sheet.name);
            assert!(sheet.f32 <= sheet.tf32 && sheet.tf32 <= sheet.half, "{}", sheet.name);
        }
    }

    #[test]
    fn a_cpu_is_measured_unless_its_peak_is_given() {
        let (mut config, context) = (Config::default(), Context::new(1));
        let peak = PeakRate::of(&config, &Device::cpu(), &context).expect("multiplies").per_second();
        assert!(peak.is_some_and(|peak| peak > 1e8 && peak < 1e14), "{peak:?}");
        config.log.peak_gflops = 250.0;
        let given = PeakRate::of(&config, &Device::cpu(), &context).expect("given").per_second();
        assert_eq!((given, PeakRate::default().per_second()), (Some(250e9), None));
    }
}
