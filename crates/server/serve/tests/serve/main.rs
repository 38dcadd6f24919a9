//! The tests of the server, in one program: each program is linked by itself.

#[path = "../common/mod.rs"]
mod common;

mod anthropic;
mod connections;
mod description;
mod devices;
mod encoders;
mod gateway_admin;
mod gateway_cache;
mod gateway_callbacks;
mod gateway_changes;
mod gateway_images;
mod gateway_keys;
mod gateway_litellm;
mod gateway_long_answers;
mod gateway_long_bodies;
mod gateway_matrix;
mod gateway_observed;
mod gateway_passed;
mod gateway_reserve;
mod gateway_resume;
mod gateway_routes;
mod gateway_shared;
mod generic_tools;
mod hosts;
mod images;
mod limits;
mod llama;
mod models;
mod native_tools;
mod ollama;
mod openai;
mod operations;
mod page;
mod prefix;
mod reasoning_tags;
mod refusals;
mod roles;
