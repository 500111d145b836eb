//! The `retake` command. Everything is in the library; see `retake::cli`.

fn main() -> std::process::ExitCode {
    retake::cli::main()
}
