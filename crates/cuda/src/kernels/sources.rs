//! The sources of kernels: a prelude that all share, and a file for each family.

use crate::Source;

macro_rules! sources {
    ($($constant:ident = $name:literal;)*) => {
        $(pub(super) const $constant: Source = Source {
            name: $name,
            parts: &[
                include_str!("../../kernels/prelude.cuh"),
                concat!("\n#line 1 \"", $name, ".cu\"\n"),
                include_str!(concat!("../../kernels/", $name, ".cu")),
            ],
        };)*

        /// All sources, for whoever compiles them beforehand or checks that they compile.
        pub const ALL: &[Source] = &[$($constant),*];
    };
}

sources! {
    MEMORY = "memory";
    ELEMENTWISE = "elementwise";
    BINARY = "binary";
    SHAPES = "shapes";
    SUMS = "sums";
    SOFTMAX = "softmax";
    ATTENTION = "attention";
    ATTENTION_TILES = "attention_tiles";
    SCORES = "scores";
    ROW_NORMS = "row_norms";
    PLANES = "planes";
    CHANNEL_STATISTICS = "channel_statistics";
    DEPTHWISE = "depthwise";
    POOLING = "pooling";
    CHANNELS_LAST = "channels_last";
    LOOKUPS = "lookups";
    RANDOM = "random";
    LOSSES = "losses";
    UPDATES = "updates";
    IMAGES = "images";
}
