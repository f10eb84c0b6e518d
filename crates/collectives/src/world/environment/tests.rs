//! Variables as launchers have set them, and what must come of them.

use super::*;

fn with(variables: &[(&str, &str)]) -> Result<Option<WorldConfig>> {
    let nobody = |_, _| panic!("nobody is to be asked");
    read(&look_up(variables), &Ask { pmi: &nobody, node: &|node| node.to_owned() })
}

fn look_up(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

/// The place in a recording that is complete.
fn placed(variables: &[(&str, &str)]) -> WorldConfig {
    with(variables).expect("complete").expect("a launcher")
}

/// The recording with variables put in place of its own.
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
fn steps_that_srun_has_not_begun_have_no_ranks() {
    // A batch script of SLURM 26.05, the shell of `salloc` under `use_interactive_step`, and one without a step.
    for step in ["-5", "4294967290", "4294967291", ""] {
        let batch = changed(SRUN, &[("SLURM_STEP_ID", step), ("SLURM_PROCID", "0")]);
        assert_eq!(Launcher::of(&look_up(&batch)), None, "{step}");
        // What `mpiexec` starts there is MPICH's.
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
        assert_eq!((config.streams, config.shared_memory, &config.secret), (1, true, &None));
        // What the user says about the meeting counts under every launcher.
        let config = placed(&changed(
            recording,
            &[("MASTER_ADDR", "127.0.0.9"), ("MASTER_PORT", "99"), ("PHALANX_PORT", "1234")],
        ));
        assert_eq!((config.master_addr.as_str(), config.master_port), ("127.0.0.9", 1234));
        assert_eq!(config.master_ports, 1);
        assert!(config.bind_addr.is_loopback());
    }
    // The innermost counts: within a job of SLURM others start ranks too, among them helpers that are steps themselves.
    for (recording, launcher) in [(OPENMPI_4, Launcher::OpenMpi), (MPICH, Launcher::Mpich)] {
        assert_eq!(Launcher::of(&look_up(&changed(recording, SRUN))), Some(launcher));
        let supervised = changed(recording, &[("RANK", "0"), ("WORLD_SIZE", "2")]);
        assert_eq!(Launcher::of(&look_up(&supervised)), Some(Launcher::Variables));
    }
    // `srun --mpi=pmi2` speaks PMI as well.
    assert_eq!(Launcher::of(&look_up(&changed(SRUN, &[("PMI_RANK", "3")]))), Some(Launcher::Slurm));
    assert_eq!(with(&[("HOME", "/nowhere")]), Ok(None));
    assert_eq!(placed(&[("RANK", "0"), ("WORLD_SIZE", "1")]).world_size, 1);
    // In a pod, of a job whose other pods may still wait for their image.
    let in_pod = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    assert_eq!(placed(&changed(TORCHRUN, &in_pod)).connect_timeout.as_secs(), 300);
    assert_eq!(placed(TORCHRUN).connect_timeout.as_secs(), 60);
    // By hand: a port of one's own.
    let by_hand = placed(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
    ]);
    assert_eq!((by_hand.master_port, by_hand.master_ports, by_hand.job.as_str()), (1234, 1, ""));
}

#[test]
fn ranks_of_a_job_meet_at_the_same_ports_and_other_jobs_at_others() {
    let meeting = |config: &WorldConfig| (config.master_port, config.master_ports, config.job.clone());
    for (recording, rank, job, other) in [
        (TORCHRUN, "RANK", "torchrun localhost:35553 7fc0983e-5409-491b-8f49-1aff1e9be5bb", "MASTER_PORT"),
        (OPENMPI_4, "OMPI_COMM_WORLD_RANK", "mpirun 769130497", "PMIX_NAMESPACE"),
        (OPENMPI_5, "OMPI_COMM_WORLD_RANK", "mpirun prterun-vm-23139@1", "PMIX_NAMESPACE"),
        (SRUN, "SLURM_PROCID", "slurm 7001.0 ", "SLURM_STEP_ID"),
    ] {
        let own = placed(recording);
        assert_eq!((own.master_ports, own.job.as_str()), (PORTS_OF_JOB, job));
        assert!(PORTS.contains(&own.master_port) && PORTS.contains(&(own.master_port + PORTS_OF_JOB - 1)));
        assert_eq!(meeting(&placed(&changed(recording, &[(rank, "0")]))), meeting(&own));
        let elsewhere = placed(&changed(recording, &[(other, "29501")]));
        assert!(elsewhere.job != own.job && elsewhere.master_port != own.master_port, "{elsewhere:?}");
    }
    // Agents may count their restarts differently.
    let restarted = placed(&changed(TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "2")]));
    assert_eq!(meeting(&restarted), meeting(&placed(TORCHRUN)));
    // Where the agent has no store at that port, the ranks meet there.
    let free = placed(&changed(TORCHRUN, &[("TORCHELASTIC_USE_AGENT_STORE", "False")]));
    assert_eq!((free.master_port, free.master_ports), (35_553, 1));
}

#[test]
fn rank_0_is_found_on_one_host_and_on_others() {
    let place = |config: WorldConfig| (config.master_addr, config.bind_addr.to_string());
    let loopback = ("127.0.0.1".to_owned(), "127.0.0.1".to_owned());
    assert_eq!(place(placed(OPENMPI_4)), loopback);
    assert_eq!(place(placed(OPENMPI_5)), loopback);
    let any = |address: &str| (address.to_owned(), "0.0.0.0".to_owned());
    let two_hosts = [("OMPI_COMM_WORLD_SIZE", "4")];
    assert_eq!(place(placed(&changed(OPENMPI_4, &two_hosts))), any("203.0.113.2"));
    assert_eq!(place(placed(&changed(OPENMPI_5, &two_hosts))), any("vm"));
    // Inside an allocation of SLURM rank 0 is on its first node, wherever mpirun is.
    let allocated = [("OMPI_COMM_WORLD_SIZE", "4"), ("SLURM_JOB_NODELIST", "gpu[03-07,9],login1")];
    assert_eq!(placed(&changed(OPENMPI_5, &allocated)).master_addr, "gpu03");
    // On the other nodes mpirun's helpers, and so their ranks, are of a step that is without the first one.
    let helped =
        [allocated.as_slice(), &[("SLURM_STEP_NODELIST", "gpu[04-07]"), ("SLURM_STEP_ID", "0")]].concat();
    for recording in [OPENMPI_4, OPENMPI_5] {
        assert_eq!(placed(&changed(recording, &helped)).master_addr, "gpu03");
    }
    // Where hosts have no addresses of IPv4.
    let six = [
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_MCA_orte_hnp_uri", "769130496.0;tcp6://[2001:db8::2]:55017"),
        ("OMPI_MCA_orte_local_daemon_uri", "769130496.0;tcp6://[2001:db8::2]:55017"),
    ];
    assert_eq!(place(placed(&changed(OPENMPI_4, &six))), ("2001:db8::2".to_owned(), "::".to_owned()));
    // Rank 0 knows that it is not where the others would look for it.
    for (recording, own) in [
        (OPENMPI_4, ("OMPI_MCA_orte_local_daemon_uri", "769130496.1;tcp://203.0.113.3:40001")),
        (OPENMPI_5, ("PMIX_HOSTNAME", "other")),
    ] {
        let changes = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4"), own];
        let error = with(&changed(recording, &changes)).expect_err("elsewhere").to_string();
        assert!(error.contains("not on the host of mpirun") && error.contains("-x MASTER_ADDR"), "{error}");
        placed(&changed(recording, &changes[1..]));
    }
    // A step on a part of an allocation, and all tasks of one node.
    assert_eq!(placed(&changed(SRUN, &[("SLURM_STEP_NODELIST", "n2")])).master_addr, "n2");
    let on_one = placed(&changed(SRUN, &[("SLURM_STEP_TASKS_PER_NODE", "4"), ("SLURM_NODEID", "0")]));
    assert_eq!((on_one.master_addr.as_str(), on_one.local_world_size), ("127.0.0.1", 4));
    // Names of nodes need not be names of hosts.
    let nobody = |_, _| panic!("nobody is to be asked");
    let known = |node: &str| format!("address-of-{node}");
    let reached = read(&look_up(SRUN), &Ask { pmi: &nobody, node: &known });
    assert_eq!(reached.expect("complete").expect("a launcher").master_addr, "address-of-n1");
    // A batch script without srun is no rank.
    let batch: Vec<_> = SRUN.iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).copied().collect();
    assert_eq!(with(&batch), Ok(None));
}

/// Ranks of one host meet where rank 0 listens, which is where the user says.
#[test]
fn ranks_of_one_host_meet_at_the_interface_that_is_named() {
    let on_one: &[(&str, &str)] = &[("SLURM_STEP_TASKS_PER_NODE", "4"), ("SLURM_NODEID", "0")];
    let here: Vec<_> = TORCHRUN.iter().filter(|(name, _)| *name != "MASTER_ADDR").copied().collect();
    for recording in [changed(SRUN, on_one), changed(OPENMPI_4, &[]), changed(OPENMPI_5, &[]), here] {
        // Who listens at all addresses is known by one that ranks of other hosts, which may come later, can use.
        let reached = |any: &str| interface::reached(any.parse().expect("an address")).to_string();
        for (named, master, bound) in [
            ("127.0.0.9", "127.0.0.9", "127.0.0.9"),
            ("0.0.0.0", reached("0.0.0.0").as_str(), "0.0.0.0"),
            ("::", reached("::").as_str(), "::"),
            ("auto", "127.0.0.1", "127.0.0.1"),
        ] {
            let config = placed(&changed(&recording, &[("PHALANX_INTERFACE", named)]));
            assert_eq!((config.master_addr.as_str(), config.bind_addr.to_string().as_str()), (master, bound));
            // Who is told a place keeps to it.
            let told = [("PHALANX_INTERFACE", named), ("MASTER_ADDR", "n1")];
            assert_eq!(placed(&changed(&recording, &told)).master_addr, "n1");
        }
    }
}

#[test]
fn launchers_of_mpich_are_asked() {
    let told = |exchange: bool| pmi::Told {
        job: "mpiexec kvs_23344_0_697025602_vm".to_owned(),
        addresses: if exchange { vec![[203, 0, 113, 2].into()] } else { Vec::new() },
    };
    let ask = |variables: &[(&str, &str)]| {
        let config = read(
            &look_up(variables),
            &Ask {
                pmi: &|rank, exchange| {
                    assert_eq!(rank, 1);
                    Ok(told(exchange))
                },
                node: &|node| node.to_owned(),
            },
        );
        config.expect("complete").expect("a launcher")
    };
    let here = ask(MPICH);
    assert_eq!((here.rank, here.world_size, here.local_rank, here.local_world_size), (1, 2, 1, 2));
    assert_eq!((here.master_addr.as_str(), here.master_ports), ("127.0.0.1", PORTS_OF_JOB));
    assert_eq!(here.job, told(false).job);
    let two_hosts = ask(&changed(MPICH, &[("PMI_SIZE", "4")]));
    assert_eq!((two_hosts.master_addr.as_str(), two_hosts.bind_addr.is_unspecified()), ("203.0.113.2", true));
    assert_eq!(two_hosts.master_port, here.master_port);
    // Its helpers are started by srun inside an allocation; where srun has started the ranks themselves, it is the launcher.
    assert_eq!(ask(&changed(MPICH, SRUN)).world_size, 2);
    let by_srun = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    assert_eq!(placed(&changed(SRUN, &by_srun)).master_addr, "n1");
    // With both variables nobody is asked.
    let given = placed(&changed(MPICH, &[("MASTER_ADDR", "node1"), ("MASTER_PORT", "99")]));
    assert_eq!((given.master_addr.as_str(), given.master_port, given.master_ports), ("node1", 99, 1));
}

#[test]
fn half_an_environment_names_the_variable() {
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
            Err(CommError::Environment { variable, .. }) => {
                assert_eq!(variable, expected, "{variables:?}");
            }
            other => panic!("{variables:?}: {other:?}"),
        }
    }
}

#[test]
fn what_phalanx_itself_reads() {
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
    assert_eq!((config.streams, config.algorithm, config.shared_memory), (4, Algorithm::Tree, false));
    assert_eq!((config.host.as_deref(), config.bind_addr.to_string().as_str()), (Some("left"), "127.0.0.9"));
    assert!(config.secret.is_none());
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
