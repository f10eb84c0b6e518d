//! Every other rank's side of the control plane: hears rank 0 and tells it.

use crossbeam_channel::Sender;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::frame::{self, Message};
use super::{
    All, Command, Connection, Heard, Heartbeat, Notice, PARTING, Regrouping, Request, Stop, Watched, listen,
};
use crate::failure::Cause;

/// The watch of every other rank: hears rank 0 and tells it.
pub(crate) async fn watch_as_leaf(
    heartbeat: Heartbeat,
    hub: Connection,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
) {
    let failure = &watched.failure;
    let (read, mut write) = tokio::io::split(hub);
    let (to, mut heard) = unbounded_channel::<Heard>();
    tokio::spawn(listen(0, read, heartbeat.timeout, to));
    let mut beat = tokio::time::interval(heartbeat.interval);
    let mut watching = true;
    let mut asking: Option<Sender<All>> = None;
    let mut regrouping: Option<Sender<Regrouping>> = None;
    loop {
        tokio::select! {
            message = heard.recv(), if watching => match message {
                Some((_, Some(Message::Lost { rank }))) => drop(failure.set(Cause::Lost(rank))),
                Some((_, Some(Message::Aborted { rank, reason }))) => drop(failure.set(Cause::Aborted(rank, reason))),
                Some((_, Some(Message::Tell { question, communicator }))) => {
                    let doing = watched.recorder.doing(communicator);
                    let _ = frame::write(&mut write, &Message::Doing { question, doing }).await;
                }
                Some((_, Some(Message::All { doing }))) => {
                    if let Some(asking) = asking.take() {
                        let _ = asking.send(doing);
                    }
                }
                Some((_, Some(Message::Regrouped { members, port }))) => {
                    if let Some(regrouping) = regrouping.take() {
                        let _ = regrouping.send(Regrouping { members, port });
                    }
                }
                Some((_, Some(Message::Notice { name, payload }))) => {
                    watched.job.deliver(name, Notice { from: 0, payload });
                }
                Some((_, Some(Message::Hold))) => {
                    let step = watched.job.vote();
                    let _ = frame::write(&mut write, &Message::InStep { step }).await;
                }
                Some((_, Some(Message::StopAfter { after, rank, reason, goes_on }))) => {
                    watched.job.decide(Stop { after, rank, reason, goes_on });
                }
                Some((_, Some(Message::Bye))) | None => {
                    watching = false;
                    regrouping = None;
                    watched.job.leave();
                    // Rank 0 waits for this end of the connection before it closes its own.
                    let _ = write.shutdown().await;
                }
                Some((_, Some(_))) => {}
                Some((_, None)) => {
                    watching = false;
                    regrouping = None;
                    failure.set(Cause::Lost(0));
                }
            },
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => {
                    let _ = frame::write(&mut write, &cause.into()).await;
                    drop(told);
                }
                Some(Command::Ask(communicator, answer)) => {
                    asking = Some(answer);
                    let _ = frame::write(&mut write, &Message::Ask { communicator }).await;
                }
                Some(Command::Post(name, payload)) => {
                    let _ = frame::write(&mut write, &Message::Notice { name, payload }).await;
                }
                Some(Command::Regroup(_, answer)) => {
                    // Without rank 0 nobody answers.
                    regrouping = Some(answer).filter(|_| watching);
                    let _ = frame::write(&mut write, &Message::Regroup).await;
                }
                // Only rank 0 announces.
                Some(Command::Announce(..)) => {}
                Some(Command::Stop(Request { reason, goes_on })) => {
                    let _ = frame::write(&mut write, &Message::RequestStop { reason, goes_on }).await;
                }
                Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                Some(Command::Leave) | None => {
                    let _ = frame::write(&mut write, &Message::Bye).await;
                    let _ = write.shutdown().await;
                    // Closing with unread messages would discard the goodbye on its way.
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick(), if watching => drop(frame::write(&mut write, &Message::Heartbeat).await),
        }
    }
}
