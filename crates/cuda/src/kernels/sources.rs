//! Kernel sources: a file for each family, shared headers, and a prelude for all. Each family is compiled once for each element
//! type.

use crate::Source;

/// The kernels of one file: a source for each of f32, f64, bf16 and f16. Kernels without an element type are in each.
#[derive(Debug)]
pub(super) struct Family {
    kinds: [Source; 4],
}

impl Family {
    /// Returns the source of a kernel. Its name gives the types: a 16-bit type takes precedence over others.
    pub(super) fn of(&'static self, kernel: &str) -> &'static Source {
        let rest = kernel.replace("bf16", "");
        let kind = match () {
            () if rest.len() < kernel.len() => 2,
            () if rest.contains("f16") => 3,
            () if rest.contains("f64") => 1,
            () => 0,
        };
        &self.kinds[kind]
    }
}

macro_rules! source {
    ($name:literal, $suffix:literal, $only:literal $(, $part:literal)*) => {
        Source {
            name: concat!($name, "_", $suffix),
            parts: &[
                concat!("#define ONLY_", $only, "\n"),
                include_str!("../../kernels/prelude.cuh"),
                $(include_str!(concat!("../../kernels/", $part)),)*
                concat!("\n#line 1 \"", $name, ".cu\"\n"),
                include_str!(concat!("../../kernels/", $name, ".cu")),
            ],
        }
    };
}

macro_rules! families {
    ($($family:ident = $name:literal $(with $($part:literal),+)?;)*) => {
        $(pub(super) static $family: Family = Family {
            kinds: [
                source!($name, "f32", "F32" $($(, $part)+)?),
                source!($name, "f64", "F64" $($(, $part)+)?),
                source!($name, "bf16", "BF16" $($(, $part)+)?),
                source!($name, "f16", "F16" $($(, $part)+)?),
            ],
        };)*

        /// Returns all sources, to compile them in advance.
        pub fn all() -> impl Iterator<Item = &'static Source> {
            [$(&$family),*].into_iter().flat_map(|family| &family.kinds)
        }
    };
}

families! {
    MEMORY = "memory";
    ELEMENTWISE = "elementwise";
    GATED = "gated";
    BINARY = "binary";
    SHAPES = "shapes";
    SUMS = "sums";
    SOFTMAX = "softmax";
    ATTENTION = "attention" with "dropout.cuh", "attention.cuh";
    ATTENTION_TILES = "attention_tiles" with "tensor_cores.cuh", "dropout.cuh", "attention.cuh";
    SCORES = "scores" with "dropout.cuh", "attention.cuh";
    ROW_NORMS = "row_norms";
    PLANE_SUMS = "plane_sums" with "coefficients.cuh";
    PLANES = "planes" with "coefficients.cuh";
    CHANNEL_STATISTICS = "channel_statistics";
    DEPTHWISE = "depthwise";
    POOLING = "pooling";
    CHANNELS_LAST = "channels_last";
    LOOKUPS = "lookups";
    ROTARY = "rotary";
    RANDOM = "random" with "dropout.cuh";
    LOSSES = "losses";
    UPDATES = "updates" with "steps.cuh";
    LAYERWISE = "layerwise" with "steps.cuh";
    EXACT_SQUARES = "exact_squares";
    IMAGES = "images";
    CODEC_CHUNKS = "codec_chunks";
    CODEC_ENTRIES = "codec_entries";
    CODEC_LOW_RANK = "codec_low_rank";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_in_the_source_of_its_types() {
        for (kernel, source) in [
            ("sum_rows_warp_f32_f32", "sums_f32"),
            ("convert_bf16_f16", "sums_bf16"),
            ("accumulate_f32_bf16", "sums_bf16"),
            ("convert_f16_f64", "sums_f16"),
            ("attention_f32_d64", "sums_f32"),
            ("sum_of_parts_f64", "sums_f64"),
            ("zero", "sums_f32"),
        ] {
            assert_eq!(SUMS.of(kernel).name, source, "{kernel}");
        }
    }
}
