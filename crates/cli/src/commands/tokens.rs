//! `phalanx tokens`: learns tokenizers, writes files of tokens, shows and checks them.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use phalanx_run::format::{bytes, count};
use phalanx_run::write_aside;
use phalanx_text::{
    Corpus, CorpusConfig, Documents, DocumentsConfig, EncodeConfig, EncodedSplit, PieceKind, ShardFormat,
    TokenShard, TokenStream, Tokenizer, TokenizerChoice, WordCounts, encode, learn,
};

use super::error::CliError;
use crate::console::{TaskProgress, out};

/// Learn a tokenizer from texts, encode texts as files of tokens, and look at both.
#[derive(Debug, Args)]
pub(super) struct TokensArgs {
    #[command(subcommand)]
    command: TokensCommand,
}

#[derive(Debug, Subcommand)]
enum TokensCommand {
    /// Learn a tokenizer from texts. The same texts give the same file.
    Learn(LearnArgs),
    /// Encode texts into OUT/train.bin and OUT/val.bin, with OUT/tokenizer.json.
    Encode(EncodeArgs),
    /// Show the tokens of a text, or of a file of tokens.
    Show(ShowArgs),
    /// Read all tokens of a file or a folder. Fail if it is damaged, or a token is beyond the vocabulary.
    Check(CheckArgs),
}

/// The texts.
#[derive(Debug, Args)]
struct TextArgs {
    /// Files and folders: text, .jsonl or .parquet.
    #[arg(value_name = "TEXT", required = true)]
    paths: Vec<PathBuf>,
    /// The key of a line of JSON, or the column of a table, that has the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Read only files of folders with this ending; may be given several times [default: all].
    #[arg(long = "ending", value_name = "ENDING")]
    endings: Vec<String>,
}

impl TextArgs {
    fn open(&self) -> Result<Documents, CliError> {
        let endings = self.endings.iter().map(|ending| ending.trim_start_matches('.').to_owned()).collect();
        let config = DocumentsConfig { field: self.field.clone(), endings };
        Documents::open(&self.paths, config).map_err(CliError::failed)
    }
}

#[derive(Debug, Args)]
struct LearnArgs {
    #[command(flatten)]
    texts: TextArgs,
    /// bpe (bytes; any text), wordpiece (lower-case words, as BERT) or unigram (as SentencePiece).
    #[arg(long, value_name = "KIND", default_value = "bpe")]
    kind: String,
    /// The number of tokens.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    vocab: usize,
    /// The file to write.
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct EncodeArgs {
    #[command(flatten)]
    texts: TextArgs,
    /// `bytes`, or the file or folder of a tokenizer: tokenizer.json, GPT-2's two files, SentencePiece's .model.
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: String,
    /// The format of the files: nanogpt, llm.c or megatron.
    #[arg(long, value_name = "NAME", default_value = "llm.c")]
    format: String,
    /// The percentage of the documents, or of the end of a single text, for testing; 0 = none.
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    test: u64,
    /// The folder to write into.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// A text, or a file of tokens (.bin).
    #[arg(value_name = "TEXT|FILE.bin")]
    what: String,
    /// `bytes`, or the file or folder of a tokenizer [default: the tokenizer.json next to the file of tokens].
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// The first token of a file to show.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// The number of tokens of a file to show.
    #[arg(long, value_name = "N", default_value_t = 50)]
    count: usize,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// A file of tokens, or a folder of them.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// `bytes`, or the file or folder of a tokenizer [default: the tokenizer.json of the folder].
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
}

pub(super) fn run(args: &TokensArgs) -> Result<(), CliError> {
    match &args.command {
        TokensCommand::Learn(args) => learned(args),
        TokensCommand::Encode(args) => encoded(args),
        TokensCommand::Show(args) => show(args),
        TokensCommand::Check(args) => check(args),
    }
}

/// The texts whose words are counted together.
const TEXTS: usize = 256;

fn learned(args: &LearnArgs) -> Result<(), CliError> {
    super::ending::ending("--out", &args.out, &["json"])?;
    let kind: PieceKind = args.kind.parse().map_err(wrong)?;
    let documents = args.texts.open()?;
    let mut counts = WordCounts::new(kind);
    let progress = TaskProgress::new("MiB");
    let (mut waiting, mut read) = (Vec::new(), 0);
    for file in documents.files() {
        let counted = documents.read(file, &mut |passage| {
            read += passage.text.len() as u64;
            progress.set(mib(read), mib(documents.bytes()));
            waiting.push(passage.text);
            if waiting.len() >= TEXTS {
                counts.add_all(&std::mem::take(&mut waiting))?;
            }
            Ok(())
        });
        counted.map_err(CliError::failed)?;
    }
    counts.add_all(&waiting).map_err(CliError::failed)?;
    progress.finish();
    let tokenizer = learn(&counts, args.vocab).map_err(CliError::failed)?;
    write_aside(&args.out, tokenizer.json().as_bytes())
        .map_err(|error| CliError::failed(format!("{}: {error}", args.out.display())))?;
    let words = count(counts.len() as u64);
    out(&format!(
        "{}: {} tokens from {words} different words of {}",
        args.out.display(),
        count(tokenizer.vocab() as u64),
        bytes(read)
    ));
    Ok(())
}

fn encoded(args: &EncodeArgs) -> Result<(), CliError> {
    let format: ShardFormat = args.format.parse().map_err(wrong)?;
    let tokenizer = open_tokenizer(&args.tokenizer)?;
    let documents = args.texts.open()?;
    let progress = TaskProgress::new("MiB");
    let all = documents.bytes();
    let config = EncodeConfig { format, test_percent: args.test };
    let encoded =
        encode(&documents, &tokenizer, &args.out, config, &mut |read| progress.set(mib(read), mib(all)));
    progress.finish();
    let encoded = encoded.map_err(CliError::failed)?;
    for (name, split) in [("train.bin", encoded.train), ("val.bin", encoded.test)] {
        let EncodedSplit { tokens, documents, bytes: of_text } = split;
        if tokens > 0 {
            out(&format!(
                "{}: {} tokens of {} documents, {:.2} bytes of text each",
                args.out.join(name).display(),
                count(tokens),
                count(documents),
                of_text as f64 / tokens as f64
            ));
        }
    }
    Ok(())
}

fn show(args: &ShowArgs) -> Result<(), CliError> {
    let path = Path::new(&args.what);
    let is_file = path.extension().is_some_and(|ending| ending == "bin") && path.is_file();
    let neighbour = path.with_file_name(phalanx_text::TOKENIZER_FILE);
    let tokenizer = match &args.tokenizer {
        Some(name) => Some(open_tokenizer(name)?),
        None if is_file && neighbour.is_file() => Some(Tokenizer::open(neighbour).map_err(CliError::failed)?),
        None if is_file => None,
        None => {
            return Err(CliError::Usage("--tokenizer: a text needs one; `bytes` is always there".to_owned()));
        }
    };
    let tokens = match is_file {
        true => {
            let shard = TokenShard::open(path).map_err(CliError::failed)?;
            let left = shard.len().saturating_sub(args.from);
            let shown = args.count.min(usize::try_from(left).unwrap_or(usize::MAX));
            shard.read(args.from, shown).map_err(CliError::failed)?
        }
        false => {
            let tokenizer = tokenizer.as_ref().expect("a text has a tokenizer");
            tokenizer.encode(&args.what).map_err(CliError::failed)?
        }
    };
    for token in &tokens {
        let piece = tokenizer.as_ref().and_then(|tokenizer| tokenizer.piece(*token));
        out(format!("{token:>7}  {}", piece.unwrap_or_default()).trim_end());
    }
    if let Some(tokenizer) = &tokenizer {
        out(&format!("{:?}", tokenizer.decode(&tokens).map_err(CliError::failed)?));
    }
    Ok(())
}

fn check(args: &CheckArgs) -> Result<(), CliError> {
    let name = args.tokenizer.clone().unwrap_or_default();
    let Ok(tokenizer) = name.parse::<TokenizerChoice>();
    let config = CorpusConfig { tokenizer, ..CorpusConfig::default() };
    let corpus = Corpus::open(&args.path, &config).map_err(CliError::failed)?;
    let vocab = corpus.tokenizer().map_or(usize::MAX, Tokenizer::vocab);
    for split in [phalanx_data::Split::Train, phalanx_data::Split::Test] {
        for part in corpus.parts(split) {
            if let TokenStream::File(shard) = &part.stream {
                shard.check_tokens(vocab, u64::MAX).map_err(CliError::failed)?;
            }
            let documents = part.stream.documents().map_or_else(String::new, |documents| {
                format!(", {} documents", count(documents.len() as u64))
            });
            out(&format!("{} ({split}): {} tokens{documents}", part.stream.name(), count(part.len())));
        }
    }
    Ok(())
}

/// Opens a tokenizer by its name or its path.
fn open_tokenizer(name: &str) -> Result<Tokenizer, CliError> {
    match name {
        "bytes" => Ok(Tokenizer::bytes()),
        path => Tokenizer::open(path).map_err(CliError::failed),
    }
}

/// The error of a word that is none of the choices.
fn wrong(error: impl std::fmt::Display) -> CliError {
    CliError::Usage(error.to_string())
}

fn mib(bytes: u64) -> usize {
    (bytes >> 20) as usize
}
