//! Messages of other processes, and variables of launchers.

use phalanx_collectives::fuzzing;
use phalanx_fuzz_harness::{Random, json};

use super::{Target, no_form};

const PROCESS: &str = r#"{"host":"a","id":7,"began":12}"#;

/// Returns messages of every kind with content.
pub(super) fn messages() -> Vec<String> {
    let register = format!(
        r#"{{"Register":{{"protocol":8,"job":"job","rank":2,"world_size":4,"data":"127.0.0.1:4000","process":{PROCESS}}}}}"#
    );
    let table = format!(
        r#"{{"Table":{{"data":["127.0.0.1:1","[::1]:2"],"processes":[{PROCESS},{PROCESS}],"token":18446744073709551615}}}}"#
    );
    let others = [
        r#""Heartbeat""#,
        r#""Admitted""#,
        r#"{"Refused":{"reason":"because"}}"#,
        r#"{"Elsewhere":{"job":"j"}}"#,
        r#"{"Lost":{"rank":3}}"#,
        r#"{"Aborted":{"rank":3,"reason":"because"}}"#,
        r#"{"Ask":{"communicator":1}}"#,
        r#"{"Notice":{"name":"n","payload":[1,2,255]}}"#,
        r#"{"RequestStop":{"reason":"r","goes_on":true}}"#,
        r#"{"InStep":{"step":5}}"#,
        r#"{"StopAfter":{"after":null,"rank":0,"reason":"r","goes_on":false}}"#,
        r#"{"Regrouped":{"members":[0,2],"port":1}}"#,
        r#"{"Apart":{"Minority":{"left":[0],"lost":[1,2],"world_size":3}}}"#,
        r#"{"All":{"doing":[null]}}"#,
        r#""Bye""#,
    ];
    [register, table].into_iter().chain(others.map(str::to_owned)).collect()
}

fn frames() -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = messages().iter().map(|message| fuzzing::frame_of(message)).collect();
    let together = all.concat();
    all.into_iter().chain([together]).collect()
}

/// Changes the message in the first frame, and updates its length.
fn in_a_frame(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return false };
    let Some(message) = rest.get(..u32::from_be_bytes(*length) as usize) else { return false };
    let mut text = message.to_vec();
    if !json::change(&mut text, random) {
        return false;
    }
    let after = rest[message.len()..].to_vec();
    *input = [fuzzing::frame_of(&String::from_utf8_lossy(&text)), after].concat();
    true
}

pub(super) const FRAMES: Target = Target {
    name: "frames",
    about: "messages of the control plane",
    seeds: frames,
    words: &["\"Heartbeat\"", "\"Bye\"", "null", "[[", "{\"Aborted\":"],
    change: in_a_frame,
    read: fuzzing::frames,
    cases: 300,
    memory: 48 << 20,
};

fn registrations() -> Vec<Vec<u8>> {
    let of_rank = |rank: u64| {
        let message = messages()[0].replace("\"rank\":2", &format!("\"rank\":{rank}"));
        [fuzzing::hello_of(rank).as_slice(), &fuzzing::frame_of(&message)].concat()
    };
    vec![of_rank(1), of_rank(2), of_rank(3), of_rank(0), of_rank(4)]
}

/// Changes the registration after a hello.
fn behind_a_hello(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let hello = fuzzing::hello_of(0).len();
    if input.len() < hello {
        return false;
    }
    let mut frames = input.split_off(hello);
    let changed = in_a_frame(&mut frames, random);
    input.append(&mut frames);
    changed
}

pub(super) const REGISTRATIONS: Target = Target {
    name: "registrations",
    about: "hellos and registrations at rank 0",
    seeds: registrations,
    words: &["PHALANX3"],
    change: behind_a_hello,
    read: fuzzing::registrations,
    cases: 300,
    memory: 48 << 20,
};

/// Recorded halves of handshakes. Their connections are closed, so their keys are useless.
fn handshakes() -> Vec<Vec<u8>> {
    let as_caller = [vec![0], fuzzing::first_words(), vec![0; 16]].concat();
    let answer = [vec![1, 0], vec![9; 48]].concat();
    vec![as_caller, answer]
}

pub(super) const HANDSHAKES: Target = Target {
    name: "handshakes",
    about: "handshakes without the secret",
    seeds: handshakes,
    words: &["PHALANX3"],
    change: no_form,
    read: fuzzing::handshakes,
    cases: 300,
    memory: 48 << 20,
};

fn changes() -> Vec<Vec<u8>> {
    vec![vec![], vec![3, 0, 3], vec![0, 1, 0], vec![100, 2, 1, 7, 7, 2, 9, 9, 3]]
}

pub(super) const RECORDS: Target = Target {
    name: "records",
    about: "encrypted records that are changed on their way",
    seeds: changes,
    words: &[],
    change: no_form,
    read: fuzzing::records,
    cases: 300,
    memory: 48 << 20,
};

fn mail() -> Vec<Vec<u8>> {
    let message = |length: u64, bytes: &[u8]| {
        let header =
            [&1_u32.to_le_bytes()[..], &2_u32.to_le_bytes(), &length.to_le_bytes(), &[0; 8]].concat();
        [&header, bytes].concat()
    };
    vec![message(3, b"abc"), [message(0, b""), message(5, b"hello")].concat(), message(1 << 32, b"little")]
}

/// Changes the send time of a message, and may repeat all messages.
fn of_mail(input: &mut Vec<u8>, random: &mut Random) -> bool {
    const HEADER: usize = 24;
    let (mut at, mut all) = (0_usize, Vec::new());
    while let Some(header) = input.get(at..).and_then(|rest| rest.first_chunk::<HEADER>()) {
        all.push(at);
        let length = u64::from_le_bytes(std::array::from_fn(|byte| header[8 + byte]));
        at = at.saturating_add(HEADER).saturating_add(length as usize);
    }
    if all.is_empty() {
        return false;
    }
    let at = *random.pick(&all) + 16;
    input[at..at + 8].copy_from_slice(&random.awkward().to_le_bytes());
    if random.once_in(2) {
        input.extend_from_within(..);
    }
    true
}

pub(super) const MAIL: Target = Target {
    name: "mail",
    about: "messages of other ranks that belong to no operation",
    seeds: mail,
    words: &[],
    change: of_mail,
    read: fuzzing::mail,
    cases: 300,
    memory: 48 << 20,
};

fn tags() -> Vec<Vec<u8>> {
    let tag = |code: [u8; 4], root: u32, count: u64| {
        [&code[..], &root.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    vec![tag([0, 0, 0, 0], 0, 1000), tag([3, 1, 0xff, 2], 2, 1), tag([1, 2, 3, 4], u32::MAX, u64::MAX)]
}

pub(super) const TAGS: Target = Target {
    name: "tags",
    about: "what headers of operations say",
    seeds: tags,
    words: &[],
    change: no_form,
    read: fuzzing::tags,
    cases: 300,
    memory: 48 << 20,
};

fn launchers() -> Vec<Vec<u8>> {
    [
        "RANK=0\nWORLD_SIZE=2\nLOCAL_RANK=0\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\nTORCHELASTIC_USE_AGENT_STORE=True\nTORCHELASTIC_RUN_ID=a",
        "SLURM_PROCID=1\nSLURM_NTASKS=5\nSLURM_LOCALID=1\nSLURM_NODEID=3\nSLURM_STEP_ID=0\nSLURM_JOB_ID=7\nSLURM_STEP_TASKS_PER_NODE=2(x3),1\nSLURM_STEP_NODELIST=gpu[03-07,9],login1\nNodeAddr=10.0.0.2",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=2\nOMPI_MCA_orte_hnp_uri=769130496.0;tcp://192.0.2.2,10.0.0.2:43579;tcp6://[fd00::2]:55017",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=4\nPMIX_NAMESPACE=prterun-gpu-03-23139@1\nPMIX_HOSTNAME=gpu-03",
        "PMI_RANK=1\nPMI_SIZE=4\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2\nPMI=cmd=response_to_init rc=0|cmd=my_kvsname kvsname=k|cmd=barrier_out|cmd=get_result rc=0 value=10.0.0.1,fd00::1|cmd=finalize_ack|",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(super) const LAUNCHERS: Target = Target {
    name: "launchers",
    about: "variables of launchers: lists of hosts and tasks, addresses",
    seeds: launchers,
    words: &["[", "]", ",", "(x", ")", "18446744073709551615", "::", "-", "\n", "="],
    change: no_form,
    read: phalanx_environment::fuzzing::launchers,
    cases: 300,
    memory: 48 << 20,
};

fn pmi() -> Vec<Vec<u8>> {
    let words = "cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=kvs_1\ncmd=put_result rc=0\ncmd=barrier_out rc=0\ncmd=get_result rc=0 value=10.0.0.1,fd00::1\ncmd=finalize_ack rc=0\n";
    vec![words.as_bytes().to_vec(), words.replace("cmd=put_result rc=0\n", "").into_bytes()]
}

pub(super) const PMI: Target = Target {
    name: "pmi",
    about: "answers of the server of MPICH's launcher",
    seeds: pmi,
    words: &["cmd=", "rc=", "value=", "\n"],
    change: no_form,
    read: phalanx_environment::fuzzing::pmi,
    cases: 300,
    memory: 48 << 20,
};
