//! Runs in processes of their own: memory and processor time of each are its own, and one that crashes ends alone.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use super::run::{Measured, RunFailure};
use super::stop::Stop;

/// How often a child is looked after.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Has another process do a run: it prints what [`Bench::measure`](super::Bench::measure) returned, as JSON, on its
/// standard output, and nothing else there. It is killed when the benchmark is asked to stop.
pub fn run_in_child(command: Command, stop: &Stop) -> Result<Measured, RunFailure> {
    let output = match output_of(command, stop) {
        Ok(output) => output,
        Err(_) if stop.asked() => return Err(RunFailure::Stopped),
        Err(why) => return Err(RunFailure::Setup(why)),
    };
    match serde_json::from_slice(&output.stdout) {
        Ok(answer) => answer,
        Err(_) if stop.asked() || output.status.code() == Some(130) => Err(RunFailure::Stopped),
        Err(_) => Err(RunFailure::Epoch(format!("its process ended: {}", last_words(&output)))),
    }
}

/// The output of a command that is killed when the benchmark is asked to stop.
///
/// # Errors
/// It cannot be started, or was killed, in words.
pub(super) fn output_of(mut command: Command, stop: &Stop) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, stop);
    let read = |thread: JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    // Whoever holds the other ends is gone, so both end.
    let (stdout, stderr) = (read(stdout), read(stderr));
    Ok(Output { status: status.map_err(|why| format!("{name}: {why}"))?, stdout, stderr })
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is all that there is.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &mut Child, stop: &Stop) -> Result<ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if !stop.asked() => std::thread::sleep(LOOK),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(other.err().map_or("it was stopped".into(), |error| error.to_string()));
            }
        }
    }
}

/// How it ended, and the last lines that it said.
pub(super) fn last_words(output: &Output) -> String {
    let text =
        String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match &lines[lines.len().saturating_sub(3)..] {
        [] => output.status.to_string(),
        last => format!("{}: {}", output.status, last.join(" | ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_that_crashes_is_a_failure_that_says_how() {
        let failure = run_in_child(shell("echo it went wrong >&2; kill -SEGV $$"), &Stop::new()).unwrap_err();
        let RunFailure::Epoch(error) = failure else { panic!("{failure:?}") };
        assert!(error.contains("signal: 11") && error.contains("it went wrong"), "{error}");
        let failure = run_in_child(Command::new("/nonexistent/program"), &Stop::new()).unwrap_err();
        assert!(matches!(failure, RunFailure::Setup(error) if error.contains("/nonexistent/program")));
    }

    #[test]
    fn a_child_is_ended_when_the_benchmark_is() {
        let stop = Stop::new();
        stop.stop();
        assert_eq!(run_in_child(shell("exec sleep 600"), &stop), Err(RunFailure::Stopped));
    }

    #[test]
    fn a_child_tells_its_own_failure() {
        let failure = Err::<Measured, _>(RunFailure::Setup("no ring".into()));
        let script = format!("echo '{}'", serde_json::to_string(&failure).unwrap());
        assert_eq!(run_in_child(shell(&script), &Stop::new()), failure);
    }
}
