//! Schedules of pipelines as data: for each rank, the passes of its chunks in order.

use std::fmt;

use crate::{Result, ShardingError};

/// A pass of a chunk over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StagePass {
    /// Forward.
    Forward,
    /// Backward: gradients of inputs and of parameters.
    Backward,
    /// The first part of backward: gradients of inputs, for which earlier stages wait.
    BackwardInput,
    /// The second part of backward: gradients of parameters, for which no stage waits.
    BackwardWeight,
}

impl fmt::Display for StagePass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::BackwardInput => "backward of inputs",
            Self::BackwardWeight => "backward of weights",
        })
    }
}

/// One entry of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageWork {
    /// The pass.
    pub pass: StagePass,
    /// The chunk of the model: a stage, or one of several stages of a rank. Chunks are numbered from the input to the loss.
    pub chunk: usize,
    /// The micro-batch.
    pub micro: usize,
}

impl fmt::Display for StageWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of chunk {} on micro-batch {}", self.pass, self.chunk, self.micro)
    }
}

/// The sizes of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineSizes {
    /// The ranks.
    pub ranks: usize,
    /// The chunks of each rank.
    pub chunks: usize,
    /// The micro-batches of a step.
    pub micros: usize,
}

/// The order of the passes of a pipeline.
///
/// ```
/// use phalanx_sharding::pipeline::{PipelineSchedule, PipelineSizes, ScheduleLimits, SentValue};
///
/// # fn main() -> Result<(), phalanx_sharding::ShardingError> {
/// let schedule = PipelineSchedule::named("1f1b", PipelineSizes { ranks: 4, chunks: 1, micros: 8 })?;
/// // Each stage hands a value to the next one.
/// let sent: Vec<SentValue> = (0..3).map(|stage| SentValue { value: stage, from: stage, to: vec![stage + 1] }).collect();
/// let checked = schedule.check(&sent, ScheduleLimits::default())?;
/// // The first stage keeps the activations of four micro-batches at most, the last stage those of one.
/// assert_eq!(checked.peak_kept, [4, 3, 2, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSchedule {
    /// The name.
    pub name: &'static str,
    /// By rank, its passes in order.
    pub ranks: Vec<Vec<StageWork>>,
}

impl PipelineSchedule {
    /// The number of chunks.
    pub fn num_chunks(&self) -> usize {
        self.ranks.iter().flatten().map(|work| work.chunk + 1).max().unwrap_or(0)
    }

    /// The number of micro-batches.
    pub fn num_micros(&self) -> usize {
        self.ranks.iter().flatten().map(|work| work.micro + 1).max().unwrap_or(0)
    }

    /// Returns the rank of each chunk.
    ///
    /// # Errors
    /// [`ShardingError::Schedule`] if a chunk lies on two ranks or on none.
    pub fn ranks_of_chunks(&self) -> Result<Vec<usize>> {
        let mut places = vec![None; self.num_chunks()];
        for (rank, works) in self.ranks.iter().enumerate() {
            for work in works {
                match places[work.chunk].replace(rank) {
                    Some(other) if other != rank => {
                        return Err(
                            self.wrong(format!("chunk {} lies on ranks {other} and {rank}", work.chunk))
                        );
                    }
                    _ => {}
                }
            }
        }
        let placed = places.iter().enumerate();
        placed
            .map(|(chunk, place)| place.ok_or_else(|| self.wrong(format!("chunk {chunk} has no rank"))))
            .collect()
    }

    /// An error of this schedule.
    pub(super) fn wrong(&self, problem: impl fmt::Display) -> ShardingError {
        ShardingError::Schedule(format!("{}: {problem}", self.name))
    }
}
