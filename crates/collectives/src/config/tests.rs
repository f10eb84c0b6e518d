//! Recorded variables of launchers, and the options that must result from them.

use super::WorldConfig;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use phalanx_environment::{
    EnvironmentError, Launcher, PORTS, PORTS_OF_JOB, PmiJob, Queries, RankInfo, Variables, outside_address,
    reachable_address,
};

fn read(get: Variables<'_>, queries: &Queries<'_>) -> Result<Option<WorldConfig>> {
    let info = RankInfo::read(get, queries)?;
    info.map(|info| WorldConfig::of_rank(&info, get)).transpose()
}

fn with(variables: &[(&str, &str)]) -> Result<Option<WorldConfig>> {
    let no_server = |_, _| panic!("no query is needed");
    read(&look_up(variables), &Queries { pmi: &no_server, node_address: &|node| node.to_owned() })
}

fn look_up(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

/// Returns the options from a complete recording.
fn placed(variables: &[(&str, &str)]) -> WorldConfig {
    with(variables).expect("complete").expect("a launcher")
}

/// Returns the recording with changed variables.
fn changed<'a>(recording: &[(&'a str, &'a str)], changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    changes.iter().chain(recording).copied().collect()
}

/// torchrun of PyTorch 2.15, `--nproc_per_node 2`.
const TORCHRUN: &[(&str, &str)] = &[
    ("GROUP_RANK", "0"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "localhost"),
    ("MASTER_PORT", "35553"),
    ("RANK", "1"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    ("TORCHELASTIC_RUN_ID", "7fc0983e-5409-491b-8f49-1aff1e9be5bb"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("WORLD_SIZE", "2"),
];

/// `mpirun -n 2` of OpenMPI 4.1.4.
const OPENMPI_4: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_MCA_ess_base_jobid", "769130497"),
    ("OMPI_MCA_orte_hnp_uri", "769130496.0;tcp://203.0.113.2:43579;tcp6://[2001:db8::2]:55017"),
    ("OMPI_MCA_orte_local_daemon_uri", "769130496.0;tcp://203.0.113.2:43579;tcp6://[2001:db8::2]:55017"),
    ("PMIX_HOSTNAME", "vm"),
    ("PMIX_NAMESPACE", "769130497"),
    ("PMIX_RANK", "1"),
];

/// `mpirun -n 2` of OpenMPI 5.0.11.
const OPENMPI_5: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("PMIX_HOSTNAME", "vm"),
    ("PMIX_NAMESPACE", "prterun-vm-23139@1"),
    ("PMIX_RANK", "1"),
    ("PMIX_SERVER_URI41", "prterun-vm-23139@0.0;tcp4://127.0.0.1:60753"),
];

/// `mpiexec -n 2` of MPICH 5.0.2; 4.0.2 differs in no variable that is read.
const MPICH: &[(&str, &str)] = &[
    ("MPI_LOCALNRANKS", "2"),
    ("MPI_LOCALRANKID", "1"),
    ("PMI_FD", "9"),
    ("PMI_HOSTNAME", "vm"),
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
];

/// `srun -N2 -n4` of SLURM 22.05, the task on the second node.
const SRUN: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "7001"),
    ("SLURM_JOB_NODELIST", "n[1-2]"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "n[1-2]"),
    ("SLURM_STEP_TASKS_PER_NODE", "3,1"),
];

#[test]
fn steps_that_srun_did_not_start_have_no_ranks() {
    // A batch script of SLURM 26.05, the shell of `salloc` under `use_interactive_step`, and one without a step.
    for step in ["-5", "4294967290", "4294967291", ""] {
        let batch = changed(SRUN, &[("SLURM_STEP_ID", step), ("SLURM_PROCID", "0")]);
        assert_eq!(Launcher::of(&look_up(&batch)), None, "{step}");
        // Processes that `mpiexec` starts there are MPICH's.
        let inside = [batch.as_slice(), &[("PMI_RANK", "1"), ("PMI_SIZE", "2")]].concat();
        assert_eq!(Launcher::of(&look_up(&inside)), Some(Launcher::Mpich), "{step}");
    }
}

#[test]
fn every_launcher_is_recognised() {
    for (recording, launcher, ranks, local) in [
        (TORCHRUN, Launcher::Torchrun, (1, 2), (1, 2)),
        (OPENMPI_4, Launcher::OpenMpi, (1, 2), (1, 2)),
        (OPENMPI_5, Launcher::OpenMpi, (1, 2), (1, 2)),
        (SRUN, Launcher::Slurm, (3, 4), (0, 1)),
    ] {
        assert_eq!(Launcher::of(&look_up(recording)), Some(launcher), "{recording:?}");
        let config = placed(recording);
        assert_eq!((config.rank, config.world_size), ranks, "{recording:?}");
        assert_eq!((config.local_rank, config.local_world_size), local, "{recording:?}");
        let transport = &config.transport;
        assert_eq!((transport.streams, transport.shared_memory), (1, true));
        assert_eq!(config.credentials.secret, None);
        // The user's choice of the meeting point counts under every launcher.
        let config = placed(&changed(
            recording,
            &[("MASTER_ADDR", "127.0.0.9"), ("MASTER_PORT", "99"), ("PHALANX_PORT", "1234")],
        ));
        assert_eq!((config.meeting.address.as_str(), config.meeting.port), ("127.0.0.9", 1234));
        assert_eq!(config.meeting.ports, 1);
        assert!(config.meeting.bind_addr.is_loopback());
    }
    // The innermost counts: other launchers run inside jobs of SLURM, and start helpers that are steps themselves.
    for (recording, launcher) in [(OPENMPI_4, Launcher::OpenMpi), (MPICH, Launcher::Mpich)] {
        assert_eq!(Launcher::of(&look_up(&changed(recording, SRUN))), Some(launcher));
        let supervised = changed(recording, &[("RANK", "0"), ("WORLD_SIZE", "2")]);
        assert_eq!(Launcher::of(&look_up(&supervised)), Some(Launcher::Variables));
    }
    // `srun --mpi=pmi2` speaks PMI as well.
    assert_eq!(Launcher::of(&look_up(&changed(SRUN, &[("PMI_RANK", "3")]))), Some(Launcher::Slurm));
    assert_eq!(with(&[("HOME", "/nowhere")]), Ok(None));
    assert_eq!(placed(&[("RANK", "0"), ("WORLD_SIZE", "1")]).world_size, 1);
    // In a pod, whose job may have other pods that still pull their image.
    let in_pod = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    assert_eq!(placed(&changed(TORCHRUN, &in_pod)).timeouts.connect.as_secs(), 300);
    assert_eq!(placed(TORCHRUN).timeouts.connect.as_secs(), 60);
    // Set by hand, with a port.
    let by_hand = placed(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
    ]);
    assert_eq!((by_hand.meeting.port, by_hand.meeting.ports, by_hand.job.as_str()), (1234, 1, ""));
}

#[test]
fn ranks_of_a_job_meet_at_the_same_ports_and_other_jobs_at_others() {
    let meeting = |config: &WorldConfig| (config.meeting.port, config.meeting.ports, config.job.clone());
    for (recording, rank, job, other) in [
        (TORCHRUN, "RANK", "torchrun localhost:35553 7fc0983e-5409-491b-8f49-1aff1e9be5bb", "MASTER_PORT"),
        (OPENMPI_4, "OMPI_COMM_WORLD_RANK", "mpirun 769130497", "PMIX_NAMESPACE"),
        (OPENMPI_5, "OMPI_COMM_WORLD_RANK", "mpirun prterun-vm-23139@1", "PMIX_NAMESPACE"),
        (SRUN, "SLURM_PROCID", "slurm 7001.0 ", "SLURM_STEP_ID"),
    ] {
        let own = placed(recording);
        let port = own.meeting.port;
        assert_eq!((own.meeting.ports, own.job.as_str()), (PORTS_OF_JOB, job));
        assert!(PORTS.contains(&port) && PORTS.contains(&(port + PORTS_OF_JOB - 1)));
        assert_eq!(meeting(&placed(&changed(recording, &[(rank, "0")]))), meeting(&own));
        let elsewhere = placed(&changed(recording, &[(other, "29501")]));
        assert!(elsewhere.job != own.job && elsewhere.meeting.port != port, "{elsewhere:?}");
    }
    // Agents may count their restarts differently.
    let restarted = placed(&changed(TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "2")]));
    assert_eq!(meeting(&restarted), meeting(&placed(TORCHRUN)));
    // Where the agent has no store at that port, the ranks meet there.
    let free = placed(&changed(TORCHRUN, &[("TORCHELASTIC_USE_AGENT_STORE", "False")]));
    assert_eq!((free.meeting.port, free.meeting.ports), (35_553, 1));
}

#[test]
fn rank_0_is_found_on_one_host_and_on_others() {
    let place = |config: WorldConfig| (config.meeting.address, config.meeting.bind_addr.to_string());
    let loopback = ("127.0.0.1".to_owned(), "127.0.0.1".to_owned());
    assert_eq!(place(placed(OPENMPI_4)), loopback);
    assert_eq!(place(placed(OPENMPI_5)), loopback);
    let any = |address: &str| (address.to_owned(), "0.0.0.0".to_owned());
    let two_hosts = [("OMPI_COMM_WORLD_SIZE", "4")];
    assert_eq!(place(placed(&changed(OPENMPI_4, &two_hosts))), any("203.0.113.2"));
    assert_eq!(place(placed(&changed(OPENMPI_5, &two_hosts))), any("vm"));
    // Inside an allocation of SLURM rank 0 is on its first node, even if mpirun runs elsewhere.
    let allocated = [("OMPI_COMM_WORLD_SIZE", "4"), ("SLURM_JOB_NODELIST", "gpu[03-07,9],login1")];
    assert_eq!(placed(&changed(OPENMPI_5, &allocated)).meeting.address, "gpu03");
    // On the other nodes mpirun's helpers and their ranks belong to a step without the first node.
    let helped =
        [allocated.as_slice(), &[("SLURM_STEP_NODELIST", "gpu[04-07]"), ("SLURM_STEP_ID", "0")]].concat();
    for recording in [OPENMPI_4, OPENMPI_5] {
        assert_eq!(placed(&changed(recording, &helped)).meeting.address, "gpu03");
    }
    // Hosts without addresses of IPv4.
    let six = [
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_MCA_orte_hnp_uri", "769130496.0;tcp6://[2001:db8::2]:55017"),
        ("OMPI_MCA_orte_local_daemon_uri", "769130496.0;tcp6://[2001:db8::2]:55017"),
    ];
    assert_eq!(place(placed(&changed(OPENMPI_4, &six))), ("2001:db8::2".to_owned(), "::".to_owned()));
    // Rank 0 can tell that the others would look for it on the wrong host.
    for (recording, own) in [
        (OPENMPI_4, ("OMPI_MCA_orte_local_daemon_uri", "769130496.1;tcp://203.0.113.3:40001")),
        (OPENMPI_5, ("PMIX_HOSTNAME", "other")),
    ] {
        let changes = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4"), own];
        let error = with(&changed(recording, &changes)).expect_err("elsewhere").to_string();
        assert!(error.contains("not on the host of mpirun") && error.contains("-x MASTER_ADDR"), "{error}");
        placed(&changed(recording, &changes[1..]));
    }
    // A step on a part of an allocation, and a step on one node.
    assert_eq!(placed(&changed(SRUN, &[("SLURM_STEP_NODELIST", "n2")])).meeting.address, "n2");
    let on_one = placed(&changed(SRUN, &[("SLURM_STEP_TASKS_PER_NODE", "4"), ("SLURM_NODEID", "0")]));
    assert_eq!((on_one.meeting.address.as_str(), on_one.local_world_size), ("127.0.0.1", 4));
    // Names of nodes need not be names of hosts.
    let no_server = |_, _| panic!("no query is needed");
    let known = |node: &str| format!("address-of-{node}");
    let reached = read(&look_up(SRUN), &Queries { pmi: &no_server, node_address: &known });
    assert_eq!(reached.expect("complete").expect("a launcher").meeting.address, "address-of-n1");
    // A batch script without srun is no rank.
    let batch: Vec<_> = SRUN.iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).copied().collect();
    assert_eq!(with(&batch), Ok(None));
}

/// Ranks of one host meet at the interface that the user names.
#[test]
fn ranks_of_one_host_meet_at_the_interface_that_is_named() {
    let on_one: &[(&str, &str)] = &[("SLURM_STEP_TASKS_PER_NODE", "4"), ("SLURM_NODEID", "0")];
    let here: Vec<_> = TORCHRUN.iter().filter(|(name, _)| *name != "MASTER_ADDR").copied().collect();
    for recording in [changed(SRUN, on_one), changed(OPENMPI_4, &[]), changed(OPENMPI_5, &[]), here] {
        // Of a listener at all addresses, ranks use one that other hosts, which may join later, can reach.
        let reached = |any: &str| reachable_address(any.parse().expect("an address")).to_string();
        for (named, master, bound) in [
            ("127.0.0.9", "127.0.0.9", "127.0.0.9"),
            ("0.0.0.0", reached("0.0.0.0").as_str(), "0.0.0.0"),
            ("::", reached("::").as_str(), "::"),
            ("auto", "127.0.0.1", "127.0.0.1"),
        ] {
            let config = placed(&changed(&recording, &[("PHALANX_INTERFACE", named)]));
            let meeting = &config.meeting;
            assert_eq!((meeting.address.as_str(), meeting.bind_addr.to_string().as_str()), (master, bound));
            // An address that is given stays.
            let given = [("PHALANX_INTERFACE", named), ("MASTER_ADDR", "n1")];
            assert_eq!(placed(&changed(&recording, &given)).meeting.address, "n1");
        }
    }
}

#[test]
fn launchers_of_mpich_are_queried() {
    let answer = |exchange: bool| PmiJob {
        job: "mpiexec kvs_23344_0_697025602_vm".to_owned(),
        addresses: if exchange { vec![[203, 0, 113, 2].into()] } else { Vec::new() },
    };
    let ask = |variables: &[(&str, &str)]| {
        let config = read(
            &look_up(variables),
            &Queries {
                pmi: &|rank, exchange| {
                    assert_eq!(rank, 1);
                    Ok(answer(exchange))
                },
                node_address: &|node| node.to_owned(),
            },
        );
        config.expect("complete").expect("a launcher")
    };
    let here = ask(MPICH);
    assert_eq!((here.rank, here.world_size, here.local_rank, here.local_world_size), (1, 2, 1, 2));
    assert_eq!((here.meeting.address.as_str(), here.meeting.ports), ("127.0.0.1", PORTS_OF_JOB));
    assert_eq!(here.job, answer(false).job);
    let two_hosts = ask(&changed(MPICH, &[("PMI_SIZE", "4")]));
    let meeting = &two_hosts.meeting;
    assert_eq!((meeting.address.as_str(), meeting.bind_addr.is_unspecified()), ("203.0.113.2", true));
    assert_eq!(meeting.port, here.meeting.port);
    // Inside an allocation srun starts MPICH's helpers. If srun started the ranks themselves, it is the launcher.
    assert_eq!(ask(&changed(MPICH, SRUN)).world_size, 2);
    let by_srun = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    assert_eq!(placed(&changed(SRUN, &by_srun)).meeting.address, "n1");
    // With both variables no query is needed.
    let given = placed(&changed(MPICH, &[("MASTER_ADDR", "node1"), ("MASTER_PORT", "99")]));
    assert_eq!((given.meeting.address.as_str(), given.meeting.port, given.meeting.ports), ("node1", 99, 1));
}

#[test]
fn an_incomplete_environment_names_the_variable() {
    let cases: [(&[(&str, &str)], &str); 10] = [
        (&[("RANK", "1")], "WORLD_SIZE"),
        (&[("WORLD_SIZE", "2")], "RANK"),
        (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], "RANK"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
        (
            &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
            "MASTER_PORT",
        ),
        (&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0")], "SLURM_NTASKS"),
        (&[("OMPI_COMM_WORLD_RANK", "1")], "OMPI_COMM_WORLD_SIZE"),
        (&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], "MASTER_ADDR"),
        (&[("PMI_RANK", "1")], "PMI_SIZE"),
    ];
    for (variables, expected) in cases {
        match with(variables) {
            Err(CommError::Environment(EnvironmentError { variable, .. })) => {
                assert_eq!(variable, expected, "{variables:?}");
            }
            other => panic!("{variables:?}: {other:?}"),
        }
    }
}

#[test]
fn variables_of_phalanx_itself() {
    let base = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1234")];
    let read = |more: &[(&'static str, &'static str)]| {
        let all: Vec<_> = base.iter().chain(more).copied().collect();
        with(&all)
    };
    let config = read(&[
        ("PHALANX_STREAMS", "4"),
        ("PHALANX_ALGORITHM", "tree"),
        ("PHALANX_SHARED_MEMORY", "0"),
        ("PHALANX_HOST", "left"),
        ("PHALANX_INTERFACE", "127.0.0.9"),
    ]);
    let config = config.expect("complete").expect("a launcher");
    let transport = &config.transport;
    assert_eq!((transport.streams, transport.shared_memory), (4, false));
    assert_eq!(config.algorithm, Algorithm::Tree);
    let bind_addr = config.meeting.bind_addr.to_string();
    assert_eq!((config.host.as_deref(), bind_addr.as_str()), (Some("left"), "127.0.0.9"));
    assert!(config.credentials.secret.is_none());
    for (name, value, says) in [
        ("PHALANX_STREAMS", "0", "1 to 64"),
        ("PHALANX_ALGORITHM", "quick", "halving-doubling"),
        ("PHALANX_SHARED_MEMORY", "no", "0 or 1"),
        ("PHALANX_COSTS", "/nonexistent/costs", "cannot read"),
        ("PHALANX_SECRET", "sixteen bytes or more", "PHALANX_SECRET_FILE"),
        ("PHALANX_SECRET_FILE", "/nonexistent/secret", "cannot read"),
        ("PHALANX_INTERFACE", "nonexistent0", "nonexistent0"),
    ] {
        let error = read(&[(name, value)]).expect_err(name).to_string();
        assert!(error.contains(&name[..11]) && error.contains(says), "{error}");
    }
}

#[test]
fn ranks_of_one_host_stay_on_loopback_under_any_name_of_the_host() {
    let any = std::net::IpAddr::from([0, 0, 0, 0]);
    let own = outside_address(any).to_string();
    let host = [("MASTER_ADDR", own.as_str())];
    let config = placed(&changed(TORCHRUN, &host));
    assert!(config.is_on_loopback(), "{:?}", config.meeting);
    let far = changed(TORCHRUN, &[("MASTER_ADDR", "192.0.2.1"), ("LOCAL_WORLD_SIZE", "1")]);
    assert!(!placed(&far).is_on_loopback());
    let chosen = changed(TORCHRUN, &[host[0], ("PHALANX_INTERFACE", "0.0.0.0")]);
    assert!(!placed(&chosen).is_on_loopback(), "a user has put them on a network");
    assert!(WorldConfig::local(0, 2, 7).is_on_loopback());
}
