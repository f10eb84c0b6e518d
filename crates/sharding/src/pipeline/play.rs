//! Playing a schedule: when each pass runs, with messages that wait for their receivers.

use std::collections::{BTreeMap, BTreeSet};

use super::schedule::{PipelineSchedule, StagePass, StageWork};
use crate::Result;

/// A value of one chunk that others use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentValue {
    /// Its number. Values are sent in this order.
    pub value: usize,
    /// The chunk that computes it.
    pub from: usize,
    /// The chunks that use it, ascending, all after `from`.
    pub to: Vec<usize>,
}

/// The seconds of a chunk's passes over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassSeconds {
    /// Forward.
    pub forward: f64,
    /// The gradients of inputs.
    pub input: f64,
    /// The gradients of weights.
    pub weight: f64,
}

impl PassSeconds {
    fn of(&self, pass: StagePass) -> f64 {
        match pass {
            StagePass::Forward => self.forward,
            StagePass::Backward => self.input + self.weight,
            StagePass::BackwardInput => self.input,
            StagePass::BackwardWeight => self.weight,
        }
    }
}

/// The conditions under which a schedule is played.
#[derive(Debug, Clone)]
pub struct PlayCosts {
    /// The seconds of each chunk.
    pub chunks: Vec<PassSeconds>,
    /// The seconds of a message.
    pub message: f64,
    /// The messages from one chunk to another that may wait for their receiver; with 0 a sender waits for it.
    pub buffers: usize,
}

/// When a pass runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlayedWork {
    /// The pass.
    pub work: StageWork,
    /// Its first second, without the waiting for messages.
    pub start: f64,
    /// Its last second, without the waiting for buffers.
    pub end: f64,
}

/// When all passes of a schedule run.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// By rank, its passes in order.
    pub ranks: Vec<Vec<PlayedWork>>,
    /// The second at which the last rank is done.
    pub end: f64,
}

impl Timeline {
    /// The seconds in which the busiest rank waits: the bubble.
    pub fn bubble(&self) -> f64 {
        let busy = |works: &Vec<PlayedWork>| works.iter().map(|work| work.end - work.start).sum::<f64>();
        self.end - self.ranks.iter().map(busy).fold(0.0, f64::max)
    }
}

/// A way from one chunk to another, in one direction.
type Way = (usize, usize);

/// The messages of a way so far.
#[derive(Default)]
struct Messages {
    /// Number of value and micro-batch of each.
    tags: Vec<(usize, usize)>,
    arrivals: Vec<f64>,
    /// The seconds at which they were received.
    taken: Vec<f64>,
}

/// An action of a rank.
#[derive(Clone, Copy)]
enum Action {
    Receive {
        way: Way,
        tag: (usize, usize),
    },
    Compute(StageWork),
    Offer {
        way: Way,
        tag: (usize, usize),
    },
    /// Waits until few enough messages are on the way.
    WaitForBuffer {
        way: Way,
        number: usize,
    },
}

/// A rank that plays its passes.
struct Player {
    actions: Vec<Action>,
    at: usize,
    time: f64,
    played: Vec<PlayedWork>,
}

impl PipelineSchedule {
    /// Finds out when each pass runs.
    ///
    /// # Errors
    /// [`crate::ShardingError::Schedule`] if ranks wait for each other forever, or a message arrives out of order.
    pub fn play(&self, sent: &[SentValue], costs: &PlayCosts) -> Result<Timeline> {
        let places = self.ranks_of_chunks()?;
        let mut numbers = BTreeMap::new();
        let mut players: Vec<Player> = self
            .ranks
            .iter()
            .map(|works| Player {
                actions: works.iter().flat_map(|work| actions(*work, sent, &places, &mut numbers)).collect(),
                at: 0,
                time: 0.0,
                played: Vec::new(),
            })
            .collect();
        let mut ways = BTreeMap::new();
        loop {
            let mut moved = false;
            for player in &mut players {
                while let Some(action) = player.actions.get(player.at).copied() {
                    if !self.act(player, action, costs, &mut ways)? {
                        break;
                    }
                    player.at += 1;
                    moved = true;
                }
            }
            if players.iter().all(|player| player.at == player.actions.len()) {
                break;
            }
            if !moved {
                return Err(self.deadlock(&players));
            }
        }
        let end = players.iter().map(|player| player.time).fold(0.0, f64::max);
        Ok(Timeline { ranks: players.into_iter().map(|player| player.played).collect(), end })
    }

    /// Does an action, if that is possible yet.
    fn act(
        &self,
        player: &mut Player,
        action: Action,
        costs: &PlayCosts,
        ways: &mut BTreeMap<Way, Messages>,
    ) -> Result<bool> {
        match action {
            Action::Compute(work) => {
                let start = player.time;
                player.time += costs.chunks[work.chunk].of(work.pass);
                player.played.push(PlayedWork { work, start, end: player.time });
            }
            Action::Offer { way, tag } => {
                let messages = ways.entry(way).or_default();
                messages.tags.push(tag);
                messages.arrivals.push(player.time + costs.message);
            }
            Action::WaitForBuffer { way, number } => {
                let messages = ways.entry(way).or_default();
                if let Some(before) = number.checked_sub(costs.buffers) {
                    let Some(taken) = messages.taken.get(before) else { return Ok(false) };
                    player.time = player.time.max(*taken);
                }
            }
            Action::Receive { way, tag } => {
                let messages = ways.entry(way).or_default();
                let number = messages.taken.len();
                let Some(arrival) = messages.arrivals.get(number) else { return Ok(false) };
                let found = messages.tags[number];
                if found != tag {
                    let message = |(value, micro)| format!("value {value} of micro-batch {micro}");
                    let (from, to) = way;
                    return Err(self.wrong(format!(
                        "chunk {to} expects {} from chunk {from}, which sends {} first",
                        message(tag),
                        message(found)
                    )));
                }
                player.time = player.time.max(*arrival);
                messages.taken.push(player.time);
            }
        }
        Ok(true)
    }

    /// The error of ranks that wait for each other.
    fn deadlock(&self, players: &[Player]) -> crate::ShardingError {
        let waits = |(rank, player): (usize, &Player)| {
            let what = match player.actions.get(player.at)? {
                Action::Receive { way: (from, to), tag: (value, micro) } => {
                    format!("chunk {to} for value {value} of micro-batch {micro} from chunk {from}")
                }
                Action::WaitForBuffer { way: (from, to), .. } => {
                    format!("chunk {from} until chunk {to} receives")
                }
                Action::Compute(_) | Action::Offer { .. } => return None,
            };
            Some(format!("on rank {rank} {what}"))
        };
        let waits: Vec<String> = players.iter().enumerate().filter_map(waits).collect();
        self.wrong(format!("ranks wait for each other forever: {}", waits.join("; ")))
    }
}

/// Returns the actions of a pass: messages that it needs, the pass, messages with its results.
fn actions(
    work: StageWork,
    sent: &[SentValue],
    places: &[usize],
    numbers: &mut BTreeMap<Way, usize>,
) -> Vec<Action> {
    let (chunk, mut before, mut after) = (work.chunk, Vec::new(), Vec::new());
    let is_far = |other: usize| places[other] != places[chunk];
    let mut send = |to: usize, value: usize| {
        let way = (chunk, to);
        let number = numbers.entry(way).or_insert(0);
        after.push(Action::Offer { way, tag: (value, work.micro) });
        after.push(Action::WaitForBuffer { way, number: *number });
        *number += 1;
    };
    for SentValue { value, from, to } in sent {
        let tag = (*value, work.micro);
        match work.pass {
            StagePass::Forward => {
                if to.contains(&chunk) && is_far(*from) {
                    before.push(Action::Receive { way: (*from, chunk), tag });
                }
                if *from == chunk {
                    to.iter().filter(|to| is_far(**to)).for_each(|to| send(*to, *value));
                }
            }
            StagePass::Backward | StagePass::BackwardInput => {
                if *from == chunk {
                    let latest_first = to.iter().rev().filter(|to| is_far(**to));
                    before.extend(latest_first.map(|to| Action::Receive { way: (*to, chunk), tag }));
                }
                if to.contains(&chunk) && is_far(*from) {
                    send(*from, *value);
                }
            }
            StagePass::BackwardWeight => {}
        }
    }
    before.push(Action::Compute(work));
    before.append(&mut after);
    before
}

/// Values that chunks of one rank hand to each other: their passes come in order.
pub(super) fn chunks_of_one_rank(sent: &[SentValue], places: &[usize]) -> BTreeSet<Way> {
    let pairs = sent.iter().flat_map(|sent| sent.to.iter().map(|to| (sent.from, *to)));
    pairs.filter(|(from, to)| places[*from] == places[*to]).collect()
}
