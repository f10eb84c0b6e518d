//! Where a model looks for each word of a caption.

use candle_core::DType;

use super::samples::HeldOut;
use crate::engine::TrainError;
use crate::engine::training::{CaptionReader, CaptionWord, TokenAttention};

/// The levels of noise whose attention is averaged.
const LEVELS: [f64; 3] = [0.3, 0.6, 0.9];

/// The attention to a word.
#[derive(Debug, Clone, PartialEq)]
pub struct WordMap {
    /// The word.
    pub word: String,
    /// The share that each pixel takes from it, row by row.
    pub shares: Vec<f32>,
}

impl WordMap {
    /// Returns the mean share of the pixels.
    pub fn share(&self) -> f64 {
        self.shares.iter().map(|share| f64::from(*share)).sum::<f64>() / self.shares.len().max(1) as f64
    }
}

/// An image with the attention to each word of its caption.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadPicture {
    /// The caption.
    pub caption: String,
    /// Height and width.
    pub size: usize,
    /// `[3, size, size]`, planar in [-1, 1].
    pub pixels: Vec<f32>,
    /// The attention to each word.
    pub words: Vec<WordMap>,
}

/// Returns the first `count` samples with the attention to the words of their captions: the mean of layers and levels of noise.
pub(super) fn maps(
    reader: &dyn CaptionReader,
    samples: &HeldOut,
    count: usize,
) -> Result<Vec<ReadPicture>, TrainError> {
    let Some(first) = samples.first(count)? else { return Ok(Vec::new()) };
    let size = first.size;
    let mut sums: Vec<Vec<f32>> = Vec::new();
    let mut layers = 0_usize;
    for level in LEVELS {
        for attention in samples.attention(reader, &first, level)? {
            layers += 1;
            let of_layer = enlarged(&attention, size)?;
            match sums.is_empty() {
                true => sums = of_layer,
                false => sums
                    .iter_mut()
                    .flatten()
                    .zip(of_layer.iter().flatten())
                    .for_each(|(sum, more)| *sum += more),
            }
        }
    }
    if layers == 0 {
        return Ok(Vec::new());
    }
    let pixels = size * size;
    let picture = |(row, sums): (usize, &Vec<f32>)| {
        let tokens = sums.len() / pixels;
        let caption = first.captions[row].clone();
        let map = |word: CaptionWord| {
            let share = |at: usize| -> f32 {
                let own = word.tokens.clone().filter(|token| *token < tokens);
                own.map(|token| sums[at * tokens + token]).sum::<f32>() / layers as f32
            };
            WordMap { word: word.text.clone(), shares: (0..pixels).map(share).collect() }
        };
        let words = reader.words(&caption).into_iter().map(map).collect();
        ReadPicture { caption, size, pixels: first.pixels[row].clone(), words }
    };
    Ok(sums.iter().enumerate().map(picture).collect())
}

/// Returns a layer's shares of each sample, [size·size, tokens], its pixels repeated to this size.
fn enlarged(attention: &TokenAttention, size: usize) -> Result<Vec<Vec<f32>>, TrainError> {
    let [height, width] = attention.size;
    let shares = attention.shares.to_host()?.to_dtype(DType::F32)?.to_vec3::<f32>()?;
    let of_sample = |shares: &Vec<Vec<f32>>| {
        let at = |place: usize| (place / size * height / size) * width + place % size * width / size;
        (0..size * size).flat_map(|place| shares[at(place)].iter().copied()).collect()
    };
    Ok(shares.iter().map(of_sample).collect())
}
