//! The tests of virtual keys, in one program: each program is linked by itself.

mod keys_files;
mod keys_leases;
mod keys_limits;
mod keys_owners;
mod keys_postgres;
mod keys_store;
