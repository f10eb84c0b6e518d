//! Shows the batches of an epoch of a text's lines on two ranks: `text_batches FILE [GLOBAL_BATCH]`.

use std::sync::Arc;

use phalanx_data::{
    BatchSource, CollatedDataset, Dataset, DistributedSampler, Loader, LoaderConfig, Order, PadTo,
    SamplerConfig, SequenceCollation, SequenceConfig, Split, Tail,
};
use phalanx_text::{Corpus, CorpusConfig, SequenceBorders, TokenSequences};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: text_batches FILE [GLOBAL_BATCH]")?;
    let global_batch: usize = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let corpus = Corpus::open(&path, &CorpusConfig::default())?;
    let tokenizer = corpus.tokenizer().ok_or("no text")?;
    let line_feed = tokenizer.encode("\n")?[0];
    let part = corpus.parts(Split::Train)[0].clone();
    let lines = Arc::new(TokenSequences::new(&path, part, SequenceBorders::Behind(line_feed), 256)?);
    println!("{} lines, {} different tokens", lines.len(), tokenizer.vocab());
    let config = SequenceConfig { predict_next: true, length: PadTo::Multiple(8), ..Default::default() };
    let source: Arc<dyn BatchSource> =
        Arc::new(CollatedDataset::new(lines.clone(), SequenceCollation::new(config)?));
    for rank in 0..2 {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: source.len(),
            world_size: 2,
            rank,
            global_batch,
            micro_batches: 1,
            seed: 0,
            order: Order::Shuffled,
            tail: Tail::Ragged,
        })?;
        let steps = sampler.steps_per_epoch();
        let loader = Loader::new(source.clone(), sampler, LoaderConfig::default(), (0, 0))?;
        for loaded in loader.take(steps) {
            let loaded = loaded?;
            let tokens = loaded.batch.array("tokens")?;
            let first = tokenizer.decode(&loaded.batch.values::<u32>("tokens")?[..tokens.shape()[1]])?;
            println!(
                "rank {rank}, step {}: tokens {:?}, {} of {} predictions, begins {first:?}",
                loaded.step,
                tokens.shape(),
                loaded.batch.weights().iter().sum::<f32>(),
                loaded.global_weight
            );
        }
    }
    Ok(())
}
