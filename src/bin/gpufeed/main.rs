//! The command line: one file per verb.

mod bench;
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
    /// Measures the backends side by side on your own data, cold and warm.
    ///
    /// Every backend goes through whole epochs, in turn, and for cold runs the disk is measured beside them by a plain read
    /// loop (and fio, where it is installed). Every run is a process of its own, so that memory and CPU time are its own.
    /// Before a cold run the files are taken out of the page cache; what of them is there just before the epoch begins is
    /// printed beside every figure. Figures that are not what they seem to be are marked, with the reason. Files are only
    /// read.
    Bench(Box<bench::Bench>),
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
        Verb::Bench(verb) => verb.run(),
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
