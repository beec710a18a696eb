//! Environments as the launchers make them. Those of Slurm 22.05, Open MPI 4.1 and MPICH 4.0 were printed by processes
//! that these started, and are given here with what matters.

use std::os::unix::ffi::OsStringExt;

use super::*;
use crate::{Device, ErrorKind};

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 \
    ROLE_RANK=5 MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 \
    TORCHELASTIC_MAX_RESTARTS=3";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_MCA_ess_base_jobid=1609564161 OMPI_MCA_ess_base_vpid=1 PMIX_RANK=1 \
    PMIX_NAMESPACE=1609564161 PMIX_ID=1609564161.1";
const HYDRA: &str = "PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3 PMI_FD=6 HYDI_CONTROL_FD=7";
/// `sbatch -n 4`: one process.
const BATCH: &str = "SLURM_JOB_ID=1 SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NPROCS=4 \
    SLURM_PROCID=0 SLURM_TASKS_PER_NODE=4 ENVIRONMENT=BATCH";
/// `srun -n 3` in that script.
const SRUN: &str = "SLURM_JOB_ID=1 SLURM_GTIDS=0,1,2 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=3 SLURM_PROCID=1 \
    SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=3 \
    SLURM_TASKS_PER_NODE=3";
/// The same with one task on each of two hosts.
const DAEMONS: &str = "SLURM_JOB_ID=1 SLURM_GTIDS=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_PROCID=1 \
    SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)";
/// `salloc -n 4`, where it opens a shell on the first host.
const SALLOC: &str = "SLURM_JOB_ID=4 SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_PROCID=0 \
    SLURM_PTY_PORT=44937 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 \
    SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=4";

/// Later variables replace earlier ones, as an inner launcher's do.
fn find(environments: &[&str], world_size: Option<u32>) -> Result<Option<Rank>> {
    let variables: Vec<(&str, &str)> = environments
        .iter()
        .flat_map(|text| text.split_whitespace())
        .map(|v| v.split_once('=').unwrap())
        .collect();
    let lookup = |name: &str| {
        variables.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    detect(&lookup, world_size)
}

fn found(environments: &[&str]) -> Rank {
    find(environments, None).unwrap().expect("a launcher was there")
}

/// (launcher, rank, world size, local rank, local world size)
fn summary(rank: &Rank) -> (Launcher, u32, u32, Option<u32>, Option<u32>) {
    let launcher = rank.launcher().unwrap();
    (launcher, rank.rank(), rank.world_size(), rank.local_rank(), rank.local_world_size())
}

fn refused(environments: &[&str]) -> String {
    let error = find(environments, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error.to_string()
}

#[test]
fn without_a_launcher_there_is_no_rank() {
    assert_eq!(find(&[], None).unwrap(), None);
    assert_eq!(find(&["WORLD_SIZE=1 HOME=/root LOCAL_RANK=-1"], None).unwrap(), None);
    assert_eq!(find(&["SLURM_JOB_ID=7 PMIX_NAMESPACE=x TORCHELASTIC_RUN_ID=none"], Some(4)).unwrap(), None);
}

#[test]
fn each_launcher_is_understood() {
    let cases = [
        (TORCHRUN, (Launcher::Torchrun, 5, 8, Some(1), Some(4)), "torchrun none node0:29500 0"),
        (OPEN_MPI, (Launcher::OpenMpi, 1, 3, Some(1), Some(3)), "openmpi 1609564161"),
        (SRUN, (Launcher::Slurm, 1, 3, Some(1), Some(3)), "slurm 1.0 "),
        (DAEMONS, (Launcher::Slurm, 1, 2, Some(0), Some(1)), "slurm 1.0 "),
    ];
    for (environment, expected, job) in cases {
        let rank = found(&[environment]);
        assert_eq!((summary(&rank), rank.job()), (expected, Some(job)));
    }
    // Hydra names no job.
    let rank = found(&[HYDRA]);
    assert_eq!((summary(&rank), rank.job()), ((Launcher::Hydra, 1, 3, Some(1), Some(3)), None));
    assert_eq!(rank.device().unwrap(), Device::Cuda(1));
}

#[test]
fn a_script_that_sets_rank_and_world_size_is_a_launcher_too() {
    let rank = found(&["RANK=1 WORLD_SIZE=4"]);
    assert_eq!((summary(&rank), rank.job()), ((Launcher::Torchrun, 1, 4, None, None), None));
    let rank = found(&["RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500"]);
    assert_eq!(
        (summary(&rank), rank.job()),
        ((Launcher::Torchrun, 1, 4, Some(1), None), Some("master node0:29500"))
    );
}

#[test]
fn the_job_has_another_name_in_each_attempt_and_in_each_step() {
    let job = |more| found(&[TORCHRUN, more]).job().unwrap().to_string();
    assert_ne!(job(""), job("TORCHELASTIC_RESTART_COUNT=1"));
    assert_ne!(job(""), job("MASTER_PORT=29501"));
    assert_ne!(job(""), job("TORCHELASTIC_RUN_ID=7"));
    let job = |more| found(&[SRUN, more]).job().unwrap().to_string();
    assert_ne!(job(""), job("SLURM_STEP_ID=1"));
    assert_ne!(job(""), job("SLURM_RESTART_COUNT=1"));
    assert_ne!(job("SLURM_JOB_ID=11"), job("SLURM_JOB_ID=1 SLURM_STEP_ID=10"));
    // Older versions of Open MPI without PMIx, and version 5.
    let plain = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3";
    assert_eq!(found(&[plain, "OMPI_MCA_ess_base_jobid=7"]).job(), Some("openmpi 7"));
    assert_eq!(
        found(&[plain, "PMIX_NAMESPACE=prterun-h-7@1 PMIX_RANK=1"]).job(),
        Some("openmpi prterun-h-7@1")
    );
    assert_eq!(found(&[plain]).job(), None);
}

#[test]
fn a_batch_script_and_a_shell_of_slurm_are_no_ranks() {
    for environment in [BATCH, SALLOC] {
        assert_eq!(find(&[environment], None).unwrap(), None);
    }
    // The batch step has a number of its own, however it is printed.
    for step in ["-5", "4294967291", "4294967292", "4294967295", "batch", ""] {
        assert_eq!(find(&[SRUN, &format!("SLURM_STEP_ID={step}")], None).unwrap(), None, "{step}");
    }
}

#[test]
fn what_a_batch_script_has_left_of_the_step_that_submitted_it_is_no_rank() {
    // `srun -n 2 sbatch ...`, as it was seen.
    let nested = "SLURM_JOB_ID=2 SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=0 \
        SLURM_STEP_ID=4 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2";
    assert_eq!(find(&[nested], None).unwrap(), None);
}

#[test]
fn mpirun_within_a_slurm_allocation_is_the_one_that_counts() {
    // On the host of the batch script, in the step of its daemons, and within a step of one task.
    for mpi in [OPEN_MPI, HYDRA] {
        for slurm in [BATCH, SALLOC, DAEMONS, "SLURM_STEP_ID=2 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0"] {
            let rank = found(&[slurm, mpi]);
            assert_eq!((rank.rank(), rank.world_size(), rank.local_rank()), (1, 3, Some(1)));
            assert_ne!(rank.launcher(), Some(Launcher::Slurm));
        }
    }
    // Which launcher is named is the same for all ranks of a host, also for the one that agrees by chance.
    let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=9";
    assert_eq!(found(&[DAEMONS, mpi]).job(), Some("openmpi 9"));
    assert_eq!(found(&[DAEMONS, mpi, "OMPI_COMM_WORLD_RANK=0"]).job(), Some("openmpi 9"));
}

#[test]
fn mpirun_in_each_of_several_tasks_of_a_host_is_a_contradiction() {
    let error = refused(&[SRUN, OPEN_MPI, "OMPI_COMM_WORLD_RANK=2 PMIX_RANK=2"]);
    assert!(
        error.starts_with(
            "OMPI_COMM_WORLD_RANK=2 of OMPI_COMM_WORLD_SIZE=3 contradicts SLURM_PROCID=1 of \
             SLURM_STEP_NUM_TASKS=3"
        ),
        "{error}"
    );
    // But what is typed into the shell of `srun --pty` runs in one of them.
    let rank = found(&[SRUN, "SLURM_PTY_PORT=45973 SLURM_PROCID=0", OPEN_MPI]);
    assert_eq!(summary(&rank), (Launcher::OpenMpi, 1, 3, Some(1), Some(3)));
}

#[test]
fn torchrun_is_the_inner_launcher_wherever_it_was_started_once_per_host() {
    let expected = (Launcher::Torchrun, 5, 8, Some(1), Some(4));
    let once_per_host = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1";
    let outer: [&[&str]; 6] = [
        &[BATCH],
        &[DAEMONS],
        &[DAEMONS, "PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=1.0"],
        &[DAEMONS, "PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.1.0"],
        &[OPEN_MPI, once_per_host],
        &[HYDRA, "MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1"],
    ];
    for outer in outer {
        let rank = found(&[outer, &[TORCHRUN]].concat());
        assert_eq!(summary(&rank), expected, "{outer:?}");
    }
    // As many agents as there are tasks: each task is an agent, however many there are on a host.
    assert_eq!(summary(&found(&[SRUN, TORCHRUN, "GROUP_WORLD_SIZE=3"])), expected);
    let error = refused(&[SRUN, TORCHRUN]);
    assert!(error.contains("RANK=5 of WORLD_SIZE=8 contradicts SLURM_PROCID=1"), "{error}");
    // A script's variables are no inner launcher.
    assert!(refused(&[DAEMONS, "RANK=5 WORLD_SIZE=8"]).contains("contradicts"));
}

#[test]
fn launchers_that_say_the_same_are_one() {
    // `srun --mpi=pmi2` and `--mpi=pmix`; a script that passes on what `srun` said.
    let expected = (Launcher::Slurm, 1, 3, Some(1), Some(3));
    for also in [
        "PMI_RANK=1 PMI_SIZE=3 PMI_JOBID=1.0 PMI_FD=13",
        "PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.1.0",
        "RANK=1 WORLD_SIZE=3 MASTER_ADDR=node0 MASTER_PORT=29500",
        "RANK=1",
        "WORLD_SIZE=3",
    ] {
        let rank = found(&[SRUN, also]);
        assert_eq!((summary(&rank), rank.job()), (expected, Some("slurm 1.0 ")), "{also}");
    }
    // The local rank of the script is the GPU that the script means.
    let rank = found(&[SRUN, "RANK=1 WORLD_SIZE=3 LOCAL_RANK=0"]);
    assert_eq!(rank.device().unwrap(), Device::Cuda(0));
    assert_eq!(found(&[OPEN_MPI, "PMI_RANK=1 PMI_SIZE=3"]).launcher(), Some(Launcher::OpenMpi));
    // Of these variables alone Slurm's plugin makes a rank as well.
    let rank = found(&["PMI_RANK=1 PMI_SIZE=3 PMI_JOBID=1.0"]);
    assert_eq!((summary(&rank), rank.job()), ((Launcher::Hydra, 1, 3, None, None), Some("pmi 1.0")));
}

#[test]
fn contradictions_name_both_variables_with_their_values() {
    let cases: [(&[&str], [&str; 4]); 6] = [
        (
            &["RANK=1 WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4"],
            ["RANK=1", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4"],
        ),
        (
            &["RANK=1 WORLD_SIZE=8", SRUN],
            ["RANK=1", "WORLD_SIZE=8", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=3"],
        ),
        (
            &[OPEN_MPI, HYDRA, "PMI_RANK=2"],
            ["PMI_RANK=2", "PMI_SIZE=3", "OMPI_COMM_WORLD_RANK=1", "contradicts"],
        ),
        (
            &[OPEN_MPI, "PMIX_RANK=2"],
            ["PMIX_RANK=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=3", "unset"],
        ),
        (
            &[SRUN, "PMI_RANK=0 PMI_SIZE=3"],
            ["PMI_RANK=0", "PMI_SIZE=3", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=3"],
        ),
        (&[SRUN, "WORLD_SIZE=12"], ["SLURM_STEP_NUM_TASKS=3", "contradicts", "WORLD_SIZE=12", "unset"]),
    ];
    for (environment, parts) in cases {
        let error = refused(environment);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_launcher_of_one_process_contradicts_nothing() {
    let one = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0 PMIX_NAMESPACE=7";
    assert_eq!(summary(&found(&[one])), (Launcher::OpenMpi, 0, 1, None, None));
    for (outer, inner) in [(one, TORCHRUN), (SRUN, one), (one, HYDRA), ("RANK=0 WORLD_SIZE=1", SRUN)] {
        assert!(found(&[outer, inner]).world_size() > 1, "{outer} {inner}");
    }
    let alone = "SLURM_STEP_ID=2 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0";
    assert_eq!(found(&[alone, "PMI_RANK=2 PMI_SIZE=3"]).rank(), 2);
    assert_eq!(found(&[alone, one]).world_size(), 1);
}

#[test]
fn pmix_alone_needs_a_world_size_from_elsewhere() {
    let pmix = "PMIX_RANK=1 PMIX_NAMESPACE=prterun-h-7@1";
    let error = refused(&[pmix]);
    assert_eq!(
        error,
        "PMIX_RANK=1 is set, but PMIx keeps the world size out of the environment; give the world size by hand"
    );
    let rank = find(&[pmix], Some(4)).unwrap().unwrap();
    assert_eq!(
        (summary(&rank), rank.job()),
        ((Launcher::Pmix, 1, 4, None, None), Some("pmix prterun-h-7@1"))
    );
    assert_eq!(found(&[pmix, "WORLD_SIZE=4"]), rank);
    assert!(
        find(&[pmix], Some(1)).unwrap_err().to_string().contains("PMIX_RANK=1 is not below world size=1")
    );
    // The size of its daemons' step is no size of its own, not even where the ranks are equal by chance.
    assert!(refused(&[DAEMONS, pmix]).contains("PMIX_RANK=1 is set"));
    // Hydra with `-pmi-port` is like that.
    assert!(
        refused(&["PMI_ID=1 PMI_PORT=h:1 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"]).contains("PMI_ID=1 is set")
    );
}

#[test]
fn a_world_size_by_hand_must_be_the_launchers() {
    assert_eq!(find(&[SRUN], Some(3)).unwrap().unwrap(), found(&[SRUN]));
    for size in [1, 2, 4] {
        let error = find(&[SRUN], Some(size)).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("a world size of {size} was given, which contradicts SLURM_STEP_NUM_TASKS=3")
        );
    }
    // One that started one process knows of no more.
    let alone = "SLURM_STEP_ID=2 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0";
    assert_eq!(find(&[alone], Some(4)).unwrap(), None);
    assert_eq!(find(&[alone], Some(1)).unwrap().unwrap().world_size(), 1);
    assert_eq!(find(&["RANK=3"], Some(4)).unwrap().unwrap().to_string(), "rank 3 of 4");
    assert!(find(&[], Some(0)).is_err());
}

#[test]
fn half_of_a_rank_is_an_error() {
    assert!(refused(&["RANK=1"]).starts_with("RANK=1 is set, but WORLD_SIZE is not set"));
    assert!(
        refused(&["OMPI_COMM_WORLD_RANK=1"]).starts_with("OMPI_COMM_WORLD_RANK=1 is set, but no variable")
    );
    let error = refused(&["WORLD_SIZE=4 MASTER_ADDR=node0"]);
    assert_eq!(error, "WORLD_SIZE=4 is set, but no variable says which rank this process is");
}

#[test]
fn ranks_that_cannot_be_are_errors_that_name_the_variable() {
    let cases = [
        ("RANK=4 WORLD_SIZE=4", "RANK=4 is not below WORLD_SIZE=4"),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0 cannot be"),
        ("RANK=-1 WORLD_SIZE=4", "RANK=\"-1\" is not a number"),
        ("RANK=1.0 WORLD_SIZE=4", "RANK=\"1.0\" is not a number"),
        ("RANK= WORLD_SIZE=4", "RANK=\"\" is not a number"),
        ("RANK=1 WORLD_SIZE=four", "WORLD_SIZE=\"four\" is not a number"),
        ("RANK=1 WORLD_SIZE=4294967296", "WORLD_SIZE=\"4294967296\" is not a number"),
        ("RANK=1 WORLD_SIZE=4 LOCAL_RANK=x", "LOCAL_RANK=\"x\" is not a number"),
        (
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
            "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2",
        ),
        ("RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=8", "LOCAL_WORLD_SIZE=8 is more than WORLD_SIZE=4"),
        (
            "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=x SLURM_PROCID=0",
            "SLURM_STEP_NUM_TASKS=\"x\" is not a number",
        ),
        ("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=2", "SLURM_PROCID=2 is not below"),
    ];
    for (environment, message) in cases {
        let error = refused(&[environment]);
        assert!(error.contains(message), "{environment}: {error}");
    }
}

#[test]
fn values_that_are_not_text_are_errors() {
    for bad in ["RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_STEP_ID", "PMIX_NAMESPACE"] {
        let lookup = |name: &str| match name {
            _ if name == bad => Some(OsString::from_vec(vec![b'1', 0xff])),
            "RANK" | "PMIX_RANK" | "MASTER_ADDR" => Some("0".into()),
            _ => None,
        };
        let error = detect(&lookup, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{bad}=1")) && error.ends_with("is not UTF-8"), "{error}");
    }
}

#[test]
fn the_tasks_of_a_node_are_found_in_slurms_list() {
    let list = "2(x3),1,4(x2)";
    let found: Vec<_> = (0..7).map(|node| tasks_of_node(list, node)).collect();
    assert_eq!(found, [Some(2), Some(2), Some(2), Some(1), Some(4), Some(4), None]);
    assert_eq!(tasks_of_node("1(x4294967295),7(x4294967295)", u32::MAX), Some(7));
    for list in ["", "x", "2(x", "2(x)", "2(xx)", "(x2)", "-1", "2(x3", ",", "2 (x3)"] {
        assert_eq!(tasks_of_node(list, 0), None, "{list}");
    }
    // What cannot be read is not known; the rank is.
    let rank = found_with_tasks("2(x");
    assert_eq!(summary(&rank), (Launcher::Slurm, 1, 3, Some(1), None));
}

fn found_with_tasks(list: &str) -> Rank {
    found(&[SRUN, &format!("SLURM_STEP_TASKS_PER_NODE={list}")])
}
