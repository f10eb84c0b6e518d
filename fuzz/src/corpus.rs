//! The inputs that others are made of: sound ones, those that failed once, and in a guided run every one that reached what none
//! before it did.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::coverage;
use crate::random::Random;
use crate::targets::Target;

/// How many inputs are kept at most; a reader has some hundreds.
const MOST: usize = 8192;

/// The inputs of a reader, and what they have reached.
#[derive(Debug, Default)]
pub struct Corpus {
    inputs: Vec<Vec<u8>>,
    /// How many of them were known from the start.
    known: usize,
    /// Where those are kept that are found.
    folder: Option<PathBuf>,
    /// For each edge, a bit for each range that its count was in.
    seen: Vec<u8>,
    counters: Vec<u8>,
}

/// The bit of the range that a count is in: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, more. A loop that goes round once more is
/// hardly news, one that goes round twice as often is.
fn range(count: u8) -> u8 {
    match count {
        0 => 0,
        1..=3 => 1 << (count - 1),
        4..=7 => 1 << 3,
        8..=15 => 1 << 4,
        16..=31 => 1 << 5,
        32..=127 => 1 << 6,
        128.. => 1 << 7,
    }
}

/// What an input is called in a folder: FNV-1a of it.
fn name(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl Corpus {
    /// What is known of a reader, and what is in a folder, where more will be kept.
    ///
    /// # Errors
    /// If the folder cannot be made or read.
    pub fn new(target: &Target, folder: Option<PathBuf>) -> io::Result<Self> {
        let mut inputs = target.corpus();
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)?;
            let mut files: Vec<_> =
                fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
            files.sort();
            for file in files {
                inputs.push(fs::read(file)?);
            }
        }
        Ok(Self { known: inputs.len(), inputs, folder, ..Self::default() })
    }

    /// How many inputs there are.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// The inputs that were known from the start, which are read first, as they are.
    pub fn known(&self) -> &[Vec<u8>] {
        &self.inputs[..self.known]
    }

    /// How many pairs of an edge and a range of its counts were reached.
    pub fn reached(&self) -> u64 {
        self.seen.iter().map(|ranges| u64::from(ranges.count_ones())).sum()
    }

    /// One of the inputs: any, or in half of the cases of a guided run one of those that were found last, as what they reached is the
    /// least explored.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a>(&'a self, random: &mut Random) -> &'a [u8] {
        let newest = self.inputs.len() / 8;
        if self.inputs.len() > self.known && newest > 0 && random.once_in(2) {
            return random.pick::<Vec<u8>>(&self.inputs[self.inputs.len() - newest..]);
        }
        random.pick::<Vec<u8>>(&self.inputs)
    }

    /// Whether what was just read reached anything that nothing before it did; it counts as reached from now on.
    fn is_news(&mut self) -> bool {
        coverage::read(&mut self.counters);
        self.seen.resize(self.counters.len(), 0);
        let mut news = false;
        // Nearly all are 0, which is seen fastest in blocks.
        let (counters, seen) = (self.counters.chunks(256), self.seen.chunks_mut(256));
        for (counters, seen) in counters.zip(seen) {
            if counters.iter().fold(0, |any, count| any | count) == 0 {
                continue;
            }
            for (count, seen) in counters.iter().zip(seen) {
                if *count != 0 {
                    let range = range(*count);
                    news |= range & !*seen != 0;
                    *seen |= range;
                }
            }
        }
        news
    }

    /// Keeps an input that was just read and refused or taken as it should be, if it reached something new; whether it did.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn learn(&mut self, input: &[u8], is_known: bool) -> io::Result<bool> {
        let news = self.is_news() && !is_known;
        if news && self.inputs.len() < MOST {
            if let Some(folder) = &self.folder {
                fs::write(folder.join(name(input)), input)?;
            }
            self.inputs.push(input.to_vec());
        }
        Ok(news)
    }

    /// Leaves in the folder what reaches the same by few bytes: all inputs are read again, the shortest first, and those go that reach
    /// nothing new. Files that were not kept by a run stay. These are what it returns.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub fn minimise(&mut self, read: impl Fn(&[u8])) -> io::Result<Vec<Vec<u8>>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let folder = folder.clone();
        let mut all = self.inputs.clone();
        all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        self.seen.fill(0);
        let mut kept = BTreeMap::new();
        for input in all {
            coverage::clear();
            read(&input);
            if self.is_news() {
                kept.insert(name(&input), input);
            }
        }
        for (name, input) in &kept {
            if !folder.join(name).exists() {
                fs::write(folder.join(name), input)?;
            }
        }
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_ours && !kept.contains_key(&name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(kept.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_news_by_their_ranges() {
        let ranges: Vec<u8> = [1, 2, 3, 4, 8, 16, 32, 128].map(range).to_vec();
        assert_eq!(ranges, (0..8).map(|bit| 1 << bit).collect::<Vec<u8>>());
        assert_eq!((range(0), range(7), range(127), range(255)), (0, range(4), range(32), range(128)));
    }

    #[test]
    fn without_counters_nothing_is_kept() {
        let mut corpus = Corpus { inputs: vec![b"sound".to_vec()], known: 1, ..Corpus::default() };
        if coverage::edges() == 0 {
            assert!(!corpus.learn(b"other", false).expect("nothing is written"));
            assert_eq!((corpus.len(), corpus.reached()), (1, 0));
        }
    }
}
