//! Clock offsets between ranks, measured by round trips from rank 0 to all other ranks.

use super::{Distributed, Job};
use crate::engine::error::TrainError;
use phalanx_trace::clock::{Offset, RoundTrip, best, now};

/// The name of the notices.
const NAME: &str = "clock";

/// The number of round trips to each rank. The fastest counts.
const ROUNDS: usize = 16;

impl Distributed {
    /// Returns the offset of each rank's clock from rank 0's, by rank, on all ranks. All ranks call this together.
    pub(in crate::engine) fn clock_offsets(&self) -> Result<Vec<Offset>, TrainError> {
        let ranks = self.size();
        let mut own = String::new();
        if ranks > 1 {
            // Otherwise the last rank would delay the first message.
            self.exchange().sum(&mut [0.0])?;
            match self.rank() {
                0 => {
                    own = serde_json::to_string(&self.ask_for_times()?).map_err(|error| malformed(&error))?;
                }
                _ => self.answer_with_times()?,
            }
        }
        let told = self.exchange().gather_text(&own)?;
        let offsets = told.first().filter(|told| !told.is_empty());
        let offsets = offsets.map(|told| serde_json::from_str(told)).transpose();
        Ok(offsets
            .map_err(|error| malformed(&error))?
            .unwrap_or_else(|| vec![Offset { at: now(), ..Offset::default() }; ranks]))
    }

    /// Requests the time of all other ranks on rank 0, and estimates offsets from the fastest replies.
    fn ask_for_times(&self) -> Result<Vec<Offset>, TrainError> {
        let job: &Job = self.job();
        let ranks = self.size();
        let mut trips = vec![Vec::with_capacity(ROUNDS); ranks];
        for _ in 0..ROUNDS {
            let sent = now();
            job.announce(NAME, &[])?;
            for _ in 1..ranks {
                let Some(notice) = job.wait(NAME)? else { break };
                let returned = now();
                let times = notice.payload.as_chunks().0;
                if let ([received, answered], Some(of_rank)) = (times, trips.get_mut(notice.from)) {
                    let (received, answered) = (u64::from_le_bytes(*received), u64::from_le_bytes(*answered));
                    of_rank.push(RoundTrip { sent, received, answered, returned });
                }
            }
        }
        let hosts = self.hosts();
        let own = Offset { at: now(), ..Offset::default() };
        let of_rank =
            |(rank, trips): (usize, Vec<RoundTrip>)| best(trips, hosts[rank] == hosts[0]).unwrap_or(own);
        Ok(trips.into_iter().enumerate().map(of_rank).collect())
    }

    fn answer_with_times(&self) -> Result<(), TrainError> {
        for _ in 0..ROUNDS {
            self.job().wait(NAME)?;
            let received = now();
            let times = [received, now()].map(u64::to_le_bytes);
            self.job().post(NAME, times.as_flattened())?;
        }
        Ok(())
    }

    /// The host number of each rank.
    fn hosts(&self) -> Vec<usize> {
        self.exchange.world().map_or_else(|| vec![0], |world| world.hosts().to_vec())
    }
}

fn malformed(error: &serde_json::Error) -> TrainError {
    TrainError::Setup(format!("malformed clock offsets: {error}"))
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    #[test]
    fn threads_of_a_process_have_one_clock() {
        let ranks = threads(3).expect("a world").into_iter().map(|communicator| {
            std::thread::spawn(move || {
                let distributed = Distributed::among(communicator).expect("threads have a control plane");
                (distributed.clock_offsets().expect("sound"), distributed.clock_offsets().expect("sound"))
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let (first, second) = rank.join().expect("no panic");
            for (before, after) in first.iter().zip(&second) {
                assert_eq!((before.ahead, before.uncertainty, after.ahead), (0, 0, 0));
                assert!(before.at < after.at);
            }
            assert_eq!((first.len(), second.len()), (3, 3));
        }
        let alone = Distributed::none().clock_offsets().expect("the only rank");
        assert_eq!(alone.iter().map(|offset| offset.ahead).collect::<Vec<_>>(), [0]);
    }
}
