//! The handling of messages by servers and workers.

use std::sync::Mutex;

use phalanx_tensor::optim::Sgd;

use super::encoded::Encoding;
use super::places::{Places, TO_WORKER};
use super::server::Server;
use super::{ParameterServer, WorkerState};
use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::replica::Replica;
use crate::parallel::PlainUpdate;
use crate::rehearsed::{InjectedMessage, all_say, alone, store, taken, world};
use crate::strategy::{ServerPace, Strategy};
use crate::synchrony::SyncOptions;
use crate::{Options, Result};
use phalanx_codecs::{CodecKind, CodecSettings, WeightRounding};

/// The bytes of an input that choose a strategy, its options, and a codec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) options: u8,
    pub(crate) codec: u8,
}

impl Choice {
    fn has(self, bit: u8) -> bool {
        self.options >> bit & 1 == 1
    }

    fn pace(self) -> ServerPace {
        [ServerPace::Together, ServerPace::Bounded, ServerPace::Free][usize::from(self.options >> 6) % 3]
    }

    fn encoding(self) -> Result<Encoding> {
        let kinds: Vec<CodecKind> = CodecKind::ALL.iter().copied().filter(|kind| kind.pushes()).collect();
        let kind = kinds[usize::from(self.codec) % kinds.len()];
        let settings = CodecSettings { kind, density: 0.3, chunk: 8, ..CodecSettings::default() };
        let weights = self.has(0).then_some(WeightRounding::Int8 { chunk: 3 });
        Encoding::of(&Options { codec: settings.codec()?, weights, ..Options::default() })
    }

    fn options(self) -> SyncOptions {
        let compensation = if self.has(1) { 0.5 } else { 0.0 };
        SyncOptions { staleness: 1, damp: self.has(2), compensation, ..SyncOptions::default() }
    }
}

/// Passes messages of two workers to a server on rank 2. A message from rank 2 ends its own worker's step. The
/// optimizer is set before all messages, or after the first half. Ends at the first refused message.
pub(crate) fn server_hears(choice: Choice, said: &[InjectedMessage]) -> Result<()> {
    const WORKERS: usize = 2;
    let store = store()?;
    let server_params = store.buckets().iter().map(|param| {
        let server_param = param.empty_on_host();
        server_param.set_owned(1..param.len())?;
        Ok(server_param)
    });
    let server_params = server_params.collect::<Result<Vec<_>>>()?;
    let places = Places::new(world().len(), world().len() - WORKERS, "fuzzing")?;
    let (pace, options, own) = (choice.pace(), choice.options(), &world()[WORKERS]);
    let bound = options.bound(pace);
    let pace = (bound, pace == ServerPace::Together);
    let server = Server::new(&server_params, places, pace, (options, choice.encoding()?), own.clone());
    let values: Vec<Vec<f32>> =
        server_params.iter().map(|server_param| vec![0.5; server_param.owned().len()]).collect();
    // If workers may be at different steps, the second one repeats a lost step.
    let second = if pace.1 { 2 } else { 0 };
    server.fill((3, &[2, 1]), &[(2, Some(0)), (second, Some(1))], &values)?;
    let rule = PlainUpdate::of(Sgd::new(0.9, false, 0.0), 1);
    let late = if choice.has(3) { said.len() / 2 } else { 0 };
    let mut told = 0;
    for (at, InjectedMessage { from, bytes }) in said.iter().enumerate() {
        if at == late {
            server.set_optimizer(&rule)?;
            server.hear(WORKERS, Message::of(Kind::Ready, 0))?;
        }
        let heard = match *from {
            WORKERS if bytes.is_empty() => server.agree().map(|()| false),
            from => Message::read(bytes).and_then(|message| server.hear(from, message)),
        };
        for worker in 0..WORKERS {
            for answer in taken(worker, TO_WORKER)? {
                let answer = Message::read(&answer)?;
                let len =
                    server_params.get(answer.bucket).map_or(0, |server_param| server_param.owned().len());
                assert!(answer.values.is_empty() || answer.values.len() == len, "no values of the bucket");
                told += 1;
            }
        }
        if !matches!(heard, Ok(false)) {
            break;
        }
    }
    let lead = server.look(|store| store.leads().max()).unwrap_or(0);
    assert!(bound.is_none_or(|bound| lead <= bound), "a worker was {lead} steps ahead");
    assert_eq!(server.stats().bytes_sent > 0, told > 0);
    let (version, clocks) = server.clocks();
    assert!(version >= 3 && clocks.len() == WORKERS);
    server.close(&mut |_| Ok(())).map(drop)
}

/// Runs a pull of a worker on rank 0. Two servers answer with these messages and then a malformed one.
pub(crate) fn worker_hears(choice: Choice, said: &[InjectedMessage]) -> Result<()> {
    const SERVERS: usize = 2;
    let (strategy, store) = (Strategy::named("ps-asp")?, store()?);
    let replica = Replica::new(&store, alone().clone(), strategy.name)?;
    let worker = ParameterServer {
        strategy,
        together: false,
        options: choice.options(),
        places: Places::new(world().len(), SERVERS, strategy.name)?,
        server_params: replica.params.iter().map(phalanx_tensor::ParamBucket::empty_on_host).collect(),
        server: None,
        encoding: choice.encoding()?,
        pusher: None,
        mail: world()[0].clone(),
        state: Mutex::new(WorkerState::new(SERVERS)),
        replica,
    };
    all_say(TO_WORKER, said)?;
    let state = &mut *worker.state();
    worker.ask(state, Kind::Pull)?;
    worker.receive(state, |at| at == 0)?;
    worker.receive(state, |_| true)?;
    assert!(state.coming.is_none(), "all values are there");
    worker.ask(state, Kind::Read)?;
    worker.quiesce(state)
}
