//! Batches of token sequences of different lengths.

use super::{Collate, PadTo, Samples};
use crate::batch::Batch;
use crate::error::Result;

/// The settings of a [`SequenceCollation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceConfig {
    /// The padding token.
    pub padding: u32,
    /// The padded length.
    pub length: PadTo,
    /// Adds the following token as the target of each position, for language models. A sequence of L tokens then fills
    /// L − 1 positions.
    pub predict_next: bool,
}

/// A collation that pads sequences to one length.
///
/// The batch has `tokens`, u32 [N, T], padded with [`SequenceConfig::padding`]; `mask`, f32 [N, T], 1 within a sequence
/// and 0 in the padding; and `lengths`, u32 `[N]`. With [`SequenceConfig::predict_next`] it also has `targets`, u32 [N,
/// T], the following tokens; `lengths` then counts predictions.
#[derive(Debug, Clone)]
pub struct SequenceCollation {
    config: SequenceConfig,
}

impl SequenceCollation {
    /// Checks the settings.
    ///
    /// # Errors
    /// If the length is 0.
    pub fn new(config: SequenceConfig) -> Result<Self> {
        config.length.validate("sequences.length")?;
        Ok(Self { config })
    }
}

impl<S: AsRef<[u32]>> Collate<S> for SequenceCollation {
    /// # Errors
    /// If a sample cannot be read, has no token (or fewer than two tokens for predictions), or is too long.
    fn collate(&self, samples: &mut Samples<'_, S>) -> Result<Batch> {
        let number = samples.len();
        let ahead = usize::from(self.config.predict_next);
        let mut sequences = Vec::with_capacity(number);
        while let Some(sample) = samples.next() {
            let (index, sequence) = sample?;
            let tokens = sequence.as_ref().len();
            if tokens <= ahead {
                let needed = if ahead > 0 { "two, of which one is to be predicted" } else { "one" };
                return Err(samples.error(index, format!("{tokens} tokens; it needs at least {needed}")));
            }
            if self.config.length.length(tokens - ahead).is_none() {
                let reason = format!("{} positions are more than {:?}", tokens - ahead, self.config.length);
                return Err(samples.error(index, reason));
            }
            sequences.push(sequence);
        }
        let positions = |sequence: &S| sequence.as_ref().len() - ahead;
        let longest = sequences.iter().map(positions).max().unwrap_or(0);
        // Each sequence fits, so the longest does.
        let length = self.config.length.length(longest).unwrap_or(longest);
        let mut tokens = vec![self.config.padding; number * length];
        let mut targets = vec![self.config.padding; ahead * number * length];
        let mut mask = vec![0.0_f32; number * length];
        for (row, sequence) in sequences.iter().enumerate() {
            let (from, used) = (row * length, positions(sequence));
            let sequence = sequence.as_ref();
            tokens[from..from + used].copy_from_slice(&sequence[..used]);
            mask[from..from + used].fill(1.0);
            if ahead > 0 {
                targets[from..from + used].copy_from_slice(&sequence[1..]);
            }
        }
        let lengths: Vec<u32> = sequences.iter().map(|sequence| positions(sequence) as u32).collect();
        let mut batch = Batch::new(number)
            .with("tokens", [number, length], tokens)?
            .with("mask", [number, length], mask)?
            .with("lengths", [number], lengths)?;
        if ahead > 0 {
            batch = batch.with("targets", [number, length], targets)?;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DataError;

    fn collate(config: SequenceConfig, sequences: &[&[u32]]) -> Result<Batch> {
        let indices: Vec<usize> = (0..sequences.len()).collect();
        let get = |index: usize| Ok(sequences[index]);
        SequenceCollation::new(config)?.collate(&mut Samples::new("texts", &indices, 0, &get))
    }

    #[test]
    fn sequences_are_padded_to_the_longest() {
        let config = SequenceConfig { padding: 9, ..Default::default() };
        let batch = collate(config, &[&[5], &[1, 2, 3], &[7, 8]]).unwrap();
        assert_eq!(batch.array("tokens").unwrap().shape(), [3, 3]);
        assert_eq!(batch.values::<u32>("tokens").unwrap(), [5, 9, 9, 1, 2, 3, 7, 8, 9]);
        assert_eq!(batch.values::<f32>("mask").unwrap(), [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!(batch.values::<u32>("lengths").unwrap(), [1, 3, 2]);
        assert!(batch.array("targets").is_err());
    }

    #[test]
    fn language_models_predict_the_token_that_follows() {
        let config = SequenceConfig { predict_next: true, length: PadTo::Multiple(4), padding: 0 };
        let batch = collate(config, &[&[1, 2, 3, 4, 5, 6], &[7, 8]]).unwrap();
        assert_eq!(batch.values::<u32>("tokens").unwrap()[..8], [1, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(batch.values::<u32>("targets").unwrap()[..8], [2, 3, 4, 5, 6, 0, 0, 0]);
        assert_eq!(batch.values::<u32>("tokens").unwrap()[8..], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(batch.values::<u32>("targets").unwrap()[8..], [8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(batch.values::<u32>("lengths").unwrap(), [5, 1]);
        assert_eq!(batch.values::<f32>("mask").unwrap().iter().sum::<f32>(), 6.0);
    }

    #[test]
    fn a_fixed_length_accepts_what_fits_and_names_what_does_not() {
        let config = SequenceConfig { length: PadTo::Fixed(3), ..Default::default() };
        let batch = collate(config, &[&[1], &[1, 2, 3]]).unwrap();
        assert_eq!(batch.array("tokens").unwrap().shape(), [2, 3]);
        let error = collate(config, &[&[1], &[1, 2, 3], &[1, 2, 3, 4]]).unwrap_err();
        assert!(matches!(&error, DataError::Sample { index: 2, .. }), "{error}");
        assert!(error.to_string().contains("4 positions"), "{error}");
        // One more token fits if it is only a target.
        let config = SequenceConfig { predict_next: true, ..config };
        assert_eq!(collate(config, &[&[1, 2, 3, 4]]).unwrap().values::<u32>("targets").unwrap(), [2, 3, 4]);
    }

    #[test]
    fn empty_sequences_are_refused_by_name() {
        let error = collate(SequenceConfig::default(), &[&[1, 2], &[]]).unwrap_err();
        assert!(
            matches!(&error, DataError::Sample { dataset, index: 1, .. } if dataset == "texts"),
            "{error}"
        );
        let config = SequenceConfig { predict_next: true, ..Default::default() };
        assert!(matches!(collate(config, &[&[1]]).unwrap_err(), DataError::Sample { index: 0, .. }));
        assert!(
            SequenceCollation::new(SequenceConfig { length: PadTo::Fixed(0), ..Default::default() }).is_err()
        );
    }
}
