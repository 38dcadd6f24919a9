//! The tests of the router's file, in one program: each program is linked by itself.

mod config_callbacks;
mod config_corpus;
mod config_errors;
mod config_files;
mod config_found;
mod config_full;
mod config_import;
mod config_keys;
mod config_litellm;
mod config_providers;
mod config_tree;
