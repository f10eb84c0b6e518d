//! The plan by which the networks of diffusion can be cut over ranks.

use phalanx_tensor::{Result, TensorPlan};

/// Returns how the residual blocks, attention and feed-forward parts of diffusers' networks can be cut over ranks: residual blocks by the
/// channels between their convolutions, attention by heads, feed-forward parts by their hidden layer. Ranks divide heads and groups.
///
/// # Errors
/// None that is known.
pub fn tensor_plan() -> Result<TensorPlan> {
    TensorPlan::new([
        "*.resnets.*.conv1 = column",
        "*.resnets.*.time_emb_proj = column",
        "*.resnets.*.norm2 = column",
        "*.resnets.*.conv2 = row",
        "*.to_q = column",
        "*.to_k = column",
        "*.to_v = column",
        "*.to_out.0 = row",
        "*.ff.net.0.proj = column:gated",
        "*.ff.net.2 = row",
    ])
}
