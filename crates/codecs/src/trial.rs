//! Measures in the first steps, bucket by bucket, where a codec saves time, and decides once.

use std::fmt;
use std::time::Duration;

use crate::CodecState;
use crate::timer::{SumTimer, SumTimes};
use crate::{CodecError, Result};

/// When a codec is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodecWhen {
    /// Where it is measured to be faster: the first steps try both, then all ranks decide together.
    Auto,
    /// Always.
    #[default]
    Always,
}

impl CodecWhen {
    /// All choices.
    pub const ALL: &'static [Self] = &[Self::Auto, Self::Always];
}

impl fmt::Display for CodecWhen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
        })
    }
}

impl std::str::FromStr for CodecWhen {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|when| when.to_string() == text);
        found
            .copied()
            .ok_or_else(|| CodecError::codec("when", format!("`{text}` is unknown; there is: auto, always")))
    }
}

/// The number of measured steps with the codec, and without. The first of each is warm-up.
const ROUND: u64 = 4;

/// The minimum exposed part of plain communication. Below it, communication is already hidden behind compute.
const HIDDEN: f64 = 0.05;

/// The name of the decision in a checkpoint.
const SAVED: &str = "when";

/// The measurement of a bucket, as the mean over ranks and steps, and the decision of all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecVerdict {
    /// The bucket, in forward order.
    pub bucket: usize,
    /// Its gradients.
    pub elements: usize,
    /// Bytes that a rank has sent for it without the codec, and with it.
    pub bytes: [u64; 2],
    /// Seconds that a sum takes without the codec, and with it.
    pub seconds: [f64; 2],
    /// Seconds of encoding and decoding, a part of the second of `seconds`.
    pub coding_seconds: f64,
    /// The part of communication without the codec that the thread that trains has waited for, over all buckets.
    pub exposed: f64,
    /// True if the codec is used from now on.
    pub pays: bool,
}

impl CodecVerdict {
    /// Bytes a second that a rank sends without the codec.
    pub fn bandwidth(&self) -> f64 {
        self.bytes[0] as f64 / self.seconds[0].max(f64::MIN_POSITIVE)
    }

    /// The bandwidth below which the codec is faster: bytes that it saves a second that it computes.
    pub fn break_even(&self) -> f64 {
        self.bytes[0].saturating_sub(self.bytes[1]) as f64 / self.coding_seconds.max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for CodecVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, elements, bytes, seconds, coding_seconds, exposed, pays } = self;
        let verdict = if *pays { "on" } else { "off" };
        let [plain, coded] = bytes.map(|bytes| bytes as f64 / 1e6);
        let [without, with] = seconds.map(|seconds| seconds * 1e3);
        write!(
            f,
            "codec {verdict} for bucket {bucket} of {elements}: {without:.2} ms for {plain:.3} MB without, {with:.2} ms for \
             {coded:.3} MB with ({:.2} ms of it coding); {:.1} MB/s, worth it below {:.1} MB/s; training waits for {:.0} % of \
             communication",
            coding_seconds * 1e3,
            self.bandwidth() / 1e6,
            self.break_even() / 1e6,
            exposed * 1e2,
        )
    }
}

/// The mode in which a bucket is summed at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumMode {
    /// True if the codec encodes the sum.
    pub coded: bool,
    /// True if its time counts for the decision.
    pub counts: bool,
}

/// The measurement, until it is decided.
#[derive(Debug)]
pub struct Trial {
    /// By bucket: how often it was summed.
    runs: Vec<u64>,
    /// By bucket: seconds without the codec and with it, bytes sent without and with it, and seconds of coding.
    sums: Vec<[f64; 5]>,
    /// Seconds that training has waited without the codec.
    waited: f64,
    /// By bucket, once it is decided.
    decided: Option<Vec<bool>>,
    /// Decisions that were not reported yet.
    news: Vec<CodecVerdict>,
    /// Sums on devices that are still measured: bucket, mode, bytes sent, timer.
    measuring: Vec<(usize, SumMode, u64, SumTimer)>,
    /// The bucket that is the first of each step, and whether a step has gone as it was decided.
    first: Option<usize>,
    settled: bool,
}

impl Trial {
    /// Makes a measurement of as many buckets.
    pub fn new(buckets: usize) -> Self {
        let (runs, sums) = (vec![0; buckets], vec![[0.0; 5]; buckets]);
        let (news, measuring) = (Vec::new(), Vec::new());
        Self { runs, sums, waited: 0.0, decided: None, news, measuring, first: None, settled: false }
    }

    /// True if it is time to decide before this bucket is summed: it is the first that has been through both rounds.
    pub fn is_due(&self, bucket: usize) -> bool {
        self.decided.is_none() && self.runs[bucket] == 2 * ROUND
    }

    /// A number that steps have in common whose sums do the same work on a device, if this bucket is the first of a step: by the codec,
    /// without it, as it was decided for the first time, when codecs make room for what they keep, and from then on.
    pub fn branch(&mut self, bucket: usize) -> Option<u64> {
        if *self.first.get_or_insert(bucket) != bucket {
            return None;
        }
        let settled = self.settled;
        self.settled = self.decided.is_some();
        Some(match &self.decided {
            None => u64::from(self.runs[bucket] >= ROUND),
            Some(_) => 2 + u64::from(settled),
        })
    }

    /// Returns the mode of the next sum of a bucket.
    pub fn way(&mut self, bucket: usize) -> SumMode {
        if let Some(decided) = &self.decided {
            return SumMode { coded: decided[bucket], counts: false };
        }
        let run = self.runs[bucket];
        self.runs[bucket] += 1;
        SumMode { coded: run < ROUND, counts: !run.is_multiple_of(ROUND) }
    }

    /// Records the duration of a sum, and the duration and bytes of its communication.
    pub fn note(&mut self, bucket: usize, way: SumMode, all: Duration, (moving, sent): (Duration, u64)) {
        if way.counts {
            let (sums, coded) = (&mut self.sums[bucket], usize::from(way.coded));
            sums[coded] += all.as_secs_f64();
            sums[2 + coded] += sent as f64;
            if way.coded {
                sums[4] += all.saturating_sub(moving).as_secs_f64();
            }
        }
    }

    /// Keeps the timer of a sum on a device until the sum is done.
    pub fn measure(&mut self, bucket: usize, way: SumMode, sent: u64, watch: SumTimer) {
        self.measuring.push((bucket, way, sent, watch));
    }

    /// Records the finished device measurements. With `wait`, waits for all of them.
    pub fn collect(&mut self, wait: bool) -> Result<()> {
        for (bucket, way, sent, watch) in std::mem::take(&mut self.measuring) {
            match watch.read(wait)? {
                Some(SumTimes { all, moving, waited }) => {
                    self.note(bucket, way, all, (moving, sent));
                    self.waited(way, waited);
                }
                None => self.measuring.push((bucket, way, sent, watch)),
            }
        }
        Ok(())
    }

    /// Records the time that training waited for a sum.
    pub fn waited(&mut self, way: SumMode, waited: Duration) {
        if way.counts && !way.coded {
            self.waited += waited.as_secs_f64();
        }
    }

    /// Returns this rank's measurements, to be summed over the ranks.
    pub fn measured(&self) -> Vec<f64> {
        self.sums.iter().flatten().copied().chain([self.waited]).collect()
    }

    /// Decides by the summed measurements of all `ranks`. `elements` has the elements of each bucket.
    pub fn decide(&mut self, all: &[f64], ranks: usize, elements: &[usize]) {
        let share = 1.0 / (ranks as f64 * (ROUND - 1) as f64);
        let (sums, _) = all.as_chunks::<5>();
        let plain: f64 = sums.iter().map(|[plain, ..]| plain).sum();
        // Training may wait before a sum begins, for another one or for a core.
        let exposed = (all.last().copied().unwrap_or(0.0) / plain.max(f64::MIN_POSITIVE)).min(1.0);
        let verdicts = elements.iter().zip(sums).enumerate().map(|(bucket, (elements, sums))| {
            let [without, with, bytes_without, bytes_with, coding_seconds] = sums.map(|sum| sum * share);
            CodecVerdict {
                bucket,
                elements: *elements,
                bytes: [bytes_without, bytes_with].map(|bytes| bytes.round() as u64),
                seconds: [without, with],
                coding_seconds,
                exposed,
                pays: with < without && exposed >= HIDDEN,
            }
        });
        let verdicts: Vec<_> = verdicts.collect();
        self.decided = Some(verdicts.iter().map(|verdict| verdict.pays).collect());
        // Frozen buckets were never summed.
        self.news = verdicts.into_iter().filter(|verdict| self.runs[verdict.bucket] > 0).collect();
    }

    /// Returns decisions that were not reported yet.
    pub fn news(&mut self) -> Vec<CodecVerdict> {
        std::mem::take(&mut self.news)
    }

    /// Returns the decision for a checkpoint, once there is one. Without it a resumed run measures again.
    pub fn state(&self) -> CodecState {
        let decided = self.decided.iter();
        decided
            .map(|pays| (SAVED.to_owned(), pays.iter().map(|pays| f32::from(u8::from(*pays))).collect()))
            .collect()
    }

    /// Removes the decision of a trial from saved state.
    pub fn forget(state: &mut CodecState) {
        state.retain(|(name, _)| name != SAVED);
    }

    /// Restores a saved decision.
    pub fn load(&mut self, state: &mut CodecState) -> Result<()> {
        let Some(at) = state.iter().position(|(name, _)| name == SAVED) else {
            *self = Self::new(self.runs.len());
            return Ok(());
        };
        let (_, saved) = state.swap_remove(at);
        if saved.len() != self.runs.len() {
            let problem = format!("was decided on for {} buckets, not {}", saved.len(), self.runs.len());
            return Err(CodecError::codec(SAVED, problem));
        }
        self.decided = Some(saved.iter().map(|pays| *pays > 0.0).collect());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two buckets: with the codec the first takes half of the time, the second twice.
    fn measured(waited: f64) -> Trial {
        let mut trial = Trial::new(2);
        let mut ways = Vec::new();
        for _ in 0..2 * ROUND {
            for (bucket, factor) in [(0, 0.5), (1, 2.0)] {
                let way = trial.way(bucket);
                let all = Duration::from_secs_f64(if way.coded { factor } else { 1.0 });
                trial.note(bucket, way, all, (all / 4, if way.coded { 100 } else { 400 }));
                trial.waited(way, Duration::from_secs_f64(waited));
                ways.push(way);
            }
        }
        let coded = ways.iter().filter(|way| way.coded).count();
        assert_eq!((coded, ways.iter().filter(|way| way.counts).count()), (8, 12));
        assert!(trial.is_due(0));
        let all = trial.measured();
        trial.decide(&all, 1, &[10, 20]);
        trial
    }

    #[test]
    fn it_is_on_where_it_is_faster_and_training_waits() {
        let mut trial = measured(0.5);
        let news = trial.news();
        assert_eq!(news.iter().map(|verdict| verdict.pays).collect::<Vec<_>>(), [true, false]);
        assert_eq!(
            (news[0].seconds, news[0].coding_seconds, news[0].bandwidth()),
            ([1.0, 0.5], 0.375, 400.0)
        );
        assert_eq!((news[0].bytes, news[0].break_even(), news[0].exposed), ([400, 100], 800.0, 0.5));
        assert!(trial.news().is_empty(), "told once");
        let text = news[0].to_string();
        assert!(text.starts_with("codec on for bucket 0 of 10: 1000.00 ms for 0.000 MB without"), "{text}");
        // Nothing is measured any more, and a checkpoint goes on with the decision.
        assert_eq!(trial.way(1), SumMode { coded: false, counts: false });
        let mut again = Trial::new(2);
        let mut state = trial.state();
        again.load(&mut state).expect("as many");
        assert_eq!(
            (state.len(), again.way(0), again.state()),
            (0, SumMode { coded: true, counts: false }, trial.state())
        );
        assert!(Trial::new(3).load(&mut trial.state()).is_err());
    }

    #[test]
    fn steps_that_do_other_work_have_other_numbers() {
        let mut trial = Trial::new(2);
        let step = |trial: &mut Trial| {
            // From the last bucket to the first.
            let branches = [1, 0].map(|bucket| {
                let branch = trial.branch(bucket);
                trial.way(bucket);
                branch
            });
            assert_eq!(branches[1], None);
            branches[0]
        };
        let tried: Vec<_> = (0..2 * ROUND).map(|_| step(&mut trial)).collect();
        assert_eq!(tried, [[Some(0); 4], [Some(1); 4]].concat());
        trial.decide(&[1.0; 11], 1, &[10, 20]);
        assert_eq!([(); 3].map(|()| step(&mut trial)), [Some(2), Some(3), Some(3)]);
    }

    #[test]
    fn it_is_off_where_computing_hides_all() {
        assert!(measured(0.001).news().iter().all(|verdict| !verdict.pays));
    }
}
