//! Ranks as real launchers start them: `mpirun` of Open MPI and `mpiexec` of MPICH start this test program anew, and each
//! process writes down what it found out about itself. A launcher within a launcher is a process that starts further
//! ones as `torchrun` does.

mod common;
mod launchers_common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use gpufeed::{Launcher, Rank};
use launchers_common::{command, ended, installed, open_mpi};
use tempfile::TempDir;

/// The folder into which the started processes write.
const RANK: &str = "GPUFEED_TEST_RANK";
/// Set if they are to start this many ranks each, in place of being one.
const AGENT: &str = "GPUFEED_TEST_AGENT";

/// What a started process wrote: the rank that it is, or the error.
type Found = Result<Option<Seen>, String>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    rank: u32,
    world_size: u32,
    local: (Option<u32>, Option<u32>),
    launcher: &'static str,
    job: String,
}

/// Not a test: what the started processes run.
#[test]
fn a_rank() {
    let Some(folder) = std::env::var_os(RANK) else { return };
    if let Ok(count) = std::env::var(AGENT) {
        return torchrun(count.parse().unwrap());
    }
    let text = match Rank::detect() {
        Ok(None) => "none".to_string(),
        Err(error) => format!("error\n{error}"),
        Ok(Some(rank)) => {
            let number = |number: Option<u32>| number.map_or(String::new(), |number| number.to_string());
            format!(
                "{}\n{}\n{}\n{}\n{}\n{}",
                rank.rank(),
                rank.world_size(),
                number(rank.local_rank()),
                number(rank.local_world_size()),
                rank.launcher().unwrap(),
                rank.job().unwrap_or_default()
            )
        }
    };
    fs::write(Path::new(&folder).join(std::process::id().to_string()), text).unwrap();
}

/// Starts ranks as an agent of `torchrun` does: with the variables of its own launcher, and those of `torchrun`.
fn torchrun(count: u32) {
    let agent = Rank::detect().unwrap().unwrap();
    let ranks: Vec<_> = (0..count)
        .map(|local| {
            test_program()
                .env_remove(AGENT)
                .env("RANK", (agent.rank() * count + local).to_string())
                .env("WORLD_SIZE", (agent.world_size() * count).to_string())
                .env("LOCAL_RANK", local.to_string())
                .env("LOCAL_WORLD_SIZE", count.to_string())
                .env("GROUP_RANK", agent.rank().to_string())
                .env("GROUP_WORLD_SIZE", agent.world_size().to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", "29500")
                .env("TORCHELASTIC_RUN_ID", "none")
                .env("TORCHELASTIC_RESTART_COUNT", "0")
                .spawn()
                .unwrap()
        })
        .collect();
    ranks.into_iter().for_each(|mut rank| assert!(rank.wait().unwrap().success()));
}

fn test_program() -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "a_rank"]);
    program
}

/// Has `launcher` start the test program, and returns what its processes found, by rank.
fn launch(launcher: &[&str], variables: &[(&str, &str)]) -> Vec<Found> {
    let folder = TempDir::new().unwrap();
    let program = test_program();
    let mut child = command(launcher)
        .arg(program.get_program())
        .args(program.get_args())
        .env(RANK, folder.path())
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = ended(&mut child, launcher[0]);
    assert!(status.success(), "{launcher:?}: {status}");
    let files = fs::read_dir(folder.path()).unwrap();
    let mut found: Vec<Found> =
        files.map(|file| read(&fs::read_to_string(file.unwrap().path()).unwrap())).collect();
    found.sort();
    found
}

fn read(text: &str) -> Found {
    match text.split('\n').collect::<Vec<_>>()[..] {
        ["none"] => Ok(None),
        ["error", error] => Err(error.into()),
        [rank, world_size, local_rank, local_world_size, launcher, job] => {
            let known = [Launcher::Torchrun, Launcher::OpenMpi, Launcher::Hydra];
            Ok(Some(Seen {
                rank: rank.parse().unwrap(),
                world_size: world_size.parse().unwrap(),
                local: (local_rank.parse().ok(), local_world_size.parse().ok()),
                launcher: known.into_iter().find(|known| known.name() == launcher).unwrap().name(),
                job: job.into(),
            }))
        }
        _ => panic!("{text:?}"),
    }
}

/// What all ranks of one host find if all goes well.
fn ranks(count: u32, launcher: Launcher, job: &str) -> Vec<Found> {
    let rank = |rank| Seen {
        rank,
        world_size: count,
        local: (Some(rank), Some(count)),
        launcher: launcher.name(),
        job: job.into(),
    };
    (0..count).map(|number| Ok(Some(rank(number)))).collect()
}

fn job(found: &[Found]) -> String {
    found[0].as_ref().unwrap().as_ref().unwrap().job.clone()
}

#[test]
fn ranks_of_open_mpi_know_which_they_are_and_what_job_they_belong_to() {
    let Some(mpirun) = open_mpi() else { return };
    let four = [&mpirun[..], &["-n", "4"]].concat();
    let found = launch(&four, &[]);
    let first = job(&found);
    assert!(first.starts_with("openmpi ") && first.len() > "openmpi ".len(), "{first:?}");
    assert_eq!(found, ranks(4, Launcher::OpenMpi, &first));
    // The next job has another name.
    let found = launch(&four, &[]);
    assert_eq!(found, ranks(4, Launcher::OpenMpi, &job(&found)));
    assert_ne!(job(&found), first);
}

#[test]
fn ranks_of_mpich_know_which_they_are() {
    let Some(mpiexec) = installed(&["mpiexec.hydra", "mpiexec.mpich"], "HYDRA", "mpich") else { return };
    assert_eq!(launch(&[mpiexec, "-n", "3"], &[]), ranks(3, Launcher::Hydra, ""));
}

#[test]
fn ranks_of_torchrun_that_mpirun_has_started_are_those_of_torchrun() {
    let Some(mpirun) = open_mpi() else { return };
    let found = launch(&[&mpirun[..], &["-n", "2"]].concat(), &[(AGENT, "2")]);
    let seen: Vec<_> = found.iter().map(|found| found.as_ref().unwrap().as_ref().unwrap()).collect();
    assert_eq!(seen.iter().map(|seen| seen.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for seen in seen {
        assert_eq!((seen.world_size, seen.launcher), (4, "torchrun"));
        assert_eq!(seen.local, (Some(seen.rank % 2), Some(2)));
        assert_eq!(seen.job, "torchrun none 127.0.0.1:29500 0");
    }
}

#[test]
fn variables_that_contradict_mpirun_are_told() {
    let Some(mpirun) = open_mpi() else { return };
    // They say the same as rank 0 of this job does, and not what rank 1 does.
    let found = launch(&[&mpirun[..], &["-n", "2"]].concat(), &[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].as_ref().unwrap().as_ref().unwrap().rank, 0);
    let error = found[1].as_ref().unwrap_err();
    assert!(
        error.starts_with(
            "OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2 contradicts RANK=0 of WORLD_SIZE=2"
        ),
        "{error}"
    );
}
