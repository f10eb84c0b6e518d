//! How far the clocks of ranks are apart: rank 0 sends messages that all others answer.

use super::{Distributed, Job};
use crate::engine::error::TrainError;
use phalanx_trace::clock::{Offset, RoundTrip, best, now};

/// What the messages are called.
const NAME: &str = "clock";

/// Messages to each rank, of which the quickest counts.
const ROUNDS: usize = 16;

impl Distributed {
    /// By how much the clock of each rank is ahead of rank 0's, known to all, by rank. Every rank calls this at the same place.
    pub(in crate::engine) fn clock_offsets(&self) -> Result<Vec<Offset>, TrainError> {
        let ranks = self.size();
        let mut own = String::new();
        if ranks > 1 {
            // Whoever comes last would make the first message slow for all.
            self.sum(&mut [0.0])?;
            match self.rank() {
                0 => own = serde_json::to_string(&self.ask_for_times()?).map_err(|error| garbled(&error))?,
                _ => self.answer_with_times()?,
            }
        }
        let told = self.gather_text(&own)?;
        let offsets = told.first().filter(|told| !told.is_empty());
        let offsets = offsets.map(|told| serde_json::from_str(told)).transpose();
        Ok(offsets
            .map_err(|error| garbled(&error))?
            .unwrap_or_else(|| vec![Offset { at: now(), ..Offset::default() }; ranks]))
    }

    /// Rank 0's side: asks all others for their time, and by the answers that come soonest knows how far each is ahead.
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

    /// The host of each rank, as a number.
    fn hosts(&self) -> Vec<usize> {
        self.world.as_ref().map_or_else(|| vec![0], |world| world.hosts().to_vec())
    }
}

fn garbled(error: &serde_json::Error) -> TrainError {
    TrainError::Setup(format!("what ranks tell each other of their clocks is garbled: {error}"))
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
        let alone = Distributed::none().clock_offsets().expect("nobody to ask");
        assert_eq!(alone.iter().map(|offset| offset.ahead).collect::<Vec<_>>(), [0]);
    }
}
