//! The tests of the engine, in one program: each program is linked by itself.

mod cache;
mod common;
mod detokenizer;
mod disk;
mod disk_models;
mod experts;
mod generate;
mod golden;
mod invariance;
mod kv_types;
mod leftovers;
mod moe_golden;
mod refused;
mod report;
mod rope;
mod sampler;
mod samplers;
mod scheduler;
mod smollm2;
mod synthetic;
mod template_bounds;
mod template_golden;
mod template_variables;
mod tokenizer_chunks;
mod tokenizer_damage;
mod tokenizer_golden;
