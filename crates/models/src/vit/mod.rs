//! The Vision Transformer (Dosovitskiy et al. 2021), after torchvision's `vision_transformer.py`; parameter names equal its state
//! dict.

mod config;
mod layer;

use std::sync::Arc;

use phalanx_tensor::nn::{LayerNorm, Linear};
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

pub use config::VisionTransformerConfig;
use layer::Layer;

/// The patches of images as states, with a class token before them.
#[derive(Debug)]
struct Embeddings {
    name: String,
    /// The weight of a convolution of kernel and stride `patch`, [C, 3, patch, patch].
    weight: Param,
    bias: Param,
    class_token: Param,
    positions: Param,
    image_size: usize,
    patch: usize,
    dropout: f64,
}

impl Embeddings {
    fn new(scope: &Scope, config: &VisionTransformerConfig) -> Result<Self> {
        let scope = scope.block_named("embeddings");
        let VisionTransformerConfig { image_size, patch_size: patch, width, dropout, .. } = *config;
        // As torchvision: √(1/fan_in).
        let std = 1.0 / ((3 * patch * patch) as f64).sqrt();
        let conv = scope.pp("conv_proj");
        Ok(Self {
            name: scope.block_name().to_owned(),
            class_token: scope.param("class_token", (1, 1, width), Init::ZEROS)?,
            weight: conv.param(
                "weight",
                (width, 3, patch, patch),
                Init::TruncatedNormal { mean: 0.0, std },
            )?,
            bias: conv.param("bias", width, Init::ZEROS)?,
            positions: scope.pp("encoder").param(
                "pos_embedding",
                (1, config.patches() + 1, width),
                Init::Normal { mean: 0.0, std: 0.02 },
            )?,
            image_size,
            patch,
            dropout,
        })
    }

    /// Cuts images [N, 3, H, W] into patches [N, H/patch · W/patch, 3·patch²], row by row.
    fn patches(&self, tape: &Tape, images: &Value) -> Result<Value> {
        let (size, patch) = (self.image_size, self.patch);
        let &[count, 3, height, width] = images.dims() else { return Err(self.refused(images)) };
        if [height, width] != [size, size] {
            return Err(self.refused(images));
        }
        let side = size / patch;
        let cut = ops::reshape(tape, images, vec![count, 3, side, patch, side, patch])?;
        let cut = ops::permute(tape, &cut, &[0, 2, 4, 1, 3, 5])?;
        ops::reshape(tape, &cut, (count, side * side, 3 * patch * patch))
    }

    fn refused(&self, images: &Value) -> TensorError {
        let (size, shape) = (self.image_size, images.shape());
        TensorError::Shape { op: "vit", problem: format!("{shape:?} in place of [N, 3, {size}, {size}]") }
    }
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes images [N, 3, H, W].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let patches = self.patches(tape, &inputs[0])?;
        let weight = tape.param(&self.weight)?;
        let [width, inputs] = [weight.dims()[0], weight.dims()[1..].iter().product()];
        // A convolution whose patches do not overlap is a product.
        let weight = ops::reshape(tape, &weight, (width, inputs))?;
        let states = ops::linear(tape, &patches, &weight, Some(&tape.param(&self.bias)?))?;
        let positions = tape.param(&self.positions)?;
        let class_token = tape.param(&self.class_token)?;
        let others = positions.dims()[1] - 1;
        let first = ops::pad_with_zeros(tape, &class_token, 1, 0, others)?;
        let states = ops::pad_with_zeros(tape, &states, 1, 1, 0)?;
        let states = ops::broadcast_add(tape, &states, &ops::add(tape, &positions, &first)?)?;
        Ok(vec![ops::dropout(tape, &states, self.dropout)?])
    }
}

/// The last norm, of which the class token is read.
#[derive(Debug)]
struct FinalNorm {
    name: String,
    norm: LayerNorm,
}

impl Block for FinalNorm {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C]. Returns the class tokens [N, C].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        // A norm looks at one position only, so that of the others is not needed.
        let first = ops::narrow(tape, &inputs[0], 1, 0, 1)?;
        let (count, width) = (first.dims()[0], first.dims()[2]);
        let first = ops::reshape(tape, &first, (count, width))?;
        Ok(vec![self.norm.forward(tape, &first)?])
    }
}

/// The classifier.
#[derive(Debug)]
struct Head {
    name: String,
    head: Linear,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.head.forward(tape, &inputs[0])?])
    }
}

/// A Vision Transformer.
#[derive(Debug, Clone)]
pub struct VisionTransformer {
    blocks: Vec<Arc<dyn Block>>,
}

impl VisionTransformer {
    /// Registers the parameters: `conv_proj.…`, `class_token`, `encoder.pos_embedding`, `encoder.layers.encoder_layer_{i}.…`,
    /// `encoder.ln.…`, `heads.head.…`.
    ///
    /// # Errors
    /// If a name is taken, the heads do not divide the width, the patches do not divide the images, or a size is 0.
    pub fn new(scope: &Scope, config: &VisionTransformerConfig) -> Result<Self> {
        config.check()?;
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(Embeddings::new(scope, config)?)];
        let encoder = scope.pp("encoder");
        for index in 0..config.layers {
            let layer = encoder.pp("layers").pp(format!("encoder_layer_{index}"));
            blocks.push(Arc::new(Layer::new(&layer, config)?));
        }
        let last = encoder.pp("ln").block();
        let norm = LayerNorm::new(&last, config.width, config.eps)?;
        blocks.push(Arc::new(FinalNorm { name: last.block_name().to_owned(), norm }));
        let scope = scope.pp("heads").block();
        let (zeros, width) = (Init::ZEROS, config.width);
        let head = Linear::with_init(&scope.pp("head"), width, config.num_classes, zeros, Some(zeros))?;
        blocks.push(Arc::new(Head { name: scope.block_name().to_owned(), head }));
        Ok(Self { blocks })
    }

    /// Returns the embeddings, the layers, the last norm and the head, a sequence: each takes and returns one value.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Maps images [N, 3, H, W] to logits [N, classes].
    ///
    /// # Errors
    /// If the images have another size than that of the settings.
    pub fn forward(&self, tape: &Tape, images: &Value) -> Result<Value> {
        Ok(self.features_and_logits(tape, images)?.1)
    }

    /// Maps images [N, 3, H, W] to features [N, C], the class tokens before the head, and logits [N, classes].
    ///
    /// # Errors
    /// If the images have another size than that of the settings.
    pub fn features_and_logits(&self, tape: &Tape, images: &Value) -> Result<(Value, Value)> {
        let (layers, ends) = (1..self.blocks.len() - 2, self.blocks.len() - 2..self.blocks.len() - 1);
        let states = tape.run_sequence(&self.blocks[..layers.start], images)?;
        // Between the embeddings and the last norm ranks may each have some positions.
        let states = ops::split_sequence(tape, &states)?;
        let states = tape.run_sequence(&self.blocks[layers], &states)?;
        let states = ops::join_sequence(tape, &states)?;
        let features = tape.run_sequence(&self.blocks[ends.clone()], &states)?;
        let logits = tape.run_sequence(&self.blocks[ends.end..], &features)?;
        Ok((features, logits))
    }
}
