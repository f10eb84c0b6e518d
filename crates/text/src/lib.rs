//! Texts for language models: tokenizers, files of tokens, and windows of both as datasets.
//!
//! A language model sees numbers. Three things decide which: the tokenizer, the place in the corpus, and the borders of the
//! documents there. Each is one type here.
//!
//! - A [`Tokenizer`] is bytes, characters, or learned pieces: a `tokenizer.json`, GPT-2's two files, or SentencePiece's
//!   `.model`. [`learn()`] makes one of texts: byte-level BPE, WordPiece or Unigram, the same bytes every time, in any order of
//!   the texts and on any number of threads. [`TextStream`] decodes token by token, in whole characters.
//! - [`Documents`] reads the texts of files and folders: plain text, lines of JSON, parquet.
//! - A [`TokenShard`] is a file of tokens of nanoGPT, llm.c or Megatron-LM; [`ShardWriter`] writes them. Reading is by position,
//!   so a corpus may be larger than memory.
//! - [`encode()`] writes texts as files of tokens, on all cores.
//! - [`Corpus`] opens any of these as a training and a test split.
//! - [`TokenWindows`] cuts tokens into windows in which every token is predicted once. A sample is a place, so order and
//!   resumption are arithmetic. Documents may be kept apart: each window then says at which column the document of a token
//!   begins, and no prediction crosses a border. [`TokenSequences`] has lines or documents as samples.
//! - [`MaskedTexts`] hides some tokens of each text, other ones in each epoch, for encoders such as BERT; [`TokenBlocks`] are
//!   such texts. [`LabelledTexts`] have a class each, from [`LabelledDocuments`].
//! - [`ParallelTexts`] are pairs of texts and translations: tables, lines of JSON, two files, or compiled gettext catalogues.
//!   [`BleuCounts`] compares translations with references as sacreBLEU does.
//!
//! [`ParallelTexts`] are pairs of texts and translations: tables, lines of JSON, two files, or compiled gettext catalogues, and
//! [`BleuCounts`] compares translations with references as sacreBLEU does.
//!
//! The crate has no tensors and no communication. It downloads nothing, and a damaged, truncated or foreign file is an error that
//! names the place.
//!
//! # Example
//!
//! A tokenizer is learned from a text, and the text becomes windows:
//!
//! ```
//! use phalanx_data::Dataset;
//! use phalanx_text::{
//!     DocumentBorders, PieceKind, TokenPart, TokenStream, TokenWindows, WindowsConfig, WordCounts, learn,
//! };
//!
//! let text = "to be or not to be, that is the question: ".repeat(20);
//! let mut counts = WordCounts::new(PieceKind::Bpe);
//! counts.add(&text)?;
//! let tokenizer = learn(&counts, 290)?;
//! let tokens = tokenizer.encode(&text)?;
//! assert!(tokens.len() < text.len() / 2);
//!
//! let part = TokenPart::whole(TokenStream::memory("hamlet", tokens.clone()));
//! let config = WindowsConfig { context: 16, stride: 16, documents: DocumentBorders::Joined };
//! let windows = TokenWindows::new("hamlet/train", vec![part], config)?;
//! let first = windows.get(0, 0)?;
//! assert_eq!(first.tokens, tokens[..17]);
//! # Ok::<(), phalanx_data::DataError>(())
//! ```

pub mod bleu;
pub mod corpus;
pub mod dataset;
pub mod documents;
pub mod encode;
pub mod learn;
mod lines;
pub mod pairs;
pub mod shards;
pub mod tokenizer;

pub use bleu::BleuCounts;
pub use corpus::{Corpus, CorpusConfig, TokenizerChoice};
pub use dataset::{
    DocumentBorders, LabelledCollation, LabelledSegments, LabelledTexts, LabelledTokens, MaskedCollation,
    MaskedSequence, MaskedTexts, MaskingConfig, PaddedRows, PairCollation, Segments, SequenceBorders,
    SequenceLengths, TokenBlocks, TokenPair, TokenPairs, TokenPart, TokenSequences, TokenWindow,
    TokenWindows, WindowCollation, WindowsConfig,
};
pub use documents::{Documents, DocumentsConfig, LabelKeys, LabelledDocument, LabelledDocuments, Passage};
pub use encode::{EncodeConfig, Encoded, EncodedSplit, encode};
pub use learn::{END_OF_TEXT, PieceKind, WordCounts, learn};
pub use pairs::{Languages, ParallelTexts, TextPair};
pub use shards::{ShardFormat, ShardWriter, TokenShard, TokenStream};
pub use tokenizer::{
    EncoderTokens, MARIAN_FILES, MarianTokenizer, PairTokens, Side, TOKENIZER_FILE, TextStream, Tokenizer,
    TranslationTokenizer,
};
