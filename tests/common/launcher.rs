//! Launchers tell processes their rank by the environment; what a test starts must not hear of one that started the test.

use std::process::Command;

/// Variables by which launchers talk to the processes that they start.
const NAMES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];
const PREFIXES: [&str; 6] = ["TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_"];

/// Has the command know nothing of a launcher, under which the tests may be run.
pub(crate) fn without_launcher(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let known = name.to_str().is_some_and(|name| {
            NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        });
        if known {
            command.env_remove(name);
        }
    }
    command
}
