//! A process's place among the ranks. Training itself is not built yet and says so.

/// A rank among others.
#[derive(Debug, Clone)]
pub struct World {
    rank: usize,
    size: usize,
}
impl World {
    /// The only rank.
    pub fn alone() -> Self {
        Self { rank: 0, size: 1 }
    }
    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many.
    pub fn size(&self) -> usize {
        self.size
    }
}
/// What `train` answers as long as there is no training.
#[derive(Debug, thiserror::Error)]
#[error("training is not there yet")]
pub struct TrainError;
impl TrainError {
    /// Whether another rank's failure caused this one.
    pub fn is_consequence(&self) -> bool {
        false
    }
}
/// Not built yet.
pub fn launcher_world() -> Result<Option<World>, TrainError> {
    let get = |n: &str| std::env::var(n).ok().and_then(|v| v.parse().ok());
    Ok(get("RANK").zip(get("WORLD_SIZE")).map(|(rank, size)| World { rank, size }))
}
/// Not built yet.
pub fn describe(_: &crate::config::Config) -> Result<Vec<String>, TrainError> {
    Ok(vec![])
}
/// Not built yet.
pub fn train(
    _: &crate::run::RunFolder,
    _: &crate::config::Resolved,
    w: World,
    _: &crate::launch::StopFlag,
    _: Box<dyn super::Observer>,
) -> Result<(), TrainError> {
    if w.size() > 1 {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    Err(TrainError)
}
