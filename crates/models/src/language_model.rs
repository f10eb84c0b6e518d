//! The interface of models that predict the next token.

use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::{Result, Tape, Value};

use crate::cache::KeyValueCache;
use crate::routed_states::RoutedStates;
use crate::token_input::TokenInput;

/// A model that predicts the next token of texts. The head is apart from the trunk, so that a loss needs no logits.
pub trait LanguageModel: std::fmt::Debug + Send + Sync {
    /// Returns the number of tokens of the vocabulary.
    fn vocab(&self) -> usize;

    /// Returns the longest sequence, in tokens.
    fn context(&self) -> usize;

    /// Computes the normalised states of all tokens, [N, T, width].
    ///
    /// # Errors
    /// If the sequences are longer than the context, or a token or a position is out of range.
    fn hidden(&self, tape: &Tape, input: &TokenInput) -> Result<Value>;

    /// Computes [`LanguageModel::hidden`], and how evenly tokens choose experts where a model has some. `weights` has the weight of
    /// each token in the loss, row by row; tokens without weight, such as padding, do not count.
    ///
    /// # Errors
    /// As [`LanguageModel::hidden`], and if there are other than N·T weights.
    fn routed(&self, tape: &Tape, input: &TokenInput, weights: &[f32]) -> Result<RoutedStates> {
        let _ = weights;
        Ok(RoutedStates { hidden: self.hidden(tape, input)?, balance: None })
    }

    /// Returns a cache without tokens, for [`LanguageModel::continue_hidden`].
    fn empty_cache(&self) -> KeyValueCache;

    /// Computes the states of new tokens that follow those of the cache, [N, T, width], and adds their keys and values.
    ///
    /// # Errors
    /// If the texts are longer than the context, a token or a position is out of range, or the number of rows is another.
    fn continue_hidden(&self, tape: &Tape, input: &TokenInput, cache: &mut KeyValueCache) -> Result<Value>;

    /// Computes the logits of the next token from [`LanguageModel::hidden`], [.., vocab].
    ///
    /// # Errors
    /// If the last dimension is not the width.
    fn logits(&self, tape: &Tape, hidden: &Value) -> Result<Value>;

    /// Computes the cross-entropy of [`LanguageModel::logits`] with the targets, a row for each token, without keeping
    /// logits.
    ///
    /// # Errors
    /// Errors of [`phalanx_tensor::loss::linear_cross_entropy`].
    fn loss(
        &self,
        tape: &Tape,
        hidden: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value>;
}
