//! The command line: one file per verb.

mod generate;
mod inspect;
mod interrupt;
mod load;
mod loading;
mod options;
mod output;
mod ranked;
mod selftest;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Feeds training data from storage straight into memory, and says which way the bytes went.
///
/// Exit status: 0 done, 1 the work failed, 2 wrong arguments, 130 interrupted. Every verb takes --json: then
/// standard output carries exactly one JSON object, and everything for people goes to standard error.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs epochs of a dataset through the loader.
    Load(Box<load::Load>),
    /// Tells what a dataset is, without reading its payload.
    Inspect(inspect::Inspect),
    /// Checks that every device and backend of this machine delivers the same, right bytes.
    Selftest(selftest::Selftest),
    /// Writes a synthetic dataset (seeded) for trying things out.
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::listen();
    let outcome = match cli.verb {
        Verb::Load(verb) => verb.run(),
        Verb::Inspect(verb) => verb.run(),
        Verb::Selftest(verb) => verb.run(),
        Verb::Generate(verb) => verb.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::interrupted() => {
            eprintln!("interrupted");
            ExitCode::from(interrupt::STATUS)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            let wrong_arguments = error.is::<options::WrongArguments>()
                || error
                    .downcast_ref::<gpufeed::Error>()
                    .is_some_and(|error| error.kind() == gpufeed::ErrorKind::InvalidArgument);
            ExitCode::from(if wrong_arguments { 2 } else { 1 })
        }
    }
}
