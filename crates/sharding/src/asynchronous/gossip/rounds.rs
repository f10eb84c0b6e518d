//! Rounds of messages between neighbours, one in every step: with all neighbours, or with one in turn by push-sum.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_collectives::{CommError, CommStats, Communicator};

use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::replica::Replica;
use crate::synchrony::{SyncOptions, Topology};
use crate::{Result, ShardingError};

/// The channel of the messages.
pub(super) const CHANNEL: u32 = 1;

/// A rank's part in the rounds.
#[derive(Debug)]
pub(super) struct Rounds {
    mail: Communicator,
    topology: Topology,
    push_sum: bool,
    /// The first step with an exchange.
    begins: u64,
    /// The sums of push-sum by bucket. Parameters are these sums divided by the weight.
    sums: Vec<Vec<f32>>,
    weight: f32,
    /// The last step for which this rank has sent.
    sent: Option<u64>,
    /// Received values, by step, bucket and rank.
    came: BTreeMap<(u64, usize, usize), (f64, Vec<f32>)>,
    stats: CommStats,
    waited: Duration,
    rounds: u64,
}

impl Rounds {
    pub(super) fn new(mail: Communicator, options: &SyncOptions, push_sum: bool) -> Self {
        Self {
            mail,
            topology: options.topology,
            push_sum,
            begins: options.catch_up.map_or(0, |catch_up| catch_up.until),
            sums: Vec::new(),
            weight: 1.0,
            sent: None,
            came: BTreeMap::new(),
            stats: CommStats::default(),
            waited: Duration::ZERO,
            rounds: 0,
        }
    }

    /// Begins with the rank's parameters and a weight.
    pub(super) fn begin(&mut self, replica: &Replica, weight: f32) -> Result<()> {
        self.sent = None;
        self.weight = weight;
        self.sums = Vec::new();
        if self.push_sum {
            // The saved values are the sums; parameters are their quotients by the weight.
            self.sums = replica.all_values()?;
            for (at, _) in replica.trainable() {
                replica.change_values(at, |values| values.iter_mut().for_each(|value| *value /= weight))?;
            }
        }
        Ok(())
    }

    /// Replaces the rank's state by the model's parameters after a change outside of steps.
    pub(super) fn take(&mut self, replica: &Replica) -> Result<()> {
        if self.push_sum {
            self.sums = replica.all_values()?;
            let weight = self.weight;
            self.sums.iter_mut().flatten().for_each(|sum| *sum *= weight);
        }
        Ok(())
    }

    fn receivers(&self, step: u64) -> Vec<usize> {
        if step < self.begins {
            return Vec::new();
        }
        let (rank, ranks) = (self.mail.rank(), self.mail.world_size());
        match self.push_sum {
            true => self.topology.sends_in_turn(rank, ranks, step).into_iter().collect(),
            false => self.topology.sends_to(rank, ranks),
        }
    }

    fn senders(&self, step: u64) -> Vec<usize> {
        if step < self.begins {
            return Vec::new();
        }
        let (rank, ranks) = (self.mail.rank(), self.mail.world_size());
        match self.push_sum {
            true => self.topology.receives_in_turn(rank, ranks, step).into_iter().collect(),
            false => self.topology.receives_from(rank, ranks),
        }
    }

    /// Sends the values of a step to the neighbours, unless a cancelled attempt has sent them.
    pub(super) fn send(&mut self, replica: &Replica, step: u64) -> Result<()> {
        if self.sent == Some(step) {
            return Ok(());
        }
        self.sent = Some(step);
        for to in self.receivers(step) {
            for (at, _) in replica.trained() {
                let (rate, values) = match self.push_sum {
                    true => {
                        (0.5 * f64::from(self.weight), self.sums[at].iter().map(|sum| 0.5 * sum).collect())
                    }
                    false => (1.0, replica.values(at)?),
                };
                let message = Message { bucket: at, rate, values, ..Message::of(Kind::Mix, step) };
                self.stats.bytes_sent += message.send(&self.mail, to, CHANNEL)?;
            }
        }
        Ok(())
    }

    /// Returns the values of a bucket that a neighbour has sent in a step.
    fn receive(&mut self, step: u64, at: usize, from: usize) -> Result<(f64, Vec<f32>)> {
        let begun = Instant::now();
        loop {
            if let Some(came) = self.came.remove(&(step, at, from)) {
                self.waited += begun.elapsed();
                self.stats.seconds_exposed += begun.elapsed().as_secs_f64();
                return Ok(came);
            }
            let (from, bytes) = match self.mail.recv_any(CHANNEL) {
                Err(CommError::NoMessage { .. }) => continue,
                came => came?,
            };
            self.stats.bytes_received += bytes.len() as u64;
            let message = Message::read(&bytes)?;
            if message.kind != Kind::Mix {
                let problem = format!("rank {from} says {:?} to a neighbour", message.kind);
                return Err(ShardingError::state("gossip", problem));
            }
            self.came.insert((message.number, message.bucket, from), (message.rate, message.values));
        }
    }

    /// Computes the parameters of the next step: the average with the neighbours' parameters, plus the optimizer's
    /// change.
    pub(super) fn mix(&mut self, replica: &Replica, before: &[Vec<f32>], step: u64) -> Result<()> {
        let senders = self.senders(step);
        let trained: Vec<usize> = replica.trained().map(|(at, _)| at).collect();
        let mut weight = self.weight;
        if self.push_sum && !self.receivers(step).is_empty() {
            weight *= 0.5;
        }
        for (turn, at) in trained.into_iter().enumerate() {
            let mut mixed = match (self.push_sum, senders.is_empty()) {
                (true, false) => self.sums[at].iter().map(|sum| 0.5 * sum).collect(),
                (true, true) => self.sums[at].clone(),
                (false, _) => before[at].clone(),
            };
            for from in &senders {
                let (rate, values) = self.receive(step, at, *from)?;
                if values.len() != mixed.len() {
                    let problem = format!("rank {from} sends {} numbers of bucket {at}", values.len());
                    return Err(ShardingError::state("gossip", problem));
                }
                mixed.iter_mut().zip(values).for_each(|(mixed, value)| *mixed += value);
                if turn == 0 && self.push_sum {
                    weight += rate as f32;
                }
            }
            let share = if self.push_sum { 1.0 } else { 1.0 / (senders.len() + 1) as f32 };
            let divide = if self.push_sum { weight } else { 1.0 };
            replica.change_values(at, |values| {
                for ((value, mixed), before) in values.iter_mut().zip(&mut mixed).zip(&before[at]) {
                    *mixed = *mixed * share + (*value - before);
                    *value = *mixed / divide;
                }
            })?;
            if self.push_sum {
                self.sums[at] = mixed;
            }
        }
        self.weight = weight;
        self.rounds += 1;
        self.follow_weight(replica)
    }

    /// Sets the sums of frozen buckets, which stay as they are, by the new weight.
    fn follow_weight(&mut self, replica: &Replica) -> Result<()> {
        let weight = self.weight;
        for (at, _) in replica.trainable().filter(|(_, param)| self.push_sum && param.is_frozen()) {
            let sums = &mut self.sums[at];
            replica.with_values(at, |values| {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value * weight);
            })?;
        }
        Ok(())
    }

    /// Returns the values of a bucket for a checkpoint: with push-sum the sums, not their quotients.
    pub(super) fn values(&self, replica: &Replica, at: usize) -> Result<Vec<f32>> {
        if self.push_sum { Ok(self.sums[at].clone()) } else { replica.values(at) }
    }

    pub(super) fn weight(&self) -> f32 {
        self.weight
    }

    pub(super) fn waited(&self) -> (Duration, u64) {
        (self.waited, self.rounds)
    }

    pub(super) fn stats(&self) -> CommStats {
        self.stats
    }

    pub(super) fn bytes(&self) -> u64 {
        let came = self.came.values().map(|(_, values)| values.len());
        4 * self.sums.iter().map(Vec::len).chain(came).sum::<usize>() as u64
    }
}
