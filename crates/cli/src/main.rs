//! The command `octet`. All of it is in the library beside it, which compiles while the server still does: a program has to wait.

fn main() -> std::process::ExitCode {
    octet::main()
}
